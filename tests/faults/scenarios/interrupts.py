"""Ctrl-C and SIGTERM while an acquire in sync code waits for its reply: nothing stays locked for a dead caller.

``python -m tests.faults.scenarios.interrupts`` is a process with an acquire that is interrupted after the grant and
before the reply. It obeys the JSON on its standard input, then waits for the next line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from shedlock_py import LockProvider, LockRequest, release_on_sigterm
from shedlock_py.runtime.blocking import OnOwnLoop
from shedlock_py.settings.options import is_async_provider
from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Finding, Report
from tests.faults.fleet import LineProcess
from tests.faults.registry import by_trial, scenario
from tests.support.polling import wait_until
from tests.support.stores import WITH_NETWORK, Store, open_provider

LONG = "1h"
"""The default `longest_lease` of a quorum."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIMEOUT = 30.0
"""Seconds, on a busy machine."""


@scenario(16, "acquire interrupted by a signal", stores=WITH_NETWORK, kinds=("sync",), weight=0.5, least=2)
@by_trial
def interrupts(store: Store, seed: int, number: int) -> Report:
    """A process acquires for hours. The reply does not come, and a signal does."""
    signum = SIGNALS[number % len(SIGNALS)]
    wrong = interrupt(store, signum)
    findings = [Finding("interrupted acquire", signum.name, wrong, 0.0)] if wrong else []
    return Report(trials=1, findings=findings, counts=Counter(interrupted=1))


def interrupt(store: Store, number: signal.Signals) -> str:
    """Interrupt an acquire in mid-flight. Return the fault that it left, or ""."""
    name, fire_time = f"job-{uuid4().hex[:8]}", datetime.now(UTC) - timedelta(minutes=1)
    with ExitStack() as stack:
        observer = stack.enter_context(closing(store.open()))
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        process = stack.enter_context(closing(LineProcess(__name__, stderr=subprocess.DEVNULL)))
        arguments = store.arguments([proxy.address for proxy in proxies])
        process.write(json.dumps({"arguments": arguments, "name": name, "fire_time": fire_time.isoformat()}))
        _expect(process, "ready")
        for proxy in proxies:
            proxy.silence(store.in_write(name), skip=store.reads_to_acquire, times=1)
        process.write("")
        wait_until(
            lambda: _is_held(observer, name) or process.poll() is not None, timeout=TIMEOUT, what="granted by the store"
        )
        process.send_signal(number)
        _expect(process, "interrupted")
        process.wait(TIMEOUT)
        return _what_is_left(observer, name, fire_time)


def _expect(process: LineProcess, word: str) -> None:
    line = process.read()
    assert line == word, f"{word!r} expected, not {line!r}"


def _what_is_left(observer: LockProvider, name: str, fire_time: datetime) -> str:
    try:
        wait_until(lambda: not _is_held(observer, name), timeout=TIMEOUT, what="free")
    except AssertionError:
        return f"{observer.record(name)} is held for nobody"
    if observer.acquire(LockRequest(name, LONG, fire_time=fire_time)) is None:
        return f"the fire time {fire_time} is used up: {observer.record(name)}"
    return ""


def _is_held(observer: LockProvider, name: str) -> bool:
    record = observer.record(name)
    return record is not None and record.is_held


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # SIGINT may be ignored, as in a shell's background jobs
    what = json.loads(sys.stdin.readline())
    release_on_sigterm(wait=0)
    provider: Any = open_provider(**what["arguments"])
    if not is_async_provider(provider):
        acquire(provider, what)
        return
    with closing(OnOwnLoop(lambda: provider)) as facade:  # like the command line
        acquire(facade, what)


def acquire(provider: LockProvider, what: dict[str, str]) -> None:
    warm = provider.acquire(LockRequest(f"warm-{os.getpid()}", "1m"))
    assert warm is not None
    provider.release(warm)
    request = LockRequest(what["name"], LONG, LONG, fire_time=datetime.fromisoformat(what["fire_time"]))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        provider.acquire(request)
        print("not interrupted", flush=True)
    except (KeyboardInterrupt, SystemExit):
        print("interrupted", flush=True)
        raise
    except Exception as error:
        print(repr(error), flush=True)
        raise


if __name__ == "__main__":
    main()
