"""The errors, one shallow tree.

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
    """A lock name, duration, URL or set-up that cannot work, with any store."""


class ProviderNotConfigured(ConfigurationError):
    """A lock was requested before a provider was configured."""


class ProviderError(ShedLockError):
    """The store replied with an error. The task did not run.

    ``operation`` is the operation that failed ("acquire", "release", …), ``lock_name`` its lock (or None), ``hint``
    what the user can do about it, if that is known. ``message`` is the text without the hint; ``str()`` shows both.
    ``__cause__`` is the driver's own error; None where the message says all that it says, as for a missing table.
    """

    def __init__(self, message: str, *, operation: str, lock_name: str | None = None, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} — {hint}")
        self.message = message
        self.operation = operation
        self.lock_name = lock_name
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException's own pickling calls the class with positional arguments only.
        make = partial(type(self), self.message, operation=self.operation, lock_name=self.lock_name, hint=self.hint)
        return (make, ())


class ProviderUnreachable(ProviderError):
    """The store did not reply: it is down, refused, timed out, read-only or out of connections.

    Whether the operation happened is unknown. The task did not run; the next call tries again.
    """


class LeaseError(ShedLockError):
    """Something is wrong with a lease."""


class LeaseLostError(LeaseError):
    """The lease ended before the work that relied on it did."""


class NotLocked(LeaseError):
    """Code that must run under a lease was called without a live one."""


class TaskNotDone(ShedLockError):
    """``run_once`` has waited in vain: the task of its key has not succeeded anywhere, and this call did not run it."""


hidden_frames = methodcaller("errisinstance", ShedLockError)
"""The ``__tracebackhide__`` of a module: pytest leaves its frames out of the traceback of an error of this library."""


def as_exception(error: BaseException, operation: str, lock_name: str | None = None) -> Exception:
    """``error``, or a :class:`ProviderError` if it would end a thread, such as ``sys.exit()`` in a driver's hook."""
    if isinstance(error, Exception):
        return error
    failure = ProviderError(f"{operation} raised {error!r}", operation=operation, lock_name=lock_name)
    failure.__cause__ = error
    return failure
