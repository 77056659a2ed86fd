"""What Sections 3.1 and 4.1 to 4.3 say of the discrete model in addition to its theorems, in the order of the paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nonloc.ops import Affinity, aggregate, apply_adjoint, kernel_matrix, propagate
from nonloc.processes.process import Process
from nonloc.processes.simulate import simulate
from nonloc.processes.stability.certify import certify
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.theory.case import (
    CLEARLY_POSITIVE,
    ROUNDING,
    Case,
    excess,
    is_semidefinite,
    path,
    rise,
    symmetric_part,
)
from nonloc_paper.theory.check import Hypothesis, Statements, format_list
from nonloc_paper.theory.theorems import NONE, SYMMETRIC

# Its symmetric part is 0.1 I; the rest turns.
TURNING = torch.tensor([[0.1, 1.0], [-1.0, 0.1]], dtype=torch.float64)
TIME_STEPS = (1.0, 0.1, 0.01)

_NONNEGATIVE = "Ω symmetric and ≥ 0"
NONNEGATIVE = Hypothesis(_NONNEGATIVE, ("is_symmetric", "is_nonnegative"))
TURNED = Hypothesis(
    f"{_NONNEGATIVE}, sym(W) positive semi-definite",
    (*NONNEGATIVE.needs, lambda case: is_semidefinite(symmetric_part(TURNING))),
)
ROWS_OF_ONE = Hypothesis("the rows of K sum to 1", ("is_stochastic",))
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
    part = certify(case.affinity, [size * symmetric_part(TURNING)]).growth
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
    "Section 4.1, kernels as stated",
    "of the Gaussian and the dot product, both without embeddings, only the Gaussian is symmetric",
    NONE,
    1 - CLEARLY_POSITIVE,
    (),
)
def only_the_gaussian_is_symmetric_as_stated(case: Case) -> tuple[float, str]:
    """The claim is missed by as much as the dot product is symmetric, too."""
    features = case.affinity.left
    skew = []
    for other in (features, features.cumsum(-1)):
        omega = kernel_matrix(Affinity(features, other, "dot", "none"))[0]
        skew.append(float((omega - omega.T).abs().max() / omega.abs().max()))
    return 1 - skew[0], (
        f"x_i·x_j is off symmetry by {skew[0]:.1e}, θ(x_i)·φ(x_j) by {skew[1]:.1e}: embeddings decide"
    )


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
    "K is a Markov matrix: each of its columns sums to 1 (with a measure: Σ_i μ_i K_ij = μ_j)",
    ROWS_OF_ONE,
    ROUNDING,
    ("sinkhorn",),
)
def columns_sum_to_one(case: Case) -> tuple[float, str]:
    columns = float((case.measure @ case.kernel / case.measure - 1).abs().max())
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
    "Section 4.3, time step as stated",
    "p = (t − t′)γ has ∫ p = 1 while t′ tends to t",
    ROWS_OF_ONE,
    ROUNDING,
    (),
)
def short_steps_keep_probability_as_stated(case: Case) -> tuple[float, str]:
    """γ is K, whose rows sum to 1, so that ∫ p = 1 for t − t′ = 1."""
    sums = [float((step * case.kernel).sum(1).max()) for step in TIME_STEPS]
    return max(abs(one - 1) for one in sums), (
        f"t − t′ = {format_list(TIME_STEPS)} give ∫ p = {format_list(sums)}; with the rest a walker "
        "stays: P = I + (t − t′)(K − I)"
    )


@TABLE.add(
    "Section 4.3, reversed laws as stated",
    "negative weights are the reverse jump process: laws stay ≥ 0 under ∂p = −(Kᵀp − p)",
    ROWS_OF_ONE,
    ROUNDING,
    (),
)
def reversed_laws_stay_laws_as_stated(case: Case) -> tuple[float, str]:
    here = torch.eye(case.positions, dtype=torch.float64)
    laws = torch.linalg.matrix_exp(here - apply_adjoint(case.affinity, here.unsqueeze(0))[0])
    least = float(laws.min())
    return max(0.0, -least), (
        f"from one position, at t = 1, the least entry is {least:.3g} and the total {float(laws.sum(0).mean()):.6g}: "
        "the reversal is a flow of signed densities"
    )


class _Weighted(Process):
    """∂z = (what the process does to z) Wᵀ."""

    def __init__(self, process: Process, weight: Tensor) -> None:
        self._process, self._weight = process, weight

    def rate(self, z: Tensor) -> Tensor:
        return self._process.rate(z) @ self._weight.mT
