"""The contract suite: what a lock provider must do, as tests. A store that passes is supported.

Run it on your own provider from a test module::

    import pytest
    from shedlock_py.testing.contract import LockProviderContract

    class TestMyProvider(LockProviderContract):
        @pytest.fixture
        def make_provider(self):
            return lambda: MyProvider(...)          # each call a provider, all of them on one and the same store

For an async provider subclass :class:`AsyncLockProviderContract` and override ``make_async_provider`` instead: every
test runs on it too, and those that only async has. For a store that other processes can reach, subclass
:class:`ProcessContract` and :class:`ForkContract` as well, and :class:`EventLoopContract` for its async provider; for a
store behind a network, :class:`NetworkContract`; for one that a test can make wait, :class:`StallingStoreContract`; for
one that keeps run history, :class:`HistoryContract`; for one with ``pause`` and ``resume``, which every provider has
that is made with the kit, :class:`PauseContract` or :class:`AsyncPauseContract`. The other hooks are in
:mod:`shedlock_py.testing.contract.base`.

The tests use lock names of their own, so the store may be shared by tests that run one after the other; ``prune`` is
called for the whole store.
"""

import pytest

_PARTS = (
    "asynchronous",
    "base",
    "exclusion",
    "fencing",
    "giving_back",
    "guarding",
    "history",
    "hold_times",
    "names",
    "network",
    "pausing",
    "processes",
    "recovering",
    "sharing",
    "threads",
    "tools",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.contract.asynchronous import CancellationContract
from shedlock_py.testing.contract.base import ContractBase, LockProviderFactory
from shedlock_py.testing.contract.exclusion import ExclusionContract
from shedlock_py.testing.contract.fencing import FencingContract
from shedlock_py.testing.contract.giving_back import GivingBackContract
from shedlock_py.testing.contract.guarding import GuardContract
from shedlock_py.testing.contract.history import AsyncHistoryContract, HistoryContract
from shedlock_py.testing.contract.hold_times import HoldTimesContract, StallingStoreContract
from shedlock_py.testing.contract.names import NamesContract
from shedlock_py.testing.contract.network import NetworkContract
from shedlock_py.testing.contract.pausing import AsyncPauseContract, PauseContract
from shedlock_py.testing.contract.processes import ProcessContract
from shedlock_py.testing.contract.recovering import RecoveryContract
from shedlock_py.testing.contract.sharing import EventLoopContract, ForkContract
from shedlock_py.testing.contract.threads import ThreadsContract
from shedlock_py.testing.contract.tools import ToolsContract

__all__ = [
    "AsyncHistoryContract",
    "AsyncLockProviderContract",
    "AsyncPauseContract",
    "BlockingLockProvider",
    "ContractBase",
    "EventLoopContract",
    "ExclusionContract",
    "ForkContract",
    "GivingBackContract",
    "HistoryContract",
    "HoldTimesContract",
    "LockProviderContract",
    "LockProviderFactory",
    "NetworkContract",
    "PauseContract",
    "ProcessContract",
    "RecoveryContract",
    "StallingStoreContract",
]


class LockProviderContract(
    ExclusionContract,
    HoldTimesContract,
    FencingContract,
    GivingBackContract,
    RecoveryContract,
    NamesContract,
    ToolsContract,
    ThreadsContract,
    GuardContract,
):
    """What every provider must do. Override ``make_provider``."""


class AsyncLockProviderContract(LockProviderContract, CancellationContract):
    """What every async provider must do. Override ``make_async_provider``."""
