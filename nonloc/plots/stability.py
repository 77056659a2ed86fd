"""plot_stability: by how much a step can enlarge a signal, against its size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from nonloc._checks import is_finite, shown
from nonloc._evaluation import evaluating
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.ops import Affinity, SparseAffinity
from nonloc.plots.look import CHANCE, COLORS, NEGATIVE, POSITIVE, make_axes, write_plain_numbers
from nonloc.processes.stability.certificate import Certificate
from nonloc.processes.stability.certify import certify, certify_kernels
from nonloc.processes.stability.cfl import CFLLimit, cfl_limit

LOOKS: dict[str, dict[str, Any]] = {
    "stable": {"marker": "o", "color": POSITIVE},
    "unstable": {"marker": "X", "color": NEGATIVE},
    "not decided": {"marker": "o", "color": CHANCE, "markerfacecolor": "none"},
}
AROUND_LIMIT = np.linspace(0.1, 1.5, 15)
AROUND_STAGE = np.linspace(0.25, 2, 8)


def plot_stability(
    subject: Affinity | SparseAffinity | NonlocalModule | Mapping[float, Certificate],
    x: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    steps: Sequence[float] | None = None,
    limit: CFLLimit | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the growth of a signal against the size of the step, with the limit of stability (CFL).

    subject, x  an affinity, for steps z + h ℒz; or a stage with its input, for the stage with every W multiplied by a
                number, where 1 is the stage as it is; or certificates of `nonloc.certify` by their steps
    mask        of the stage's input, as the stage takes it
    steps       the values of h, or the factors of W; around the limit when left out
    limit       of `nonloc.cfl_limit`; that of the affinity when left out

    Above 1 some signal grows, in the norm of the certificates. For a stage the limit is where a symmetric W ≥ 0 with
    the same largest singular value would become unstable. A large affinity, or stage, takes a while.

    >>> from nonloc import Affinity
    >>> from nonloc.plots import plot_stability
    >>> same = torch.zeros(1, 2, 1, dtype=torch.float64)
    >>> ax = plot_stability(Affinity(same, same, "heat"), steps=[1, 2, 3])
    >>> ax.get_lines()[0].get_ydata().round(6).tolist()
    [1.0, 1.0, 2.0]
    """
    label, where = "step h", None if limit is None else limit.limit
    if isinstance(subject, NonlocalModule):
        label = "every W times"
        certificates, where = _of_stage(subject, x, mask, steps, where)
    elif isinstance(subject, Mapping):
        certificates = dict(subject)
    elif isinstance(subject, (Affinity, SparseAffinity)):
        limit = limit or cfl_limit(subject)
        where = limit.limit
        unit = where if 0 < where < math.inf else 1.0
        certificates = {h: certify(subject, h) for h in _checked(steps, unit * AROUND_LIMIT)}
    else:
        raise ValueError(
            "subject must be an affinity, a stage with its input x, or certificates by their steps, got "
            f"{type(subject).__name__}"
        )
    if not certificates or not all(isinstance(one, Certificate) for one in certificates.values()):
        raise ValueError(f"subject must have a Certificate for each step, got {shown(subject)}")
    ax = make_axes(ax)
    _draw(ax, certificates)
    if where is not None and 0 < where < math.inf:
        kind = "" if limit is None else f", {limit.kind}"
        ax.axvline(where, color=COLORS[3], linestyle="--", label=f"CFL limit {where:.3g}{kind}")
    if isinstance(subject, NonlocalModule):
        ax.axvline(1, color=CHANCE, linestyle=":", label="the stage as it is")
    ax.set(xlabel=label, ylabel="growth of a signal, at most")
    ax.legend(frameon=False)
    return ax


def _draw(ax: Axes, certificates: Mapping[float, Certificate]) -> None:
    """The growth by steps, a marker for each verdict."""
    steps = sorted(certificates)
    growth = np.array([certificates[step].growth for step in steps])
    growth = np.where(np.isfinite(growth), growth, np.nan)
    ax.plot(steps, growth, color=CHANCE, linewidth=1.2, zorder=1)
    for verdict, look in LOOKS.items():
        chosen = [number for number, step in enumerate(steps) if certificates[step].verdict == verdict]
        if chosen:
            at = [steps[number] for number in chosen]
            ax.plot(at, growth[chosen], linestyle="none", markersize=6, label=verdict, **look)
    ax.axhline(1, color=CHANCE, linewidth=0.8)
    if np.nanmax(growth, initial=1.0) > 20:
        ax.set_yscale("log")
        write_plain_numbers(ax)


def _of_stage(
    stage: NonlocalModule, x: Any, mask: Any, steps: Any, where: float | None
) -> tuple[dict[float, Certificate], float | None]:
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be the input of the stage, a tensor, got {type(x).__name__}")
    with evaluating(stage):
        kernels = stage.affinities(x, mask)
        matrices = [weight.detach() for weight in stage.weights()]
    certificates = {
        factor: certify_kernels(kernels, [factor * matrix for matrix in matrices], stage.form)
        for factor in _checked(steps, AROUND_STAGE)
    }
    if where is None and stage.form == "diffusive":
        size = max(float(torch.linalg.matrix_norm(matrix.double(), 2)) for matrix in matrices)
        least = min(cfl_limit(kernel).limit for kernel in set(kernels))
        where = least / size if size else None
    return certificates, where


def _checked(steps: Any, default: Any) -> list[float]:
    steps = default.tolist() if steps is None else list(steps)
    if not steps or not all(is_finite(step) for step in steps):
        raise ValueError(f"steps must be finite numbers, at least one, got {shown(steps)}")
    return [float(step) for step in steps]
