"""The modules' bench: what is written by hand is the stage that it stands beside."""

from argparse import Namespace

import pytest
import torch

from benchmarks import modules
from nonloc.nn import DiffusiveStage, OriginalStage


@pytest.mark.parametrize("has_matrix", [True, False])
@pytest.mark.parametrize(("form", "kind"), [("diffusive", DiffusiveStage), ("original", OriginalStage)])
def test_by_hand_is_the_same_stage(form, kind, has_matrix):
    torch.manual_seed(0)
    stage = kind(8, 2, init="torch").double()
    hand = modules.ByHand(form, 8, 2, has_matrix=has_matrix).double()
    with torch.no_grad():
        for n, embedding in enumerate(stage.embeddings):
            hand.theta[n].weight.copy_(embedding.theta.weight)
            hand.phi[n].weight.copy_(embedding.phi.weight)
        for n, one in enumerate(stage.maps):
            hand.w_g[n].weight.copy_(one.w_g.weight)
            hand.w_z[n].weight.copy_(one.w_z.weight)
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(hand(x), stage(x))


def test_rows_on_the_cpu(monkeypatch):
    monkeypatch.setattr(modules, "ON_THE_CPU", (("diffusive", 8, 2, (1, 8, 4, 4)),))
    rows = modules.measure(Namespace(device=torch.device("cpu"), repeats=2), lambda line: None)
    assert [row["way"] for row in rows] == ["nonloc", "by hand", "by hand, with the matrix"]
    assert all(row["range"][0] <= row["ms"] <= row["range"][1] for row in rows)
    assert "diffusive 8, N 2" in modules.table(rows)
