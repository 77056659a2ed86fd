"""The accuracy table covers every cell and notices a wrong backend."""

import pytest
import torch

from benchmarks import accuracy
from nonloc.ops import BACKENDS, KINDS, NORMALIZATIONS, fused
from nonloc.ops.fused.launch import is_interpreted


def test_every_cell_is_within_its_limit():
    cells = list(accuracy.deviations(trials=2, positions=3))
    assert len(cells) == len(KINDS) * len(NORMALIZATIONS) * len(BACKENDS.keys() - set(fused.BACKENDS))
    assert [row for row in cells if not row["passed"]] == []


def test_a_wrong_backend_fails(monkeypatch):
    def wrong(affinity, dtype):
        operator = BACKENDS["reference"](affinity, dtype)
        return operator._replace(apply=lambda z: operator.apply(z) * (1 + 1e-9))

    monkeypatch.setitem(BACKENDS, "wrong", wrong)
    failed = {row["backend"] for row in accuracy.deviations(trials=1, positions=3) if not row["passed"]}
    assert failed == {"wrong"}


def check_fused(device):
    cells = list(accuracy.fused_deviations(torch.device(device), trials=2, positions=20))
    assert [(row["kind"], row["dtype"]) for row in cells] == [("gaussian", "float32"), ("heat", "float32")]
    assert all(row["passed"] and row["value"] > 0 for row in cells)


# Rows beyond M, and those of a sample without valid positions, are computed, too, and left out.
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.skipif(not is_interpreted(), reason="no interpreted Triton")
@pytest.mark.slow
def test_the_fused_cells_are_within_their_limit():
    check_fused("cpu")


@pytest.mark.gpu
def test_cuda_the_fused_cells_are_within_their_limit():
    check_fused("cuda")


def test_without_its_kernels_the_fused_backend_has_no_cells(monkeypatch):
    monkeypatch.setattr(accuracy, "is_available", lambda device: False)
    assert list(accuracy.fused_deviations(torch.device("cpu"), trials=1)) == []


def test_a_wrong_fused_backend_fails():
    assert not accuracy.cell("heat", "row", "fused", (1e-7, 2e-5), 1, dtype="float32")["passed"]
