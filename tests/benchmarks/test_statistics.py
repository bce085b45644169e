"""The arithmetic of the benchmark."""

import pytest

from benchmarks.statistics import Spread, quantile, ratio, spread


def test_a_quantile_lies_between_the_two_nearest_values() -> None:
    assert [quantile([4, 1, 3, 2], fraction) for fraction in (0, 0.5, 0.9, 1)] == [1, 2.5, pytest.approx(3.7), 4]
    assert quantile([7], 0.95) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_spread_is_the_median_and_the_middle_half() -> None:
    assert spread([5, 1, 2, 4, 3]) == Spread(3, 2, 4)


def test_a_round_that_was_slow_for_everybody_does_not_show_in_the_ratio() -> None:
    assert ratio([20, 200, 2000], [10, 100, 1000]) == Spread(2, 2, 2)


def test_one_disturbed_round_does_not_move_the_ratio() -> None:
    compared = ratio([20, 20, 900, 20, 20], [10, 10, 10, 10, 10])
    assert compared is not None
    assert compared.middle == 2


def test_rounds_that_were_not_measured_are_left_out() -> None:
    assert ratio([20, None, 30], [10, 10, None]) == Spread(2, 2, 2)
    assert ratio([None], [10]) is None
    assert ratio([20], [0]) is None
