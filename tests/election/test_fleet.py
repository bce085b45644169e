"""The reader of the nodes' logs finds two leaders exactly if there were two."""

from __future__ import annotations

import pytest

from tests.election.fleet import Reign, overlapping, reigns_in


def log(*checks: tuple[float, float, str]) -> list[str]:
    return [f"{before:.6f} {after:.6f} {words}".rstrip() for before, after, words in checks]


def test_a_reign_is_from_the_first_check_to_the_last() -> None:
    lines = log((1.0, 1.1, ""), (2.0, 2.1, "a=7"), (3.0, 3.1, "a=7 b=8"), (4.0, 4.1, "b=8"), (5.0, 5.1, ""))
    assert reigns_in(lines, "one") == [Reign("one", "a", 7, 2.1, 3.0), Reign("one", "b", 8, 3.1, 4.0)]


@pytest.mark.parametrize("between", [[], [(3.0, 3.001, "a=None")], [(3.0, 3.001, "")], [(5.9, 6.0, "a=None")]])
def test_a_paused_node_may_have_led_before_and_after_another(between: list[tuple[float, float, str]]) -> None:
    """Its recorder wrote nothing while it lost the election and won it again. The reader once counted two leaders."""
    one = reigns_in(
        log((1.0, 1.001, "a=7"), (2.0, 2.001, "a=7"), *between, (6.0, 6.001, "a=9"), (7.0, 7.1, "a=9")), "1"
    )
    assert one == [Reign("1", "a", 7, 1.001, 2.0), Reign("1", "a", 9, 6.001, 7.0)]
    other = reigns_in(log((4.0, 4.001, "a=8"), (4.268, 4.269, "a=8")), "2")
    assert overlapping([*one, *other]) == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([(1.5, 1.6, "a=8"), (1.9, 2.5, "a=8")], True),
        ([(0.5, 0.6, "a=8"), (1.9, 2.5, "a=8")], True),
        ([(2.1, 2.2, "a=8"), (3.0, 3.1, "a=8")], False),
        ([(1.5, 1.6, "b=8"), (1.9, 2.5, "b=8")], False),
        # The check may have been before the other node led, or after.
        ([(0.9, 1.5, "a=8")], False),
        ([(1.9, 2.5, "a=8"), (3.0, 3.1, "a=8")], False),
    ],
)
def test_two_leaders_are_found_only_if_they_led_at_the_same_time(
    other: list[tuple[float, float, str]], expected: bool
) -> None:
    one = reigns_in(log((1.0, 1.1, "a=7"), (2.0, 2.1, "a=7")), "1")
    reigns = [*one, *reigns_in(log(*other), "2")]
    assert bool(overlapping(reigns)) is bool(overlapping(reigns[::-1])) is expected
