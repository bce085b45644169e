"""The provider kit: what all stores share. Public, for built-in and third-party stores alike.

A store supplies three things. :class:`StorePrograms` has a few small programs: generators that yield the store's
commands and are sent the replies. A client carries a single command out, sync or async. ``classify`` returns what an
error means. The kit supplies the rest: acquire, take over, extend and release, the retry after a broken connection, the
undo of an acquire whose outcome is unknown, the time limit of each operation, and the methods of both providers.

A program of a store only decides. The kit retries each command where that is safe, and throws a :class:`ProviderError`
into the program where it is not::

    def claim(self, claim, *, before, force):
        rows = yield Query(ACQUIRE, name=claim.request.name, locked_by=claim.locked_by, ...)
        return rows[0].token if rows else None

One command reaches no client: the kit's own programs yield :class:`Undo`, which the provider carries out itself, in the
background.
"""

from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.provider import Check
from shedlock_py.providers.kit.async_pool import AsyncConnectionPool, close_with_loop
from shedlock_py.providers.kit.checking import not_known
from shedlock_py.providers.kit.commands import Command
from shedlock_py.providers.kit.failures import (
    MOST_RETRIES,
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
    "Command",
    "ConnectionPool",
    "Failure",
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
