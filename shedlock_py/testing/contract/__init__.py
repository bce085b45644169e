"""The contract suite: tests that every lock provider must pass. A store that passes is supported.

Run it on your own provider from a test module::

    import pytest
    from shedlock_py.testing.contract import LockProviderContract

    class TestMyProvider(LockProviderContract):
        @pytest.fixture
        def make_provider(self):
            return lambda: MyProvider(...)          # each call returns a new provider on the same store

Which class to subclass:

- :class:`LockProviderContract` for a sync provider.
- :class:`AsyncLockProviderContract` for an async provider: it runs the same tests, and tests of cancellation. Override
  ``make_async_provider``.
- :class:`ProcessContract` and :class:`ForkContract` for a store that other processes can reach, and
  :class:`EventLoopContract` for its async provider.
- :class:`NetworkContract` for a store behind a network.
- :class:`StallingStoreContract` for a store that a test can make wait.
- :class:`HistoryContract` or :class:`AsyncHistoryContract` for a provider with run history.
- :class:`PauseContract` or :class:`AsyncPauseContract` for a provider with ``pause`` and ``resume``. Every provider
  that is made with the kit has them.

:mod:`shedlock_py.testing.contract.base` describes the other hooks.

Each test uses a new lock name, so tests that run one after the other may share a store. ``prune`` deletes the records
of all names in the store.
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
    """The tests that every provider must pass. Override ``make_provider``."""


class AsyncLockProviderContract(LockProviderContract, CancellationContract):
    """The tests that every async provider must pass. Override ``make_async_provider``."""
