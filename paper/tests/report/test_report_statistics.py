"""Intervals: what side of 0 a mean is on."""

import math

import pytest

from nonloc_paper.report.verdicts import Interval, interval, side_of_zero, sign_test

T95 = 4.302652729911275  # Student's t with 2 degrees of freedom: 97.5 %
T90 = 2.919985580353726  # and 95 %


def around(low, high, t=T95):
    """The mean of three numbers with these ends of its interval."""
    return Interval(3, (low + high) / 2, (high - low) / 2 / t)


def test_the_interval_of_three_numbers():
    found = interval([1.0, 2.0, 3.0])
    half = T95 / math.sqrt(3)
    assert (found.n, found.mean) == (3, 2.0)
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_one_number_has_no_interval_and_none_has_nothing():
    assert interval([0.5]) == Interval(1, 0.5, math.inf)
    assert interval([0.5]).format() == "+0.50, n = 1"
    assert interval([]) is None


def test_the_prediction_interval_has_the_noise_of_a_median_of_five():
    low, high = interval([1.0, 2.0, 3.0]).prediction
    half = T95 * math.sqrt(1 / 3 + math.pi / 10)
    assert (low, high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert interval([0.5]).prediction == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("low", "high", "claimed", "answer"),
    [(-0.5, -0.1, -1, True), (-0.5, -0.1, 1, False), (0.1, 0.5, 1, True), (-0.5, 0.1, -1, None)],
)
def test_the_side_is_told_by_the_whole_interval(low, high, claimed, answer):
    assert side_of_zero(around(low, high), claimed, 0.2) is answer


@pytest.mark.parametrize(("high", "answer"), [(0.199, False), (0.201, None)])
def test_level_is_told_by_the_90_percent_interval(high, answer):
    found = around(-high, high, T90)
    assert found.high > 0.2, "the 95 % interval does not decide"
    assert side_of_zero(found, -1, 0.2) is side_of_zero(found, 1, 0.2) is answer


def test_one_pair_decides_nothing():
    assert side_of_zero(interval([-5.0]), -1, 0.2) is None
    assert side_of_zero(None, -1, 0.2) is None


def test_a_mean_that_rounds_to_nothing_has_no_sign_and_an_end_shows_its_side():
    assert around(-1.001, 0.999).format() == "0.00 [−1.00, +1.00], n = 3"
    assert around(0.003, 0.3).format() == "+0.15 [+0.003, +0.30], n = 3"


@pytest.mark.parametrize(
    ("more", "less", "p"), [(8, 0, 2 / 256), (0, 8, 2 / 256), (5, 1, 2 * 7 / 64), (3, 3, 1.0), (0, 0, 1.0)]
)
def test_the_sign_test_counts_coins(more, less, p):
    assert sign_test(more, less) == p
