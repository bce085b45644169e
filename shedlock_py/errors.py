"""The errors, in one shallow tree.

::

    ShedLockError
    ├── ConfigurationError (also a ValueError)   a name, a duration, a URL or a set-up that cannot work
    │   └── ProviderNotConfigured                no provider was configured
    ├── ProviderError                            the store replied with an error; the task does not run
    │   └── ProviderUnreachable                  the store did not reply; the next call tries again
    ├── LeaseError
    │   ├── LeaseLostError                       the lease ended while something still relied on it
    │   └── NotLocked                            code that needs a lease ran without one
    ├── LockNotAcquired                          ``hold`` was not granted the lock; its block does not run
    └── TaskNotDone                              ``run_once``: the task of the key has not succeeded in time

Only ``hold`` and ``hold_async`` raise ``LockNotAcquired``. Everywhere else a skip is a value: see ``Skipped``.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import Any


class ShedLockError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigurationError(ShedLockError, ValueError):
    """A lock name, duration, URL or set-up that cannot work with any store."""


class ProviderNotConfigured(ConfigurationError):
    """A lock was requested before a provider was configured."""


class ProviderError(ShedLockError):
    """The store replied with an error. The task did not run.

    ``__cause__`` is the driver's error. It is None if the message says everything, for example that a table is missing.

    :ivar operation: the failed operation: "acquire", "release", …
    :ivar lock_name: the lock; None if the operation has no lock.
    :ivar hint: advice for the user, if there is any.
    :ivar message: the text without the hint. ``str()`` shows both.
    """

    def __init__(self, message: str, *, operation: str, lock_name: str | None = None, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} — {hint}")
        self.message = message
        self.operation = operation
        self.lock_name = lock_name
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException pickles positional arguments only.
        make = partial(type(self), self.message, operation=self.operation, lock_name=self.lock_name, hint=self.hint)
        return (make, (), vars(self))


class ProviderUnreachable(ProviderError):
    """The store did not reply: it is down, refused, timed out, read-only or out of connections.

    The operation may or may not have happened. The task did not run; the next call tries again.
    """

    locked_by: str | None = None
    """The claim of a failed acquire that the store may have granted: its holder and claim id, as in the lock record. ''
    if the store has certainly not granted it; None if that is unknown."""


class LeaseError(ShedLockError):
    """Base of the errors about a lease."""


class LeaseLostError(LeaseError):
    """The lease ended before the work that relied on it."""


class NotLocked(LeaseError):
    """Code that needs a live lease was called without it."""


class TaskNotDone(ShedLockError):
    """``run_once`` did not run the task, and the task has not succeeded on another replica in time."""


hidden_frames = methodcaller("errisinstance", ShedLockError)
"""A module's ``__tracebackhide__``: for an error of this library, pytest leaves the module's frames out of the
traceback."""


def as_exception(error: BaseException, operation: str, lock_name: str | None = None) -> Exception:
    """Return ``error``, or a :class:`ProviderError` if it would end a thread (``sys.exit()`` in a driver's hook)."""
    if isinstance(error, Exception):
        return error
    failure = ProviderError(f"{operation} raised {error!r}", operation=operation, lock_name=lock_name)
    failure.__cause__ = error
    return failure
