"""URLs of tables."""

from __future__ import annotations

import pytest

from shedlock_py import ConfigurationError, provider_from_url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("dynamodb://", "not of the form"),
        ("dynamodb://locks#x", "not of the form"),
        ("dynamodb://locks/more", "the table's name"),
        ("dynamodb://lo", "the table's name"),
        ("dynamodb://locks?endpoint=localhost:8000", "endpoint must be a URL"),
        ("dynamodb://locks?regoin=eu-west-1", "unknown option 'regoin'"),
        ("dynamodb://locks?history=5", "this store keeps no run history"),
        ("dynamodb://locks?clock_error=soon", "clock_error"),
        ("dynamodb://key:s3cret-pw@locks", "credentials do not belong there"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        provider_from_url(url)
    assert "s3cret-pw" not in str(caught.value)


def test_a_provider_shows_its_table() -> None:
    assert repr(provider_from_url("dynamodb://locks?region=eu-west-1")) == "<DynamoDBLockProvider table locks>"
