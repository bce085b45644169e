"""`shedlock run --once-per`: one run in each period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import Lease, ProviderUnreachable
from shedlock_py.model.slots import current_slot
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.cli.harness import in_a_process
from tests.cli.runs import Runs
from tests.cli.test_run_signals import SIGNAL_IN_ACQUIRE


@in_a_process
def test_five_hosts_run_a_short_command_once(runs: Runs) -> None:
    """Each host starts when the previous host has finished, so the lock is free."""
    options = ("--at-most", "1m", "--once-per", "3000d", "--skip-exit-code", "9")
    ended = [runs.run("job", *options, "--holder", f"host-{number}", python="print('ran')") for number in range(5)]
    assert ended == [(0, "ran\n", ""), *[(9, "", "")] * 4]
    assert runs.record().holder == "host-0"
    assert runs.record().last_fire_time == current_slot(datetime.now(UTC), timedelta(days=3000))


@in_a_process
def test_a_period_that_is_used_up_is_not_waited_for(runs: Runs) -> None:
    options = ("--at-most", "1m", "--once-per", "3000d", "--wait", "1h", "-v")
    assert runs.run("job", *options, python="raise SystemExit(3)") == (3, "", "")
    code, out, err = runs.run("job", *options, python="print('ran')")
    assert (code, out) == (0, "")
    assert err == "shedlock: 'job' is skipped: it ran in this period before (--once-per)\n"


@in_a_process
def test_the_next_period_runs_again(runs: Runs) -> None:
    program = (
        "from datetime import timedelta\nfrom shedlock_py.settings import options\nreal = options.current_slot\n"
        "options.current_slot = lambda now, period: real(now - timedelta(days=3000), period)\n"
        "from shedlock_py.__main__ import main; main()"
    )
    options = ("--at-most", "1m", "--once-per", "3000d")
    assert runs.run("job", *options, python="print(1)", program=program)[1] == "1\n"
    assert runs.run("job", *options, python="print(2)")[1] == "2\n"


# A command that never started


class Undoing(SqlAlchemyLockProvider):
    """Prints the operation that gave the lease back. Its `undo` is a release, so that later hosts go on."""

    undo_fails = False

    def undo(self, lease: Lease) -> bool:
        if self.undo_fails:
            raise ProviderUnreachable("undo: cut off", operation="undo", lock_name=lease.name)
        print("undone", flush=True)
        return super().release(lease)

    def release(self, lease: Lease) -> bool:
        print("released", flush=True)
        return super().release(lease)


@pytest.fixture
def undoing(runs: Runs, request: pytest.FixtureRequest) -> Runs:
    undo_fails = getattr(request, "param", False)
    runs.use_provider(
        "from tests.cli.test_run_once_per import Undoing\n"
        f"provider = Undoing({runs.store!r})\nprovider.undo_fails = {undo_fails}\n"
    )
    return runs


OPTIONS = ("--at-most", "1m", "--at-least", "1m", "--once-per", "3000d")


def not_a_program(runs: Runs, first_line: str = "#!/no/such/interpreter") -> str:
    """The system refuses to execute it, which shows only after the lock was acquired."""
    script = runs.path("script")
    script.write_text(f"{first_line}\n")
    script.chmod(0o755)
    return str(script)


@in_a_process
def test_a_command_that_cannot_be_started_is_given_back_and_not_released(undoing: Runs) -> None:
    code, out, err = undoing.run("job", "--at-most", "1m", words=[not_a_program(undoing)])
    assert (code, out, err.count("\n")) == (127, "undone\n", 1)
    assert undoing.run("job", "--at-most", "1m", python="") == (0, "released\n", "")


@in_a_process
def test_a_signal_before_the_command_is_started_gives_the_lease_back(undoing: Runs) -> None:
    assert undoing.run("job", *OPTIONS, python="", program=SIGNAL_IN_ACQUIRE) == (143, "undone\n", "")


@in_a_process
@pytest.mark.parametrize("undoing", [True], indirect=True, ids=["undo fails"])
def test_where_the_lease_cannot_be_given_back_it_is_released(undoing: Runs) -> None:
    code, out, err = undoing.run("job", *OPTIONS, words=[not_a_program(undoing)])
    assert (code, out) == (127, "released\n")
    assert "shedlock: lock 'job' could not be given back, so this may count as a run: undo: cut off\n" in err


@in_a_process
@pytest.mark.parametrize(("first_line", "expected"), [("#!/no/such/interpreter", 127), ("\x7fELF\0", 126)])
def test_a_command_that_cannot_be_started_uses_up_neither_its_period_nor_its_minimum(
    runs: Runs, first_line: str, expected: int
) -> None:
    script = not_a_program(runs, first_line)
    code, _, err = runs.run("job", *OPTIONS, words=[script])
    assert (code, err.count("\n")) == (expected, 1)
    assert err.startswith(f"shedlock: cannot execute {script}: ")
    assert not runs.is_held()
    assert runs.run("job", *OPTIONS, words=["/no/such/program"])[0] == 127
    assert runs.run("job", *OPTIONS, "-v", python="print('ran')") == (0, "ran\n", "")
