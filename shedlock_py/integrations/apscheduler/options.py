"""The executor's options, as users write them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from apscheduler.executors.base import BaseExecutor

from shedlock_py import AsyncLockProvider, ConfigurationError, LockProvider, LockRequest
from shedlock_py.guard.spec import LockSpec
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.model.durations import is_duration
from shedlock_py.model.text import has_url, quoted
from shedlock_py.settings.options import LockOptions, check_recovery
from shedlock_py.settings.urls import provider_from_text

Provider = LockProvider | AsyncLockProvider
Lock = str | Mapping[str, Any] | LockRequest | None
"""A lock in `locks` or from `lock_extractor`: a lock name; a dict with "name" and perhaps "lock_at_most_for" and
"lock_at_least_for"; a whole request; or None for no lock. In `locks`, None says that no lock is intended."""

_AUTOMATIC_ID = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")  # uuid4().hex
_LOCK_FIELDS = {"name", "lock_at_most_for", "lock_at_least_for"}


def parse_on_provider_error(value: object) -> bool:
    """Return whether a job is skipped if its store fails. ``value`` may be a text from a configuration file."""
    chosen = str(value).strip().lower()
    if chosen not in ("error", "skip"):
        raise ConfigurationError(f"on_provider_error must be one of error, skip; not {quoted(value)}")
    return chosen == "skip"


def check_scheduler(scheduler: Any, call: str) -> None:
    """:raises ConfigurationError: not a scheduler, but for example an extension's object that has a scheduler."""
    if hasattr(scheduler, "_process_jobs"):
        return
    kind = type(scheduler).__name__
    if hasattr(getattr(scheduler, "scheduler", None), "_process_jobs"):
        raise ConfigurationError(
            f"{kind} is not a scheduler, but has one: give {call} its attribute .scheduler,"
            " as in install(flask_apscheduler.scheduler)"
        )
    raise ConfigurationError(f"{call} needs a scheduler: {kind} is not a scheduler of APScheduler 3")


def check_executor(executor: object) -> None:
    """:raises ConfigurationError: not an executor, but for example a provider, a URL or a scheduler."""
    if executor is None or isinstance(executor, BaseExecutor | Mapping):
        return
    if isinstance(executor, str) and not has_url(executor):
        return
    raise ConfigurationError(
        f"executor must be an executor, a plugin name, a dict or None, not {quoted(executor)}: a provider or the URL of"
        " a store is the second argument, ShedLockExecutor(provider=…); install(scheduler) wraps the executors of a"
        " scheduler"
    )


def check_process_pool(pool: Any, provider: Provider | str | None, *, has_elector: bool) -> None:
    """:raises ConfigurationError: the workers of a process pool would lack the elector or the provider."""
    if has_elector:
        raise ConfigurationError("a process pool cannot use elector=: use lead(scheduler, elector)")
    if isinstance(provider, str):
        if provider.startswith("memory://"):
            raise ConfigurationError("memory:// locks nothing in a process pool: each worker has its own memory")
        return
    try:
        pickle.dumps(provider)
        problem = "do not inherit configure()"
        may_work = provider is not None or pool._mp_context.get_start_method() == "fork" or pool._initializer
    except Exception:  # pickling can raise anything
        problem = f"cannot be sent a {type(provider).__name__}"
        may_work = False
    if not may_work:
        raise ConfigurationError(
            f"the workers of a process pool {problem}: pass provider= as a URL or as"
            " 'pkg.module:provider_or_factory', of which each worker makes its own provider"
        )


def find_lock_spec(function: Any) -> LockSpec | None:
    """Return the mark of ``@scheduler_lock`` on a job's function, method, partial or callable object, if any."""
    while isinstance(function, partial):
        function = function.func
    for candidate in (function, type(function).__call__):
        spec = getattr(candidate, "__shedlock__", None)
        if isinstance(spec, LockSpec):
            return spec
    return None


def decorator_options(job: Any) -> LockOptions:
    """Return the options of a job's ``@scheduler_lock``. A job without it gets options without values."""
    spec = find_lock_spec(job.func)
    return LockOptions() if spec is None else spec.options


def provider_of(job: Any, given: Provider | str | None) -> Any:
    """Return the decorator's provider, else ``given``, the executor's provider, else None."""
    provider = decorator_options(job).provider
    if provider is not None:
        return provider
    return provider_from_text(given) if isinstance(given, str) else given


def parse_recovery(recover: object, max_recoveries: object, *, once_per_fire_time: bool | None) -> tuple[bool, int]:
    """Parse the executor's options ``recover`` and ``max_recoveries``.

    :raises ConfigurationError: a value cannot work, or conflicts with ``once_per_fire_time=False``.
    """
    is_on = parse_boolean(recover, "recover")
    most: Any = max_recoveries
    if isinstance(most, str) and most.strip().isdecimal():
        most = int(most)
    check_recovery(is_on, most)
    if is_on and once_per_fire_time is False:
        raise ConfigurationError(
            "recover cannot work with once_per_fire_time=False: the store must know which fire times were run"
        )
    return is_on, most


def parse_lock(lock: object, where: str, job_id: str = "…") -> LockSpec | LockRequest | None:
    if lock is None or isinstance(lock, LockRequest):
        return lock
    if isinstance(lock, str) and is_duration(lock):
        raise ConfigurationError(
            f"{where} is {lock!r}, a duration, but this is a lock name; a duration goes into"
            f" {{'lock_at_most_for': {lock!r}, 'name': {job_id!r}}}"
        )
    fields = {"name": lock} if isinstance(lock, str) else lock
    if not isinstance(fields, Mapping) or not {"name"} <= set(fields) <= _LOCK_FIELDS:
        raise ConfigurationError(
            f"{where} must be a lock name, a dict with 'name' and perhaps 'lock_at_most_for' and 'lock_at_least_for',"
            f" a LockRequest, or None for no lock; not {_shown_lock(lock)}"
        )
    return _lock_spec(fields, where)


def _shown_lock(lock: object) -> str:
    """Return ``lock`` for a message. A dict shows only its keys, because a value may be a URL with a password."""
    return f"a dict with {', '.join(map(quoted, lock)) or 'no keys'}" if isinstance(lock, Mapping) else quoted(lock)


def lock_of_id(job: Any) -> LockSpec:
    """Return the lock for ``lock_all``.

    :raises ConfigurationError: the id is automatic, or is not a valid lock name.
    """
    if has_automatic_id(job):
        raise ConfigurationError(
            f'job "{job.name}" has no id of its own, and the automatic one differs in each replica, so lock_all cannot'
            " name its lock: give the job an id. To run it without a lock, also set locks={id: None}"
        )
    return _lock_spec({"name": str(job.id)}, "job id")


def _lock_spec(fields: Mapping[str, Any], where: str) -> LockSpec:
    name = fields["name"]
    template = name.replace("{", "{{").replace("}", "}}") if isinstance(name, str) else name  # no fields
    durations = {field: value for field, value in fields.items() if field != "name"}
    return LockSpec(template, LockOptions.parse(where, durations))


def has_automatic_id(job: Any) -> bool:
    return _AUTOMATIC_ID.fullmatch(job.id) is not None
