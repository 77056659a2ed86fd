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


def squared_distances(u):
    return (u.unsqueeze(2) - u.unsqueeze(1)).square().sum(-1)


@pytest.mark.parametrize(
    ("kind", "keywords", "formula"),
    [
        (Gaussian, {}, lambda x, u, v: (x @ x.mT).softmax(-1)),
        (EmbeddedGaussian, {}, lambda x, u, v: (u @ v.mT).softmax(-1)),
        (EmbeddedGaussian, {"embed": 4, "scaled": True}, lambda x, u, v: (u @ v.mT / 2).softmax(-1)),
        (EmbeddedGaussian, {"embed": 4, "scale": 0.3}, lambda x, u, v: (0.3 * u @ v.mT).softmax(-1)),
        (DotProduct, {}, lambda x, u, v: u @ v.mT / M),
        (Heat, {"normalize": "none"}, lambda x, u, v: torch.exp(-squared_distances(u))),
        (Delta, {}, lambda x, u, v: torch.eye(M, dtype=x.dtype).expand(2, -1, -1)),
    ],
)
def test_kernels_are_their_formulas(kind, keywords, formula, x):
    module = made(kind, **keywords)
    # u = θ(x) and v = φ(x), where the module has them.
    u, v = (
        x @ getattr(module, name).weight.T if getattr(module, name, None) else None
        for name in ("theta", "phi")
    )
    torch.testing.assert_close(kernel_matrix(module(x)), formula(x, u, v))


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
        (lambda: EmbeddedGaussian(C, normalize="rows"), "normalize=.rows. is unknown; choose one of row"),
        (
            lambda: EmbeddedGaussian(C, normalize="sinkhorn"),
            "θ and φ are two embeddings.*shared=True of Embedded",
        ),
        (lambda: Gaussian(C, embed=3), "embed=3: Gaussian has no embedding"),
        (lambda: Concatenation(C, embed=3), "embed=3: Concatenation has embed=1 alone"),
        (lambda: EmbeddedGaussian(C, embed=0), "embed must be a whole number"),
        (lambda: Concatenation(C, scaled=True), "scaled=True has no meaning"),
        (lambda: Concatenation(C, scale=0.5), "scale=0.5 has no meaning"),
        (lambda: Heat(C, scale=-1), "scale must be"),
        (lambda: Heat(C, scale=2, scaled=True), "scale=2 is in the place of scaled=True"),
        (lambda: make_affinity(Heat(4), C), "made for 4 channels, the nonlocal module has 6"),
        (lambda: make_affinity(Heat(C), C, embed=2, normalize="row"), "embed, normalize can be set only"),
        (lambda: make_affinity(3, C), "a module, or a factory"),
        (lambda: make_affinity(lambda channels: channels, C), "the affinity factory must return"),
        (
            lambda: make_affinity(lambda x: x.mT, C),
            "factory failed for 6 channels .AttributeError.*MyModule()",
        ),
    ],
)
def test_a_wrong_affinity_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_hooks_see_tensors_and_can_change_them(x):
    module, seen = made(EmbeddedGaussian), []
    module.register_forward_hook(lambda _, inputs, output: seen.append(output))
    affinity = module(x)
    assert seen[0][0] is affinity.left
    assert seen[0][1] is affinity.right
    module.register_forward_hook(lambda _, inputs, output: (2 * output[0], output[1]))
    assert torch.equal(module(x).left, 2 * affinity.left)


def test_a_subclass_may_return_its_own_affinity(x):
    class Own(Heat):
        def forward(self, x, keys=None):
            return Affinity(x, x, "heat", scale=3.0)

    assert Own(C)(x).scale == 3.0
