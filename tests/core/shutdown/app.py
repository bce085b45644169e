"""An application that gets SIGTERM: python -m tests.core.shutdown.app URL KIND

KIND says where its guarded task runs: "main", "thread", "asyncio" or "scheduler". More kinds:

- "default": without release_on_sigterm().
- "chained": another handler was there.
- "chained-again": as "chained". Then a further handler calls shedlock_py's handler, and release_on_sigterm() is called
  once more.
- "chained-twice": another handler was there, and gets a second signal while it runs.
- "chained-in-a-circle": a handler that remembers one former handler is installed twice.
- "stubborn": a thread that does not end in time.

While the process waits for a task in a daemon thread:

- "locked": the main thread holds a lock that the task needs. "log": that lock belongs to logging.
- "blocked": the main thread waits for a lock.
- "both": a task that is kept alive runs on the main thread's event loop.
- "loop": the event loop has its own handler.
- "ends": the main thread ends by itself.
- "slow": a thread that does not end for a long time.
- "chained-thread", "chained-again-thread": other handlers were there, as above.
- "wrapped": another handler calls shedlock_py's handler.
- "again": a second signal comes when the wait has just ended.
- "nested": the task takes another lock.
- "reset": the application restores the signal's default handler.
- "hung-log": as "stubborn", and the log hangs.
- "no-threads": the process cannot start threads; its store is in memory.
- "hung-job": a job in a pool of APScheduler does not end.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

from shedlock_py import (
    Executed,
    InMemoryLockProvider,
    LockProvider,
    attempt,
    configure,
    hold_async,
    provider_from_url,
    release_on_sigterm,
    scheduler_lock,
    try_hold,
)

has_begun = threading.Event()
STEP = 0.3
"""Seconds that a task in a thread takes to end if it does not notice the signal."""
SLICE = 0.05
"""Seconds of one wait of the main thread.

