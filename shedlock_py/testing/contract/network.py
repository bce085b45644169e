"""A store behind a network: lost replies, late requests, and many callers at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any, ClassVar

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, eventually, record_of
from shedlock_py.testing.contract.fencing import FIRE_TIME
from shedlock_py.testing.contract.recovering import again, dead_run
from shedlock_py.testing.contract.threads import at_once
from shedlock_py.testing.proxy import TcpProxy

ALL = 1000
"""More replies than a provider ever waits for."""

ENDS: dict[str, Callable[[LockProvider, Lease], object]] = {
    "released": lambda provider, lease: provider.release(lease),
    "freed by force": lambda provider, lease: provider.force_release(lease.name),
}


class NetworkBase(ContractBase):
    """The hooks of a store behind a network. Override ``proxy`` and ``make_proxied_provider``.

    ``provider`` reaches the store without the proxy. Requests must contain the lock name unescaped; the names have
    letters, digits and "-".
    """

    sends: ClassVar[int] = 2
    """How often the provider and its driver send a command if its replies get lost."""
    requests_before_take_over: ClassVar[int] = 1
    """How many requests with the lock name precede the take-over itself. By default one: the provider reads the record.
    """
    requests_before_force_release: ClassVar[int] = 1
    """How many requests with the lock name precede the forced release itself."""
    requests_before_forget_fire_time: ClassVar[int] = 1
    """How many requests with the lock name precede the request that forgets a fire time."""
    most_connections: ClassVar[int] = 20
    """How many connections the provider opens at most."""

    @pytest.fixture
    def proxy(self) -> Any:
        """A :class:`TcpProxy` in front of the store's server."""
        raise NotImplementedError("override the fixture proxy of the contract")

    @pytest.fixture
    def unused_proxy(self, proxy: TcpProxy) -> TcpProxy:
        """The proxy of ``make_proxied_provider``, used by this test only. Override it where tests share ``proxy``."""
        return proxy

    def drop_reply_to_skip(self, proxy: TcpProxy, name: str) -> None:
        """Drop the reply that tells the provider that ``name`` is held."""
        proxy.drop_replies_to(name)

    @pytest.fixture
    def make_proxied_provider(self, proxy: TcpProxy) -> Any:
        """A function that returns a provider on the same store, connected through ``proxy``."""
        raise NotImplementedError("override the fixture make_proxied_provider of the contract")

    @pytest.fixture
    def proxied_provider(self, make_proxied_provider: Callable[[], LockProvider], name: str) -> LockProvider:
        """A provider that has done each operation once, so that the server has loaded and prepared everything."""
        return warmed_up(make_proxied_provider(), f"warm-{name[9:]}")


