"""Problems with a closed form: two points; rates and limits."""

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, kernel_matrix, self_adjoint_weights
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


def heat(normalize):
    return symmetric("heat", normalize, 0.8, batch=1, positions=9)


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
