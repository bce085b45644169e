"""A fenced write: a table rejects a holder that was paused for longer than its lease.

python examples/07_fenced_write.py

A lock cannot prevent a write after a pause (garbage collection, SIGSTOP, a moved virtual machine). The table can: it
keeps the greatest fencing token that wrote, and rejects smaller tokens.
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shedlock_py import Lease, provider_from_url, try_hold

TABLE = "CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT, fencing_token INTEGER NOT NULL)"
WRITE = "UPDATE report SET text = ?, fencing_token = ? WHERE id = 1 AND fencing_token <= ?"


def write(database: Path, text: str, lease: Lease) -> bool:
    """Return whether the table accepted the write. It rejects the write if a newer token has written."""
    connection = sqlite3.connect(database)
    with connection:
        done = connection.execute(WRITE, (text, lease.fencing_token, lease.fencing_token)).rowcount == 1
    connection.close()
    return done


def replica(directory: Path, who: str) -> None:
    logging.basicConfig(stream=sys.stdout, format=f"{who}: WARNING: %(message)s")
    provider = provider_from_url(f"sqlite:///{directory / 'locks.db'}")
    while True:
        with try_hold("report", lock_at_most_for="1s", provider=provider) as lease:
            if lease is None:
                time.sleep(0.05)
                continue
            print(f"{who} has the lock", flush=True)
            sys.stdin.readline()  # between here and the write, anything may happen
            is_trusted = lease.is_trusted()
            taken = write(directory / "reports.db", f"by {who}", lease)
            print(f"{who}: lease trusted: {is_trusted}, write {'taken' if taken else 'REFUSED'}", flush=True)
            return


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        provider_from_url(f"sqlite:///{directory / 'locks.db'}").create_schema()
        connection = sqlite3.connect(directory / "reports.db")
        with connection:
            connection.execute(TABLE)
            connection.execute("INSERT INTO report VALUES (1, 'empty', 0)")

        first = start(directory, "replica-1")
        print(first_line(first))
        os.kill(first.pid, signal.SIGSTOP)
        print("replica-1 is stopped; its lease lasts 1 s")

        second = start(directory, "replica-2")
        print(first_line(second))
        print(go_on(second))

        os.kill(first.pid, signal.SIGCONT)
        print("replica-1 goes on, as if nothing had happened")
        print(go_on(first))

        (text,) = connection.execute("SELECT text FROM report").fetchone()
        connection.close()
        print("the report is", text)


def start(directory: Path, who: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(directory), who]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate("\n", timeout=30)
    return output.strip()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        replica(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
