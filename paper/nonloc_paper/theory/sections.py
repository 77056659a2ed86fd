"""What Sections 3.1 and 4.1 to 4.4 say of the discrete model in addition to its theorems, in the order of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops import Affinity, aggregate, apply_adjoint, propagate
from nonloc.processes.diffusion import DampedFlow
from nonloc.processes.process import Process
from nonloc.processes.simulate import simulate
from nonloc.processes.stability.certify import certify
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.theory.case import (
    CLEARLY_POSITIVE,
    ROUNDING,
    Case,
    excess,
    matrix_of,
    mean,
    modes,
    path,
    rise,
)
from nonloc_paper.theory.check import Hypothesis, Statements
from nonloc_paper.theory.theorems import NONE, SYMMETRIC

# Its symmetric part is 0.1 I; the rest turns.
TURNING = torch.tensor([[0.1, 1.0], [-1.0, 0.1]], dtype=torch.float64)
ROTATION = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
# Large enough that z e^(z²) blows up at once, and not in the first step.
BLOW_UP_START, BLOW_UP_STEPS = 0.5, 2000
TIME = 1.0  # of the reactions
LIPSCHITZ = 3.0  # constant of the reaction
# A stable reaction (trace −3, determinant 2) whose second channel holds the first one back.
HELD_BACK = torch.tensor([[1.0, -2.0], [3.0, -4.0]], dtype=torch.float64)

_NONNEGATIVE, _CONNECTED = "Ω symmetric and ≥ 0", "Ω symmetric, ≥ 0 and connected"
NONNEGATIVE = Hypothesis(_NONNEGATIVE, ("is_symmetric", "is_nonnegative"))
TURNED = Hypothesis(f"{_NONNEGATIVE}, sym(W) positive semi-definite", NONNEGATIVE.needs)
STRONG = Hypothesis(f"{_CONNECTED}; W = D I with D gap > Lip F", (*NONNEGATIVE.needs, "is_connected"))
ANY_DIFFUSION = Hypothesis(f"{_CONNECTED}; W symmetric and positive semi-definite", STRONG.needs)
ROWS_OF_ONE = Hypothesis("the rows of K sum to 1", ("is_stochastic",))
DEFINITE = Hypothesis(
    "Ω symmetric and strictly positive definite (heat with positions that differ)", ("is_definite",)
)
TABLE = Statements()


@TABLE.add(
    "Section 3.1, steps as stated",
    "a step with W grows no more than a step with its symmetric part",
    NONNEGATIVE,
    1e-10,
    (),
)
def symmetric_part_decides_as_stated(case: Case) -> tuple[float, str]:
    """ "The effect of W on the decay properties … is determined by … the symmetric part"."""
    size = cfl_limit(case.affinity).limit / 2
    whole = certify(case.affinity, [size * TURNING]).growth
    part = certify(case.affinity, [size * (TURNING + TURNING.T) / 2]).growth
    detail = f"sym(W) alone gives {part:.4g}, W gives {whole:.4g}; ‖I − λW‖ is what decides"
    return max(0.0, whole / part - 1), detail


@TABLE.add(
    "Section 3.1, flow",
    "‖z(t)‖ never grows under ∂z = ℒz Wᵀ, whatever W is beside its symmetric part",
    TURNED,
    1e-10,
)
def symmetric_part_decides_the_flow(case: Case) -> tuple[float, str]:
    """In continuous time it does: d/dt ‖z‖² = −2 Σ_λ λ z_λ·sym(W) z_λ."""
    _, states = path(_Weighted(case.forward, TURNING), case.start[..., :2], case.time(3.0))
    residual = rise(case.norm(states))
    return residual, f"with W = (0.1 1; −1 0.1) the norm rises by {residual:.1e} at most"


@TABLE.add(
    "Section 4.1, symmetric and stochastic",
    "K is symmetric and its rows sum to 1, both at once",
    NONNEGATIVE,
    ROUNDING,
    ("sinkhorn",),
)
def symmetric_with_rows_of_one(case: Case) -> tuple[float, str]:
    """The paper assumes both at once, "without loss of generality"."""
    flow = case.measure.unsqueeze(1) * case.kernel
    skew = float((flow - flow.T).abs().max() / flow.abs().max())
    rows = float((case.kernel.sum(1) - 1).abs().max())
    return max(
        skew, rows
    ), f"K is off symmetry by {skew:.1e}, its rows off 1 by {rows:.1e}; sinkhorn has both"


@TABLE.add(
    "Section 4.2, network", "the stage with W_n = hI is the discrete diffusion Z ← Z + h ℒZ", NONE, ROUNDING
)
def stage_is_a_diffusion(case: Case) -> tuple[float, str]:
    steps, size = 5, 0.5 * cfl_limit(case.affinity).limit
    weights = size * torch.eye(case.start.shape[-1], dtype=torch.float64).expand(steps, -1, -1)
    stage = propagate(case.affinity, case.start, weights)
    walked = simulate(case.forward, case.start, num_steps=steps, step_size=size).final
    residual = float((stage - walked).abs().max() / case.start.abs().max())
    return residual, f"after {steps} steps they differ by {residual:.1e}"


@TABLE.add(
    "Section 4.2, reversal",
    "backwards ‖z(t)‖ ≤ e^(λt) ‖z(0)‖ with λ = λ_max(−ℒ), the fastest mode attains it, and the flow can be undone",
    SYMMETRIC,
    1e-8,
)
def reversal_is_stable_in_finite_time(case: Case) -> tuple[float, str]:
    largest = float(case.rates[0][-1])
    horizon = 4 / largest
    times, states = path(case.backward, case.start, horizon)
    missed = excess(case.norm(states), case.norm(states[0]) * torch.exp(largest * times))
    _, grown = path(case.backward, case.rates[1][:, -1].view(1, -1, 1), horizon, saved=2)
    attained = abs(float(case.norm(grown[-1]) / case.norm(grown[0])) / math.exp(largest * horizon) - 1)
    _, returned = path(case.forward, states[-1:].clone(), horizon, saved=2)
    undone = float((returned[-1] - states[0]).abs().max() / states[0].abs().max())
    return max(missed, attained, undone), f"λ_max = {largest:.6g}; back and forth loses {undone:.1e}"


@TABLE.add(
    "Section 4.3, columns",
    "K is a Markov matrix: each of its columns sums to 1",
    ROWS_OF_ONE,
    ROUNDING,
    ("sinkhorn",),
)
def columns_sum_to_one(case: Case) -> tuple[float, str]:
    columns = float((case.kernel.sum(0) - 1).abs().max())
    detail = f"columns are off 1 by {columns:.1e}; they sum to 1 where K is symmetric as well (sinkhorn)"
    return columns, detail


@TABLE.add("Section 4.3, two forms", "Z ← KZ is Z ← Z + Σ_j K_ij (Z_j − Z_i)", ROWS_OF_ONE, ROUNDING)
def two_forms_are_one(case: Case) -> tuple[float, str]:
    first = aggregate(case.affinity, case.start)
    second = case.start + case.forward.rate(case.start)
    residual = float((first - second).abs().max() / first.abs().max())
    return residual, f"one step of each differs by {residual:.1e}"


@TABLE.add("Section 4.3, laws", "p ← Kᵀp conserves the total probability", ROWS_OF_ONE, ROUNDING)
def probability_is_conserved(case: Case) -> tuple[float, str]:
    laws = torch.softmax(case.start, 1)
    by_adjoint = float((apply_adjoint(case.affinity, laws).sum(1) - 1).abs().max())
    by_kernel = float((aggregate(case.affinity, laws).sum(1) - 1).abs().max())
    return by_adjoint, f"Kᵀp is off by {by_adjoint:.1e}; Kp, which averages, would be by {by_kernel:.1e}"


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
    "Section 4.4, small weights as stated",
    "a stage is stable as long as its weights are small enough",
    NONNEGATIVE,
    1e-10,
    (),
)
def small_weights_are_stable_as_stated(case: Case) -> tuple[float, str]:
    limit = cfl_limit(case.affinity).limit
    factors = [certify(case.affinity, [size * limit * ROTATION]).growth - 1 for size in (1.0, 1e-1, 1e-2)]
    return min(factors), "W = ε (0 1; −1 0) grows for every ε: by " + ", ".join(
        f"{one:.1e}" for one in factors
    )


@TABLE.add(
    "Section 4.4, steady state as stated",
    "Σ_j K_ij z_j = 0 for all i is true for z = 0 alone",
    Hypothesis("Ω ≥ 0"),
    1 - CLEARLY_POSITIVE,
    (),
)
def only_steady_state_is_zero_as_stated(case: Case) -> tuple[float, str]:
    """The claim is missed by as much as z = (1, −1, 0, …) is steady for ω ≡ 1."""
    alike = torch.zeros(1, case.positions, 1, dtype=torch.float64)
    z = alike.clone()
    z[0, :2, 0] = torch.tensor([1.0, -1.0])
    flow = DampedFlow(Affinity(alike, alike, "heat", case.normalize))
    rate = float(flow.rate(z).abs().max())
    return 1 - rate, f"ω ≡ 1 leaves z = (1, −1, 0, …) where it is: |Kz| = {rate:.1e}"


@TABLE.add("Section 4.4, steady state", "Σ_j K_ij z_j = 0 for all i is true for z = 0 alone", DEFINITE, 0.0)
def only_steady_state_is_zero(case: Case) -> tuple[float, str]:
    values = torch.linalg.svdvals(matrix_of(case.damped, case.positions))
    least = float(values[-1] / values[0])
    return max(0.0, 1 - least / CLEARLY_POSITIVE), f"|Kz| is at least {least:.1e} of its largest value"


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
    Hypothesis("ω = exp(z_i·z_j), all positions alike"),
    0.02,
    ("count", "none"),
)
def growth_is_infinite_in_finite_time(case: Case) -> tuple[float, str]:
    """For ω = exp(z_i·z_j) and all positions alike, ż = z e^(z²) times the number of positions that are summed.

    The time at which z is infinite is ∫ dz / (z e^(z²)) from the start. Kernels whose rows sum to 1 for such a state
    grow like e^t, and are finite at every time.
    """
    summed = {"none": case.positions, "count": 1}.get(case.normalize)
    # ∫_start^∞ e^(−z²) / z dz, with z = start + s/(1 − s), by the midpoint rule.
    s = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    z = BLOW_UP_START + s / (1 - s)
    infinite = float((torch.exp(-z.square()) / z / (1 - s).square()).mean()) / (summed or 1)
    # A time that comes needs small steps to be seen; one that never comes does not.
    steps = BLOW_UP_STEPS if summed else BLOW_UP_STEPS // 20
    flow = DampedFlow(lambda z: Affinity(z, z, "gaussian", case.normalize), backwards=True)
    start = torch.full((1, case.positions, 1), BLOW_UP_START, dtype=torch.float64)
    size = infinite / steps
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
    """∂z = F(z) + D ℒz with F(z) = W₂ f(W₁ f(z)), f = ReLU, and random weights ≥ 0, which drive positions apart."""
    generator = torch.Generator().manual_seed(0)
    channels = case.start.shape[-1]
    first, second = (
        torch.rand(channels, channels, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    scale = (LIPSCHITZ / (torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(second, 2))).sqrt()
    first, second = scale * first, scale * second
    strength = 2 * LIPSCHITZ / case.scale
    rate = strength * case.scale - LIPSCHITZ
    size = strength * float(case.rates[0][-1]) + LIPSCHITZ
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
    weight = torch.diag(torch.tensor([0.0, 10 / case.scale], dtype=torch.float64))
    # In the mode λ of −ℒ the process is ż = (J − λ W) z.
    growth = [
        float(torch.linalg.eigvals(HELD_BACK - amount * case.rates[0].view(-1, 1, 1) * weight).real.max())
        for amount in (0.0, 1.0)
    ]
    return max(0.0, growth[1]), (
        f"a reaction that decays like e^({growth[0]:.3g} t) grows like e^({growth[1]:.3g} t) with diffusion in "
        "its second channel alone; W = D I with D gap > Lip F draws together"
    )


class _Weighted(Process):
    """∂z = (what the process does to z) Wᵀ."""

    def __init__(self, process: Process, weight: Tensor) -> None:
        self._process, self._weight = process, weight

    def rate(self, z: Tensor) -> Tensor:
        return self._process.rate(z) @ self._weight.mT


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
