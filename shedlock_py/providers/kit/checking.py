"""Shared by the programs that check a store's settings."""

from __future__ import annotations

from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.provider import Check
from shedlock_py.providers.kit.operation import reason
from shedlock_py.providers.kit.store_programs import StorePrograms


def not_known(programs: StorePrograms, check: str, error: ProviderError, hint: str | None = None) -> Check:
    """Return the check for a request that the store refused, perhaps only for this user.

    :raises ProviderUnreachable: the store did not reply at all.
    """
    if isinstance(error, ProviderUnreachable):
        raise error
    cause = error.__cause__
    what = reason(programs, cause) if isinstance(cause, Exception) else error.message
    return Check(check, "ok", f"not known: {what}", hint)