class LostRepliesContract(NetworkBase):
    """The server has executed the command, but the client cannot know it."""

    def test_i12_acquire_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        tokens = []
        for _ in range(3):  # the record does not exist the first time
            proxy.drop_replies_to(name)
            lease = has_lock(provider, proxied_provider.acquire(LockRequest(name, LONG)))
            assert proxy.drops_left == 0
            tokens.append(lease.fencing_token or 0)
            assert proxied_provider.release(lease) is True
            assert not record_of(provider, name).is_held
        assert tokens == sorted(set(tokens))

    def test_i5_a_skip_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        self.drop_reply_to_skip(proxy, name)
        assert proxied_provider.acquire(LockRequest(name, LONG)) is None
        assert proxy.drops_left == 0
        has_lock(provider, lease)

    def test_i12_take_over_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        former = acquired(provider, LockRequest(name, LONG))
        proxy.drop_replies_to(name)
        lease = has_lock(provider, proxied_provider.take_over(LockRequest(name, LONG)))
        assert proxy.drops_left == 0
        assert (lease.fencing_token or 0) > (former.fencing_token or 0)

    @pytest.mark.usefixtures("recovery")
    def test_i12_recover_whose_reply_is_lost(
        self, proxied_provider: Any, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        dead = dead_run(provider, name)
        proxy.drop_replies_to(name)
        lease = has_lock(provider, proxied_provider.recover(again(name), dead))
        assert proxy.drops_left == 0
        record = record_of(provider, name)
        assert (record.recoveries, record.last_fire_time) == (1, FIRE_TIME), "it is counted once"
        assert proxied_provider.release(lease) is True

    def test_i12_extend_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        proxy.drop_replies_to(name)
        assert proxied_provider.extend(lease, "10m") is lease
        assert proxy.drops_left == 0
        has_lock(provider, lease)
        assert timedelta(seconds=500) < lease.trusted_for() < record_of(provider, name).remaining

    def test_i2_extend_and_release_of_a_lost_lease_whose_replies_are_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        successor = provider.take_over(LockRequest(name, LONG))
        proxy.drop_replies_to(name)
        assert proxied_provider.extend(lease, "10m") is None
        assert not lease.is_trusted()
        proxy.drop_replies_to(name)
        assert proxied_provider.release(lease) is False
        assert proxy.drops_left == 0
        has_lock(provider, successor)

    def test_i12_release_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        for at_least in ("0s", "50s"):
            lock = f"{name}-{at_least}"
            lease = acquired(proxied_provider, LockRequest(lock, LONG, at_least))
            proxy.drop_replies_to(lock)
            assert proxied_provider.release(lease) is True
            assert proxy.drops_left == 0
            assert record_of(provider, lock).is_held is (at_least == "50s")
            assert record_of(provider, lock).remaining < timedelta(seconds=50) + self.kept_longer
            assert proxied_provider.release(lease) is False

    def test_i12_force_release_whose_reply_is_lost(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        proxy.drop_replies_to(name, skip=self.requests_before_force_release)
        assert proxied_provider.force_release(name) is True, "it was held"
        assert proxy.drops_left == 0
        assert not record_of(provider, name).is_held
        assert provider.release(lease) is False

    def test_i11_forget_fire_time_whose_reply_is_lost(
        self, proxied_provider: Any, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        proxy.drop_replies_to(name, skip=self.requests_before_forget_fire_time)
        assert proxied_provider.forget_fire_time(name) is True, "there was one"
        assert proxy.drops_left == 0
        assert record_of(provider, name).last_fire_time is None

    def test_i12_acquire_that_gets_no_reply(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        """The lock gets free, at the latest when the provider's undo arrives after the network works again."""
        for lock, lost in ((f"{name}-some", self.sends), (f"{name}-all", ALL)):
            proxy.drop_replies_to(lock, lost)
            with pytest.raises(ProviderUnreachable) as caught:
                proxied_provider.acquire(LockRequest(lock, LONG, LONG, fire_time=FIRE_TIME))
            assert (caught.value.operation, caught.value.lock_name) == ("acquire", lock)
            assert caught.value.__cause__ is not None
            record = provider.record(lock)
            # otherwise nothing was granted, so there is nothing to undo
            is_held = record is not None and record.is_held
            assert proxy.drops_left < ALL - self.sends or not (lost == ALL and is_held), "the undo was not sent"
            proxy.drop_replies_to(lock, 0)
            # Wait: a server such as MySQL rolls back the transaction of a broken connection only when it notices.
            request = LockRequest(lock, LONG, fire_time=FIRE_TIME)
            assert provider.release(eventually(partial(provider.acquire, request), "the undo")) is True

    def test_i5_release_that_gets_no_reply(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        proxy.drop_replies_to(name, ALL)
        with pytest.raises(ProviderUnreachable):
            proxied_provider.release(lease)
        assert not lease.is_trusted()
        proxy.drop_replies_to(name, 0)
        proxied_provider.release(lease)
        eventually(lambda: provider.acquire(LockRequest(name, LONG)), "the release")

    def test_i6_extend_that_gets_no_reply(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        proxy.drop_replies_to(name, ALL)
        with pytest.raises(ProviderUnreachable):
            proxied_provider.extend(lease, "10m")
        assert timedelta(0) < lease.trusted_for() <= timedelta(minutes=1), "the holder trusts it no longer than before"
        proxy.drop_replies_to(name, 0)
        assert proxied_provider.extend(lease, "5m") is lease
        has_lock(provider, lease)
        assert proxied_provider.release(lease) is True

    def test_connections_that_broke_while_they_were_idle(
        self, proxied_provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        proxy.cut()
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        proxy.cut()
        assert proxied_provider.extend(lease, "2m") is lease
        proxy.cut()
        assert proxied_provider.release(lease) is True
        proxy.cut()
        assert record_of(proxied_provider, name).locked_by == lease.locked_by

    def test_a_herd_gets_one_lease_and_no_error(
        self, make_proxied_provider: Callable[[], LockProvider], unused_proxy: TcpProxy, name: str
    ) -> None:
        """A process attempts as often as many replicas, at once. It opens no more connections than its pool has."""
        provider, request = make_proxied_provider(), LockRequest(name, LONG)
        leases = at_once(self.herd, lambda _: [provider.acquire(request) for _ in range(2)])
        assert sum(lease is not None for pair in leases for lease in pair) == 1
        assert 1 <= unused_proxy.connections <= self.most_connections


class LateCopiesContract(NetworkBase):
    """The client sent a command again after a broken connection. The first copy arrives later."""

    def _sent_twice(self, provider: LockProvider, proxy: TcpProxy, operation: str, request: LockRequest) -> Lease:
        """Return a lease. The first copy of its request is still on its way."""
        proxy.hold(request.name, skip=self.requests_before_take_over if operation == "take_over" else 0)
        lease: Lease | None = getattr(provider, operation)(request)
        assert lease is not None
        assert proxy.holds
        return lease

    def test_i2_a_claim_that_is_granted_again_is_not_its_lease(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = self._sent_twice(proxied_provider, proxy, "acquire", LockRequest(name, "1h"))
        provider.force_release(name)
        successor = acquired(provider, LockRequest(name, LONG))
        assert provider.release(successor) is True
        before = record_of(provider, name)
        proxy.deliver()
        again = record_of(provider, name)
        if again == before:  # better: the store has refused the late copy
            assert proxied_provider.extend(lease, "10h") is None
            assert proxied_provider.release(lease) is False
            return
        assert again.locked_by == lease.locked_by
        assert again.is_held
        assert (again.fencing_token or 0) > (successor.fencing_token or 0)
        assert proxied_provider.extend(lease, "10h") is None
        assert not lease.is_trusted()
        assert record_of(provider, name).lock_until == again.lock_until
        assert proxied_provider.release(lease) is True, "no holder uses it: it is better free"
        assert not record_of(provider, name).is_held

    def test_i12_a_lock_that_was_freed_stays_free(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        for number, (operation, end) in enumerate(product(("acquire", "take_over"), ENDS)):
            lock = f"{name}-{number}"
            lease = self._sent_twice(proxied_provider, proxy, operation, LockRequest(lock, "1h"))
            ENDS[end](proxied_provider, lease)
            before = record_of(provider, lock)
            proxy.deliver()
            assert record_of(provider, lock) == before, f"{operation}, {end}"
            assert not before.is_held

    def test_i11_a_late_copy_of_a_claim_that_was_undone_uses_no_fire_time_up(
        self, proxied_provider: Any, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        request = LockRequest(name, "1h", fire_time=FIRE_TIME)
        lease = self._sent_twice(proxied_provider, proxy, "acquire", request)
        assert proxied_provider.undo(lease) is True
        before = record_of(provider, name)
        proxy.deliver()
        assert record_of(provider, name) == before
        acquired(provider, request)

    def test_i1_a_late_copy_of_a_take_over_matches_nothing(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        """Another holder has the lock when the first copy arrives. It keeps the lock and its token."""
        for number, (is_new, fire_time) in enumerate(product((False, True), (None, FIRE_TIME))):
            lock = f"{name}-{number}"
            if not is_new:
                acquired(provider, LockRequest(lock, LONG))
            request = LockRequest(lock, "1h", fire_time=fire_time)
            lease = self._sent_twice(proxied_provider, proxy, "take_over", request)
            successor = provider.take_over(LockRequest(lock, "1h"))
            before = record_of(provider, lock)
            proxy.deliver()
            assert record_of(provider, lock) == before, f"{is_new=}, {fire_time=}"
            assert provider.extend(successor, "2h") is successor
            assert proxied_provider.extend(lease, "2h") is None

    def test_a_late_copy_of_a_take_over_makes_no_record_anew(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        """The record to replace was deleted meanwhile."""
        acquired(provider, LockRequest(name, LONG))
        lease = self._sent_twice(proxied_provider, proxy, "take_over", LockRequest(name, "1h"))
        assert proxied_provider.release(lease) is True
        self.delete_record(provider, name)
        proxy.deliver()
        assert provider.record(name) is None
        acquired(provider, LockRequest(name, LONG))

    @pytest.mark.usefixtures("recovery")
    def test_i1_a_late_copy_of_a_recovery_matches_nothing(
        self, proxied_provider: Any, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        """The late copy changes neither its own run's record, which has ended, nor a later run's record."""
        dead = dead_run(provider, name)
        proxy.hold(name)
        lease = proxied_provider.recover(again(name), dead)
        assert lease is not None
        assert proxy.holds
        assert proxied_provider.release(lease) is True
        before = record_of(provider, name)
        proxy.deliver()
        after = record_of(provider, name)
        assert after == before
        assert after.is_released is True

    def test_i1_a_late_copy_of_a_force_release_frees_no_successor(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        acquired(provider, LockRequest(name, LONG))
        proxy.hold(name, skip=self.requests_before_force_release)
        assert proxied_provider.force_release(name) is True
        assert proxy.holds
        successor = acquired(provider, LockRequest(name, LONG))
        proxy.deliver()
        has_lock(provider, successor)

    def test_i11_a_late_copy_of_forget_fire_time_forgets_no_later_one(
        self, proxied_provider: Any, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        proxy.hold(name, skip=self.requests_before_forget_fire_time)
        assert proxied_provider.forget_fire_time(name) is True
        assert proxy.holds
        request = LockRequest(name, LONG, fire_time=FIRE_TIME - timedelta(hours=1))
        provider.release(acquired(provider, request))
        proxy.deliver()
        assert provider.acquire(request) is None

    def test_i6_an_extension_that_may_be_carried_out_again(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        lease = acquired(proxied_provider, LockRequest(name, LONG))
        proxy.hold(name)
        assert proxied_provider.extend(lease, "2m") is lease
        assert proxy.holds
        assert proxied_provider.extend(lease, "1h") is lease
        proxy.deliver()
        assert lease.trusted_for() < record_of(provider, name).remaining
        assert proxied_provider.extend(lease, "2m") is lease
        assert timedelta(minutes=1) < lease.trusted_for() < record_of(provider, name).remaining

    def test_i4_an_extension_that_arrives_after_the_release_changes_nothing(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str
    ) -> None:
        for at_least in ("0s", "20s"):
            lock = f"{name}-{at_least}"
            lease = acquired(proxied_provider, LockRequest(lock, LONG, at_least))
            proxy.hold(lock)
            assert proxied_provider.extend(lease, "1h") is lease
            assert proxy.holds
            assert proxied_provider.release(lease) is True
            before = record_of(provider, lock)
            proxy.deliver()
            assert record_of(provider, lock) == before
            assert before.remaining <= timedelta(seconds=20) + self.kept_longer


class NetworkContract(LostRepliesContract, LateCopiesContract):
    """The tests of a provider on an unreliable network. Override ``proxy`` and ``make_proxied_provider``."""


def warmed_up(provider: LockProvider, name: str) -> LockProvider:
    """Return ``provider`` after it has done each operation once, on the lock ``name``."""
    for grant in (provider.acquire, provider.take_over):
        lease = grant(LockRequest(name, LONG))
        assert lease is not None
        assert provider.extend(lease, LONG) is lease
        assert provider.release(lease) is True
    return provider


def has_lock(provider: LockProvider, lease: Lease | None) -> Lease:
    """Return ``lease`` after checking that the store's record belongs to it."""
    assert lease is not None, "the lock was granted"
    assert lease.is_trusted()
    record = record_of(provider, lease.name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, lease.fencing_token, True)
    return lease
