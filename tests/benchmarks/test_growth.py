"""Growth is measured among as many records as it says, for each that is compared."""

import random
from collections.abc import Iterator

import pytest
from pymongo import MongoClient
from redis import Redis
from sqlalchemy import create_engine, text

from benchmarks import growth
from benchmarks.contenders import US
from benchmarks.growth import FEW, RIVALS
from benchmarks.plan import Plan
from benchmarks.servers import STORES, RunningStore, Site

pytestmark = pytest.mark.filterwarnings("ignore")  # of drivers, about tables that are there already
RECORDS = 100
DRIVERS = {"postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql", "sqlite": "sqlite"}


@pytest.mark.parametrize("running_store", STORES, indirect=True)
def test_each_has_so_many_records_beside_those_that_it_uses(running_store: RunningStore) -> None:
    plan, name = Plan.smoke(), running_store.site.store
    found = growth.by_records(running_store, plan, random.Random(1))
    missing = {one.name for one in plan.absent}  # they are installed by `make bench`
    assert all(one.name == RIVALS[name] and "ModuleNotFoundError" in one.reason for one in plan.absent)
    assert list(found) == ["10", str(RECORDS)]
    for size in found:
        assert set(found[size]) == {"floor", US} | {one for one in [RIVALS.get(name)] if one} - missing
        assert found[size]["floor"]["floor_ratio"] == {"middle": 1, "low": 1, "high": 1}
    place = "9" if name == "redis" else f"records_{RECORDS}"
    for whose, count in _counts(running_store.site.within(place), missing):
        assert RECORDS - FEW <= count <= RECORDS + FEW, whose  # the others delete what they give back


def _counts(site: Site, missing: set[str]) -> Iterator[tuple[str, int]]:
    if site.store == "redis":
        with Redis.from_url(site.url()) as client:
            yield "all", len(client.keys("shedlock:*"))
        return
    if site.store == "mongodb":
        with MongoClient[dict[str, object]](site.url()) as documents:
            for whose, (collection, _) in growth._DOCUMENTS.items():
                yield whose, documents[site.database][collection].count_documents({})
        return
    engine = create_engine(site.url(DRIVERS[site.store]))
    with engine.connect() as connection:
        for whose in {"floor", US, RIVALS[site.store]} - missing:
            table = growth._TABLES[whose][0]
            yield whose, connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()


@pytest.mark.parametrize("running_store", ["sqlite"], indirect=True)
def test_who_cannot_be_opened_is_missing_and_the_rest_is_measured(
    running_store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(growth._TABLES, "mithril-locks", ("no_such_table", "a", "n"))
    plan = Plan.smoke()
    found = growth.by_names(running_store, plan, random.Random(1))
    assert {one.name for one in plan.absent} == {"mithril-locks"}
    assert [set(entries) for entries in found.values()] == [{"floor", US}, {"floor", US}]


@pytest.mark.parametrize("running_store", ["sqlite"], indirect=True)
def test_who_fails_in_the_middle_is_out_at_all_sizes(
    running_store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquires(entry: growth._Entry, times: int) -> list[int]:
        if entry.contender.name == US and entry.size == 7 and entry.rounds:
            raise OSError("the disk is full")
        return timed(entry, times)

    timed = growth._acquires
    monkeypatch.setattr(growth, "_acquires", acquires)
    plan = Plan.smoke()
    plan.rounds, plan.names = 4, (2, 7)  # in other files than before
    found = growth.by_names(running_store, plan, random.Random(1))
    assert (US, "OSError: the disk is full") in [(one.name, one.reason) for one in plan.absent]
    assert all("floor" in entries and US not in entries for entries in found.values())
    assert len(found) == 2
