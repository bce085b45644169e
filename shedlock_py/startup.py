"""``check()``: what would fail at night, found when the application starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from shedlock_py.checks import REACH, collecting, failed, private_store
from shedlock_py.config import is_active, lock_request, resolve_async_provider, resolve_provider
from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.overdue import DOCTOR
from shedlock_py.provider import Check, can
from shedlock_py.spec import LockSpec, declared_specs

PROVIDER, FUNCTIONS, NAMES = "provider", "functions", "lock names"


def check(*, strict: bool = False) -> list[Check]:
    """Find problems at start-up, before the first job runs: call it once the application is imported and configured.

    It reads from the store, and compares the schema. It goes through the functions with ``@scheduler_lock``: each needs
    a store that it can use, and a ``lock_at_most_for``, and no two share a lock name. It writes nothing.

    :return: the problems; none if all is well. ``hint`` has the cure. "failed" means that a job would not run.
    :param strict: raise them.
    :raises ConfigurationError: there is a problem, with ``strict=True``.
    """
    specs = declared_specs()
    found = [*problems_of(specs)]
    for provider in _providers(specs, resolve_provider):
        found += _problems_of_store(provider)
    return _told(found, strict)


async def check_async(*, strict: bool = False) -> list[Check]:
    """:func:`check` for asyncio: an async provider is asked on its own event loop."""
    specs = declared_specs()
    found = [*problems_of(specs)]
    for provider in _providers(specs, resolve_async_provider):
        found += await _problems_of_async_store(provider)
    return _told(found, strict)


def _told(found: list[Check], strict: bool) -> list[Check]:
    if strict and found:
        raise ConfigurationError("\n".join(map(str, found)))
    return found


def problems_of(specs: Iterable[LockSpec]) -> Iterator[Check]:
    """The problems of decorated functions that are known without the store."""
    functions: dict[str, list[str]] = defaultdict(list)
    for spec in specs:
        yield from problems_of_function(spec)
        if spec.name is not None:
            functions[spec.name] += spec.functions
    for name, sharing in functions.items():
        if len(sharing) > 1:
            message = f"lock {name!r} guards {' and '.join(sorted(sharing))}: while one runs, the other is skipped"
            yield Check(NAMES, "warning", message, "give each function a lock name of its own")


def problems_of_function(spec: LockSpec) -> Iterator[Check]:
    where = " and ".join(spec.functions)
    resolve: Any = resolve_async_provider if spec.is_async else resolve_provider
    for problem in (
        lambda: lock_request(spec.name or "x", spec.options.lock_at_most_for, spec.options.lock_at_least_for),
        lambda: resolve(spec.options.provider, spec.template),
    ):
        try:
            problem()
        except (ConfigurationError, ProviderError) as error:
            yield Check(FUNCTIONS, "failed", f"{where}: {error}")


def _providers(specs: Iterable[LockSpec], resolve: Any) -> list[Any]:
    """Those of the functions, and the configured one. What cannot be resolved is a problem of its function."""
    found: dict[int, Any] = {}
    for given in (None, *(spec.options.provider for spec in specs)):
        try:
            provider = resolve(given, DOCTOR)
        except (ConfigurationError, ProviderError):
            continue
        found[id(provider)] = provider
    return [*found.values()] if is_active() else []


def _problems_of_store(provider: Any) -> list[Check]:
    warnings: list[str] = []
    try:
        with collecting(warnings):
            provider.record(DOCTOR)
        found = provider.checks() if can(provider, "checks") else []
    except ProviderError as error:
        return [failed(REACH, error)]
    return _problems(provider, warnings, found)


async def _problems_of_async_store(provider: Any) -> list[Check]:
    warnings: list[str] = []
    try:
        with collecting(warnings):
            await provider.record(DOCTOR)
        found = await provider.checks() if can(provider, "checks") else []
    except ProviderError as error:
        return [failed(REACH, error)]
    return _problems(provider, warnings, found)


def _problems(provider: Any, warnings: list[str], found: list[Check]) -> list[Check]:
    schema = [Check("schema", "warning", warning) for warning in warnings]
    return [
        *private_store(getattr(provider, "sync_provider", provider)),
        *schema,
        *(each for each in found if each.status != "ok"),
    ]
