"""The statements about the integral operator on [0, 1], on kernels whose answers are known.

ρ = 1 + xy has the degree d(x) = 1 + x/2, and ℒ(x²) = 1/3 + x/4 − x² − x³/2. Gauss–Legendre points integrate all of
that exactly, so what is left is rounding. ρ = xy has the degree x/2, with no lower bound but 0; ρ = (xy)^(−¼) has
∬ ρ² = 4 and the degree 4/3 x^(−¼), without an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from nonloc.ops import diffuse, kernel_matrix
from nonloc.processes.continuum.continuum import Continuum, PairKernel, cell_kernel, hilbert_schmidt_norm
from nonloc.processes.continuum.horizon import HorizonKernel
from nonloc.processes.continuum.local import local_laplacian, reversal_growth
from nonloc.processes.continuum.quadrature import quadrature
from nonloc_paper.theory.case import ROUNDING, excess, is_gap, is_nothing, matrix_of, modes, path, rise
from nonloc_paper.theory.check import Check, Hypothesis, decide, format_list
from nonloc_paper.theory.meshes import CELLS, Meshes, rates
from nonloc_paper.theory.theorems import FLOW_ROUNDING, JOINED, NONE

ENERGY = 79 / 720  # −∫ z ℒz for ρ = 1 + xy and z = x²
NORM = (29 / 18) ** 0.5  # (∬ (1 + xy)²)^½
LATE = (64.0, 256.0, 1024.0, 4096.0)  # times at which only points near 0 are left of ρ = xy
RADII = (0.2, 0.1, 0.05)
CELLS_IN_RADIUS = 10

SYMMETRIC = Hypothesis("ρ symmetric", ("is_symmetric",))
NOT_NEGATIVE = Hypothesis("ρ symmetric and ≥ 0", (*SYMMETRIC.needs, "is_nonnegative"))
CONNECTED = Hypothesis("ρ symmetric, ≥ 0, connected, gap above rounding", (*NOT_NEGATIVE.needs, *JOINED))
BELOW = Hypothesis(
    "ρ symmetric, ≥ 0, ∬ ρ² < ∞, connected, gap above rounding, degrees ∫ ρ(x, y) dy bounded below",
    (*CONNECTED.needs, "is_square_integrable", "has_degrees_above_zero"),
)
ABOVE = Hypothesis("ρ symmetric and ≥ 0, degrees bounded", (*NOT_NEGATIVE.needs, "has_bounded_degrees"))
POSITIVE = Hypothesis("ρ symmetric, > 0 but for x = 0 or y = 0", (*SYMMETRIC.needs, "is_positive"))
SQUARE = Hypothesis("∬ ρ² < ∞", ("is_square_integrable",))
SYMMETRIC_SQUARE = Hypothesis("ρ symmetric, ∬ ρ² < ∞", (*SYMMETRIC.needs, *SQUARE.needs))


def bounded_below(points: Tensor) -> Tensor:
    """u(x) = (1, x), so that u(x)·u(y) = 1 + xy."""
    return torch.cat([torch.ones_like(points), points], -1)


def touching_zero(points: Tensor) -> Tensor:
    """u(x) = x, so that u(x)·u(y) = xy, whose degree x/2 has no lower bound."""
    return points


def unbounded(points: Tensor) -> Tensor:
    """u(x) = x^(−¼), so that u(x)·u(y) = (xy)^(−¼)."""
    return points.pow(-0.25)


def meshes_of(features: Callable[[Tensor], Tensor], rule: str = "gauss") -> Meshes:
    """Return the meshes of ρ(x, y) = u(x)·u(y)."""
    return Meshes(partial(Continuum, "dot", rule=rule, features=features))


def continuum_checks() -> list[Check]:
    """Return the checks of all statements about the integral operator, in the order of the paper."""
    smooth, touching = meshes_of(bounded_below), meshes_of(touching_zero)
    return [
        *operator_statements(smooth),
        *flow_statements(smooth),
        *poincare_statements(meshes_of(bounded_below, "midpoint"), meshes_of(touching_zero, "midpoint")),
        *slow_decay_statements(touching),
        *hilbert_schmidt_statements(smooth),
        *boundedness_statements(smooth, meshes_of(unbounded)),
        *reversal_statements(),
        *local_limit_statements(),
        *cell_statements(),
    ]


def operator_statements(meshes: Meshes) -> list[Check]:
    """Proposition 1 for z = x²."""
    continuum = meshes.make(24)
    z = continuum.sample(lambda x: x.square())
    image, integral = continuum.apply(z), continuum.quadrature.integral
    constant = float(continuum.apply(torch.ones_like(z)).abs().max())
    total = float(integral(image)[0].abs().max() / integral(image.abs())[0].max())
    energy = -float(integral(z * image))
    claim = "−∫ z ℒz dx ≥ 0; for ρ = 1 + xy and z = x² it is 79/720"
    detail = f"{energy:.12g}, and 79/720 = {ENERGY:.12g}"
    missed = abs(energy / ENERGY - 1)
    return [
        _check("Proposition 1 (i)", "ℒz = 0 for a constant z", *NONE.of(meshes), constant, ROUNDING),
        _check("Proposition 1 (ii)", "∫ ℒz dx = 0", *SYMMETRIC.of(meshes), total, ROUNDING),
        _check("Proposition 1 (iii)", claim, *NOT_NEGATIVE.of(meshes), missed, ROUNDING, detail),
    ]


def flow_statements(meshes: Meshes) -> list[Check]:
    """Theorems 2, 3 and 4 from z(0) = x², whose mean is 1/3."""
    continuum = meshes.make(24)
    start = continuum.sample(lambda x: x.square())
    weights, values = continuum.weights.unsqueeze(-1), rates(continuum)
    gap = float(values[1])
    times, states = path(continuum.diffusion(), start, 30 / gap if is_gap(values) else 30.0, saved=60)
    drift = float(((weights * states).sum(1) - 1 / 3).abs().max())
    distances = (weights * (states - 1 / 3).square()).sum((1, 2)).sqrt()
    # Below this the distance is rounding.
    is_clear = distances > 1e-11 * distances[0]
    late = excess(distances[is_clear], distances[0] * torch.exp(-gap * times[is_clear]))
    left = float((states[-1] - 1 / 3).abs().max())
    variance, rate = (
        "the variance of z(t) never increases",
        "‖z(t) − z̄‖ ≤ ‖z(0) − z̄‖ e^(−λt), λ the spectral gap",
    )
    return [
        _check("Theorem 2 (i)", "∫ z(t) dx stays what it is", *SYMMETRIC.of(meshes), drift, FLOW_ROUNDING),
        _check("Theorem 2 (ii)", "z(t) tends to its mean", *CONNECTED.of(meshes), left, FLOW_ROUNDING),
        _check("Theorem 3", variance, *NOT_NEGATIVE.of(meshes), rise(distances.square()), FLOW_ROUNDING),
        _check("Theorem 4", rate, *BELOW.of(meshes), late, 1e-6, f"gap {gap:.6g}"),
    ]


def poincare_statements(below: Meshes, touching: Meshes) -> list[Check]:
    """The lemma with the hypothesis that its proof needs, and as stated, for ρ = xy."""
    claim = "∫ z² ≤ C ∬ ρ (z(y) − z(x))² for every z of mean 0"
    statement = f"there is a C with {claim}: 1/(2 gap) stays bounded on finer meshes"
    checks = []
    for meshes, name, hypothesis, expected in (
        (below, "Poincaré inequality", BELOW, "holds"),
        (touching, "Poincaré inequality as stated", POSITIVE, "fails"),
    ):
        gaps = torch.stack([_modes(mesh)[0][1] for mesh in meshes.all])
        residual, detail = float(1 - gaps[-1] / gaps[0]), f"gaps {format_list(gaps)} on {CELLS} cells"
        checks.append(_check(name, statement, *hypothesis.of(meshes), residual, 0.5, detail, expected))
    return checks


def slow_decay_statements(touching: Meshes) -> list[Check]:
    """Theorem 4 for ρ = xy. Near x = 0, z − z̄ fades like e^(−xt/2), so that its norm has only the order t^(−½)."""
    mesh, times = touching.all[-1], torch.tensor(LATE, dtype=torch.float64).unsqueeze(1)
    values, vectors = (each[..., 1:] for each in _modes(mesh))
    parts = (vectors.T @ (mesh.weights * mesh.points.squeeze(1).square())).square()
    # −d/dt log ‖z(t) − z̄‖ is the mean rate of the modes, weighted by what is left of each.
    left = parts * torch.exp(-2 * (values - values[0]) * times)
    decay = (left * values).sum(1) / left.sum(1)
    exponents = -times.squeeze(1) * decay
    missed = (exponents + 0.5).abs()
    products = [mesh.points @ mesh.points.T for mesh in touching.all]
    is_product = all(is_nothing(a - b, b) for a, b in zip(touching.values, products, strict=True))
    return [
        _check(
            "Theorem 4 as stated",
            "‖z(t) − z̄‖ ≤ C e^(−λt): the rate of decay does not tend to 0",
            *POSITIVE.of(touching),
            float(1 - decay[-1] / decay[0]),
            0.5,
            f"for ρ = xy the rates are {format_list(decay)} at t = {format_list(LATE)}; degrees bounded below give a "
            "rate",
            "fails",
        ),
        _check(
            "Theorem 4 for ρ = xy",
            "‖z(t) − z̄‖ decays like t^(−½) from z(0) = x²",
            "ρ = xy",
            is_product,
            float(missed[-1]) if bool((missed.diff() < 0).all()) else math.inf,
            0.005,
            f"exponents {format_list(exponents)} at t = {format_list(LATE)}",
        ),
    ]


def hilbert_schmidt_statements(meshes: Meshes) -> list[Check]:
    """Only the integral part of ℒ has a finite norm."""
    integral = [hilbert_schmidt_norm(mesh) for mesh in meshes.all]
    other = [hilbert_schmidt_norm(mesh, "multiplication") for mesh in meshes.all]
    return [
        _check(
            "Section 4.2, Hilbert–Schmidt",
            "z ↦ ∫ ρ(x, y) z(y) dy is a Hilbert–Schmidt operator, with the norm (∬ ρ²)^½ = (29/18)^½",
            *SQUARE.of(meshes),
            max(abs(norm / NORM - 1) for norm in integral),
            ROUNDING,
            f"{integral[-1]:.9g}",
        ),
        _check(
            "Section 4.2, Hilbert–Schmidt as stated",
            "ℒ itself is a Hilbert–Schmidt operator: its norm stays bounded on finer meshes",
            *SQUARE.of(meshes),
            1 - other[0] / other[-1],
            0.5,
            f"z ↦ d(x) z has the norms {format_list(other)} on {CELLS} points, like √M",
            "fails",
        ),
    ]


def boundedness_statements(bounded: Meshes, square: Meshes) -> list[Check]:
    """A bounded ℒ makes the reversal stable. Bounded degrees make ℒ bounded; ρ ∈ L² does not."""
    statement = (
        "ℒ is a bounded operator, so that its flow can be reversed: λ_max(−ℒ) stays bounded on finer meshes"
    )
    checks = []
    for meshes, name, hypothesis, expected in (
        (bounded, "Section 4.2, bounded", ABOVE, "holds"),
        (square, "Section 4.2, bounded as stated", SYMMETRIC_SQUARE, "fails"),
    ):
        largest = [float(_modes(mesh)[0][-1]) for mesh in meshes.all]
        detail = f"λ_max {format_list(largest)} on {CELLS} points"
        if expected == "fails":
            detail += ": for ρ = (xy)^(−¼) e^(λ_max t) has no bound; bounded degrees give one"
        residual = largest[-1] / largest[0] - 1
        checks.append(_check(name, statement, *hypothesis.of(meshes), residual, 0.5, detail, expected))
    return checks


def reversal_statements(kernel: str | PairKernel = "heat") -> list[Check]:
    """Section 4.2: the reversed heat equation is ill-posed, the reversed nonlocal equation is not."""
    cells = CELLS[:2]
    coarse, fine = (reversal_growth(count, kernel=kernel) for count in cells)
    nonlocal_rise = fine.nonlocal_rate / coarse.nonlocal_rate - 1
    local_rise = fine.local_rate / coarse.local_rate
    return [
        _check(
            "Section 4.2, anti-diffusion",
            "the reversed nonlocal equation grows at a rate that finer meshes do not raise, the reversed heat equation "
            "at one like 1/h²",
            *ABOVE.of(Meshes(partial(Continuum, kernel))),
            max(abs(nonlocal_rise), abs(local_rise / (cells[1] / cells[0]) ** 2 - 1)),
            0.05,
            f"nonlocal {coarse.nonlocal_rate:.5g} → {fine.nonlocal_rate:.5g}, local {coarse.local_rate:.4g} → "
            f"{fine.local_rate:.4g} from {cells[0]} to {cells[1]} cells",
        )
    ]


def local_limit_statements(
    kernel: Callable[[float], HorizonKernel | PairKernel] = HorizonKernel,
) -> list[Check]:
    """Section 4.2: ℒ as the nonlocal analogue of Δ, for z = cos πx, where the ball lies inside the domain."""
    errors, met = [], []
    for radius in RADII:
        mesh = Continuum(kernel(radius), round(CELLS_IN_RADIUS / radius))
        inside, z = mesh.interior(RADII[0]), mesh.sample(lambda x: torch.cos(math.pi * x))
        local = diffuse(local_laplacian(mesh.num_cells), z)[0, inside]
        errors.append(float((mesh.apply(z)[0, inside] - local).abs().max() / local.abs().max()))
        found = kernel_matrix(mesh.affinity)[0]
        moments = (found * (mesh.points - mesh.points.T).square()).sum(1)[inside]
        values = found / mesh.weights
        # The points are equally far apart.
        moved = values[1:, 1:] - values[:-1, :-1]
        met.append(
            is_nothing(moments - 2, moments)
            and is_nothing(values - values.T, values)
            and is_nothing(moved, values)
        )
    return [
        _check(
            "Section 4.2, local limit",
            "ℒ is an analogue of Δ: as its horizon δ shrinks, ℒ_δ z tends to Δz with order δ²",
            "ρ a function of |x − y|, ∫ ρ(x, y) |y − x|² dy = 2",
            all(met),
            max(abs(math.log2(wide / narrow) - 2) for wide, narrow in pairwise(errors)),
            0.05,
            f"relative differences {format_list(errors)} for δ = {format_list(RADII)}",
        )
    ]


def cell_statements(density: Callable[[Tensor, Tensor], Tensor] | None = None) -> list[Check]:
    """Section 4.3: 𝒦_ij as the average of p(x_i, ·) over cell j, for p(x, y) = (1 + xy) / (1 + x/2)."""
    density = density or (lambda x, y: ((1 + x * y) / (1 + x / 2)).squeeze(-1))
    average, probability = cell_kernel(density, 16, form="average"), cell_kernel(density, 16)
    rows = float((probability.sum(1) - 1).abs().max())
    averages, sums = average.sum(0), probability.sum(0)
    rule = quadrature(32, rule="gauss")
    masses = density(rule.points.unsqueeze(1), rule.points.unsqueeze(0)) @ rule.weights
    hypothesis, met = "∫ p(x, y) dy = 1", bool((masses - 1).abs().max() <= ROUNDING)
    claim = "with the measure of the cell, 𝒦_ij = ∫_cell j p(x_i, ·), the rows of 𝒦 sum to 1"
    return [
        _check("Section 4.3, cells", claim, hypothesis, met, rows, ROUNDING),
        _check(
            "Section 4.3, cells as stated",
            "𝒦_ij, the average of p(x_i, ·) over cell j, is a Markov matrix with columns that sum to 1",
            hypothesis,
            met,
            float((averages - 1).abs().max()),
            ROUNDING,
            f"on 16 cells the averages' columns sum to {float(averages.min()):.3g} … {float(averages.max()):.3g}, and "
            f"with the measure of the cell to {float(sums.min()):.3g} … {float(sums.max()):.3g}: the rows sum to 1 "
            "then",
            "fails",
        ),
    ]


def _check(
    name: str,
    statement: str,
    hypothesis: str,
    met: bool,
    residual: float,
    tolerance: float,
    detail: str = "",
    expected: str = "holds",
) -> Check:
    verdict = decide(met, residual, tolerance)
    detail = detail or f"off by {residual:.1e}"
    return Check(name, statement, hypothesis, "continuum", verdict, residual, detail, expected)


def _modes(mesh: Continuum) -> tuple[Tensor, Tensor]:
    """Return (eigenvalues [M] from the smallest, modes [M, M] as columns) of −ℒʰ in L², by what the flow does."""
    return modes(mesh.weights, -matrix_of(mesh.diffusion(), len(mesh.points)))
