"""Spectra of the learned weights: the eigenvalues of sym(W), and the band of random weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nonloc._checks import check_whole, is_finite, is_whole, shown

CAPTION = (
    "Eigenvalues of (W + Wᵀ)/2, sorted by magnitude. How many are positive or negative says nothing: with W = W_Z W_g "
    "of rank r ≤ C/2, exactly r of them are positive and r negative, whatever was learned, but for matrices of measure "
    "zero. What training decides is which sign the large ones have. So read the trace and the share of the negative "
    "energy, against the shaded band: 95 % of random W_Z W_g with the same rank and Frobenius norm lie in it."
)
MOST_NUMBERS = 2**33  # of all random matrices at once: 64 GiB
STABLE_CAPTION = (
    'Eigenvalues of W, sorted by magnitude. With weight="stable" none is negative, whatever was learned, so their '
    "sign says nothing, and no band of random weights stands beside them."
)


def symmetric_part(w: Tensor) -> Tensor:
    """Return (W + Wᵀ)/2 of W [..., C, C]; differentiable, in W's dtype."""
    _check_square(w)
    return (w + w.mT) / 2


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigenvalues of one symmetric matrix.

    eigenvalues  [C] float64, on the CPU, by magnitude, the largest first

    >>> from nonloc import Spectrum
    >>> spectrum = Spectrum([1.0, -3.0, 2.0])
    >>> spectrum.eigenvalues.tolist(), spectrum.trace, spectrum.negative_energy
    ([-3.0, 2.0, 1.0], 0.0, 9.0)
    """

    eigenvalues: Tensor

    def __post_init__(self) -> None:
        given = self.eigenvalues
        try:
            # numpy takes Python's numbers as they are, which torch rounds to float32.
            values = torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(given)).detach()
        except (TypeError, RuntimeError, ValueError):
            values = torch.empty((), device="meta")
        is_row = values.dim() == 1 and not values.is_complex() and not values.is_meta
        values = values.to("cpu", torch.float64) if is_row else values
        if not is_row or not bool(values.isfinite().all()):
            raise ValueError(
                f"eigenvalues must be finite real numbers in one row, got {shown(self.eigenvalues)}"
            )
        object.__setattr__(self, "eigenvalues", _by_magnitude(values))

    def top(self, k: int) -> Tensor:
        """Return the `k` eigenvalues of largest magnitude, or all where there are fewer."""
        check_whole("k", k, least=0)
        return self.eigenvalues[:k]

    @property
    def trace(self) -> float:
        """The sum of the eigenvalues, which is the trace of W too."""
        return float(self.eigenvalues.sum())

    @property
    def positive_energy(self) -> float:
        """Σ λ² over the positive eigenvalues."""
        return float(self.eigenvalues.clamp(min=0).square().sum())

    @property
    def negative_energy(self) -> float:
        """Σ λ² over the negative eigenvalues."""
        return float(self.eigenvalues.clamp(max=0).square().sum())

    @property
    def negative_share(self) -> float:
        """The negative part of the whole energy, from 0 to 1; NaN for W = 0, which has no energy."""
        # Relative to the largest, so that squares of small ones do not underflow.
        largest = float(self.eigenvalues.abs().max()) if len(self.eigenvalues) else 0.0
        if not largest:
            return math.nan
        squares = (self.eigenvalues / largest).square()
        return float(squares[self.eigenvalues < 0].sum() / squares.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; `from_dict` needs the eigenvalues alone."""
        share = self.negative_share
        return {
            "eigenvalues": self.eigenvalues.tolist(),
            "trace": self.trace,
            "positive_energy": self.positive_energy,
            "negative_energy": self.negative_energy,
            "negative_share": None if math.isnan(share) else share,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spectrum:
        try:
            row = torch.tensor(values["eigenvalues"], dtype=torch.float64)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise ValueError(
                f'a spectrum is a dict with numbers as "eigenvalues", got {shown(values)}'
            ) from error
        return cls(row)


def weight_spectrum(w: Tensor) -> Spectrum:
    """Return the spectrum of (W + Wᵀ)/2 for W [C, C], computed in float64.

    >>> from nonloc import weight_spectrum
    >>> weight_spectrum(torch.tensor([[0.1, 1.0], [-1.0, 0.1]])).eigenvalues
    tensor([0.1000, 0.1000], dtype=torch.float64)
    """
    _check_square(w)
    if w.dim() != 2:
        raise ValueError(f"w must be one matrix [C, C], got {list(w.shape)}; take the spectra one by one")
    if w.is_meta:
        raise ValueError("w is on the meta device and has no numbers; load its values first")
    symmetric = symmetric_part(w.detach().to("cpu", torch.float64))
    if not bool(symmetric.isfinite().all()):
        raise ValueError("w has entries that are not finite, so it has no spectrum; did the run diverge?")
    return Spectrum(torch.linalg.eigvalsh(symmetric))


@dataclass(frozen=True, eq=False)
class RandomBand:
    """The range of the spectra of random weights.

    low, high       [C]  of the eigenvalues, sorted by magnitude as in `Spectrum`
    trace           (low, high)
    negative_share  (low, high)
    quantile        the part of the random matrices that lies inside, separately for each number
    """

    low: Tensor
    high: Tensor
    trace: tuple[float, float]
    negative_share: tuple[float, float]
    quantile: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "trace": list(self.trace),
            "negative_share": list(self.negative_share),
            "quantile": self.quantile,
        }


