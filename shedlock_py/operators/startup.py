"""``check()``: find at start-up the problems that would otherwise appear at night."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from shedlock_py.errors import ConfigurationError, ProviderError, ShedLockError
from shedlock_py.guard.spec import LockSpec, declared_specs
from shedlock_py.model.overdue import DOCTOR
from shedlock_py.operators.checks import REACH, collecting, failed, private_store
from shedlock_py.provider import Check, can, check_store, require_file
from shedlock_py.settings.defaults import check_kept_alive, keep_alive_in_use, lock_request
from shedlock_py.settings.lookup import configured_providers, resolve_async_provider, resolve_provider, why_no_provider
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import check_keep_alive_limit, is_async_provider, required_provider

PROVIDER, FUNCTIONS, NAMES = "provider", "functions", "lock names"


def check(*, strict: bool = False) -> list[Check]:
    """Find problems at start-up, before the first job runs. Call it when the application is imported and configured.

    ``check()`` reads from the store and compares the schema. Each function with ``@scheduler_lock`` needs a store that
    it can use, a ``lock_at_most_for``, and a lock name of its own. A process without any store is a problem, too.
    ``check()`` writes nothing, and does not create a missing SQLite file. It cannot await an async provider: an async
    provider without a sync twin is a warning that names :func:`check_async`.

    :return: the problems; an empty list if all is well. ``hint`` has the cure. "failed" means that a job would not run.
    :param strict: raise the problems, warnings too.
    :raises ConfigurationError: ``check()`` found a problem, with ``strict=True``.
    """
    specs = declared_specs()
    found, stores = [*problems_of(specs)], _stores(specs)
    found += _nothing_checked(found, stores)
    has_sync = any(not is_async_provider(provider) for provider in configured_providers())
    for provider in stores:
        if not is_async_provider(provider):
            found += _problems_of_store(provider)
        elif not (
            has_sync and provider in configured_providers()
        ):  # otherwise the configured sync provider is the same store
            message = f"{type(provider).__name__} was not checked: check() cannot await an async provider"
            found.append(Check(PROVIDER, "warning", message, "await check_async()"))
    return _result(found, strict)


async def check_async(*, strict: bool = False) -> list[Check]:
    """Like :func:`check`, for asyncio. It checks async providers, too, and sync providers in a worker thread."""
    from asyncio import to_thread  # late: few programs that call check() load asyncio

    specs = declared_specs()
    found, stores = [*problems_of(specs)], _stores(specs)
    found += _nothing_checked(found, stores)
    for provider in stores:
        if is_async_provider(provider):
            found += await _problems_of_async_store(provider)
        else:
            found += await to_thread(_problems_of_store, provider)
    return _result(found, strict)


def _result(found: list[Check], strict: bool) -> list[Check]:
    found = [*dict.fromkeys(found)]  # a sync and an async provider of one store have the same problems
    if strict and found:
        raise ConfigurationError("\n".join(map(str, found)))
    return found


def _nothing_checked(found: list[Check], stores: list[Any]) -> list[Check]:
    """Return a problem if nothing was found because the process lacks a store."""
    if found or stores or not is_active():
        return []
    return [Check(PROVIDER, "failed", "nothing was checked: there is no provider", why_no_provider())]


def problems_of(specs: Iterable[LockSpec]) -> Iterator[Check]:
    """Yield the problems of decorated functions that are known without the store."""
    functions: dict[str, dict[str, None]] = defaultdict(dict)
    problems: dict[Check, None] = {}  # a factory decorates a function in each call: report it once
    for spec in specs:
        problems |= dict.fromkeys(problems_of_function(spec))
        if spec.name is not None:
            functions[spec.name] |= spec.functions
    yield from problems
    for name, sharing in functions.items():
        if len(sharing) > 1:
            message = f"lock {name!r} guards {' and '.join(sorted(sharing))}: while one runs, the other is skipped"
            yield Check(NAMES, "warning", message, "give each function a lock name of its own")


def problems_of_function(spec: LockSpec) -> Iterator[Check]:
    where = " and ".join(spec.functions)
    for check_part in (_check_durations, _check_provider):
        try:
            check_part(spec)
        except ShedLockError as error:
            yield Check(FUNCTIONS, "failed", f"{where}: {error}")
        except Exception as error:  # a provider of another package can raise anything
            yield Check(FUNCTIONS, "failed", f"{where}: {error!r}")


def _check_durations(spec: LockSpec) -> None:
    options = spec.options
    request = lock_request(spec.name or "x", options.lock_at_most_for, options.lock_at_least_for)
    check_keep_alive_limit(keep_alive_in_use(options.keep_alive), request.lock_at_most_for)
    if options.recover:
        check_kept_alive(f"lock {spec.template!r}", options.keep_alive)


def _check_provider(spec: LockSpec) -> None:
    resolve: Any = resolve_async_provider if spec.is_async else resolve_provider
    store = resolve(spec.options.provider, spec.template)
    if spec.options.recover and is_active():
        check_store(store, "recover=True", "recover")


def _stores(specs: Iterable[LockSpec]) -> list[Any]:
    """Return the configured providers and the functions' providers, without those that cannot be opened.

    A provider that cannot be opened is a problem of its function.
    """
    if not is_active():
        return []
    found: dict[int, Any] = {}
    for given in (*configured_providers(), *(spec.options.provider for spec in specs)):
        if given is None:
            continue
        try:
            provider = required_provider(given)
        except Exception:  # a provider of another package can raise anything
            continue
        provider = getattr(provider, "sync_provider", provider)
        found[id(provider)] = provider
    return [*found.values()]


def _problems_of_store(provider: Any) -> list[Check]:
    warnings: list[str] = []
    try:
        require_file(provider)
        with collecting(warnings):
            if can(provider, "record"):
                provider.record(DOCTOR)
        found = provider.checks() if can(provider, "checks") else []
    except Exception as error:
        return [_unreached(error)]
    return _problems(provider, warnings, found)


async def _problems_of_async_store(provider: Any) -> list[Check]:
    warnings: list[str] = []
    try:
        require_file(provider)
        with collecting(warnings):
            if can(provider, "record"):
                await provider.record(DOCTOR)
        found = await provider.checks() if can(provider, "checks") else []
    except Exception as error:
        return [_unreached(error)]
    return _problems(provider, warnings, found)


def _unreached(error: Exception) -> Check:
    if isinstance(error, ProviderError):
        return failed(REACH, error)
    return Check(REACH, "failed", f"reading the lock record raised {error!r}", "see the code of the provider")


def _problems(provider: Any, warnings: list[str], found: list[Check]) -> list[Check]:
    schema = [Check("schema", "warning", warning) for warning in warnings]
    return [
        *private_store(provider),
        *schema,
        *(each for each in found if each.status != "ok"),
    ]
