"""The content of each view."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LockRequest,
    ProviderError,
    run_once,
)
from shedlock_py.model.run import Run
from shedlock_py.page import page_app, views
from shedlock_py.provider import LockProvider
from tests.page.client import Client
from tests.page.sample import ELECTION, HOSTILE, HOSTILE_ERROR, HOSTILE_HOLDER, Sample

HOSTILE_NAME = "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;"


def names_in(html: str) -> list[str]:
    return re.findall(r'<td role="cell" class="name"><a href="[^"]*">([^<]*)</a>', html)


def text_of(html: str, kind: str) -> str:
    (found,) = re.findall(rf'<p class="{kind}">(.*?)</p>', html, re.S)
    return " ".join(re.sub("<[^>]*>", "", found).split())


def row(html: str, name: str) -> str:
    (found,) = re.findall(
        rf'<tr role="row" class="\w+">\n<td role="cell" class="name"><a [^>]*>{name}</a>.*?</tr>', html, re.S
    )
    cells = re.findall(r"<td[^>]*>(.*?)</td>", found, re.S)
    return " | ".join(re.sub(r"<[^>]*>", "", cell) for cell in cells)


def test_the_list_shows_the_state_of_each_job(client: Client) -> None:
    html = client.html("/")
    assert text_of(html, "counts") == "7 locks · 1 held · 1 paused · 1 overdue · 1 failed · 1 election"
    assert '<a href="?show=failed" class="bad">1 failed</a>' in html
    assert names_in(html)[:2] == ["fetch-rates", HOSTILE_NAME], "trouble comes first"
    assert row(html, "import") == "import | held | web-3:7002 | 3.0s ago | in 29m 57s | running | 3.0s | - | -"
    assert row(html, "clean-up") == "clean-up | free | web-1:7000 | 5.0s ago | - | ok | 2.0s | 2.0s | -"
    assert row(html, "send-mails").startswith(
        "send-mails | paused | (paused by alice@ops: migration of the orders table) | - | in 2h 59m | - | -"
    )
    assert re.search(r"fetch-rates \| free .* \| ok \| 4.0s \| 4.0s \| overdue 10h \d+m late", row(html, "fetch-rates"))


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("?q=ORD", ["send-mails", "sync-orders"]),
        ("?q=web-3:7002", ["fetch-rates", "import", "nightly-report"]),
        ("?show=held", ["import"]),
        ("?show=paused", ["send-mails"]),
        ("?show=overdue", ["fetch-rates"]),
        ("?show=failed", [HOSTILE_NAME]),
        ("?show=trouble", ["fetch-rates", HOSTILE_NAME]),
        ("?q=nosuch", []),
        ("?q=&show=nosuch&sort=nosuch&page=-1", None),
        ("?page=999999", None),
    ],
)
def test_a_search_finds_jobs_by_name_holder_and_state(client: Client, address: str, names: list[str] | None) -> None:
    found = names_in(client.html(f"/{address}"))
    assert len(found) == 7 if names is None else found == names


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("name", HOSTILE_NAME),
        ("-name", "sync-orders"),
        ("state", "send-mails"),
        ("-took", "nightly-report"),
        ("usual", "clean-up"),
        ("next", "fetch-rates"),
        ("outcome", HOSTILE_NAME),
        ("-until", "send-mails"),
    ],
)
def test_the_list_is_sorted_as_asked(client: Client, sort: str, first: str) -> None:
    html = client.html(f"/?sort={sort}")
    assert names_in(html)[0] == first
    assert f'aria-sort="{"descending" if sort.startswith("-") else "ascending"}"' in html


def test_the_keys_of_run_once_are_done(sample: Sample) -> None:
    assert run_once("migrate-v42", lambda: None, provider=sample.provider)
    client = Client(page_app(sample.provider))
    assert names_in(client.html("/?show=done")) == ["migrate-v42"]
    assert "migrate-v42" not in names_in(client.html("/?show=free"))


def test_i14_a_job_that_hangs_is_marked_and_listed_with_the_trouble(sample: Sample) -> None:
    for _ in range(3):
        sample.ran("hung", seconds=60)
        sample.clock.advance("1h")
    lease = sample.provider.acquire(LockRequest("hung", "5h", holder="web-1:7000"))
    assert lease is not None
    sample.clock.advance("14m")
    client = Client(page_app(sample.provider))
    html = client.html("/?show=stuck")
    assert names_in(html) == ["hung"]
    assert '<a href="?show=stuck" class="bad">1 stuck</a>' in html
    assert '<span class="chip stuck">stuck</span> 11m late' in html
    assert '<span class="chip stuck">stuck</span> 11m late' in client.html("/job?name=hung")
    by_next = names_in(client.html("/?sort=next"))
    assert by_next.index("fetch-rates") < by_next.index("hung") < by_next.index("import")
    assert sample.provider.release(lease)
    assert names_in(client.html("/?show=stuck")) == []


@pytest.fixture
def many() -> InMemoryLockProvider:
    """450 jobs. The last run of job-449 has failed."""
    sample = Sample()
    for number in range(450):
        sample.ran(f"job-{number:03}", outcome="failed" if number == 449 else "ok")
    return sample.provider


def test_of_many_jobs_those_in_trouble_come_first(many: InMemoryLockProvider) -> None:
    html = Client(page_app(many)).html("/")
    assert names_in(html)[:2] == ["job-449", "job-000"]
    assert '<a href="?show=failed" class="bad">1 failed</a>' in html
    assert "find trouble" not in html


def test_pages_of_more_jobs_than_have_their_runs_read(
    many: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_WITH_RUNS", 449)
    client = Client(page_app(many))
    html = client.html("/")
    assert (len(names_in(html)), names_in(html)[-1]) == (200, "job-199")
    assert "1 to 200 of 450" in html
    assert 'href="?page=2" rel="next"' in html
    assert '<a href="?show=trouble">find trouble</a>' in html  # for all jobs, only on request
    assert '<a href="?q=job-&amp;show=trouble">find trouble</a>' in client.html("/?q=job-")
    html = client.html("/?page=3&q=job")
    assert (len(names_in(html)), names_in(html)[0]) == (50, "job-400")
    assert 'href="?q=job&amp;page=2" rel="prev"' in html
    assert names_in(client.html("/?sort=-name"))[0] == "job-449"


def test_the_page_of_a_job_shows_its_runs_and_how_they_ended(client: Client) -> None:
    html = client.html("/job?name=sync-orders")
    html = client.html("/job?name=sync-orders&window=day")
    assert "Last 24 hours: 4 ok, 1 cancelled, 1 lost; the table below lists them" in html
    html = client.html("/job?name=sync-orders&window=week")
    assert re.search(r'aria-label="Last 7 days: \d+ ok, 4 failed, 1 cancelled, 1 lost, 1 vanished; the', html)
    assert html.count('<text class="holder"') == 3
    assert html.count(">42s</td>") == 30
    assert 'class="text error">ConnectionError: no route to host</td>' in html
    assert "failed: web-2:7001\nstarted " in html
    assert 'href="/change/pause?name=sync-orders">Pause…</a>' in html


def test_a_job_that_does_not_exist(client: Client) -> None:
    assert "The store has no lock &#39;nosuch&#39;" in client.html("/job?name=nosuch", 404)
    client.html("/job?name=", 400)
    client.html(f"/job?name={'x' * 100}", 400)
    assert client.get("/nosuch").status_code == 404


def test_the_leaders_page_says_who_leads_or_that_nobody_does(client: Client, sample: Sample) -> None:
    html = client.html("/leaders")
    assert "<dd>web-2</dd>" in html
    assert "Demote…" in html
    assert "Free by force" not in html
    sample.clock.advance("1h")
    assert "Nobody leads: web-2 led until" in client.html("/leaders")
    alone = Client(page_app(sample.provider))
    assert "No election is known" in alone.html("/leaders")
    alone = Client(page_app(sample.provider, elections=["another"]))
    assert "Nobody leads: nobody ever led." in alone.html("/leaders")


def test_the_store_page_writes_nothing_until_a_lock_is_tried(client: Client, sample: Sample) -> None:
    before = sample.provider.records()
    html = client.html("/store")
    assert "it replies: 8 lock records" in html
    assert "locks in memory guard nothing between processes" in html
    assert sample.provider.records() == before
    (csrf,) = re.findall('name="csrf" value="([^"]*)"', html)
    tried = client.request("POST", "/store", data={"csrf": csrf})
    assert tried.status_code == 200
    assert "a second holder is refused" in tried.text
    assert sample.provider.record("shedlock-doctor") is not None
    sample.clock.advance("1d")
    assert "overdue" not in row(client.html("/"), "shedlock-doctor")  # however short its usual gap


def test_hostile_names_holders_and_errors_are_text(client: Client) -> None:
    for path in ("/", "/job?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22'%26", "/?q=<script>alert(1)</script>"):
        html = client.html(path)
        for hostile in (HOSTILE, HOSTILE_HOLDER, HOSTILE_ERROR):
            assert hostile not in html
        assert not re.search(r"<script(?! src=\"/static/page\.js)", html)
        assert not re.search(r"<(img|b) ", html)
        assert "\u202e" not in html
    assert "&lt;/title&gt;&lt;b onmouseover=alert(3)&gt;ValueError&lt;/b&gt;: \\u202e" in client.html(
        "/job?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22'%26"
    )


class WithoutHistory(InMemoryLockProvider):
    """A foreign provider that implements only the protocol."""

    runs = recent_runs = pause = resume = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [InMemoryLockProvider, WithoutHistory])
def test_a_provider_without_history(sample: Sample, kind: type[InMemoryLockProvider]) -> None:
    provider = kind(shared_with=sample.provider)
    client = Client(page_app(provider, allow_changes=True, elections=[ELECTION]))
    html = client.html("/")
    assert "This provider keeps no run history" in html
    assert "Last run" not in html
    assert len(names_in(html)) == 7
    assert "This provider keeps no run history" in client.html("/job?name=import")
    assert ("Pause…" in client.html("/job?name=clean-up")) is (kind is InMemoryLockProvider)
    assert "web-2" in client.html("/leaders")
    assert "keeps no run history" in client.html("/store")
    assert len(names_in(client.html("/?sort=took&show=overdue"))) == 0


class OfAStoreWithoutHistory(InMemoryLockProvider):
    """Like etcd, S3, DynamoDB and Kubernetes."""

    def recent_runs(self, names: Iterable[str], limit: int = 20) -> dict[str, list[Run]]:
        raise ConfigurationError("this store keeps no run history")

    def runs(self, name: str, limit: int = 20) -> list[Run]:
        raise ConfigurationError("this store keeps no run history")


def test_nobody_is_told_to_open_a_store_with_history_that_keeps_none(sample: Sample) -> None:
    client = Client(page_app(OfAStoreWithoutHistory(shared_with=sample.provider)))
    for path in ("/", "/job?name=import"):
        html = client.html(path)
        assert "This store keeps no run history. The page shows the present, but no past runs." in html
        assert "history=50" not in html
    client = Client(page_app(InMemoryLockProvider(shared_with=sample.provider)))
    assert "This provider keeps no run history: open it with history=50" in client.html("/")


def test_an_async_provider(sample: Sample) -> None:
    provider = AsyncInMemoryLockProvider(shared_with=sample.provider, history=50)
    client = Client(page_app(provider, allow_changes=True))
    assert len(names_in(client.html("/"))) == 8
    assert "web-3:7002" in client.html("/job?name=import")
    assert "it replies: 8 lock records" in client.html("/store")
    assert client.change("pause", "clean-up").status_code == 303
    record = sample.provider.record("clean-up")
    assert record is not None
    assert record.is_paused


def test_a_store_that_fails(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ProviderError("record of lock 'x': <b>no</b> reply", operation="record")

    for method in ("record", "records"):
        monkeypatch.setattr(sample.provider, method, fail)
    client = Client(page_app(sample.provider, allow_changes=True))
    for path in ("/", "/job?name=x", "/leaders", "/change/resume?name=x"):
        html = client.html(path, 503)
        assert "record of lock &#39;x&#39;: &lt;b&gt;no&lt;/b&gt; reply" in html
        assert "The store replies with an error" in html  # unlike "does not reply"
        assert 'id="live"' in html or path.startswith("/change")  # it recovers by itself
    assert "✗ failed" in client.html("/store")


def test_odd_names_of_other_programs(sample: Sample) -> None:
    class Odd(InMemoryLockProvider):
        def records(self, prefix: str = "") -> Any:
            (record,) = super().records("clean-up")
            return [record, *(type(record)(**{**vars(record), "name": name}) for name in ("", "a\nb", "x" * 100))]

    client = Client(page_app(Odd(shared_with=sample.provider, history=50)))
    assert names_in(client.html("/")) == ["&#34;&#34;", "a\\nb", "clean-up", "x" * 100]


def test_the_counts_are_those_of_the_search(client: Client) -> None:
    assert text_of(client.html("/?q=ORD"), "counts") == "2 of 7 locks · 0 held · 1 paused · 1 election"


def test_any_provider_of_the_protocol() -> None:
    assert isinstance(WithoutHistory(), LockProvider)


@pytest.mark.parametrize(
    "arguments",
    [
        {"token": "short"},
        {"elections": [""]},
        {"elections": ["x" * 100]},
        {"elections": "boss"},
        {"hosts": "localhost"},
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        page_app(InMemoryLockProvider(), **arguments)
