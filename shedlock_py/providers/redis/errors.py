"""The meaning of errors from redis-py."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from shedlock_py.providers.kit import Failure

# Redis starts a message with a code. If a script failed, older versions write the code later, after a dash.
_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")
_ODD_VALUE = "of this lock record is not a number"
"""Part of an error of ``lua/reading.lua``. Its value and lock name may look like a code."""
_TEMPORARY_CODES = {
    "READONLY",  # a replica
    "OOM",
    "MISCONF",  # cannot write its snapshot, so it refuses writes
    "NOREPLICAS",  # min-replicas-to-write
    "LOADING",
    "BUSY",  # a script is running too long
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
}
# redis-py removes the code from the message of these errors.
_TEMPORARY_ERRORS = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,  # also MASTERDOWN
    redis_errors.TryAgainError,
)
_BAD_CREDENTIALS = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
_NO_REPLY = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.RedisClusterException,  # the slot, or the whole cluster, has no reachable node
    redis_errors.ClusterError,
    OSError,  # includes TimeoutError
)
# RuntimeError: an asyncio client in another event loop.
_FROM_REDIS = (redis_errors.RedisError, redis_errors.RedisClusterException, RuntimeError, UnicodeError)


def is_temporary(error: BaseException) -> bool:
    """Return whether the server replied that it cannot execute the command now.

    The server refuses the first write of a script, so nothing was done. It may be a former primary: its host name may
    already name another server.
    """
    if isinstance(error, _TEMPORARY_ERRORS):
        return True
    is_reply = isinstance(error, redis_errors.ResponseError) and _ODD_VALUE not in str(error)
    return is_reply and not _TEMPORARY_CODES.isdisjoint(_CODE.findall(str(error)))


def is_refusal(error: Exception) -> bool:
    """Return whether the server or redis-py refused: another try would end in the same way."""
    if isinstance(error, _BAD_CREDENTIALS):
        return True
    return isinstance(error, _FROM_REDIS) and not (is_temporary(error) or isinstance(error, _NO_REPLY))


def is_not_connected(error: Exception) -> bool:
    """Return whether the client got no connection for this try."""
    # The last two are messages from redis-py's pools.
    messages = ("connecting to", "No connection available", "Too many connections")
    is_lost = isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError)
    return is_lost and any(message in str(error) for message in messages)


def classify(error: Exception, *, has_retries: bool) -> Failure:
    """Return how a program must react to ``error``.

    :param has_retries: the client itself retries, so its last error does not show what it sent before.
    """
    if isinstance(error, _BAD_CREDENTIALS):
        return Failure.REFUSED
    if is_temporary(error):
        return Failure.UNREACHABLE if has_retries else Failure.NOT_DONE
    is_timeout = isinstance(error, redis_errors.TimeoutError)
    if isinstance(error, redis_errors.ConnectionError | OSError) and not (is_timeout or has_retries):
        return Failure.CONNECTION_LOST
    # Also after a refusal: the ACL may have stopped a script after its first write.
    return Failure.UNREACHABLE if isinstance(error, (*_FROM_REDIS, OSError)) else Failure.NOT_A_STORE_ERROR