def random_band(
    channels: int, rank: int, norm: float, samples: int = 400, seed: int = 0, quantile: float = 0.95
) -> RandomBand:
    """Return the band of the spectra of random W = W_Z W_g [C, C] of this rank and Frobenius norm.

    W_Z [C, r] and W_g [r, C] have independent normal entries; W is then scaled to the norm. A rank of C or more
    stands for a full W: one matrix of normal entries.
    """
    for name, value in (("channels", channels), ("rank", rank), ("samples", samples)):
        check_whole(name, value)
    if not is_finite(norm) or norm < 0:
        raise ValueError(f"norm={shown(norm)} must be a finite number ≥ 0")
    if not is_finite(quantile) or not 0 < quantile < 1:
        raise ValueError(f"quantile={shown(quantile)} must lie between 0 and 1")
    if not is_whole(seed) or abs(seed) >= 2**63:
        raise ValueError(f"seed={shown(seed)} must be a whole number of at most 63 bits")
    if samples * channels**2 > MOST_NUMBERS:
        raise ValueError(
            f"samples={samples} matrices of channels={channels} need "
            f"{samples * channels**2 / 2**27:,.0f} GiB; use fewer"
        )
    unit_values = _random_values(channels, rank, samples, seed)
    values = norm * unit_values
    # A share is the same for every norm, and squares of a small one may underflow. W = 0 has none; 0 stands for it.
    share = unit_values.clamp(max=0).square().sum(-1) / unit_values.square().sum(-1) * bool(norm > 0)
    tails = torch.tensor([(1 - quantile) / 2, (1 + quantile) / 2], dtype=torch.float64)

    def band(numbers: Tensor) -> tuple[float, float]:
        low, high = torch.quantile(numbers, tails).tolist()
        return low, high

    low, high = torch.quantile(values, tails, dim=0)
    return RandomBand(low, high, band(values.sum(-1)), band(share), quantile)


@lru_cache(maxsize=64)
def _random_values(channels: int, rank: int, samples: int, seed: int) -> Tensor:
    """Return the eigenvalues of sym(W) of random W of norm 1 [samples, C]; for other norms they are multiples."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(samples, rows, columns, dtype=torch.float64, generator=generator)

    w = normal(channels, channels) if rank >= channels else normal(channels, rank) @ normal(rank, channels)
    w = w / torch.linalg.matrix_norm(w).view(-1, 1, 1)
    return _by_magnitude(torch.linalg.eigvalsh(symmetric_part(w)))


def _by_magnitude(values: Tensor) -> Tensor:
    """Sort the last dimension by magnitude, the largest first; of a pair ±λ the positive one first."""
    values = values.sort(dim=-1, descending=True).values
    return values.gather(-1, values.abs().sort(dim=-1, descending=True, stable=True).indices)


def _check_square(w: Tensor) -> None:
    if not isinstance(w, Tensor):
        raise ValueError(
            f"w must be a tensor [C, C], got {type(w).__name__}; a stage has one for each block in stage.weights(), "
            "and torch.as_tensor makes one of an array"
        )
    if w.dim() < 2 or w.shape[-1] != w.shape[-2]:
        raise ValueError(
            f"w must be square, [C, C], got {list(w.shape)}; W is W_Z W_g, not one of its factors"
        )
    if w.is_complex():
        raise ValueError("w must be real, got complex numbers; take w.real if its imaginary part is 0")
    if w.layout != torch.strided:
        raise ValueError(f"w must be dense, got {w.layout}; use w.to_dense()")
