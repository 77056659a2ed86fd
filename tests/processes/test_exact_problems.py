"""Problems with a closed form: two points, the complete graph, a circle; orders, rates, limits."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, kernel_matrix, self_adjoint_weights
from nonloc.processes import Diffusion, cfl_limit, simulate
from problems import relative, signal, symmetric

# By stepper: what n steps of length h make of a mode that decays at rate λ.
FACTORS = {
    "euler": lambda rate, h, n: (1 - h * rate) ** n,
    "exact": lambda rate, h, n: torch.exp(-n * h * rate),
    "implicit": lambda rate, h, n: (1 + h * rate) ** -n,
}


def eigen(affinity):
    """π [M], and eigenvalues [M] (rising) and eigenvectors [M, M] of L = diag(K1) − K, for one symmetric sample."""
    weights, kernel = self_adjoint_weights(affinity)[0], kernel_matrix(affinity)[0]
    roots = weights.sqrt()
    similar = roots.unsqueeze(-1) * (torch.diag(kernel.sum(-1)) - kernel) / roots
    values, vectors = torch.linalg.eigh((similar + similar.T) / 2)
    return weights, values, vectors / roots.unsqueeze(-1)


def length(z, weights):
    return float((weights.view(1, -1, 1) * z.square()).sum().sqrt())


@pytest.mark.parametrize("stepper", FACTORS)
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_two_points(normalize, stepper):
    """With ω = [[1, k], [k, 1]] the difference decays at 2k, and at 2k / (1 + k) once rows are divided."""
    points = torch.tensor([[[0.0], [0.9]]], dtype=torch.float64)
    k = torch.exp(torch.tensor(-(0.9**2), dtype=torch.float64))
    rate = {"none": 2 * k, "count": k}.get(normalize, 2 * k / (1 + k))
    z = torch.tensor([[[3.0], [-1.0]]], dtype=torch.float64)
    process = Diffusion(Affinity(points, points, "heat", normalize))
    run = simulate(process, z, num_steps=7, step_size=0.2, stepper=stepper)
    steps = torch.arange(8, dtype=torch.float64)
    difference = run.states[:, 0, 0, 0] - run.states[:, 0, 1, 0]
    assert relative(difference, 4 * FACTORS[stepper](rate, 0.2, steps)) <= 1e-12
    assert relative(run.states.sum(2), torch.full((8, 1, 1), 2, dtype=torch.float64)) <= 1e-12


@pytest.mark.parametrize("stepper", FACTORS)
@pytest.mark.parametrize(("normalize", "rate"), [("none", 6), ("count", 1), ("row", 1), ("sinkhorn", 1)])
def test_the_complete_graph_moves_everybody_straight_to_the_mean(normalize, rate, stepper):
    points = torch.zeros(1, 6, 2, dtype=torch.float64)
    a = Affinity(points, points, "heat", normalize)
    z, rate = signal(a), torch.tensor(rate, dtype=torch.float64)
    run = simulate(Diffusion(a), z, num_steps=5, step_size=0.1, stepper=stepper)
    mean = z.mean(1, keepdim=True)
    for n, state in enumerate(run.states):
        assert relative(state, mean + FACTORS[stepper](rate, 0.1, n) * (z - mean)) <= 1e-12


@pytest.mark.parametrize("stepper", FACTORS)
@pytest.mark.parametrize("normalize", ["none", "row"])
def test_cosines_on_a_circle_decay_at_the_rates_of_the_fourier_transform(normalize, stepper):
    size = 12
    angles = 2 * torch.pi * torch.arange(size, dtype=torch.float64) / size
    points = torch.stack([angles.cos(), angles.sin()], -1).unsqueeze(0)
    # |x_i − x_j|² = 4 sin²((i − j)π / M): the first row says it all.
    row = torch.exp(-1.5 * 4 * torch.sin(angles / 2).square())
    row = row / row.sum() if normalize == "row" else row
    spectrum = torch.fft.rfft(row).real
    rates = spectrum[0] - spectrum
    modes = torch.stack([torch.cos(k * angles) for k in range(len(rates))], -1).unsqueeze(0)
    process = Diffusion(Affinity(points, points, "heat", normalize, 1.5))
    run = simulate(process, modes, num_steps=6, step_size=0.15, stepper=stepper)
    for n, state in enumerate(run.states):
        assert relative(state, FACTORS[stepper](rates, 0.15, n) * modes) <= 1e-11


def heat(normalize):
    return symmetric("heat", normalize, 0.8, batch=1, positions=9)


@pytest.mark.parametrize(
    ("normalize", "stepper"), [*((one, "euler") for one in NORMALIZATIONS), ("row", "implicit")]
)
def test_both_euler_methods_are_of_first_order(normalize, stepper):
    a = heat(normalize)
    z, process = signal(a), Diffusion(a)
    # In units of the fastest mode, so that the finest steps are small for every one.
    time = 0.5 * cfl_limit(a).limit
    truth = simulate(process, z, num_steps=1, step_size=time, stepper="exact").final
    halvings = torch.arange(4, 7, dtype=torch.float64)
    errors = []
    for k in halvings.int().tolist():
        run = simulate(process, z, num_steps=2**k, step_size=time / 2**k, save_every=2**k, stepper=stepper)
        errors.append((run.final - truth).square().sum().sqrt())
    logs, steps = torch.stack(errors).log2(), -(halvings - halvings.mean())
    order = float((steps * logs).sum() / steps.square().sum())
    assert order == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("stepper", ["euler", "exact"])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_a_simulation_decays_at_the_rate_of_the_spectral_gap(normalize, stepper):
    a = heat(normalize)
    weights, rates, _ = eigen(a)
    gap, h = float(rates[1]), 0.01 / float(rates[1])
    mean = (weights.view(1, -1, 1) * (z := signal(a))).sum(1, keepdim=True) / weights.sum()
    # Until the next mode is e⁻¹² of the slowest, and then for twice the slowest's own time.
    wait, look = 12 / float(rates[2] - rates[1]), 2 / gap
    early = simulate(Diffusion(a), z - mean, num_steps=1, step_size=wait, stepper="exact").final
    num_steps = int(look / h) if stepper == "euler" else 1
    step = look / num_steps
    run = simulate(
        Diffusion(a), early, num_steps=num_steps, step_size=step, save_every=num_steps, stepper=stepper
    )
    first, last = (length(state, weights) for state in run.states)
    assert -torch.tensor(last / first).log().item() / look == pytest.approx(gap, rel=0.01)


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_just_below_the_stable_step_nothing_grows_and_just_above_something_does(normalize):
    a = heat(normalize)
    weights, rates, vectors = eigen(a)
    limit, top = cfl_limit(a).limit, vectors[:, -1].view(1, -1, 1)
    assert limit == pytest.approx(2 / float(rates[-1]), rel=1e-12)

    def growth(z, step):
        states = simulate(Diffusion(a), z, num_steps=100, step_size=step, save_every=100, throw=False).states
        return length(states[-1], weights) / length(states[0], weights)

    # One step multiplies the top mode by 1 ± 2e-6 in magnitude.
    assert growth(top, (1 - 1e-6) * limit) == pytest.approx((1 - 2e-6) ** 100, rel=1e-9)
    assert growth(top, (1 + 1e-6) * limit) == pytest.approx((1 + 2e-6) ** 100, rel=1e-9)
    assert growth(signal(a), (1 - 1e-6) * limit) <= 1


def test_a_product_of_two_complete_graphs_decays_at_the_sum_of_their_rates():
    """On a grid whose kernel is ω ⊗ I + I ⊗ ω, products of modes are modes and their rates add."""
    ones, eye = (partial(make, dtype=torch.float64) for make in (torch.ones, torch.eye))
    matrix = torch.kron(ones(3, 3), eye(4)) + torch.kron(eye(3), ones(4, 4))
    a = SparseAffinity(matrix.to_sparse_csr(), "none")
    rows, columns = (x - x.mean() for x in (torch.arange(3.0).double(), torch.arange(4.0).double().square()))
    modes = [torch.kron(rows, ones(4)), torch.kron(ones(3), columns), torch.kron(rows, columns)]
    z = torch.stack(modes, -1).unsqueeze(0)
    run = simulate(Diffusion(a), z, num_steps=1, step_size=0.4, stepper="exact")
    rates = torch.tensor([3.0, 4.0, 7.0], dtype=torch.float64)
    assert relative(run.final, torch.exp(-0.4 * rates) * z) <= 1e-12


def test_a_measure_weighs_the_two_points():
    """K = [[μ₁, kμ₂], [kμ₁, μ₂]]: the difference decays at k (μ₁ + μ₂), and μ₁z₁ + μ₂z₂ stays."""
    points = torch.tensor([[[0.0], [0.5]]], dtype=torch.float64)
    a = replace(
        Affinity(points, points, "heat", "none"), measure=torch.tensor([0.3, 1.1], dtype=torch.float64)
    )
    z = torch.tensor([[[3.0], [-1.0]]], dtype=torch.float64)
    run = simulate(Diffusion(a), z, num_steps=1, step_size=0.7, stepper="exact")
    rate = 1.4 * torch.exp(torch.tensor(-0.25, dtype=torch.float64))
    assert float(run.final[0, 0] - run.final[0, 1]) == pytest.approx(
        4 * float(torch.exp(-0.7 * rate)), rel=1e-13
    )
    assert float(a.measure @ run.final[0, :, 0]) == pytest.approx(0.3 * 3 - 1.1, abs=1e-13)
