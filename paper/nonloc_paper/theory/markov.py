"""Section 4.3: the kernel as a Markov matrix, and its two discrete forms."""

from __future__ import annotations

import torch

from nonloc.ops import aggregate, apply_adjoint
from nonloc_paper.theory.case import ROUNDING, Case
from nonloc_paper.theory.check import Check, conclude

ROWS_OF_ONE = "the rows of K sum to 1"


def columns_sum_to_one(case: Case) -> Check:
    """ "A Markov matrix (with each column summing up to 1)": its rows do, its columns where K is symmetric too."""
    columns = float((case.kernel.sum(0) - 1).abs().max())
    return conclude(
        "Section 4.3, columns",
        "K is a Markov matrix: each of its columns sums to 1",
        ROWS_OF_ONE,
        case.normalize,
        met=case.is_stochastic,
        residual=columns,
        tolerance=ROUNDING,
        detail=f"columns are off 1 by {columns:.1e}; they sum to 1 where K is symmetric as well (sinkhorn)",
        expected="holds" if case.normalize == "sinkhorn" else "fails",
    )


def two_forms_are_one(case: Case) -> Check:
    """Z ← KZ and Z ← Z + Σ_j K_ij (Z_j − Z_i)."""
    first = aggregate(case.affinity, case.start)
    second = case.start + case.forward.rate(case.start)
    residual = float((first - second).abs().max() / first.abs().max())
    return conclude(
        "Section 4.3, two forms",
        "Z ← KZ is Z ← Z + Σ_j K_ij (Z_j − Z_i)",
        ROWS_OF_ONE,
        case.normalize,
        met=case.is_stochastic,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"one step of each differs by {residual:.1e}",
    )


def probability_is_conserved(case: Case) -> Check:
    """Laws move by Kᵀ, for K_ij is the probability of i → j; that conserves what the columns of K need not."""
    laws = torch.softmax(case.start, 1)
    by_adjoint = float((apply_adjoint(case.affinity, laws).sum(1) - 1).abs().max())
    by_kernel = float((aggregate(case.affinity, laws).sum(1) - 1).abs().max())
    return conclude(
        "Section 4.3, laws",
        "p ← Kᵀp conserves the total probability",
        ROWS_OF_ONE,
        case.normalize,
        met=case.is_stochastic,
        residual=by_adjoint,
        tolerance=ROUNDING,
        detail=f"Kᵀp is off by {by_adjoint:.1e}; Kp, which averages, would be by {by_kernel:.1e}",
    )
