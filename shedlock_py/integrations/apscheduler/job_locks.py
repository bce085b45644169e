"""The choice of a job's lock, and whether the job can run once per fire time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from apscheduler.util import iscoroutinefunction_partial

from shedlock_py import ConfigurationError, LockRequest
from shedlock_py.guard.spec import LockSpec
from shedlock_py.integrations.apscheduler.fire_times import why_plain
from shedlock_py.integrations.apscheduler.lock_names import LockNames, key_of
from shedlock_py.integrations.apscheduler.notices import warn_of_plain_lock, warn_of_shared_lock
from shedlock_py.integrations.apscheduler.options import (
    Lock,
    Provider,
    decorator_options,
    find_lock_spec,
    lock_of_id,
    parse_lock,
    provider_of,
)
from shedlock_py.provider import check_store
from shedlock_py.settings.defaults import check_kept_alive
from shedlock_py.settings.lookup import resolve_async_provider, resolve_provider
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import LockOptions
from shedlock_py.settings.urls import import_reference


class JobLocks:
    """An executor's options about locks, applied to its jobs."""

    def __init__(
        self,
        locks: Mapping[str, Lock] | None,
        lock_all: bool,
        lock_extractor: Callable[[Any], Lock] | str | None,
        defaults: LockOptions,
        provider: Provider | str | None,
        once_per_fire_time: bool | None,
    ) -> None:
        self.by_id = {job_id: parse_lock(lock, f"locks[{job_id!r}]", job_id) for job_id, lock in (locks or {}).items()}
        self._lock_all = lock_all
        self._extract = import_reference(lock_extractor) if isinstance(lock_extractor, str) else lock_extractor
        self._defaults = defaults
        self._provider = provider
        self._once_per_fire_time = once_per_fire_time

    def choose(self, job: Any) -> LockSpec | LockRequest | None:
        """Return the lock of a job, or None for a job without a lock.

        :raises ConfigurationError: the lock that the user names cannot work.
        """
        if job.id in self.by_id:
            return self.by_id[job.id]
        if spec := find_lock_spec(job.func):
            return spec
        try:
            lock = parse_lock(self._extract and self._extract(job), "what lock_extractor returns", job.id)
        except Exception as error:
            raise ConfigurationError(f'lock_extractor failed for job "{job.id}": {error!r}') from error
        return lock_of_id(job) if lock is None and self._lock_all else lock

    def request(self, lock: LockSpec | LockRequest, job: Any) -> LockRequest:
        """Return the request for a run of ``job``, with the fire time of the decorator's ``once_per`` or ``fire_time``.

        :raises ConfigurationError: the lock cannot work.
        """
        call = job.func, tuple(job.args), dict(job.kwargs)
        if isinstance(lock, LockSpec):
            request = lock.request(
                *call,
                lock_at_most_for=self._defaults.lock_at_most_for,
                lock_at_least_for=self._defaults.lock_at_least_for,
            )
        else:
            request = lock
        spec = find_lock_spec(job.func)
        if spec is None or spec is lock or request.fire_time is not None:
            return request
        return spec.options.for_a_run(request, spec.fire_time(*call))  # locks= gives only the name and the durations

    # Fire times

    def refuse_plain(self, job: Any) -> None:
        """:raises ConfigurationError: ``once_per_fire_time=True``, and ``job`` cannot run once per fire time."""
        if not self._once_per_fire_time or decorator_options(job).gives_fire_time:
            return
        if reason := why_plain(job.trigger, provider_of(job, self._provider)):
            raise cannot_run_once(job.id, reason)

    def note(
        self,
        lock: LockSpec | LockRequest,
        job: Any,
        names: LockNames,
        logger: logging.Logger,
        *,
        on_leader: bool,
        fire_time: datetime | None = None,
    ) -> tuple[bool | None, bool]:
        """Note the lock name of a job, and warn if the lock cannot be taken once per fire time.

        :param on_leader: the job runs only on the leader, so a plain lock is not a fault.
        :param fire_time: the fire time of the due run, if a run is due.
        :return: the option ``once_per_fire_time`` for this job (False for a plain lock), and whether the lock is plain
            because other jobs share it.
        """
        name = lock.name if isinstance(lock, LockRequest) else _name_of(lock, job)
        names.add(key_of(job), name)
        gives_fire_time = decorator_options(job).gives_fire_time
        if self._once_per_fire_time is False and not gives_fire_time:
            return False, False
        if other_ids := names.sharing(key_of(job), name, fire_time):
            warn_of_shared_lock(logger, name, job, other_ids[0])
            return False, True
        if gives_fire_time:
            return self._once_per_fire_time, False
        if self._once_per_fire_time is None and (reason := why_plain(job.trigger, provider_of(job, self._provider))):
            if not on_leader:
                warn_of_plain_lock(logger, job, reason)
            return False, False
        return self._once_per_fire_time, False

    def check(self, lock: LockSpec | LockRequest, job: Any, *, recover: bool) -> None:
        """Find at the start the problems that would make each run fail.

        :param recover: the option of the job.
        :raises ConfigurationError: the job has no provider, or the lock cannot work.
        """
        name = self.request(lock, job).name
        resolve: Callable[..., Any] = (
            resolve_async_provider if iscoroutinefunction_partial(job.func) else resolve_provider
        )
        store = resolve(provider_of(job, self._provider), name)
        if recover and is_active():
            check_kept_alive(f'job "{job.id}"', decorator_options(job).keep_alive)
            check_store(store, "recover=True", "recover")


def cannot_run_once(job_id: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f'once_per_fire_time=True cannot work for job "{job_id}", because {reason}. Leave the option out: such a job'
        " then gets a plain lock, and should have a lock_at_least_for"
    )


def _name_of(spec: LockSpec, job: Any) -> str:
    return spec.lock_name(job.func, tuple(job.args), dict(job.kwargs))
