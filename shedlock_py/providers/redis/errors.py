"""What an error of redis-py means."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from shedlock_py.providers.kit import Failure

# Redis gives a code in front of the message; from inside a script, older versions put it further back, with a dash.
_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")
_ODD_VALUE = "of this lock record is not a number"
"""In the error of ``lua/reading.lua``, which has a value and a lock name that may look like a code."""
_TEMPORARY_CODES = {
    "READONLY",  # a replica
    "OOM",
    "MISCONF",  # cannot write its snapshot, so takes no writes
    "NOREPLICAS",  # min-replicas-to-write
    "LOADING",
    "BUSY",  # in a script that does not end
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
}
# redis-py takes their code off the message.
_TEMPORARY_ERRORS = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,  # MASTERDOWN, too
    redis_errors.TryAgainError,
)
_BAD_CREDENTIALS = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
_NO_REPLY = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.RedisClusterException,  # no node for the slot, or none at all
    redis_errors.ClusterError,
    OSError,  # with TimeoutError
)
# RuntimeError: an asyncio client used on another event loop.
_FROM_REDIS = (redis_errors.RedisError, redis_errors.RedisClusterException, RuntimeError, UnicodeError)


def is_temporary(error: BaseException) -> bool:
    """Whether the server replied that it cannot carry the command out now.

    It refuses the first write of a script, so nothing was done. It may be a former primary: the name of the host may
    already name another server.
    """
    if isinstance(error, _TEMPORARY_ERRORS):
        return True
    is_reply = isinstance(error, redis_errors.ResponseError) and _ODD_VALUE not in str(error)
    return is_reply and not _TEMPORARY_CODES.isdisjoint(_CODE.findall(str(error)))


def is_refusal(error: Exception) -> bool:
    """Whether the server, or redis-py, refused: the next try will end in the same way."""
    if isinstance(error, _BAD_CREDENTIALS):
        return True
    return isinstance(error, _FROM_REDIS) and not (is_temporary(error) or isinstance(error, _NO_REPLY))


def is_not_connected(error: Exception) -> bool:
    """Whether the client got no connection for this try."""
    # The last two are messages of redis-py's pools.
    messages = ("connecting to", "No connection available", "Too many connections")
    is_lost = isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError)
    return is_lost and any(message in str(error) for message in messages)


def classify(error: Exception, *, has_retries: bool) -> Failure:
    """How a program must react to ``error``.

    :param has_retries: the client retries by itself, so its last error does not show what it sent before.
    """
    if isinstance(error, _BAD_CREDENTIALS):
        return Failure.REFUSED
    if is_temporary(error):
        return Failure.UNREACHABLE if has_retries else Failure.NOT_DONE
    is_timeout = isinstance(error, redis_errors.TimeoutError)
    if isinstance(error, redis_errors.ConnectionError | OSError) and not (is_timeout or has_retries):
        return Failure.CONNECTION_LOST
    # A refusal, too: the ACL may have stopped a script half-way.
    return Failure.UNREACHABLE if isinstance(error, (*_FROM_REDIS, OSError)) else Failure.NOT_A_STORE_ERROR
