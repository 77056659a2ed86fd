"""logit_spread: rows whose logits are known, and what does not count."""

import math

import pytest
import torch

from nonloc import Affinity, SparseAffinity, logit_spread
from nonloc.nn import DiffusiveStage
from nonloc.ops import kernel_logit_spreads, largest_logit_spread, row_blocks

LINE = torch.tensor([[[0.0], [1.0], [3.0]]], dtype=torch.float64)
LOW = torch.tensor([[[-3.0], [1.0], [2.0]]], dtype=torch.float64)  # the first is the one that is far


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gaussian", [0.0, 3.0, 9.0]),  # l_i (max r − min r)
        ("heat", [9.0, 4.0, 9.0]),  # the largest |l − r|²
    ],
)
def test_three_points_on_a_line(kind, expected):
    assert logit_spread(Affinity(LINE, LINE, kind)).tolist() == [pytest.approx(expected)]
    doubled = logit_spread(Affinity(LINE, LINE, kind, scale=2.0))
    assert doubled.tolist() == [pytest.approx([2 * value for value in expected])]


MASK = torch.tensor([[True, True, False]])
MEASURE = MASK[0].double()


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        # A masked position neither counts nor has a spread.
        (Affinity(LINE, LINE, "gaussian", mask=MASK), [0.0, 1.0, 0.0]),
        (Affinity(LOW, LOW, "gaussian", mask=MASK.flip(1)), [0.0, 1.0, 2.0]),
        # One that weighs nothing does not count.
        (Affinity(LINE, LINE, "gaussian", measure=MEASURE), [0.0, 1.0, 3.0]),
        (Affinity(LOW, LOW, "gaussian", measure=MEASURE.flip(0)), [3.0, 1.0, 2.0]),
        (Affinity(LINE, LINE, "gaussian", measure=0 * MEASURE), [0.0, 0.0, 0.0]),
        # Givers may be others than receivers.
        (Affinity(LINE, LINE[:, :2], "gaussian"), [0.0, 1.0, 3.0]),
    ],
)
def test_only_positions_that_give_count(affinity, expected):
    assert logit_spread(affinity).tolist() == [expected]


def test_blocks_of_rows_change_nothing(monkeypatch):
    x, y = torch.randn(2, 2, 50, 4, dtype=torch.float64)
    whole = logit_spread(Affinity(x, y, "heat"))
    assert row_blocks.BLOCK_ENTRIES >= 2 * 50 * 50
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", 7 * 100)
    torch.testing.assert_close(logit_spread(Affinity(x, y, "heat")), whole)


def test_features_far_from_zero_keep_their_digits():
    x = 1000 + torch.tensor([[[-1.0], [0.0], [1.0]]]) / 1024
    assert torch.equal(logit_spread(Affinity(x, x, "gaussian")), x[..., 0] / 512)


def test_half_precision_is_computed_in_float32():
    x = torch.full((1, 2, 1), 300.0).half()  # 300² is beyond float16
    x[0, 1] = -300
    assert logit_spread(Affinity(x, x, "gaussian")).tolist() == [[180_000.0, 180_000.0]]


def test_each_kernel_is_looked_at_once():
    one, other = (Affinity(LINE, size * LINE, "gaussian") for size in (1, 2))
    assert kernel_logit_spreads([one, one, other, Affinity(LINE, LINE, "dot")]) == [9.0, 18.0]


def test_the_largest_of_several_kernels():
    graph = SparseAffinity(torch.eye(3, dtype=torch.float64).to_sparse_csr())
    kernels = [Affinity(LINE, LINE, kind) for kind in ("gaussian", "dot")]
    assert largest_logit_spread([graph, *kernels, Affinity(LINE, 2 * LINE, "gaussian")]) == 18.0
    assert largest_logit_spread([graph, kernels[1]]) is None
    broken = Affinity(LINE * torch.nan, LINE, "gaussian")
    assert math.isnan(largest_logit_spread([broken, kernels[0]]))


def test_it_keeps_no_graph():
    x = LINE.clone().requires_grad_()
    assert not logit_spread(Affinity(x, x, "heat")).requires_grad


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affinity(LINE, LINE, "dot"), "takes an Affinity .* got .*dot"),
        (lambda: SparseAffinity(torch.eye(3).to_sparse_csr()), "takes an Affinity .* got .*SparseAffinity"),
        (lambda: DiffusiveStage(4, 1), r"got DiffusiveStage; .*stage.affinities\(x\)"),
    ],
    ids=["dot", "sparse", "stage"],
)
def test_what_has_no_logits_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        logit_spread(make())


@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_what_lies_in_the_padding_reaches_nobody(kind):
    padded = torch.cat([LINE, torch.full_like(LINE[:, :1], torch.nan)], 1)
    mask = torch.tensor([[True, True, True, False]])
    actual = logit_spread(Affinity(padded, padded, kind, mask=mask))
    assert actual[0, :3].tolist() == pytest.approx(logit_spread(Affinity(LINE, LINE, kind))[0].tolist())


def test_an_empty_batch_has_no_spread():
    x = torch.randn(0, 4, 2)
    assert kernel_logit_spreads([Affinity(x, x, "heat")]) == [0.0]
