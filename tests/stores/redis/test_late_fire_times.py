"""A fire time that is later than the server's clock allows is an error, also for a lock that somebody holds (I11)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import ProviderError, ProviderUnreachable
from tests.stores.redis.stores import URL_KINDS, Store, acquired, record_of

pytestmark = pytest.mark.parametrize("kind", URL_KINDS)


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "free"])
def test_i11_a_fire_time_that_is_too_late(store: Store, name: str, is_held: bool) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    if not is_held:
        assert provider.release(lease)
    before = record_of(provider, name)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(ProviderError, match="later than the store's clock") as error:
        acquired(provider, name, fire_time=tomorrow)
    assert not isinstance(error.value, ProviderUnreachable)
    after = record_of(provider, name)
    assert (after.fencing_token, after.last_fire_time, after.is_held) == (before.fencing_token, None, is_held)
