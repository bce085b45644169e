"""Signals to a server and all its children: PostgreSQL starts a session for each backend, so killpg misses them."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.support.polling import wait_until


def signal_tree(root: int, signum: signal.Signals) -> None:
    """Send `signum` to `root` and its descendants. The root comes first, so that it starts no more children.

    After SIGSTOP all of them have stopped: a process that is forking stops a moment later, and its child may run.
    """
    _send(root, signum)
    if signum == signal.SIGSTOP:
        wait_until(lambda: not _may_run(root), what=f"process {root} stopped")
    for pid in descendants(root):
        _send(pid, signum)
    if signum == signal.SIGSTOP:
        wait_until(lambda: not any(map(_may_run, descendants(root))), what=f"the children of process {root} stopped")


def _may_run(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("T", "t", "Z", "X")


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until all threads of ``pid`` have stopped."""
    _send(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all((each / "stat").read_text().rpartition(") ")[2].startswith("T") for each in threads.iterdir()),
        what=f"process {pid} stopped",
    )


def kill_tree(root: int) -> None:
    """Send SIGKILL to `root` and its descendants, and wait until they are gone."""
    _send(root, signal.SIGSTOP)
    pids = [root, *descendants(root)]
    for pid in pids:
        _send(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), what=f"process {root} and its children gone")


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [root]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: it only waits for its parent."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _stat(pid: int) -> list[str]:
    """Return state, parent, … of a process; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
