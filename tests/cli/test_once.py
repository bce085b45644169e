"""``shedlock once`` runs a command once per key; operators can see keys and free them."""

from __future__ import annotations

import json
import signal
from datetime import timedelta

import pytest

from shedlock_py import LockRequest, run_once
from shedlock_py.cli.common import LOST, NO, NOT_DONE, USAGE
from shedlock_py.model.record import ONCE
from tests.cli.harness import in_a_process, job_of, provider_at, run, take
from tests.cli.runs import Runs
from tests.support.polling import wait_until


def finish(store: str, key: str = "job") -> None:
    assert run_once(key, lambda: None, provider=provider_at(store))


def begin(store: str, key: str = "job", at_most: str = "10m") -> None:
    assert provider_at(store).acquire(LockRequest(key, at_most, holder="web-1", fire_time=ONCE))


# The command


@in_a_process
def test_it_runs_once_and_its_exit_code_is_passed_on(runs: Runs) -> None:
    assert runs.run("job", verb="once", python="print('fails'); raise SystemExit(3)") == (3, "fails\n", "")
    assert runs.run("job", verb="once", python="print('ran')") == (0, "ran\n", "")
    assert runs.run("job", verb="once", python="print('again')") == (0, "", "")


@in_a_process
def test_it_waits_for_another_host(runs: Runs) -> None:
    first = runs.start_ready("job", verb="once", python="print('ready', flush=True); input()", stdin=-1)
    second = runs.start("job", "--wait", "1m", verb="once", python="print('never')")
    code, _, err = runs.run("job", "--wait", "0s", verb="once", python="print('never')")
    assert (code, "runs it" in err) == (NOT_DONE, True)
    assert second.poll() is None
    first.communicate("\n", timeout=30)
    assert runs.end(second) == (0, "", "")


@in_a_process
@pytest.mark.parametrize("command", ["run", "once"])
def test_a_signal_ends_the_wait_for_another_host(runs: Runs, command: str) -> None:
    if command == "once":
        begin(runs.store)
        waiting = runs.start("job", verb="once", python="print('never')")
    else:
        options = ("--at-most", "1m", "--once-per", "3000d", "--keep-alive", "--recover")
        first = runs.start_ready("job", *options, python="print('ready', flush=True); input()", stdin=-1)
        waiting = runs.start("job", *options, python="print('never')")
        assert first.poll() is None
    signals_are_blocked = f"/proc/{waiting.pid}/status"
    wait_until(lambda: _blocks(signals_are_blocked, signal.SIGTERM), what="the run listens to signals")
    waiting.send_signal(signal.SIGTERM)
    assert runs.end(waiting)[:2] == (128 + signal.SIGTERM, "")


