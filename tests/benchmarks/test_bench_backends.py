"""Both backends must agree, and the table says what "auto" takes."""

import math
from argparse import Namespace

import pytest
import torch

from benchmarks import backends
from benchmarks.shared import time_in_turns

CPU = torch.device("cpu")


@pytest.fixture
def rows(monkeypatch):
    def measured(*shape):
        monkeypatch.setattr(backends, "SHAPES", (shape,))
        return backends.measure(Namespace(repeats=2, device=CPU), print)

    return measured


def test_every_cell_is_timed(rows):
    table_rows = rows(1, 8, 2, 1)
    assert [(row["kind"], row["normalize"]) for row in table_rows] == list(backends.CELLS)
    for row in table_rows:
        low, high = row["reference_range"]
        assert 0 < low <= row["reference"] <= high
        assert row["auto"] in ("reference", "factored")
        assert row["passed"]
    assert "1 × 8 × 2, N 1" in backends.table(table_rows)


def test_wide_rows_stay_finite(rows):
    """The largest shapes have as many channels, and take longer."""
    assert all(row["passed"] for row in rows(4, 256, 32, 4))


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_backend_that_is_wrong_does_not_pass(rows, monkeypatch, factor):
    right = backends.propagate

    def wrong(affinity, z, weights, *, backend):
        return right(affinity, z, (factor if backend == "factored" else 1) * weights, backend=backend)

    monkeypatch.setattr(backends, "propagate", wrong)
    assert not any(row["passed"] for row in rows(1, 8, 2, 1))


def test_sides_take_turns():
    calls = []
    works = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = time_in_turns(works, (1, 2), 3, CPU)
    assert calls == ["a", "b", "b"] * 3
    assert [len(one) for one in times] == [3, 3]
