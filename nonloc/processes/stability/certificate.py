"""Certificate: what is known of a stage's stability. StageSample: one sample of a stage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from nonloc.ops import Affinity, Prepared, SparseAffinity, aggregate, diffuse, prepare
from nonloc.ops.bounds import wide
from nonloc.processes.stability.own_norm import kernel_size

# A growth factor above 1 by less than this may be rounding, and counts as none.
TOLERANCE = 1e-10
EXACT_POSITIONS = 1024
TOLERANCE_NARROW = 1e-3  # for weights in float32, which are rounded themselves


@dataclass(frozen=True, eq=False)
class Certificate:
    """Whether a stage T = Π_n (I − L ⊗ W_n) can make a signal grow.

    verdict   "stable": ‖Tz‖ ≤ ‖z‖ in the stated norm, for every z. Weights in float32 are forgiven their rounding, a
              growth of 1.001 at most; "unstable": there is a z that grows in that norm by more than rounding, and
              `witness` is one; "not decided": neither is known
    growth    the factor: sup ‖Tz‖ / ‖z‖ where it is exact, that of the witness where a search gave it, a bound from
              above (perhaps inf) where nothing is decided
    norm      the norm, in words
    reason    how the verdict came about
    repeated  the growth of each further pass, if the stage were repeated for ever (the spectral radius): at most 1
              means that what grows at first does not go on growing. None where it is not known
    witness   z [M, C] that grows by `growth`, for "unstable"
    weights   π [M] of the norm; None where it was not needed
    sample    of the batch: the worst one

    >>> from nonloc import Affinity, certify
    >>> same = torch.zeros(1, 2, 1, dtype=torch.float64)
    >>> certificate = certify(Affinity(same, same, "heat"), 4.0)
    >>> certificate.verdict, round(certificate.growth, 6), certificate.witness.shape
    ('unstable', 3.0, torch.Size([2, 1]))
    """

    verdict: str
    growth: float
    norm: str
    reason: str
    repeated: float | None = None
    witness: Tensor | None = field(default=None, repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    sample: int = 0


@dataclass(frozen=True, eq=False)
class StageSample:
    """One sample of a stage: a kernel for each sub-block (the same object where they share one), all in float64."""

    kernels: list[Affinity | SparseAffinity]
    weights: list[Tensor]
    form: str
    precision: float

    @property
    def is_shared(self) -> bool:
        return len(self.distinct) == 1

    @property
    def distinct(self) -> list[Affinity | SparseAffinity]:
        """Each kernel once, in the order of the sub-blocks."""
        return list(dict.fromkeys(self.kernels))

    @cached_property
    def prepared(self) -> dict[Affinity | SparseAffinity, Prepared]:
        """Each kernel, prepared once for many products."""
        return {kernel: prepare(kernel, torch.float64) for kernel in self.distinct}

    @cached_property
    def sizes(self) -> list[float]:
        """Of each sub-block's kernel, see `kernel_size`."""
        known = {kernel: kernel_size(kernel) for kernel in self.distinct}
        return [known[kernel] for kernel in self.kernels]

    @property
    def channels(self) -> int:
        return self.weights[0].shape[0]

    @property
    def positions(self) -> int:
        return self.kernels[0].positions

    def apply(self, z: Tensor) -> Tensor:
        """T z [1, M, C]."""
        operate = diffuse if self.form == "diffusive" else aggregate
        for kernel, weight in zip(self.kernels, self.weights, strict=True):
            z = z + operate(self.prepared[kernel], z) @ weight.mT
        return z

    def rounding(self, steps: Sequence[float], whole: float | None = None) -> float:
        """The rounding error that a growth factor may have, here or where the stage is run.

        steps  a bound of ‖I − A_n ⊗ W_n‖ for each n
        whole  a bound of the growth of all together; None is the product of max(1, step)
        """
        eps = torch.finfo(torch.float64).eps
        relative = 0.0
        for size, step, weight in zip(self.sizes, steps, self.weights, strict=True):
            moved = size * float(torch.linalg.matrix_norm(weight, 2))
            lost = 32 * eps * self.positions**0.5 * (1 + moved)
            lost += 32 * self.precision * moved if self.precision > eps else 0
            # The other sub-blocks enlarge the error of one; it does not enlarge its own.
            relative += lost / max(1.0, step)
        product = prod(max(1.0, step) for step in steps) if whole is None else whole
        # Finite, so that infinite growth is still larger.
        return min(product * relative, sys.float_info.max)

    @property
    def tolerance(self) -> float:
        return TOLERANCE_NARROW if self.precision == torch.finfo(torch.float32).eps else TOLERANCE


def split_samples(affinity: Affinity | SparseAffinity) -> list[Affinity | SparseAffinity]:
    """One affinity of batch 1 for each sample, in float64; a ValueError for an empty batch."""
    if affinity.batch == 0:
        raise ValueError("the batch is empty (B = 0); give at least one sample")
    affinity = wide(affinity)
    if isinstance(affinity, SparseAffinity):
        return [affinity]
    return [affinity.sample(b) for b in range(affinity.batch)]
