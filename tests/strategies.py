"""What the properties are held to: small random kernels, described by a few numbers that a failure prints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st
from torch import Tensor

from nonloc.ops import KINDS, NORMALIZATIONS, Affinity
from problems import SCALED, SYMMETRIC, generator

DIVIDED = ("row", "symmetric", "sinkhorn")


@dataclass(frozen=True)
class Problem:
    """A kernel and a signal, made from their description.

    symmetric  one set of features for both sides
    positive   Ω ≥ 0, and for dot and concat well above 0
    spread     the deviation of the features
    wild       rows may be divided by sums near 0, and exponentials need not be near 1
    """

    kind: str
    normalize: str
    batch: int
    positions: int
    width: int
    channels: int
    spread: float
    scale: float
    symmetric: bool
    positive: bool
    masked: bool
    measured: bool
    wild: bool
    seed: int

    @cached_property
    def affinity(self) -> Affinity:
        left = self._features(1)
        right = left if self.symmetric else self._features(2)
        return Affinity(
            left, right, self.kind, self.normalize, self.scale, mask=self.mask, measure=self.measure
        )

    @cached_property
    def z(self) -> Tensor:
        return self.signal(3)

    @cached_property
    def mask(self) -> Tensor | None:
        if not self.masked:
            return None
        chance = torch.rand(self.batch, self.positions, generator=generator(self.seed + 4))
        # The luckiest position of a sample is always valid.
        return (chance < 0.6) | (chance == chance.amin(1, keepdim=True))

    @cached_property
    def measure(self) -> Tensor | None:
        if not self.measured:
            return None
        return 0.2 + torch.rand(self.positions, generator=generator(self.seed + 5), dtype=torch.float64)

    def signal(self, stream: int) -> Tensor:
        """Normal entries [B, M, C]."""
        return self.normal(stream, self.batch, self.positions, self.channels)

    def normal(self, stream: int, *shape: int) -> Tensor:
        """Normal entries, the same for the same stream."""
        return torch.randn(*shape, generator=generator(self.seed + stream), dtype=torch.float64)

    def _features(self, stream: int) -> Tensor:
        width = 1 if self.kind == "concat" else self.width
        x = self.spread * self.normal(stream, self.batch, self.positions, width)
        if self.kind == "gaussian" and self.normalize not in DIVIDED and not self.wild:
            # Beside an entry of exp(50), which nothing divides, the others leave no digit to compare.
            x = torch.tanh(x)
        return x.abs() + 0.1 if self.positive and self.kind in ("dot", "concat") else x


@st.composite
def problems(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = KINDS,
    normalizations: tuple[str, ...] = NORMALIZATIONS,
    *,
    symmetric: bool | None = None,
    positive: bool = False,
    masked: bool | None = None,
    measured: bool | None = None,
    batch: int | None = None,
    least: int = 1,
    wild: bool = False,
) -> Problem:
    """Any problem that the normalisation accepts; None leaves a choice to chance."""
    kind, normalize = draw(st.sampled_from(kinds)), draw(st.sampled_from(normalizations))
    if normalize in SYMMETRIC:
        symmetric = True
    return Problem(
        kind=kind,
        normalize=normalize,
        batch=draw(st.integers(1, 2)) if batch is None else batch,
        positions=draw(st.integers(least, 8)),
        width=draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 3)),
        spread=draw(st.sampled_from((0.03, 0.2, 1.0, 3.0) if wild else (0.2, 1.0, 2.0))),
        scale=draw(st.sampled_from((0.3, 1.0, 1.7))) if kind in SCALED else 1.0,
        symmetric=draw(st.booleans()) if symmetric is None else symmetric,
        # Sums of signed entries may come near 0, and dividing by them leaves no digit to compare.
        positive=positive or normalize in (SYMMETRIC if wild else DIVIDED) or (wild and draw(st.booleans())),
        masked=draw(st.booleans()) if masked is None else masked,
        measured=draw(st.booleans()) if measured is None else measured,
        wild=wild,
        seed=draw(st.integers(0, 2**32)),
    )


def norm(z: Tensor, weights: Tensor) -> Tensor:
    """√(Σ_i π_i |z_i|²) of each sample [B]."""
    return (weights.unsqueeze(-1) * z.square()).sum((1, 2)).sqrt()


def deviation(z: Tensor, weights: Tensor) -> Tensor:
    """z without its weighted mean [B, M, C]."""
    weights = weights.unsqueeze(-1)
    return z - (weights * z).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