def _blocks(status: str, number: signal.Signals) -> bool:
    with open(status) as file:
        (mask,) = [line.split()[1] for line in file if line.startswith("SigBlk:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


@in_a_process
def test_a_command_that_loses_its_lease_is_ended(runs: Runs) -> None:
    python = "import signal; print('ready', flush=True); signal.pause()"
    process = runs.start_ready("job", "--at-most", "2s", verb="once", python=python)
    assert provider_at(runs.store).force_release("job")
    code, _, err = runs.end(process)
    assert (code, "freed or taken over by force" in err) == (LOST, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("job",), "no command"),
        (("job", "--forget", "--", "true"), "--forget runs no command"),
        (("job", "--at-most", "1ms", "--", "true"), "too short"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str, store: str) -> None:
    done = run("once", *arguments, store=store)
    assert (done.exit_code, message in done.stderr) == (USAGE, True)


# Operators


def test_a_finished_key_is_shown_as_done(store: str) -> None:
    finish(store)
    assert " done " in run("list", store=store).stdout
    shown = run("show", "job", store=store).stdout
    assert "done" in shown
    assert "1970-" not in shown
    assert json.loads(run("list", "--json", store=store).stdout)[0]["done"] is True


def test_no_fire_time_of_1970_is_shown_for_a_key_that_failed(store: str) -> None:
    with pytest.raises(ZeroDivisionError):
        run_once("job", lambda: 1 / 0, provider=provider_at(store))
    assert job_of(store).last_fire_time != ONCE, "it is given back"
    assert "1970-" not in run("show", "job", store=store).stdout + run("list", store=store).stdout


def test_a_forgotten_key_runs_again(store: str) -> None:
    finish(store)
    done = run("once", "--forget", "job", store=store)
    assert (done.exit_code, "can run again" in done.stdout) == (0, True)
    finish(store)


def test_what_there_is_not_to_forget(store: str) -> None:
    begin(store)
    assert run("once", "--forget", "job", store=store).exit_code == USAGE
    take(store, "other")
    assert run("once", "--forget", "other", store=store).exit_code == NO
    assert run("once", "--forget", "unknown", store=store).exit_code == NO


def test_prune_keeps_keys_unless_they_are_named(store: str) -> None:
    finish(store)
    begin(store, "runs")
    assert "deleted 0" in run("prune", "--unused-for", "0s", store=store).stderr
    dry = run("prune", "--unused-for", "0s", "--finished", "--dry-run", store=store)
    assert (dry.stdout, dry.stderr) == ("job\n", "would delete 1 lock record\n")
    assert job_of(store).is_done
    assert "deleted 1" in run("prune", "--unused-for", "0s", "--finished", store=store).stderr
    assert provider_at(store).record("job") is None


def test_a_key_that_is_freed_by_force_is_not_done(store: str) -> None:
    begin(store)
    assert run("release", "--force", "job", store=store).exit_code == 0
    assert not job_of(store).is_done
    finish(store)


# run --recover


RECOVER = ("--once-per", "3000d", "--keep-alive", "--recover")


@in_a_process
@pytest.mark.slow("waits for the end of a lease")
def test_i14_a_run_whose_host_died_is_run_by_the_host_that_was_refused(runs: Runs) -> None:
    python = "import os; print('ready', flush=True); os.kill(os.getppid(), 9)"
    first = runs.start_ready("job", "--at-most", "2s", *RECOVER, python=python)
    assert runs.end(first)[0] == -signal.SIGKILL
    code, out, err = runs.run("job", "--at-most", "2s", *RECOVER, python="print('recovered')")
    assert (code, out) == (0, "recovered\n")
    assert "runs again: the run on" in err


@in_a_process
@pytest.mark.parametrize("recovers", [True, False])
def test_i14_a_run_that_sigterm_ends_is_given_back_or_reported(runs: Runs, recovers: bool) -> None:
    options = RECOVER if recovers else RECOVER[:3]
    python = "import signal; print('ready', flush=True); signal.pause()"
    first = runs.start_ready("job", "--at-most", "1m", *options, python=python)
    first.send_signal(signal.SIGTERM)
    code, _, err = runs.end(first)
    assert code == 128 + signal.SIGTERM
    assert ("is given back" in err, "lost the run of" in err) == (recovers, not recovers)
    assert runs.record().remaining == timedelta(0)
    second = runs.run("job", "--at-most", "1m", *options, python="print('ran')")
    assert second[:2] == (0, "ran\n" if recovers else "")


@pytest.mark.parametrize(
    ("options", "missing"),
    [(("--keep-alive",), "--once-per"), (("--once-per", "1h"), "--keep-alive")],
)
def test_recover_needs_more(options: tuple[str, ...], missing: str, store: str) -> None:
    done = run("run", "job", "--at-most", "1m", "--recover", *options, "--", "true", store=store)
    assert done.exit_code == USAGE
    assert f"--recover needs {missing}, too" in done.stderr


@in_a_process
def test_wait_covers_a_store_that_is_unreachable(runs: Runs) -> None:
    runs.use_provider(
        "from shedlock_py import ProviderUnreachable\n"
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        "class Away(SqlAlchemyLockProvider):\n"
        "    tries = 0\n"
        "    def acquire(self, request):\n"
        "        self.tries += 1\n"
        "        if self.tries < 3: raise ProviderUnreachable('away', operation='acquire')\n"
        "        return super().acquire(request)\n"
        f"provider = Away({runs.store!r})\n"
    )
    code, out, err = runs.run("job", "--at-most", "1m", "--wait", "1m", python="print('ran')")
    assert (code, out) == (0, "ran\n")
    assert err.count("trying again") == 1


# Mistakes


@in_a_process
@pytest.mark.parametrize("key", ["migrate-$TAG", "migrate-$(TAG)", "migrate-{version}"])
def test_a_key_that_no_shell_filled_in_is_refused(runs: Runs, key: str) -> None:
    code, _, err = runs.run(key, verb="once", python="print('never')")
    assert (code, "each release would have this key" in err) == (USAGE, True)


def test_a_missing_key_is_named_as_in_the_guide(store: str) -> None:
    result = run("once", store=store)
    assert (result.exit_code, "Missing argument 'KEY'" in result.stderr) == (USAGE, True)
