"""Hooks that a test module overrides for its store, and helpers that the tests share."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Final, TypeVar
from uuid import uuid4

import pytest

from shedlock_py import (
    AsyncLockProvider,
    Lease,
    LockProvider,
    LockRecord,
    LockRequest,
    ProviderUnreachable,
    configure,
    reset,
)
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.doubles import RecordingListener

T = TypeVar("T")

LockProviderFactory = Callable[[], LockProvider]

LONG: Final = "1m"
"""A lease that does not end during a test."""
SHORT: Final = "100ms"
"""A lease that a test lets expire. Do not assume that it still lasts: the machine may have been busy.

Tests therefore guard a task with :data:`LONG`, and cut its lease to :data:`SHORT` by an extension.
"""
LONGEST_WAIT: Final = 60.0
"""Seconds after which a test gives up. Even a busy machine does not need so long."""


class ContractBase:
    """The hooks: fixtures and methods for subclasses to override."""

    clock_resolution: ClassVar[float] = 0.0
    """Seconds. A record that is deleted and acquired again within this time may get an earlier token again.

    ``prune`` keeps records that are younger. A store that learns the time from replies adds its error, as in
    :attr:`kept_longer`.
    """
    kept_longer: ClassVar[timedelta] = timedelta(milliseconds=2)
    """How much longer than requested the store may keep a lease, because it rounds or its clock is inexact.

    For a store that learns the time from replies: ``clock_error``, twice its resolution, the age of a time that several
    commands share, and a round trip.
    """
    recovers: ClassVar[bool] = True
    """False for a store without ``recover``, or without ``is_released`` in its records."""
    herd: ClassVar[int] = 50
    """How many callers attempt at once. Lower it if an attempt takes many requests, or the test server is slow."""

    @pytest.fixture
    def make_provider(self) -> Any:
        """A function that returns a new provider, each time on the same store.

        Each test should have a table or a bucket of its own: ``prune`` deletes the records of all names.
        """
        raise NotImplementedError("override the fixture make_provider of the contract")

    @pytest.fixture
    def provider(self, make_provider: LockProviderFactory) -> LockProvider:
        return make_provider()

    @pytest.fixture
    def other(self, provider: LockProvider, make_provider: LockProviderFactory) -> LockProvider:
        """A second provider on the same store, as another replica uses it."""
        return make_provider()

    @pytest.fixture
    def recovery(self) -> None:
        if not self.recovers:
            pytest.skip("this provider cannot recover runs")

    @pytest.fixture
    def failing_provider(self, provider: LockProvider) -> LockProvider:
        """A provider without a reply from its store. Override it with a store that really does not reply."""
        broken: LockProvider = failing(provider, "acquire", "record")
        return broken

    def delete_record(self, provider: LockProvider, name: str) -> None:
        """Remove the record from the store, as an operator would by hand, even while it is held.

        This default prunes the record. It fails if :attr:`clock_resolution` is too small.
        """
        provider.force_release(name)
        time.sleep(self.clock_resolution)
        provider.prune(0)
        assert provider.record(name) is None, f"{name} was not pruned: clock_resolution is too small"

    @pytest.fixture(autouse=True)
    def events(self) -> Iterator[RecordingListener]:
        """Every event of the test's guards, which get the provider as an argument."""
        events = RecordingListener()
        with reset(), configure(listeners=[events]):
            yield events

    @pytest.fixture
    def name(self) -> str:
        """A lock name that no other test uses."""
        return f"contract-{uuid4().hex[:12]}"


class AsyncContractBase(ContractBase):
    """The hooks of an async provider."""

    moments: ClassVar[range] = range(50)
    """When callers are cancelled, in iterations of the event loop. Lower it if an attempt takes many requests."""

    @pytest.fixture
    def make_async_provider(self) -> Any:
        """A function that returns a new async provider, each time on the same store. Called on an event loop."""
        raise NotImplementedError("override the fixture make_async_provider of the contract")

    @pytest.fixture
    def make_provider(self, make_async_provider: Callable[[], AsyncLockProvider]) -> Iterator[LockProviderFactory]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(BlockingLockProvider(make_async_provider))

    @pytest.fixture
    def failing_provider(self, provider: LockProvider) -> Iterator[LockProvider]:
        assert isinstance(provider, BlockingLockProvider)
        with BlockingLockProvider(lambda: failing(provider.async_provider, "acquire", "record")) as broken:
            yield broken


def failing(provider: Any, *operations: str) -> Any:
    """Return a copy of ``provider`` that raises :exc:`ProviderUnreachable` for ``operations``."""

    def fail(operation: str, subject: object, *_: object) -> None:
        name: Any = getattr(subject, "name", subject)
        raise ProviderUnreachable("no reply", operation=operation, lock_name=name) from OSError("no reply")

    def failing_operation(operation: str) -> Callable[..., Any]:
        async def fail_async(subject: object, *_: object) -> None:
            fail(operation, subject)

        is_async = inspect.iscoroutinefunction(getattr(provider, operation))
        return fail_async if is_async else partial(fail, operation)

    methods = {name: getattr(provider, name) for name in dir(LockProvider) if not name.startswith("_")}
    return SimpleNamespace(**methods | {operation: failing_operation(operation) for operation in operations})


def eventually(get: Callable[[], T | None], what: str = "it", longest_wait: float = LONGEST_WAIT) -> T:
    """Return the first result of ``get`` that is not None or False."""
    began = time.monotonic()
    while True:
        result = get()
        if result is not None and result is not False:
            return result
        waited = time.monotonic() - began
        assert waited < longest_wait, f"{what} did not happen within {longest_wait:g} s"
        time.sleep(0.005 + waited / 20)  # poll less often during a long wait


def acquired(provider: LockProvider, request: LockRequest) -> Lease:
    """Acquire a lock that must be free."""
    lease = provider.acquire(request)
    assert lease is not None, f"lock {request.name!r} should be free, but {provider.record(request.name)} has it"
    return lease


def record_of(provider: LockProvider, name: str) -> LockRecord:
    record = provider.record(name)
    assert record is not None, f"lock {name!r} should have a record"
    return record


def granted_soon(provider: LockProvider, request: LockRequest) -> Lease:
    """Acquire a lock after its former lease has expired, or is about to.

    If the store's clock counts seconds, the record may show the lock as free a moment before the store grants it.
    """
    return eventually(lambda: provider.acquire(request), f"the end of the former lease of {request.name!r}")


def expired(provider: LockProvider, name: str, **request: Any) -> Lease:
    """Return a lease that has expired without a release, as after its holder died."""
    lease = acquired(provider, LockRequest(name, SHORT, **request))
    eventually(lambda: not record_of(provider, name).is_held, "the end of a short lease")
    return lease
