"""Each numbered example, run as its docstring describes, with the claimed output."""

from pathlib import Path

import pytest

from tests.support.scripts import PROJECT, run_example

EXAMPLES = sorted(path.name for path in (PROJECT / "examples").glob("[0-9]*.py"))


def test_01_decorator() -> None:
    lines = run_example("01_decorator.py")
    first, rest = lines[:3], lines[3:]
    assert len([line for line in first if "ran, 42 pages (fencing token " in line]) == 1
    assert len([line for line in first if line.endswith("skipped, nightly-report is held")]) == 2
    assert rest[0] == "afterwards: 42 pages"
    assert sorted(rest[1:]) == ["sent for acme", "sent for globex"]


def test_02_async() -> None:
    feeds, *vacuum = run_example("02_async.py")
    assert sorted(feeds.removeprefix("sync_feeds: [").rstrip("]").split(", ")) == ["'12 feeds'", "None"]
    assert sorted(line.partition(": ")[2] for line in vacuum) == ["vacuum is held elsewhere", "vacuuming"]


def test_03_apscheduler() -> None:
    lines = run_example("03_apscheduler.py")
    outcomes = sorted(line.partition(": ")[2] for line in lines)
    assert outcomes == [
        "ran clean-up",
        "ran newsletter",
        "skipped clean-up, lock clean-up is held",
        "skipped newsletter, lock newsletter is held",
    ]


def test_04_fire_time() -> None:
    assert run_example("04_fire_time.py") == [
        "by default:",
        "  replica 1: ran",
        "  replica 2: skipped (already_ran)",
        "a plain lock:",
        "  replica 1: ran",
        "  replica 2: ran",
    ]


def test_05_three_modes() -> None:
    lines = run_example("05_three_modes.py")
    assert lines[:2] == ["1. import: imported and again: imported", "   import is free"]
    assert lines[2] == "2. daily-mail: sent and again: skipped (held)"
    held_for = int(lines[3].removeprefix("   daily-mail is held for ").removesuffix(" s more"))
    assert 23 * 3600 - 60 <= held_for <= 23 * 3600
    assert lines[4:6] == ["3. reindex: reindexed", "   reindex is free"]
    assert lines[6].startswith("   held as a block, fencing token ")


def test_06_long_job() -> None:
    lines = run_example("06_long_job.py")
    assert lines[0] == "1. three leases long: done, 30 steps"
    assert lines[1].startswith(
        "   WARNING: lock 'reindex' was lost: while the task ran it was freed or taken over by force"
    )
    assert lines[2] == "   lost (revoked): telling the job to stop"
    steps = int(lines[3].removeprefix("2. taken over: stopped at step ").removesuffix(" of 100"))
    assert 5 < steps < 95
    assert lines[4:] == ["3. now the lock is the operator's"]


def test_07_fenced_write() -> None:
    lines = [line for line in run_example("07_fenced_write.py") if "WARNING" not in line]
    assert lines == [
        "replica-1 has the lock",
        "replica-1 is stopped; its lease lasts 1 s",
        "replica-2 has the lock",
        "replica-2: lease trusted: True, write taken",
        "replica-1 goes on, as if nothing had happened",
        "replica-1: lease trusted: False, write REFUSED",
        "the report is by replica-2",
    ]


def test_08_leader_only_feed() -> None:
    first, *lines = run_example("08_leader_only_feed.py")
    term = int(first.removeprefix("node-1: connected, term "))
    assert lines[0] == "node-1: disconnected"
    assert int(lines[1].removeprefix("node-2: connected, term ")) > term
    assert lines[2:] == ["node-2: disconnected", "consumers at once, at most: 1"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_run_and_documented(name: str) -> None:
    assert f"test_{Path(name).stem}" in globals()
    assert f"python examples/{name}" in (PROJECT / "examples" / name).read_text()
    assert f"]({name})" in (PROJECT / "examples" / "README.md").read_text()
