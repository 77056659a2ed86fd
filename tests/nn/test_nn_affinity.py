"""The affinity modules say what Wang et al. write, and refuse what has no meaning."""

import pytest
import torch
from torch import nn

from nonloc.nn.affinity import (
    AFFINITIES,
    Concatenation,
    Delta,
    DotProduct,
    EmbeddedGaussian,
    Gaussian,
    Heat,
    make_affinity,
)
from nonloc.nn.options import AFFINITY_NAMES, NORMALIZATIONS
from nonloc.nn.stage import DiffusiveStage
from nonloc.ops import NORMALIZATIONS as OPS_NORMALIZATIONS
from nonloc.ops import Affinity, kernel_matrix

C, M = 6, 5


@pytest.fixture
def x():
    return torch.randn(2, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, **keywords):
    torch.manual_seed(0)
    return kind(C, **keywords).double()


def test_names_are_those_that_specifications_check_without_torch():
    assert tuple(AFFINITIES) == AFFINITY_NAMES
    assert NORMALIZATIONS == OPS_NORMALIZATIONS


def test_gaussian_is_the_softmax_of_dot_products(x):
    expected = (x @ x.mT).softmax(-1)
    torch.testing.assert_close(kernel_matrix(made(Gaussian)(x)), expected)


def test_scaled_divides_the_logits_by_the_root_of_the_width(x):
    module = made(EmbeddedGaussian, embed=4, scaled=True)
    logits = (x @ module.theta.weight.T) @ (x @ module.phi.weight.T).mT / 2
    torch.testing.assert_close(kernel_matrix(module(x)), logits.softmax(-1))


def test_dot_product_is_divided_by_the_number_of_positions(x):
    module = made(DotProduct)
    expected = (x @ module.theta.weight.T) @ (x @ module.phi.weight.T).mT / M
    torch.testing.assert_close(kernel_matrix(module(x)), expected)


def test_concatenation_equals_its_unmerged_form(x):
    """relu(w·[θ(x_i), φ(x_j)]) with embeddings of width 4, merged into the module's two vectors."""
    torch.manual_seed(1)
    theta, phi = torch.randn(2, 4, C, dtype=torch.float64)
    w = torch.randn(8, dtype=torch.float64)
    module = made(Concatenation)
    with torch.no_grad():
        module.theta.weight.copy_((w[:4] @ theta).unsqueeze(0))
        module.phi.weight.copy_((w[4:] @ phi).unsqueeze(0))
    left, right = (x @ theta.T @ w[:4]).unsqueeze(2), (x @ phi.T @ w[4:]).unsqueeze(1)
    torch.testing.assert_close(kernel_matrix(module(x)), torch.relu(left + right) / M)


def test_heat_falls_with_the_squared_distance_of_one_embedding(x):
    module = made(Heat, normalize="none")
    e = x @ module.theta.weight.T
    expected = torch.exp(-(e.unsqueeze(2) - e.unsqueeze(1)).square().sum(-1))
    torch.testing.assert_close(kernel_matrix(module(x)), expected)


def test_delta_is_the_identity(x):
    torch.testing.assert_close(kernel_matrix(made(Delta)(x)), torch.eye(M, dtype=x.dtype).expand(2, -1, -1))


@pytest.mark.parametrize("kind", [EmbeddedGaussian, DotProduct, Concatenation, Heat])
def test_shared_embedding_gives_one_tensor_for_both_sides(kind, x):
    affinity = made(kind, shared=True)(x)
    assert affinity.left is affinity.right


@pytest.mark.parametrize("kind", [Gaussian, EmbeddedGaussian, DotProduct, Concatenation, Heat])
@pytest.mark.parametrize("shared", [True, False])
def test_keys_give_the_columns_of_a_subset(kind, shared, x):
    module = made(kind, shared=shared, normalize="none")
    torch.testing.assert_close(kernel_matrix(module(x, x[:, 1:4])), kernel_matrix(module(x))[:, :, 1:4])


def test_a_mask_joins_the_one_that_the_affinity_has():
    class Own(nn.Module):
        def forward(self, x):
            return Affinity(x, x, "gaussian", mask=torch.tensor([[True, True, True, False]]))

    stage = DiffusiveStage(2, 1, affinity=Own(), layout="positions")
    affinity = stage.affinity(torch.zeros(1, 4, 2), torch.tensor([[True, True, False, True]]))
    assert affinity.mask.tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EmbeddedGaussian(C, normalize="rows"),
            "normalize=.rows. is unknown; choose one of row",
        ),
        (lambda: Gaussian(C, embed=3), "embed=3: Gaussian has no embedding"),
        (lambda: Concatenation(C, embed=3), "embed=3: Concatenation has embed=1 alone"),
        (lambda: EmbeddedGaussian(C, embed=0), "embed must be a whole number"),
        (lambda: Concatenation(C, scaled=True), "scaled=True has no meaning"),
        (lambda: make_affinity(Heat(4), C), "made for 4 channels, the nonlocal module has 6"),
        (lambda: make_affinity(Heat(C), C, embed=2, normalize="row"), "embed, normalize can be set only"),
        (lambda: make_affinity(3, C), "a module, or a factory"),
        (lambda: make_affinity(lambda channels: channels, C), "the affinity factory must return"),
    ],
)
def test_a_wrong_affinity_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
