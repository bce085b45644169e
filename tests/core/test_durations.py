from datetime import timedelta
from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import ConfigurationError
from shedlock_py.model.durations import LONGEST, Duration, in_milliseconds, parse_duration
from tests.support.logs import warnings_of

MS = timedelta(milliseconds=1)


class Seconds(IntEnum):
    TEN = 10


FORMS: dict[timedelta, list[Duration]] = {
    timedelta(minutes=10): ["10m", " 10 m ", "PT10M", "pt10m", 600, timedelta(minutes=10)],
    timedelta(minutes=90): ["1h30m", "1h 30m"],
    timedelta(milliseconds=250): ["250ms", 0.25, Decimal("0.25")],
    timedelta(milliseconds=1250): ["1s250ms", "PT1.25S"],
    timedelta(seconds=1.5): ["1.5s", Decimal("1.5")],
    timedelta(hours=1): ["1H"],
    timedelta(hours=26): ["P1DT2H"],
    timedelta(weeks=2): ["P2W", "14d"],
    timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6): ["1w2d3h4m5s6ms"],
    timedelta(seconds=10): [Seconds.TEN],
}


@pytest.mark.parametrize(("expected", "value"), [(expected, value) for expected in FORMS for value in FORMS[expected]])
def test_a_duration_can_be_written_in_many_forms(value: Duration, expected: timedelta) -> None:
    assert parse_duration(value) == expected


def test_a_duration_of_another_package_becomes_an_ordinary_one() -> None:
    """A pandas Timedelta, for example, has its own methods and text."""

    class Other(timedelta):
        pass

    assert type(parse_duration(Other(minutes=3))) is timedelta


def test_a_number_that_looks_like_milliseconds_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for value in (30000, 30000, Decimal(30000), 9999, "30000s", timedelta(seconds=30000)):
        parse_duration(value, "lock_at_most_for")
    assert warnings_of(caplog) == ["lock_at_most_for=30000 is 8h 20m; for milliseconds write '30000ms'"]


TINY: list[str | float | timedelta] = [0.0001, 0.001, "0.1ms", "0.0001s", 1e-300, 5e-324, f"0.{'0' * 590}1s"]


@pytest.mark.parametrize("value", [*TINY, timedelta(microseconds=1), timedelta(microseconds=999)])
def test_short_ones_never_become_zero(value: float | str | timedelta) -> None:
    assert parse_duration(value) == MS


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0.1, 100),
        (0.3, 300),
        (1.0005, 1001),
        ("1.0001s", 1001),
        (timedelta(microseconds=1001), 2),
        (2.675, 2675),
        (2.007, 2007),  # 2007.0000000000002 by floats
        (12345678.9, 12345678900),
        (1.5e-5, 1),
        ("0.5s0.5ms", 501),
        ("1.25h10m0.5s2ms", 5100502),
        ("1.0000000000000000000000000000001h0.25s", 3600251),
        ("0.1h0.1m0.1s0.1ms", 366101),
        ("PT0.1H0.2M0.3S", 372300),
    ],
)
def test_kept_to_the_millisecond_rounded_up(value: float | str | timedelta, milliseconds: int) -> None:
    assert parse_duration(value) == milliseconds * MS


REFUSED: dict[str, list[object]] = {
    "not a duration": [
        *("10", "", "  ", "m", "ten minutes", "30m1h", "1h1h", "10 min", "-5m", "1e3s", "P", "PT", "P1M", "P1Y"),
        *(
            "1_0s",
            "١٠s",
            True,
            False,
            None,
            [10],
            float("nan"),
            float("inf"),
            b"10m",
            "9" * 600 + "s",
            "9" * 5000 + "s",
        ),
    ],
    "negative": [-1, -1e-9, -1e300, timedelta(microseconds=-1)],
    "zero": [0, 0.0, "0s", "PT0S", timedelta(0)],
    "over ten years": ["521w6d1ms", "9999999w", timedelta.max, 10**12, 1e300, "9" * 599 + "s"],
}


@pytest.mark.parametrize(("fault", "value"), [(fault, value) for fault in REFUSED for value in REFUSED[fault]])
def test_refused_with_the_value_and_the_accepted_forms(value: object, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as caught:
        parse_duration(value, "lock_at_most_for")  # type: ignore[arg-type]  # on purpose
    message = str(caught.value)
    assert message.startswith("lock_at_most_for=")
    for form in ("10m", "1h30m", "PT10M", "timedelta(minutes=10)", "seconds"):
        assert form in message
    assert len(message) < 400
    assert isinstance(caught.value, ValueError)
    if isinstance(value, str) and len(value) < 20:
        assert repr(value) in message


@pytest.mark.parametrize("value", [0, 0.0, "0s", "0m0s", timedelta(0), -0.0])
def test_zero_where_it_is_allowed(value: float | str | timedelta) -> None:
    assert parse_duration(value, zero=True) == timedelta(0)


LETTERS = "0123456789msmhdwyPTYMDHSW.,+-eE_ \n\0²٣µ"


@given(st.integers(min_value=1, max_value=LONGEST // MS))
def test_milliseconds_survive_every_spelling(milliseconds: int) -> None:
    expected = milliseconds * MS
    seconds, rest = divmod(milliseconds, 1000)
    spellings: list[str | timedelta] = [
        f"{milliseconds}ms",
        f"{seconds}s{rest}ms",
        f"PT{seconds}.{rest:03}S",
        f"{seconds}.{rest:03} s",
        expected,
    ]
    assert {parse_duration(spelling) for spelling in spellings} == {expected}
    assert in_milliseconds(expected) == milliseconds


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST))
def test_rounding_adds_less_than_a_millisecond(value: timedelta) -> None:
    parsed = parse_duration(value)
    assert timedelta(0) <= parsed - value < MS
    assert parsed % MS == timedelta(0)
    assert in_milliseconds(value) * MS == parsed


@given(st.floats(min_value=1e-9, max_value=LONGEST.total_seconds()))
def test_floats_are_taken_as_people_read_them(value: float) -> None:
    assert abs(parse_duration(value).total_seconds() - value) <= 0.001 + value * 1e-15


@given(st.one_of(st.text(LETTERS), st.integers(), st.floats(), st.timedeltas(), st.booleans(), st.none(), st.binary()))
def test_nothing_else_is_ever_raised(value: object) -> None:
    try:
        parsed = parse_duration(value)  # type: ignore[arg-type]  # on purpose
    except ConfigurationError:
        return
    assert timedelta(0) < parsed <= LONGEST