A signal may come between Python's last check and the system call. Python handles it when the system call ends.
"""


def pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        time.sleep(min(SLICE, remaining))


async def pause_async(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:  # noqa: ASYNC110 (a signal handler ends it)
        await asyncio.sleep(min(SLICE, remaining))


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    while not lock.acquire(timeout=SLICE):
        pass


@scheduler_lock("job", lock_at_most_for="1h")
def job(seconds: float) -> None:
    print("held", flush=True)
    has_begun.set()
    pause(seconds)
    print("task ended", flush=True)


@scheduler_lock("job", lock_at_most_for="1h")
async def job_async() -> None:
    print("held", flush=True)
    await pause_async(60)


def main(url: str, kind: str) -> None:
    provider: LockProvider = InMemoryLockProvider() if kind == "no-threads" else provider_from_url(url)
    configure(provider=provider)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    if kind == "loop":
        asyncio.run(loop_with_a_handler())
        return
    if kind != "default":
        if kind.startswith("chained"):
            signal.signal(signal.SIGTERM, patient_handler if kind == "chained-twice" else former_handler)
        release_on_sigterm("500ms" if kind in ("stubborn", "hung-log", "hung-job") else "20s")
    match kind:
        case "locked" | "log":
            lock = threading.Lock() if kind == "locked" else logging.getLogger().handlers[0].lock
            assert lock is not None
            with lock:
                in_daemon_thread(needs, lock)
                time.sleep(STEP)
            later()
        case "blocked":
            in_daemon_thread(job, STEP)
            wait_for_a_lock()
        case "both":
            asyncio.run(both())
        case "again":
            in_daemon_thread(job, STEP)
            try:
                wait_for_a_lock()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                print("cleaned up", flush=True)
        case "ends":
            in_daemon_thread(job, 3 * STEP)
            with suppress(InterruptedError):
                signal.sigtimedwait([signal.SIGUSR1], STEP)
            print("main thread ends", flush=True)
        case "chained-thread" | "chained-again-thread" | "wrapped":
            if kind != "chained-thread":
                wrap_handler()
            if kind == "chained-again-thread":
                release_on_sigterm("10s")
            in_daemon_thread(job, STEP)
            later()
        case "nested":
            in_daemon_thread(nesting)
            later()
        case "hung-log":
            lock = logging.getLogger().handlers[0].lock
            assert lock is not None
            with lock:
                in_daemon_thread(job, 30)
                later()
        case "slow" | "reset":
            task = in_daemon_thread(job, 30 if kind == "slow" else 10 * STEP)
            has_begun.wait()
            while isinstance(attempt("other", time.monotonic, lock_at_most_for="1m"), Executed):
                time.sleep(0.05)
            if kind == "reset":
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                task.join()
                time.sleep(STEP)
                return
            print("shutting down", flush=True)
            later()
        case "no-threads":
            in_daemon_thread(job, 10 * STEP)
            has_begun.wait()
            refuse_threads()
            print("no more threads", flush=True)
            later()
        case "chained-again":
            wrap_handler()
            release_on_sigterm("10s")
            job(60)
        case "chained-in-a-circle":
            for _ in range(2):
                signal.signal(signal.SIGTERM, forgetful_handler(signal.getsignal(signal.SIGTERM)))
                release_on_sigterm("10s")
            job(60)
        case "main" | "default" | "chained" | "chained-twice":
            job(60)
        case "asyncio":
            asyncio.run(job_async())
        case "thread" | "stubborn":
            threading.Thread(target=job, args=(30 if kind == "stubborn" else STEP,), daemon=True).start()
            later()
        case "hung-job":
            from apscheduler.schedulers.background import BackgroundScheduler

            from shedlock_py.integrations.apscheduler import ShedLockExecutor

            atexit.register(print, "atexit", flush=True)
            scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("threadpool")}, timezone="UTC")
            scheduler.add_job(job, "date", args=[3600])
            scheduler.start()
            try:
                later()
            finally:
                scheduler.shutdown()
                print("shut down", flush=True)
        case "scheduler":
            from apscheduler.schedulers.background import BackgroundScheduler  # import late: half the start time

            scheduler = BackgroundScheduler(timezone="UTC")
            scheduler.add_job(job, "interval", seconds=0.05, args=[STEP], max_instances=1)
            scheduler.start()
            try:
                later()
            finally:
                scheduler.shutdown()


def in_daemon_thread(task: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=task, args=args, daemon=True)
    thread.start()
    return thread


@scheduler_lock("job", lock_at_most_for="1h")
def needs(lock: AbstractContextManager[object]) -> None:
    print("held", flush=True)
    with lock:
        print("task ended", flush=True)


@scheduler_lock("job", lock_at_most_for="1h")
def nesting() -> None:
    print("held", flush=True)
    time.sleep(STEP)
    with try_hold("needed", lock_at_most_for="1h") as lease:
        print("what it needs", "runs" if lease else "is skipped", flush=True)


async def both() -> None:
    async with hold_async("kept", lock_at_most_for=5 * STEP, keep_alive=True) as lease:
        assert lease is not None
        in_daemon_thread(job, 7 * STEP)
        try:
            await pause_async(60)
        finally:
            print("kept alive:", lease.is_trusted(), flush=True)


async def loop_with_a_handler() -> None:
    must_stop = asyncio.Event()

    def stop() -> None:
        print("the loop's handler", flush=True)
        must_stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    release_on_sigterm("20s")
    in_daemon_thread(job, 3 * STEP)
    await must_stop.wait()
    await asyncio.sleep(5 * STEP)


def wrap_handler() -> None:
    wrapped: Any = signal.getsignal(signal.SIGTERM)

    def wrapper(number: int, frame: FrameType | None) -> None:
        wrapped(number, frame)

    signal.signal(signal.SIGTERM, wrapper)


def refuse_threads() -> None:
    if os.getuid() == 0:
        os.setgid(50000)
        os.setuid(50000 + os.getpid() % 10000)  # the limit counts all processes of a user, and does not apply to root
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def later() -> None:
    try:
        while True:
            time.sleep(SLICE)
    finally:
        with try_hold("late", lock_at_most_for="1h") as lease:
            print("a new task", "runs" if lease else "is skipped", flush=True)


def former_handler(number: int, frame: FrameType | None) -> None:
    print("the former handler", flush=True)
    raise SystemExit(7)


former: list[Any] = []


def forgetful_handler(handler: Any) -> Callable[[int, FrameType | None], None]:
    """Return a library's handler that calls the handler it replaced last."""
    former[:] = [handler]
    return lambda number, frame: former[0](number, frame)


calls: list[int] = []


def patient_handler(number: int, frame: FrameType | None) -> None:
    """A handler that expects a second signal from a supervisor."""
    calls.append(number)
    if len(calls) > 1:
        print("the same signal again", flush=True)
        return
    os.kill(os.getpid(), number)
    print("shut down in peace", flush=True)
    raise SystemExit(7)


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1], sys.argv[2])
