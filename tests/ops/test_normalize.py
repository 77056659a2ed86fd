""" "symmetric" and "sinkhorn" look at the numbers, not at how they were made."""

import pytest
import torch

from nonloc.ops import Affinity, aggregate, kernel_matrix
from nonloc.ops.bounds import has_negative_entries, has_symmetric_kernel
from problems import EXACT, JOINING, features


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("normalize", ["symmetric", "sinkhorn"])
@pytest.mark.parametrize("kind", JOINING)
def test_two_different_sides_are_refused(kind, normalize, backend):
    left, right = features(kind, normalize), features(kind, normalize, seed=7)
    with pytest.raises(ValueError, match="needs a symmetric affinity.*left = right; shared_embedding=True"):
        aggregate(Affinity(left, right, kind, normalize), left, backend=backend)


X = features("dot", "symmetric", width=2)
DEFINITE = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
SIGNED = torch.tensor([[[1.0, -1.0], [1.0, -0.5], [2.0, -1.0]]])


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        # L Rᵀ = X A Xᵀ with a symmetric A ≥ 0 is symmetric although L ≠ R.
        ("gaussian", X @ DEFINITE, X),
        ("dot", X @ DEFINITE, X),
        ("concat", X[..., :1] + 1.0, X[..., :1]),
        # Products that are nowhere negative, of features that are.
        ("dot", SIGNED, SIGNED),
    ],
)
def test_what_is_symmetric_by_its_numbers_is_accepted(kind, left, right):
    assert bool(aggregate(Affinity(left, right, kind, "symmetric"), right).isfinite().all())


def test_one_wrong_entry_among_many_is_found():
    x = features("heat", "row", positions=300)
    y = x.clone()
    y[0, 17, 0] += 1e-6
    with pytest.raises(ValueError, match="needs a symmetric affinity"):
        aggregate(Affinity(x, y, "heat", "symmetric"), x)


@pytest.mark.parametrize("normalize", ["symmetric", "sinkhorn"])
def test_negative_entries_are_refused(normalize):
    x = torch.tensor([[[1.0, 0.0], [-1.0, 2.0], [3.0, 0.5]]])
    with pytest.raises(ValueError, match="nowhere negative"):
        aggregate(Affinity(x, x, "dot", normalize), x)


def random_sides(common):
    """Two sides that are `common` [B, M, 1] in one coordinate and random in two others."""
    draw = torch.Generator().manual_seed(0)
    return (torch.cat([common, torch.rand(*common.shape[:2], 2, generator=draw)], -1) for _ in range(2))


@pytest.mark.parametrize("hidden", ["another sample", "large logits", "a large position in concat"])
def test_large_numbers_do_not_hide_that_others_are_not_symmetric(hidden):
    kind = "gaussian"
    if hidden == "another sample":
        left, right = random_sides(torch.zeros(2, 20, 1))
        left[0] = right[0] = 1e6 * left[0]
    elif hidden == "large logits":
        left, right = random_sides(torch.full((1, 100, 1), 60.0))
    else:
        kind = "concat"
        left, right = (torch.tensor([1e6, *rest]).view(1, 3, 1) for rest in ((0.2, 0.5), (0.5, 0.2)))
    assert not has_symmetric_kernel(Affinity(left, right, kind, "row"))


def sides(far, dtype):
    """Two sides that share a coordinate, and are not symmetric in the other; one position is far from the rest."""
    shared = torch.tensor([far, 0.0, 1.0, 2.0], dtype=dtype).view(1, 4, 1)
    apart = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 2.0, 1.0]], dtype=dtype).view(2, 1, 4, 1)
    return (torch.cat([shared, side], -1) for side in apart)


@pytest.mark.parametrize(("dtype", "far"), [(torch.float32, 3e3), (torch.float64, 1e8)])
@pytest.mark.parametrize("kind", ["heat", "gaussian", "dot"])
def test_a_far_position_does_not_hide_that_the_others_are_not_symmetric(kind, dtype, far):
    left, right = sides(far, dtype)
    assert not has_symmetric_kernel(Affinity(left, right, kind, "row"))
    with pytest.raises(ValueError, match="needs a symmetric affinity"):
        kernel_matrix(Affinity(left, right, kind, "sinkhorn"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gaussian", "dot"])
def test_a_symmetric_product_with_a_matrix_that_loses_directions_is_accepted(kind, dtype):
    """left = x A of rank 1 is nearly 0 where x is across it, and is rounded as x is."""
    torch.manual_seed(0)
    x = torch.randn(1, 700, 8, dtype=torch.float64)
    v = torch.randn(8, 1, dtype=torch.float64)
    x = x * (x @ v).sign()
    left, right = (x.to(dtype) @ (v @ v.T).to(dtype) / 8).to(dtype), x.to(dtype)
    assert has_symmetric_kernel(Affinity(left, right, kind, "symmetric"))


def test_what_is_masked_need_not_be_symmetric():
    x = torch.randn(1, 4, 2)
    y = x.clone()
    y[:, 3] = torch.nan
    mask = torch.tensor([[True, True, True, False]])
    assert has_symmetric_kernel(Affinity(x, y, "heat", "row", mask=mask))
    y[:, 3] = 100
    assert kernel_matrix(Affinity(x, y, "heat", "sinkhorn", mask=mask)).isfinite().all()


def test_large_features_do_not_hide_negative_entries_of_small_ones():
    x = torch.tensor([[[1000.0, 0.0], [0.0, 0.5], [0.0, -0.3]]])
    assert has_negative_entries(Affinity(x, x, "dot", "row"))
