"""A job that ends while the interpreter does releases its lock: Python 3.12 and later start no thread then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import pytest

from shedlock_py import provider_from_url
from tests.support.stores import Store

SCRIPT = """
import atexit, sys, threading, time
from shedlock_py import hold, provider_from_url

provider = provider_from_url(sys.argv[1] + "?timeout=2s")
provider.create_schema()
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


@pytest.mark.parametrize(
    "driver", ["postgresql+psycopg", pytest.param("postgresql+psycopg2", marks=pytest.mark.matrix)]
)
def test_a_job_that_ends_at_exit_releases_its_lock(make_store: Callable[..., Store], driver: str) -> None:
    url, name = str(make_store("postgres", driver).where()), f"at-exit-{uuid4().hex}"
    subprocess.run([sys.executable, "-c", SCRIPT, url, name], timeout=60, check=True)
    with closing(provider_from_url(url)) as provider:  # type: ignore[type-var]  # PostgreSQL's can be closed
        record = provider.record(name)
    assert record is not None
    assert not record.is_held
