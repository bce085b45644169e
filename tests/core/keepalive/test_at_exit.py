"""A generator that is still open inside a block when the interpreter ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from shedlock_py import provider_from_url
from tests.support.locks import record_of
from tests.support.scripts import run_python

PROGRAM = """
import builtins, sys, threading
from shedlock_py import hold, provider_from_url

provider = provider_from_url(sys.argv[1])

def suspended():
    with hold("job", lock_at_most_for="10m", keep_alive=sys.argv[2] == "kept", provider=provider) as lease:
        try:
            yield
        finally:
            print("held:", lease.is_trusted())

builtins.generator = suspended()  # one of the last objects that the interpreter deletes
advance = lambda: next(builtins.generator)
if sys.argv[3] == "main":
    advance()
else:
    thread = threading.Thread(target=advance)
    thread.start()
    thread.join()
print("end")
"""


@pytest.mark.not_quick("starts an interpreter")
@pytest.mark.parametrize("keep_alive", ["kept", "not kept"])
@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_process_ends_with_a_generator_that_is_suspended_in_a_block(
    thread: str, keep_alive: str, tmp_path: Path
) -> None:
    """The generator cleans up inside its lock, and the lock is released."""
    url = f"sqlite:///{tmp_path}/locks.db"
    store = provider_from_url(url)
    store.create_schema()
    done = run_python("-c", PROGRAM, url, keep_alive, thread)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\nheld: True\n", "")
    assert not record_of(store, "job").is_held
