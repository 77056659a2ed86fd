"""The rates of both processes against the equations, and the inner product in which they dissipate."""

import pickle

import pytest
import torch

from nonloc.ops import Affinity, SparseAffinity, dirichlet_energy, kernel_matrix
from nonloc.processes import DampedFlow, Diffusion, simulate
from problems import CELLS, affinity, features, generator, relative, signal, symmetric

C = 4
WEIGHTS = {
    "number": 0.7,
    "diagonal": torch.tensor([0.2, 1.0, -0.5, 2.0], dtype=torch.float64),
    "full": torch.randn(C, C, dtype=torch.float64, generator=generator(3)),
}


def matrix_of(weight):
    if isinstance(weight, float):
        return weight * torch.eye(C, dtype=torch.float64)
    return torch.diag(weight) if weight.dim() == 1 else weight


@pytest.mark.parametrize(
    ("kind", "normalize", "weight", "backwards"),
    [(*cell, "full", n % 2 == 0) for n, cell in enumerate(CELLS)]
    + [("heat", "row", weight, backwards) for weight in WEIGHTS for backwards in (False, True)],
)
def test_rates_are_the_equations(kind, normalize, weight, backwards):
    a = affinity(kind, normalize)
    z, k = signal(a, C), kernel_matrix(a)
    weight = WEIGHTS[weight]
    sign, w = -1 if backwards else 1, matrix_of(weight)
    laplacian = k @ z - k.sum(-1, keepdim=True) * z
    diffusion = Diffusion(a, weight=weight, backwards=backwards)
    damped = DampedFlow(a, weight=weight, backwards=backwards)
    assert relative(diffusion.rate(z), sign * laplacian @ w.T) <= 1e-12
    assert relative(damped.rate(z), -sign * (k @ z) @ w.T) <= 1e-12


def test_a_kernel_that_follows_the_state():
    z = signal(affinity("heat"))
    process = DampedFlow(lambda z: Affinity(z, z, "gaussian", "row"))
    assert not process.is_linear
    assert process.affinity is None
    assert process.inner_weights() is None
    assert process.mean_weights() is None
    for state in (z, 2 * z):
        truth = -kernel_matrix(Affinity(state, state, "gaussian")) @ state
        assert relative(process.rate(state), truth) <= 1e-12
    assert relative(process.energy(z), dirichlet_energy(Affinity(z, z, "gaussian"), z)) <= 1e-14


def test_a_process_is_pickled_after_its_first_step():
    process = Diffusion(affinity("heat"))
    z = signal(process.affinity)
    expected = process.rate(z)
    assert torch.equal(pickle.loads(pickle.dumps(process)).rate(z), expected)


def test_learned_features_leave_their_graph_behind():
    x = features("heat", "row").requires_grad_()
    process = Diffusion(Affinity(x, x, "heat"))
    assert process.affinity.left is process.affinity.right
    z = signal(process.affinity).requires_grad_()
    rate = process.rate(z)
    rate.sum().backward()
    assert z.grad is not None
    assert x.grad is None


def test_diffusion_dissipates_where_the_theory_says_so():
    a = symmetric()
    assert relative(Diffusion(a).inner_weights(), kernel_matrix(symmetric(normalize="none")).sum(-1)) <= 1e-13
    assert Diffusion(a, weight=torch.tensor([0.0, 2.0])).inner_weights() is not None
    assert Diffusion(a, weight=torch.tensor([[2.0, 1.0], [1.0, 2.0]])).inner_weights() is not None
    assert Diffusion(symmetric("concat")).inner_weights() is not None


@pytest.mark.parametrize(
    "process",
    [
        Diffusion(symmetric(), backwards=True),
        Diffusion(symmetric(), weight=-1.0),
        Diffusion(symmetric(), weight=torch.tensor([[0.1, 1.0], [-1.0, 0.1]])),
        Diffusion(symmetric(), weight=torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        Diffusion(affinity("heat")),
        Diffusion(Affinity(features("heat", "row"), features("heat", "row"), "dot", "none")),
        DampedFlow(symmetric(), backwards=True),
        DampedFlow(symmetric("concat")),  # symmetric, and yet not positive semi-definite
        DampedFlow(SparseAffinity(torch.eye(3).flip(0).to_sparse_csr())),
    ],
    ids=repr,
)
def test_no_inner_product_is_promised_elsewhere(process):
    assert process.inner_weights() is None
    assert process.certified_euler_step() is None


@pytest.mark.parametrize("kind", ["gaussian", "heat", "dot", "delta"])
def test_the_damped_flow_dissipates_where_the_kernel_is_definite(kind):
    a = symmetric(kind, "none")
    values = torch.linalg.eigvalsh(kernel_matrix(a))
    assert float(values.min()) >= -1e-12 * float(values.max())
    assert DampedFlow(a).inner_weights() is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diffusion(symmetric(), weight="1"), "weight must be a number, or a tensor .* got str"),
        (lambda: Diffusion(symmetric(), weight=torch.ones(2, 3)), r"\[C\] or \[C, C\], got \[2, 3\]"),
        (lambda: Diffusion(symmetric(), weight=torch.ones(2).long()), "weight must be floating point"),
        (lambda: DampedFlow(lambda z: z).rate(torch.ones(1, 2, 1)), r"affinity\(z\) must be an Affinity"),
        (
            lambda: Diffusion(symmetric(), weight=torch.ones(4)).rate(torch.zeros(2, 6, 3)),
            r"weight \[4\] does not fit z with C = 3",
        ),
    ],
)
def test_wrong_arguments_name_the_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_they_say_what_they_are():
    backwards = Diffusion(symmetric(), backwards=True)
    following = DampedFlow(lambda z: z, weight=torch.ones(2, 2))
    assert repr(backwards) == "Diffusion(heat row, B = 2, M = 6, W = 1, backwards)"
    assert repr(following) == "DampedFlow(kernel follows the state, W [2, 2])"


def test_a_masked_constant_does_not_move_at_all():
    """Otherwise a long implicit step would have to solve for rounding."""
    x = torch.tensor([[[0.7], [1.0]]], dtype=torch.float64)
    mask = torch.tensor([[True, False]])
    process = Diffusion(Affinity(x, x, "dot", "none", 0.1, mask=mask))
    z = torch.full((1, 2, 1), 0.3, dtype=torch.float64)
    assert torch.equal(process.rate(z), torch.zeros_like(z))
    moved = simulate(process, z, num_steps=1, step_size=1e6, stepper="implicit")
    assert torch.equal(moved.final, z)
