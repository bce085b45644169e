"""What the tests of late copies of requests share, whatever the store."""

from collections.abc import Callable

from shedlock_py import Lease, LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy

ENDS: dict[str, Callable[[LockProvider, Lease], object]] = {
    "released": lambda provider, lease: provider.release(lease),
    "freed by force": lambda provider, lease: provider.force_release(lease.name),
}


def asked_twice(provider: LockProvider, holding: TcpProxy, name: str, operation: str = "acquire") -> Lease:
    """A lease whose first question is still under way."""
    holding.hold(name, skip=1 if operation == "take_over" else 0)  # a take-over reads the record first
    lease: Lease | None = getattr(provider, operation)(LockRequest(name, "1h"))
    assert lease is not None
    assert holding.holds
    return lease
