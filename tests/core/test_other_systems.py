"""Behaviour of macOS and Windows, as far as Linux can show it: the tests replace or remove a part of Python."""

import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

import pytest

from shedlock_py.operators.display import local_iso, local_time
from shedlock_py.runtime import process

CLOCKS = {time.CLOCK_BOOTTIME: 2.0, time.CLOCK_MONOTONIC_RAW: 3.0}


@pytest.mark.parametrize(("platform", "reading"), [("linux", 2.0), ("darwin", 3.0), ("win32", 4.0)])
def test_i6_a_lease_is_measured_by_a_clock_that_counts_sleep(
    platform: str, reading: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, time.monotonic() has steps of 15.6 ms before Python 3.13, so another clock is used."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(time, "clock_gettime", CLOCKS.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 4.0)
    clock: Callable[[], float] = runpy.run_path(str(process.__file__))["monotonic"]
    assert clock() == reading


SLEPT = """
import sys, time
real = time.clock_gettime
time.clock_gettime = lambda clock: real(clock) + (777777 if clock == time.CLOCK_MONOTONIC_RAW else 0)
platform, sys.platform = sys.platform, "darwin"
import shedlock_py
from shedlock_py.runtime.process import monotonic
sys.platform = platform
assert monotonic() - time.monotonic() > 700000

import asyncio
from shedlock_py import (
    AsyncInMemoryLockProvider, InMemoryLockProvider, LeaderElector, current_lease, hold, hold_async, provider_from_url,
)

def sync(provider):
    with LeaderElector(provider, "leader", lease_duration="9s", renew_deadline="6s", retry_period="200ms") as elector:
        with hold("job", lock_at_most_for="3s", keep_alive=True, provider=provider) as lease:
            time.sleep(3.1)
            assert lease.is_trusted() and provider.record("job").is_held
        assert not provider.record("job").is_held
        assert elector.wait_until_leader(timeout="10s")

async def main(provider):
    thread = asyncio.create_task(asyncio.to_thread(sync, provider_from_url("sqlite:///{file}")))
    async with hold_async("job", lock_at_most_for="3s", keep_alive=True, provider=provider) as lease:
        await asyncio.sleep(3.1)
        assert lease.is_trusted()
    await thread

provider_from_url("sqlite:///{file}").create_schema()
asyncio.run(main(AsyncInMemoryLockProvider()))
"""


@pytest.mark.not_quick("starts a Python")
def test_i6_no_moment_of_a_lease_is_taken_from_another_clock(tmp_path: object) -> None:
    """After days of sleep, the clock of leases and ``time.monotonic()`` differ by days."""
    program = SLEPT.replace("{file}", f"{tmp_path}/locks.db")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


class Ancient(datetime):
    """Like Windows: its C library has no local time before 1970 and after 3000."""

    def astimezone(self, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # of our own kind
        if tz is None:
            raise OSError(22, "Invalid argument")
        return super().astimezone(tz)


def test_a_moment_without_a_local_time_is_shown_in_utc() -> None:
    moment = Ancient(1969, 1, 1, tzinfo=UTC)
    assert local_iso(moment) == "1969-01-01T00:00:00+00:00"
    assert local_time(moment, datetime.now(UTC)) == "1969-01-01 00:00"
