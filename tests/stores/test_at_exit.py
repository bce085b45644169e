"""A job that ends with the interpreter releases its lock: Python 3.12 and later start no thread then."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import pytest

from tests.support.locks import record_of
from tests.support.stores import ALL, Store

SCRIPT = """
import atexit, json, sys, threading, time
from shedlock_py import hold
from tests.support.locks import record_of
from tests.support.stores import open_provider

provider = open_provider(**json.loads(sys.argv[1]))
has_begun, is_ending = threading.Event(), threading.Event()

def job():
    with hold(sys.argv[2], lock_at_most_for="1m", provider=provider):
        has_begun.set()
        is_ending.wait()

def end():
    is_ending.set()
    thread.join()

thread = threading.Thread(target=job, daemon=True)
thread.start()
assert has_begun.wait(30)
time.sleep(2.5)  # longer than the time limit of the acquire
atexit.register(end)  # as Flask's extension waits for the jobs of its schedulers
"""


ANOTHER_STORE = pytest.mark.matrix("PostgreSQL shows it, with the time limit of a thread")


@pytest.mark.slow("a process waits for longer than the time limit of its acquire")
@pytest.mark.parametrize(
    "kind", [kind if kind == "postgres" else pytest.param(kind, marks=ANOTHER_STORE) for kind in ALL]
)
def test_a_job_that_ends_at_exit_releases_its_lock(make_store: Callable[..., Store], kind: str) -> None:
    store, name = make_store(kind), f"at-exit-{uuid4().hex}"
    arguments = store.arguments() | {"options": {**store.options, "timeout": "2s"}}
    subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(arguments), name], timeout=60, check=True)
    with closing(store.open()) as observer:
        assert not record_of(observer, name).is_held
