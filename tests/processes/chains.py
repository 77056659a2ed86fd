"""Chains with known answers, and the chi-square test that the walkers are held to."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import torch
from torch import Tensor

from nonloc.ops import SparseAffinity

FALSE_ALARM = 1e-6  # the probability with which a right sampler fails one chi-square test


def chain(matrix: Tensor | list[list[float]], normalize: str = "row") -> SparseAffinity:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SparseAffinity(torch.as_tensor(matrix, dtype=torch.float64).to_sparse_csr(), normalize)


def two_states(a: float, b: float) -> SparseAffinity:
    """0 → 1 with probability a, 1 → 0 with b. π = (b, a)/(a + b), and the other eigenvalue is 1 − a − b."""
    return chain([[1 - a, a], [b, 1 - b]])


def cycle(size: int) -> SparseAffinity:
    """To either neighbour on a circle with probability ½. Eigenvalues cos(2πk / size), uniform π."""
    eye = torch.eye(size)
    return chain(0.5 * (eye.roll(1, 0) + eye.roll(-1, 0)))


def drift(size: int, forwards: float) -> SparseAffinity:
    """On a circle: forwards with this probability, else backwards. Uniform π, not reversible unless it is ½."""
    eye = torch.eye(size)
    return chain(forwards * eye.roll(1, 1) + (1 - forwards) * eye.roll(-1, 1))


def surprise(counts: Tensor, law: Tensor) -> float:
    """χ² of the counts over its critical value at FALSE_ALARM: a right sampler stays below 1."""
    from scipy.stats import chi2  # an extra

    expected = law.flatten() * counts.sum()
    counts = counts.flatten().double()
    assert float(counts[expected == 0].sum()) == 0
    keep = expected > 0
    assert float(expected[keep].min()) > 20, "too few walkers for the chi-square law"
    statistic = float(((counts - expected)[keep].square() / expected[keep]).sum())
    return statistic / chi2.isf(FALSE_ALARM, int(keep.sum()) - 1)


def order(errors: list[float]) -> list[float]:
    """The orders of convergence between successive halvings."""
    return [math.log2(a / b) for a, b in pairwise(errors)]
