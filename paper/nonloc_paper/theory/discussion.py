"""What Section 4.4, the discussion, says of the discrete model, in the order of the paper."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.special import exp1
from torch import Tensor

from nonloc.processes.diffusion import DampedFlow
from nonloc.processes.simulate import simulate
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.theory import examples
from nonloc_paper.theory.case import (
    CLEARLY_POSITIVE,
    ROUNDING,
    Case,
    excess,
    is_semidefinite,
    matrix_of,
    mean,
    modes,
    path,
)
from nonloc_paper.theory.check import Hypothesis, Statements
from nonloc_paper.theory.sections import NONNEGATIVE
from nonloc_paper.theory.theorems import JOINED

SUB_BLOCKS = (1, 10, 100)
BLOW_UP_STEPS = 2000
TIME = 1.0  # of the reactions

_CONNECTED = "Ω symmetric, ≥ 0, connected, gap above rounding"
_JOINED = (*NONNEGATIVE.needs, *JOINED)
SMALL = Hypothesis(
    "Ω symmetric and ≥ 0; W_n symmetric, its eigenvalues from 0 to 2/λ_max(−ℒ): the CFL condition",
    (*NONNEGATIVE.needs, examples.small_weights_satisfy_cfl),
)
CONSTANT = Hypothesis("Ω ≥ 0 and fixed, here ω ≡ 1", (examples.constant_kernel_is_one,))
GAUSSIAN = Hypothesis("ω = exp(z_i·z_j), which follows the state", (examples.gaussian_kernel_is_exponential,))
ALIKE = Hypothesis(
    "ω = exp(z_i·z_j), all positions alike and not 0", (*GAUSSIAN.needs, examples.blow_up_starts_alike)
)
STRONG = Hypothesis(
    f"{_CONNECTED}; W = D I with D gap > Lip F", (*_JOINED, examples.diffusion_outweighs_reaction)
)
ANY_DIFFUSION = Hypothesis(
    f"{_CONNECTED}; a reaction that decays; W symmetric and positive semi-definite",
    (
        *_JOINED,
        lambda case: bool(torch.linalg.eigvals(examples.HELD_BACK).real.max() < 0),
        lambda case: is_semidefinite(examples.SECOND_ALONE),
    ),
)
DEFINITE = Hypothesis(
    "Ω symmetric, ≥ 0 and strictly positive definite (heat with positions that differ)",
    ("is_definite", "is_nonnegative"),
)
TABLE = Statements()


@TABLE.add(
    "Section 4.4, CFL condition",
    "a step with W = hI enlarges no signal up to h = 2/λ_max(−ℒ), and does above",
    NONNEGATIVE,
    1e-10,
)
def steps_up_to_the_limit_are_stable(case: Case) -> tuple[float, str]:
    limit, roots, growth = cfl_limit(case.affinity).limit, case.balance.sqrt(), []
    for size in (limit, 1.05 * limit):
        step = torch.eye(case.positions, dtype=torch.float64) + size * matrix_of(case.forward, case.positions)
        growth.append(float(torch.linalg.matrix_norm(roots.unsqueeze(1) * step / roots, 2)))
    residual = max(0.0, growth[0] - 1) if growth[1] > 1.01 else 1.0
    return residual, f"limit {limit:.6g}: growth there {growth[0]:.6g}, and {growth[1]:.6g} at 1.05 of it"


@TABLE.add(
    "Section 4.4, small weights",
    "a stage enlarges no signal as long as its weights are small enough for the CFL condition",
    SMALL,
    1e-10,
)
def small_weights_are_stable(case: Case) -> tuple[float, str]:
    weights = examples.small_weights(case)
    growth = _growth(case, weights)
    return max(0.0, growth - 1), f"through {len(weights)} sub-blocks the growth is {growth:.6g}"


@TABLE.add(
    "Section 4.4, finite time",
    "with any weights, a stage enlarges no signal by more than e^(λt), λ = λ_max(−ℒ) and t = Σ_n ‖W_n‖",
    NONNEGATIVE,
    1e-10,
)
def stages_are_stable_in_finite_time(case: Case) -> tuple[float, str]:
    """Weights that never satisfy the CFL condition, in one large step and in many small ones."""
    weights = cfl_limit(case.affinity).limit * examples.ALWAYS_GROWING
    growth = torch.tensor(
        [[_growth(case, (one / steps).expand(steps, -1, -1)) for steps in SUB_BLOCKS] for one in weights],
        dtype=torch.float64,
    )
    bounds = torch.exp(case.kernel_rates[-1] * torch.linalg.matrix_norm(weights, 2))
    turned = ", ".join(f"{factor:.3g}" for factor in growth[1].tolist())
    detail = f"with t = 2/λ, W = ε (0 1; −1 0) enlarges by {turned} in {SUB_BLOCKS} sub-blocks"
    return excess(growth, bounds.unsqueeze(1)), detail


@TABLE.add(
    "Section 4.4, steady state as stated",
    "Σ_j K_ij z_j = 0 for all i is true for z = 0 alone",
    CONSTANT,
    1 - CLEARLY_POSITIVE,
    (),
)
def only_steady_state_is_zero_as_stated(case: Case) -> tuple[float, str]:
    """The claim is missed by as much as z = (1, −1, 0, …) is steady for ω ≡ 1."""
    opposite = examples.some_states(case)[0]
    rate = float(DampedFlow(examples.constant_kernel(opposite, case.normalize)).rate(opposite).abs().max())
    return 1 - rate, f"ω ≡ 1 leaves z = (1, −1, 0, …) where it is: |Kz| = {rate:.1e}"


@TABLE.add("Section 4.4, steady state", "Σ_j K_ij z_j = 0 for all i is true for z = 0 alone", DEFINITE, 0.0)
def only_steady_state_is_zero(case: Case) -> tuple[float, str]:
    values = torch.linalg.svdvals(matrix_of(case.damped, case.positions))
    least = float(values[-1] / values[0])
    return max(0.0, 1 - least / CLEARLY_POSITIVE), f"|Kz| is at least {least:.1e} of its largest value"


@TABLE.add(
    "Section 4.4, steady state of the Gaussian",
    "Kz = 0 for z = 0 alone: Σ_i π_i z_i·(Kz)_i ≥ |Σ_i b_i z_i|² with b_i b_j ω_ij = π_i K_ij, and > 0 unless z = 0",
    GAUSSIAN,
    ROUNDING,
)
def only_steady_state_of_the_gaussian_is_zero(case: Case) -> tuple[float, str]:
    """x eˣ ≥ x for x = z_i·z_j, and for i = j more than that: |z_i|² (e^(|z_i|²) − 1) is what makes the form > 0.

    Without normalisation b = π = 1, and Kz is the gradient of Φ = ½ Σ_ij exp(z_i·z_j).
    """
    flow = DampedFlow(lambda z: examples.gaussian_kernel(z, case.normalize))
    missed, forms = [], []
    for z in examples.some_states(case):
        state = Case.of(examples.gaussian_kernel(z, case.normalize), z)
        squares = z[0].square().sum(-1)
        b = (state.balance * state.kernel.diagonal() / torch.exp(squares)).sqrt()
        least = mean(b, z[0]).square().sum() + (b.square() * squares * torch.expm1(squares)).sum()
        form = -(state.balance * (z * flow.rate(z))[0].sum(-1)).sum()
        missed.append(float((least - form) / least))
        forms.append(float(form))
    detail = (
        f"z = (1, −1, 0, …), steady for ω ≡ 1, has the form {forms[0]:.3g}; the least ratio to the bound is "
    )
    return max(0.0, *missed), detail + f"{1 - max(missed):.3g}"


@TABLE.add(
    "Section 4.4, damping",
    "the original flow with negative weights tends to 0: ‖z(t)‖ ≤ e^(−λt) ‖z(0)‖ with λ = λ_min(K) > 0",
    DEFINITE,
    1e-8,
)
def original_flow_is_damped(case: Case) -> tuple[float, str]:
    values, _ = modes(case.balance, -matrix_of(case.damped, case.positions))
    least, largest = float(values[0]), float(values[-1])
    missed = []
    for start in (case.start, torch.ones_like(case.start)):
        times, states = path(case.damped, start, 6 / largest if largest > 0 else 1.0)
        sizes = case.norm(states)
        missed.append(excess(sizes, sizes[0] * torch.exp(-least * times)))
    residual = max(0.0, *missed, -least / max(abs(least), abs(largest)))
    detail = f"rates from {least:.3g} to {largest:.3g}: constants are damped too, which diffusion keeps"
    return residual, detail


@TABLE.add(
    "Section 4.4, growth",
    "the original flow with positive weights grows without bound, by e^(λt) with λ = λ_max(K) > 0",
    Hypothesis("Ω symmetric, ≥ 0 and not 0", (*NONNEGATIVE.needs, "is_not_zero")),
    1e-8,
)
def original_flow_grows(case: Case) -> tuple[float, str]:
    values, vectors = modes(case.balance, matrix_of(case.growing, case.positions))
    largest = float(values[-1])
    times, states = path(case.growing, vectors[:, -1].view(1, -1, 1), 5 / largest if largest > 0 else 1.0)
    sizes = case.norm(states)
    rate = float((sizes[-1] / sizes[0]).log() / times[-1])
    residual = abs(rate / largest - 1) if largest > 0 else float("inf")
    return residual, f"measured rate {rate:.6g}, λ_max(K) = {largest:.6g}"


@TABLE.add(
    "Section 4.4, blow-up",
    "with the kernel following the state, positive weights make the flow infinite in finite time",
    ALIKE,
    0.02,
    ("count", "none"),
)
def growth_is_infinite_in_finite_time(case: Case) -> tuple[float, str]:
    """For ω = exp(z_i·z_j) and all positions alike, ż = z e^(z²) times the number of positions that are summed.

    The time at which z is infinite is ∫ dz / (z e^(z²)) from the start. Kernels whose rows sum to 1 for such a state
    grow like e^t, and are finite at every time.
    """
    summed = {"none": case.positions, "count": 1}.get(case.normalize)
    # ∫ e^(−z²) / z dz = ½ ∫ e^(−u) / u du with u = z².
    infinite = float(exp1(examples.BLOW_UP_START**2)) / 2 / (summed or 1)
    # A time that comes needs small steps to be seen; one that never comes does not.
    steps = BLOW_UP_STEPS if summed else BLOW_UP_STEPS // 20
    flow = DampedFlow(lambda z: examples.gaussian_kernel(z, case.normalize), backwards=True)
    start, size = examples.blow_up_start(case), infinite / steps
    trajectory = simulate(flow, start, num_steps=2 * steps, step_size=size, save_every=steps, throw=False)
    if trajectory.outcome.ending != "diverged":
        return 1.0, "finite, like e^t"
    time = trajectory.outcome.step * size
    return abs(time / infinite - 1), f"infinite at t = {time:.4g}, by the integral at {infinite:.4g}"


@TABLE.add(
    "Section 4.4, regularizer",
    "diffusion beside a ResNet's reaction F draws positions together: spread(t) ≤ spread(0) e^(−(D gap − Lip F) t)",
    STRONG,
    1e-6,
)
def diffusion_regularizes(case: Case) -> tuple[float, str]:
    """∂z = F(z) + D ℒz with F(z) = W₂ f(W₁ f(z)) and f = ReLU."""
    (first, second), strength = examples.reaction_weights(case), examples.diffusion_strength(case)
    rate = strength * float(case.kernel_rates[1]) - examples.LIPSCHITZ
    size = strength * float(case.rates[0][-1]) + examples.LIPSCHITZ
    spread = []
    for amount in (0.0, strength):

        def change(z: Tensor, amount: float = amount) -> Tensor:
            return torch.relu(torch.relu(z) @ first.mT) @ second.mT + amount * case.forward.rate(z)

        times, states = _runge_kutta(change, case.start, size)
        spread.append(case.norm(states - mean(case.balance, states).unsqueeze(1)))
    alone, together = (each / each[0] for each in spread)
    bound = torch.exp(-rate * times)
    # Where the reaction alone does not drive positions apart there is nothing to show.
    residual = excess(together, bound) if float(alone[-1]) > 1.05 else float("inf")
    return residual, (
        f"at t = {TIME:g} the spread is {float(alone[-1]):.3g} times that of the start without diffusion, "
        f"{float(together[-1]):.2g} with it; the bound is {float(bound[-1]):.2g}"
    )


@TABLE.add(
    "Section 4.4, regularizer as stated",
    "a diffusion term with positive weights makes a reaction more stable",
    ANY_DIFFUSION,
    1e-10,
    (),
)
def diffusion_regularizes_as_stated(case: Case) -> tuple[float, str]:
    """W = diag(0, d) frees the first channel from the second, and what was stable grows (Turing)."""
    weight = examples.SECOND_ALONE / case.scale
    # In the mode λ of −ℒ the process is ż = (J − λ W) z.
    growth = [
        float(
            torch.linalg.eigvals(
                examples.HELD_BACK - amount * case.rates[0].view(-1, 1, 1) * weight
            ).real.max()
        )
        for amount in (0.0, 1.0)
    ]
    return max(0.0, growth[1]), (
        f"a reaction that decays like e^({growth[0]:.3g} t) grows like e^({growth[1]:.3g} t) with diffusion in "
        "its second channel alone; W = D I with D gap > Lip F draws together"
    )


def _growth(case: Case, weights: Tensor) -> float:
    """Return the largest ‖stage(z)‖ / ‖z‖ over all z, for W_n [N, C, C]."""
    here = torch.eye(weights.shape[-1], dtype=torch.float64)
    stage = here.expand(case.positions, -1, -1)
    # In the mode λ of −ℒ a sub-block is z ← (I − λ W) z.
    for weight in weights:
        stage = (here - case.rates[0].view(-1, 1, 1) * weight) @ stage
    return float(torch.linalg.matrix_norm(stage, 2).max())


def _runge_kutta(rate: Callable[[Tensor], Tensor], start: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return (times [S], states [S, M, C]) of the classical method, with steps small against 1/size."""
    steps = max(32, int(4 * TIME * size))
    h, z, states = TIME / steps, start, [start]
    for _ in range(steps):
        a = rate(z)
        b = rate(z + h / 2 * a)
        c = rate(z + h / 2 * b)
        d = rate(z + h * c)
        z = z + h / 6 * (a + 2 * b + 2 * c + d)
        states.append(z)
    return h * torch.arange(steps + 1, dtype=torch.float64), torch.cat(states)
