"""Timings are taken in turns, and the table says what "auto" takes."""

import math

import pytest

from benchmarks import backends


def test_the_table(monkeypatch):
    monkeypatch.setattr(backends, "SHAPES", ((1, 8, 2, 1),))
    found = list(backends.timings(repeats=2))
    assert [(t.kind, t.normalize) for t in found] == list(backends.CELLS)
    for timing in found:
        low, high = timing.reference_range
        assert 0 < low <= timing.reference <= high
        assert timing.auto in ("reference", "factored")
        assert timing.passed


def test_every_shape_is_a_problem_whose_numbers_stay_finite(monkeypatch):
    """Of the widest rows; the largest shapes have as many channels, and take longer."""
    monkeypatch.setattr(backends, "SHAPES", ((4, 256, 32, 4),))
    assert all(timing.passed for timing in backends.timings(repeats=1))


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_backend_that_is_wrong_does_not_pass(monkeypatch, factor):
    monkeypatch.setattr(backends, "SHAPES", ((1, 8, 2, 1),))
    right = backends.propagate

    def wrong(affinity, z, weights, *, backend):
        return right(affinity, z, (factor if backend == "factored" else 1) * weights, backend=backend)

    monkeypatch.setattr(backends, "propagate", wrong)
    assert not any(timing.passed for timing in backends.timings(repeats=1))


def test_sides_take_turns():
    calls = []
    seconds = backends.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu")
    assert calls == ["a", "b"] * 4
    assert [len(s) for s in seconds.values()] == [3, 3]
