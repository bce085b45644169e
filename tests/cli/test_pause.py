"""``shedlock pause`` and ``resume``, and the output of other commands for a paused lock."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider, LockProvider, LockRecord
from shedlock_py.cli.watch import Watch
from shedlock_py.testing import FakeClock
from tests.cli.harness import in_a_process, insert, job_of, provider_at, run, take
from tests.cli.terminal import Terminal, command
from tests.support.polling import wait_until

HOSTILE = "\x1b[2J[red]x[/red]\n\u202eevil"


def paused(store: str, for_: str = "1h", reason: str = "migration", by: str = "alice@web-1") -> LockRecord:
    provider: Any = provider_at(store)
    record: LockRecord = provider.pause("job", for_, reason, by=by)
    assert record.is_paused
    return record


# pause


def test_pause_holds_the_lock_and_says_by_whom_and_why(store: str) -> None:
    provider_at(store).release(take(store, "job"))
    done = run("pause", "job", "--for", "2h", "--why", "migration", store=store, LOGNAME="alice")
    assert (done.exit_code, done.stderr) == (0, "")
    record = job_of(store)
    assert record.is_paused
    assert record.pause is not None
    assert record.pause.by.startswith("alice@")
    assert record.pause.reason == "migration"
    assert timedelta(minutes=119) < record.remaining <= timedelta(hours=2)
    assert done.stdout.startswith("lock 'job' is paused until 20")
    assert done.stdout.endswith(f" by {record.pause.by}: migration\n")


def test_a_name_that_the_store_does_not_know_may_be_mistyped(store: str) -> None:
    """The lock is paused anyway, because its first run may be due."""
    take(store, "nightly-report")
    done = run("pause", "nightly-reprot", "--for", "1h", store=store)
    assert done.exit_code == 0
    assert done.stderr == (
        "shedlock: the store had no lock 'nightly-reprot' until now; did you mean 'nightly-report'?\n"
    )
    assert "is paused until" in done.stdout


def test_a_running_job_is_named_and_goes_on(store: str) -> None:
    lease = take(store, "job", "10m", holder="web-1:7")
    done = run("pause", "job", "--for", "2h", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("shedlock: lock 'job' is not paused: web-1:7 has it since 20")
    assert "for another 10m unless extended; --wait 10m waits for its end" in done.stderr
    assert done.stderr.count("\n") == 1
    assert provider_at(store).extend(lease, "1m") is lease


def test_a_wait_that_is_too_short(store: str) -> None:
    take(store, "job", "10m", holder="web-1:7")
    done = run("pause", "job", "--for", "2h", "--wait", "200ms", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    waiting, failed = done.stderr.splitlines()
    assert waiting.startswith("shedlock: waiting for lock 'job': web-1:7 has it since ")
    assert failed.startswith("shedlock: lock 'job' is not paused: web-1:7 has it since ")
    assert "--wait" not in failed


@pytest.mark.not_quick("waits for real seconds")
def test_it_waits_for_the_end_of_the_job(store: str) -> None:
    provider = provider_at(store)
    lease = take(store, "job", "10m", holder="web-1:7")
    timer = threading.Timer(0.3, provider.release, [lease])
    timer.start()
    done = run("pause", "job", "--for", "2h", "--wait", "1m", store=store)
    timer.join()
    assert done.exit_code == 0
    assert done.stderr.count("waiting for lock 'job': web-1:7 has it since ") == 1
    assert job_of(store).is_paused


def test_a_pause_is_replaced(store: str) -> None:
    paused(store, "10m")
    done = run("pause", "job", "--for", "3h", "--why", "longer", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert job_of(store).remaining > timedelta(hours=2)
    assert job_of(store).holder.endswith(": longer")
    assert " longer; it was paused until 20" in done.stdout
    assert done.stdout.endswith(" by alice@web-1: migration\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--for'"),
        (("--for", "2"), "'2' is not a duration"),
        (("--for", "0s"), "'0s' is not a duration"),
        (("--for", "1h", "--wait", "soon"), "'soon' is not a duration"),
        (("--for", "1h", "--why", "a\nb"), "--why: reason has a control character"),
    ],
)
def test_wrong_usage_of_pause(arguments: tuple[str, ...], message: str, store: str) -> None:
    done = run("pause", "job", *arguments, store=store)
    assert (done.exit_code, done.stdout) == (64, "")
    assert message in done.stderr
    assert provider_at(store).record("job") is None
    assert run("pause", "x" * 65, "--for", "1h", store=store).exit_code == 64


def test_locks_in_memory_are_not_paused() -> None:
    done = run("pause", "job", "--for", "1h", store="memory://")
    assert (done.exit_code, done.stdout) == (78, "")
    assert "locks in memory are private to this process, so they lock nothing here" in done.stderr


class WithoutPause:
    """A provider that was not made with the kit."""

    def __init__(self) -> None:
        inner = InMemoryLockProvider()
        for name in (name for name in dir(LockProvider) if not name.startswith("_")):
            setattr(self, name, getattr(inner, name))
        inner.pause("job", "1h", by="alice")

    def __repr__(self) -> str:
        return "<their provider>"


@pytest.mark.parametrize("arguments", [("pause", "job", "--for", "1h"), ("resume", "job")])
def test_a_provider_that_cannot_pause(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, store=f"{__name__}:WithoutPause")
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr == "shedlock: <their provider> cannot pause a lock: it has no pause()\n"


# resume


def test_resume_ends_a_pause_and_fails_where_there_is_none(store: str) -> None:
    paused(store)
    done = run("resume", "job", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("lock 'job' is resumed; it was paused until 20")
    assert done.stdout.endswith(" by alice@web-1: migration\n")
    assert not job_of(store).is_held
    done = run("resume", "job", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "shedlock: lock 'job' is not paused; it is free\n"


def test_resume_leaves_a_running_job_alone(store: str) -> None:
    lease = take(store, "job", holder="web-1:7")
    done = run("resume", "job", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "shedlock: lock 'job' is not paused; it is held by web-1:7\n"
    assert provider_at(store).extend(lease, "1m") is lease


def test_resume_of_an_unknown_lock(store: str) -> None:
    paused(store)
    done = run("resume", "jobb", store=store)
    assert done.exit_code == 1
    assert done.stderr == "shedlock: the store has no lock 'jobb'; did you mean 'job'?\n"


# release


@pytest.mark.parametrize("arguments", [(), ("--force",), ("--forget-fire-time",), ("--force", "--forget-fire-time")])
def test_release_does_not_free_a_paused_lock_and_names_the_way(arguments: tuple[str, ...], store: str) -> None:
    paused(store)
    done = run("release", "job", *arguments, store=store)
    assert (done.exit_code, done.stdout) == (64, "")
    assert done.stderr.startswith("shedlock: lock 'job' is paused until 20")
    assert done.stderr.endswith(" by alice@web-1: migration; end it with: shedlock resume job\n")
    assert job_of(store).is_paused


# Output of other commands


def test_list_and_show(store: str) -> None:
    take(store, "held", holder="web-1:7")
    paused(store)
    done = run("list", store=store)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["STATE", "held", "paused"]
    assert done.stdout.endswith("(paused by alice@web-1: migration)\n")
    lines = dict(line.split("  ", 1) for line in run("show", "job", store=store).stdout.splitlines())
    shown = {key: value.strip() for key, value in lines.items()}
    assert shown["state"].startswith("paused, for another ")
    assert (shown["paused by"], shown["reason"]) == ("alice@web-1", "migration")
    assert "until" in shown
    assert "paused by" not in run("show", "held", store=store).stdout


def test_json_says_whether_a_lock_is_paused_by_whom_and_why(store: str) -> None:
    record = paused(store)
    for found in (json.loads(run("list", "--json", store=store).stdout)[0],
                  json.loads(run("show", "job", "--json", store=store).stdout)):  # fmt: skip
        assert (found["held"], found["demoted"], found["paused"]) == (True, False, True)
        assert (found["paused_by"], found["pause_reason"]) == ("alice@web-1", "migration")
        assert found["holder"] == "paused by alice@web-1: migration"
        assert found["lock_until"].startswith(record.lock_until.isoformat()[:19])
    run("resume", "job", store=store)
    (found,) = json.loads(run("list", "--json", store=store).stdout)
    assert (found["held"], found["paused"], found["paused_by"], found["pause_reason"]) == (False, False, None, None)


def test_a_free_lock_that_was_paused(store: str) -> None:
    paused(store)
    run("resume", "job", store=store)
    assert run("list", store=store).stdout.splitlines()[1].split()[1] == "free"
    assert "state" in run("show", "job", store=store).stdout
    done = run("release", "job", "--force", store=store)
    assert done.stderr == "shedlock: lock 'job' is not held; (paused by alice@web-1: migration) had it last\n"


def test_a_hostile_pause_controls_no_terminal(store: str) -> None:
    """Another program may have written any text to the store."""
    insert(store, "job", f"paused by {HOSTILE}: {HOSTILE}", ago=timedelta(0), hold=timedelta(hours=1))
    shown = [run(*words, store=store) for words in (("list",), ("show", "job"), ("release", "job"), ("leader", "job"))]
    shown += [run("pause", "job", "--for", "1ms", "--wait", "0s", store=store), run("resume", "job", store=store)]
    assert all(line.isprintable() for done in shown for line in done.output.split("\n"))
    assert "\\x1b[2J[red]x[/red]" in shown[0].stdout


def test_nobody_leads_a_paused_election(store: str) -> None:
    paused(store)
    done = run("leader", "job", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("shedlock: nobody leads in 'job': it is paused until 20")
    assert done.stderr.endswith(" by alice@web-1: migration\n")
    assert json.loads(run("leader", "job", "--json", store=store).stdout)["leader"] is None
    assert run("demote", "job", store=store).exit_code == 1
    run("resume", "job", store=store)
    assert run("leader", "job", store=store).stderr.startswith(
        "shedlock: nobody leads in 'job': it was paused until 20"
    )


@in_a_process
def test_run_says_that_it_is_paused(store: str) -> None:
    paused(store)
    words = command("run", "job", "--at-most", "1m", "-v", "--skip-exit-code", "9", "--", "true")
    with Terminal(words, SHEDLOCK_STORE=store) as terminal:
        assert terminal.end() == 9
    assert "'job' is skipped: paused by alice@web-1: migration, for another" in terminal.text.replace("\n", " ")


def test_watch_shows_each_pause_and_how_it_ends() -> None:
    clock = FakeClock()
    provider = InMemoryLockProvider(clock=clock)
    watch = Watch()

    def changes() -> list[tuple[str, str]]:
        return [(kind, record.name) for kind, record in watch.update(provider.records())]

    first = provider.pause("job", "1m", by="alice")
    assert changes() == [("paused", "job")]  # at the start of the watch
    clock.advance("10s")
    provider.pause("job", "1m", "again", by="alice", expected=first)
    assert changes() == [("paused", "job")]
    provider.resume("job")
    assert changes() == [("released", "job")]
    provider.pause("job", "1m", by="alice")
    assert changes() == [("paused", "job")]
    clock.advance("1m")
    assert changes() == [("expired", "job")]


@in_a_process
def test_a_terminal_shows_it_in_colour(store: str, tmp_path: Path) -> None:
    paused(store)
    with Terminal(command("list"), columns=120, SHEDLOCK_STORE=store) as terminal:
        assert terminal.end() == 0
    assert "\x1b[33mpaused" in terminal.raw


@pytest.mark.not_quick("waits for real seconds")
def test_a_pause_survives_the_end_of_its_process_and_ends_by_itself(store: str) -> None:
    assert run("pause", "job", "--for", "1s", store=store).exit_code == 0
    assert job_of(store).is_paused
    wait_until(lambda: not job_of(store).is_held, what="the end of the pause")
    take(store, "job")
