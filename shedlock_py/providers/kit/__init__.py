"""The provider kit: everything that stores share. Public, for built-in and third-party stores.

A store supplies three things:

- :class:`StorePrograms`: a few small programs, written as generators. They yield the store's commands and receive the
  replies.
- A client, sync or async. It carries out a single command.
- ``classify``: it returns the meaning of an error.

The kit supplies acquire, take over, extend and release, and the methods of both providers. It retries after a broken
connection, limits the time of each operation, and undoes an acquire if the outcome is unknown.

A program only decides. The kit retries each command if that is safe. If not, the kit throws a :class:`ProviderError`
into the program::

    def claim(self, claim, *, before, force):
        rows = yield Query(ACQUIRE, name=claim.request.name, locked_by=claim.locked_by, ...)
        return rows[0].token if rows else None

The kit's own programs also yield :class:`Undo`. It reaches no client: the provider carries it out in the background.
"""

from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.provider import Check
from shedlock_py.providers.kit.async_pool import AsyncConnectionPool, close_with_loop
from shedlock_py.providers.kit.checking import not_known
from shedlock_py.providers.kit.commands import GrantsNothing
from shedlock_py.providers.kit.failures import (
    MOST_RETRIES,
    ConnectionLost,
    ErrorReply,
    Failure,
    NotSent,
    TimedOut,
    fire_time_too_late,
    kept_changing,
    refused,
    unreachable,
)
from shedlock_py.providers.kit.fire_times import given_back
from shedlock_py.providers.kit.locking import undo_claimed, undo_of
from shedlock_py.providers.kit.masking import Masking, is_secret_option
from shedlock_py.providers.kit.operation import Undo, carry_out
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT, OPTIONS, Limits, duration_in, parse_limits, split_options
from shedlock_py.providers.kit.pool import ConnectionPool, PooledConnection
from shedlock_py.providers.kit.program_provider import AsyncProgramProvider, ProgramProvider
from shedlock_py.providers.kit.records import RecordCommand, RecordPrograms, Records, record_from_json, record_to_json
from shedlock_py.providers.kit.store_clients import AsyncStoreClient, StoreClient, ThreadedClient
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.providers.kit.time_limits import call_within, seconds_left, within
from shedlock_py.runtime.process import PerLoop, PerProcess
from shedlock_py.runtime.program import Program

__all__ = [
    "DEFAULT_TIMEOUT",
    "MOST_RETRIES",
    "OPTIONS",
    "AsyncConnectionPool",
    "AsyncProgramProvider",
    "AsyncStoreClient",
    "Check",
    "Claim",
    "ConnectionLost",
    "ConnectionPool",
    "ErrorReply",
    "Failure",
    "GrantsNothing",
    "Lease",
    "Limits",
    "LockRecord",
    "Masking",
    "NotSent",
    "PerLoop",
    "PerProcess",
    "PooledConnection",
    "Program",
    "ProgramProvider",
    "RecordCommand",
    "RecordPrograms",
    "Records",
    "Run",
    "StoreClient",
    "StorePrograms",
    "ThreadedClient",
    "TimedOut",
    "Undo",
    "call_within",
    "carry_out",
    "close_with_loop",
    "duration_in",
    "fire_time_too_late",
    "given_back",
    "is_secret_option",
    "kept_changing",
    "not_known",
    "parse_limits",
    "record_from_json",
    "record_to_json",
    "refused",
    "seconds_left",
    "split_options",
    "undo_claimed",
    "undo_of",
    "unreachable",
    "within",
]
