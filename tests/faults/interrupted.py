"""A process whose acquire is interrupted by a signal after the store has granted it, and before the reply is there.

python -m tests.faults.interrupted    does what the JSON on its standard input says, then waits for the next line
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from shedlock_py import LockProvider, LockRequest, release_on_sigterm
from shedlock_py.testing.proxy import TcpProxy
from tests.support.polling import wait_until
from tests.support.stores import Store, open_provider

LONG = "1h"
"""The default `longest_lease` of a quorum."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIMEOUT = 30.0
"""Seconds, on a busy machine."""


def interrupt(store: Store, number: signal.Signals) -> str:
    """Interrupt an acquire in mid-flight; what is wrong afterwards, or nothing."""
    name, fire_time = f"job-{uuid4().hex[:8]}", datetime.now(UTC) - timedelta(minutes=1)
    with ExitStack() as stack:
        observer = store.open()
        stack.callback(observer.close)
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        child = _Child(store.arguments([proxy.address for proxy in proxies]), name, fire_time)
        stack.callback(child.close)
        child.expect("ready")
        for proxy in proxies:
            proxy.silence(name, skip=1 if store.family == "quorum" else 0, times=1)  # the first round grants nothing
        child.go_on()
        wait_until(
            lambda: _is_held(observer, name) or child.has_ended(), timeout=TIMEOUT, what="the store has granted it"
        )
        child.process.send_signal(number)
        child.expect("interrupted")
        child.process.wait(TIMEOUT)
        return _what_is_left(observer, name, fire_time)


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


class _Child:
    def __init__(self, arguments: dict[str, Any], name: str, fire_time: datetime) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.interrupted"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._write(json.dumps({"arguments": arguments, "name": name, "fire_time": fire_time.isoformat()}))

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == word, f"{word!r} expected, not {line!r}"

    def go_on(self) -> None:
        self._write("")

    def has_ended(self) -> bool:
        """Whether it has: what it says next is what went wrong."""
        return self.process.poll() is not None

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in a shell's background jobs
    what = json.loads(sys.stdin.readline())
    provider: Any = open_provider(**what["arguments"])
    release_on_sigterm(wait=0)
    warm = provider.acquire(LockRequest(f"warm-{os.getpid()}", "1m"))
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
