"""The durations of an election: their defaults, and the example in errors."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from shedlock_py import AsyncLeaderElector, ConfigurationError, InMemoryLockProvider, LeaderElector

ELECTORS = pytest.mark.parametrize("elector_class", [LeaderElector, AsyncLeaderElector])


def seconds_of(elector: Any) -> tuple[float, ...]:
    durations = (elector.lease_duration, elector.renew_deadline, elector.retry_period)
    return tuple(duration.total_seconds() for duration in durations)


@ELECTORS
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (15, 10, 2)),
        ({"lease_duration": "3s"}, (3, 2, 0.4)),
        ({"lease_duration": "5s"}, (5, 3.334, 0.667)),
        ({"lease_duration": "1h"}, (3600, 2400, 480)),
        ({"lease_duration": "9ms"}, (0.009, 0.006, 0.002)),
        ({"lease_duration": "1m", "renew_deadline": "50s"}, (60, 50, 10)),
        ({"lease_duration": "1m", "retry_period": "1s"}, (60, 40, 1)),
        ({"renew_deadline": "5s"}, (15, 5, 1)),
        ({"lease_duration": timedelta(seconds=30), "renew_deadline": None, "retry_period": 3}, (30, 20, 3)),
    ],
)
def test_durations_that_are_not_given_are_in_proportion_to_the_lease(
    elector_class: Any, given: dict[str, Any], expected: tuple[float, ...]
) -> None:
    assert seconds_of(elector_class(InMemoryLockProvider(), "election", **given)) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"lease_duration": "10s", "renew_deadline": "10s"},
        {"renew_deadline": "30s"},
        {"renew_deadline": "2s", "retry_period": "2s"},
        {"lease_duration": "2ms"},
    ],
)
def test_the_error_of_an_impossible_set_has_durations_that_work(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="; write for example ") as caught:
        LeaderElector(InMemoryLockProvider(), "election", **given)  # type: ignore[arg-type]  # all are durations
    example = dict(re.findall(r'(\w+)="([^"]+)"', str(caught.value).partition("write for example ")[2]))
    elector = LeaderElector(InMemoryLockProvider(), "election", **example)
    assert seconds_of(elector) == (15, 10, 2)


@pytest.mark.parametrize("grace", ["0s", "1s", "6s", "9s", "1h"])
def test_on_the_command_line_they_are_options(grace: str) -> None:
    """The command line adds the command's grace."""
    from shedlock_py.cli.lead import durations_of
    from shedlock_py.model.durations import parse_duration

    def check(lease: str, deadline: str | None, retry: str | None, grace: str | None) -> None:
        given = [None if each is None else parse_duration(each, zero=True) for each in (lease, deadline, retry, grace)]
        durations_of(*given)  # type: ignore[arg-type]  # the lease is not None

    refused = 0
    for lease, deadline, retry in product(("3s", "15s", "1m"), (None, "2s", "14s"), (None, "1s", "9s")):
        try:
            check(lease, deadline, retry, grace)
        except ConfigurationError as error:
            refused += 1
            example = str(error).partition("write for example ")[2]
            options = dict(zip(*[iter(example.split(" "))] * 2, strict=True))
            assert list(options) == ["--lease-duration", "--renew-deadline", "--retry-period", "--grace"]
            check(*options.values())
    assert refused
