"""Affinity refuses what it cannot mean, and says what to do instead."""

import pytest
import torch

from nonloc.ops import Affinity, aggregate, kernel_matrix

X = torch.zeros(2, 5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cosine"}, "kind='cosine' is unknown; choose one of gaussian, heat, dot, concat, delta"),
        ({"kind": torch.cdist}, "got a function.*SparseAffinity.*horizon.*Continuum"),
        ({"normalize": "softmax"}, "normalize='softmax' is unknown; choose one of row, count, none"),
        ({"left": X[0]}, r"left must be a tensor \[B, M, d\], got \[5, 3\].*by left\[None\]"),
        ({"left": X[0, 0]}, r"got \[3\].*by left.view\(1, -1, 1\)"),
        ({"left": X[None]}, r"got \[1, 2, 5, 3\].*an image .*by left.flatten\(2\).transpose\(1, 2\)"),
        ({"left": X.numpy()}, r"left must be a tensor .* got ndarray; use torch.as_tensor\(left\)$"),
        ({"left": X[0].numpy()}, r"got ndarray; .*by torch.as_tensor\(left\)\[None\]"),
        ({"left": X.tolist()}, r"got list; use torch.as_tensor\(left\)"),
        ({"right": X.long()}, "right must be floating point.*right.float()"),
        ({"right": X[:1]}, "must agree in batch"),
        ({"right": X[..., :2]}, "must agree in batch"),
        ({"kind": "concat"}, "needs d = 1"),
        ({"left": X[:, :0], "right": X[:, :0]}, "at least one position"),
        ({"right": X[:, :2], "normalize": "sinkhorn"}, "same positions"),
        ({"right": X[:, :2], "kind": "delta"}, "same positions"),
        ({"scale": float("nan")}, "scale must be finite"),
        ({"scale": torch.tensor(2.0)}, "scale must be a number.*fold"),
        ({"kind": "heat", "scale": 0.0}, "scale > 0"),
        ({"kind": "delta", "scale": 2.0}, "has no scale"),
        ({"mask": torch.ones(2, 5)}, "mask must be a bool tensor"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, r"mask must be a bool tensor \[B, M\] = \[2, 5\]"),
        ({"right": X[:, :2], "mask": torch.ones(2, 5, dtype=torch.bool)}, "do not sub-sample"),
        ({"measure": torch.ones(4)}, r"measure must be a tensor \[M\] = \[5\]"),
        ({"measure": torch.ones(5, dtype=torch.long)}, "measure must be floating point"),
        ({"measure": -torch.ones(5)}, "negative weights"),
        ({"measure": torch.tensor([1, 1, torch.nan, 1, 1])}, "measure has weights that are NaN or infinite"),
        ({"measure": torch.tensor([1, 1, torch.inf, 1, 1])}, "measure has weights that are NaN or infinite"),
        ({"measure": torch.ones(5).to_sparse()}, "measure must be dense"),
        ({"measure": torch.ones(5, device="meta")}, "measure is on meta, left on cpu"),
        ({"scale": 10**400}, "scale must be finite, got 10000"),
        ({"scale": -(10**5000)}, "scale must be finite, got a int"),
        ({"scale": True}, "scale must be a number, got bool"),
        ({"scale": "1"}, "scale must be a number, got str"),
        ({"left": X.to(torch.complex64)}, "left must be floating point.*use left.real"),
        ({"left": X.to(torch.float8_e4m3fn)}, "left must be floating point, of 16 bits or more"),
        ({"left": X.to_sparse()}, "left must be a dense tensor"),
        ({"left": X.to("meta")}, "left is on meta and right on cpu"),
        ({"kind": ["heat"]}, r"kind=\['heat'\] is unknown"),
        ({"kind": "x" * 5000}, r"kind='x+ … x+' \(5,002 characters\) is unknown"),
    ],
)
def test_wrong_arguments_name_the_fix(arguments, message):
    arguments = {"left": X, "right": X, "kind": "gaussian", **arguments}
    with pytest.raises(ValueError, match=message):
        Affinity(**arguments)


def test_a_whole_number_as_scale_may_be_larger_than_64_bits():
    small = 1e-15 * torch.ones(1, 2, 1, dtype=torch.float64)
    assert float(kernel_matrix(Affinity(small, small, "dot", "none", 10**30))[0, 0, 0]) == pytest.approx(1)


def test_it_is_frozen():
    affinity = Affinity(X, X, "gaussian")
    with pytest.raises(AttributeError):
        affinity.kind = "dot"


def test_the_contract_of_positional_and_keyword_arguments():
    affinity = Affinity(X, X, "heat", "none", 2.0, mask=None, measure=torch.ones(5))
    assert (affinity.batch, affinity.positions, affinity.is_square) == (2, 5, True)
    with pytest.raises(TypeError):
        Affinity(X, X, "heat", "none", 2.0, None)


def test_it_says_what_it_is_on_one_line():
    assert repr(Affinity(X, X, "heat")) == "Affinity(heat, row, B = 2, M = 5, d = 3)"
    few = Affinity(X, X[:, :2], "gaussian", "count", 0.5)
    assert repr(few) == "Affinity(gaussian, count, B = 2, M = 5, M' = 2, d = 3, scale = 0.5)"
    weighted = Affinity(X, X, "dot", mask=torch.ones(2, 5, dtype=torch.bool), measure=torch.ones(5))
    assert repr(weighted) == "Affinity(dot, row, B = 2, M = 5, d = 3, masked, measured)"


def test_a_sample_is_the_affinity_of_that_one():
    left, right = torch.randn(2, 3, 4, 2)
    mask = torch.tensor([[True] * 4, [True, True, False, False], [False, True, True, True]])
    whole = Affinity(left, right, "heat", "row", 0.5, mask=mask, measure=torch.rand(4))
    for index in (1, -1):
        torch.testing.assert_close(kernel_matrix(whole.sample(index))[0], kernel_matrix(whole)[index])
    with pytest.raises(IndexError):
        whole.sample(3)
    one = Affinity(left, left, "heat", "sinkhorn").sample(2)
    assert one.right is one.left


@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_a_kernel_of_ones_own_is_given_by_its_values(backend):
    values, z = torch.rand(2, 5, 5, dtype=torch.float64), torch.rand(2, 5, 3, dtype=torch.float64)
    affinity = Affinity(values, torch.eye(5, dtype=torch.float64).expand(2, 5, 5), "dot")
    expected = values / values.sum(-1, keepdim=True) @ z
    torch.testing.assert_close(aggregate(affinity, z, backend=backend), expected)
