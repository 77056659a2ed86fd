"""Intervals: what side of 0 a mean is on."""

import math

import pytest

from nonloc_paper.report.verdicts import Interval, interval, paired, side_of_zero, sign_test


def test_the_interval_of_three_numbers():
    found = interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert (found.n, found.mean) == (3, 2.0)
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_one_number_has_no_interval_and_none_has_nothing():
    assert interval([0.5]) == Interval(1, 0.5, -math.inf, math.inf)
    assert interval([0.5]).format() == "+0.50, n = 1"
    assert interval([]) is None


def test_pairs_are_by_seed():
    assert paired({0: 7.89 - 8.95}, {0: 8.88 - 9.94}) == [0.0], "the last digits of floats are no difference"
    assert paired({0: 8.0, 2: 9.0, 3: 1.0}, {2: 8.5, 0: 8.5}) == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("low", "high", "claimed", "answer"),
    [
        (-0.5, -0.1, -1, True),
        (-0.5, -0.1, 1, False),
        (0.1, 0.5, 1, True),
        (-0.15, 0.19, -1, False),
        (-0.15, 0.21, -1, None),
        (-0.15, 0.21, 1, None),
    ],
)
def test_the_side_is_told_by_the_whole_interval(low, high, claimed, answer):
    assert side_of_zero(Interval(3, (low + high) / 2, low, high), claimed, 0.2) is answer


def test_one_pair_decides_nothing():
    assert side_of_zero(interval([-5.0]), -1, 0.2) is None
    assert side_of_zero(None, -1, 0.2) is None


def test_a_mean_that_rounds_to_nothing_has_no_sign():
    assert Interval(2, -0.001, -1.0, 1.0).format() == "0.00 [−1.00, +1.00], n = 2"


@pytest.mark.parametrize(
    ("more", "less", "p"), [(8, 0, 2 / 256), (0, 8, 2 / 256), (5, 1, 2 * 7 / 64), (3, 3, 1.0), (0, 0, 1.0)]
)
def test_the_sign_test_counts_coins(more, less, p):
    assert sign_test(more, less) == p


def test_ends_have_as_many_decimals_as_it_takes_to_tell_on_which_side_of_a_bound_they_are():
    found = Interval(5, 0.07, -0.196, 0.2038)
    assert found.format() == "+0.07 [−0.20, +0.20], n = 5"
    assert found.format(near=0.2) == "+0.07 [−0.196, +0.204], n = 5"
    assert Interval(5, 0.1, -0.1, 0.2).format(near=0.2) == "+0.10 [−0.10, +0.20], n = 5"
    assert Interval(5, 0.1, 0.003, 0.3).format(near=0.2) == "+0.10 [+0.003, +0.30], n = 5"
    assert Interval(5, 0.1, -0.2004, 0.3).format(near=0.2) == "+0.10 [−0.2004, +0.30], n = 5"
