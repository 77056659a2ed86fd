"""Stages for the fused kernels, and how far a way of computing them is from float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc.ops import Affinity, propagate

# The allowed error, in multiples of that of the plain computation in the same dtype, or of its eps if that is more.
FACTOR = 4


@dataclass
class Problem:
    """One stage on random numbers that are exact in `dtype`.

    hidden       r; None: full matrices W, without an inner factor
    size         deviation of the logits l·r
    shift        added to all features
    right_shift  added to those on the right alone, which changes no gaussian kernel whose rows are normalised
    copies       so many positions in a row have one feature on the right, and share every receiver
    grid         features are multiples of it, so that logits are equal or far apart; 0: they are any numbers
    is_shared    one tensor for left and right
    differs      the diffusive form; False: the original one
    """

    kind: str = "gaussian"
    batch: int = 1
    positions: int = 40
    channels: int = 16
    embed: int = 16
    hidden: int | None = 16
    blocks: int = 2
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    size: float = 2.0
    shift: float = 0.0
    right_shift: float = 0.0
    copies: int = 1
    grid: float = 0.0
    is_masked: bool = False
    is_shared: bool = False
    differs: bool = True
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(self.seed)

        def normal(*shape: int, deviation: float = 1.0) -> Tensor:
            drawn = deviation * torch.randn(shape, generator=generator, device=self.device)
            return drawn.to(self.dtype)

        b, m, c, d, n = self.batch, self.positions, self.channels, self.embed, self.blocks
        spread = (self.size / d**0.5) ** 0.5
        left = normal(b, m, d, deviation=spread) + self.shift
        right = (
            left if self.is_shared else normal(b, m, d, deviation=spread) + (self.shift + self.right_shift)
        )
        if self.grid:
            left, right = ((x / self.grid).round() * self.grid for x in (left, right))
        if self.copies > 1:
            right = right.repeat_interleave(self.copies, 1)[:, :m]
        rank = c if self.hidden is None else self.hidden
        outer = normal(n, c, rank, deviation=0.3 / rank**0.5)
        inner = normal(n, 0 if self.hidden is None else rank, c, deviation=c**-0.5)
        self.inputs = [left, right, normal(b, m, c), outer, inner]
        self.cotangent = normal(b, m, c)
        self.mask = None
        if self.is_masked:
            self.mask = torch.rand(b, m, generator=generator, device=self.device) > 0.3

    @property
    def left_cancels(self) -> bool:
        """Whether every row of K lies on copies of one feature, which leaves no gradient to the left."""
        return self.copies > 1 and self.size >= 1e5

    def solve(self, compute, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The value and the gradients to left, right, z, every W_Z and every W_g; of what there is."""
        dtype = self.dtype if dtype is None else dtype
        leaves = [x.to(dtype).clone().requires_grad_() for x in self.inputs]
        left, right, z, outer, inner = leaves
        right = left if self.is_shared else right
        pairs = list(zip(outer, inner, strict=True)) if self.hidden is not None else list(outer)
        affinity = Affinity(left, right, self.kind, scale=self.scale, mask=self.mask)
        value = compute(affinity, z, pairs, self.differs)
        names = {"left": left, "right": right, "z": z, "W_Z": outer, "W_g": inner}
        if self.is_shared:
            del names["right"]
        if self.hidden is None:
            del names["W_g"]
        gradients = torch.autograd.grad(value, list(names.values()), self.cotangent.to(value.dtype))
        return {"value": value.detach(), **dict(zip(names, gradients, strict=True))}

    def truth(self) -> dict[str, Tensor]:
        return self.solve(by("reference"), torch.float64)


def by(backend: str):
    return lambda affinity, z, pairs, differs: propagate(
        affinity, z, pairs, differences=differs, backend=backend
    )


def by_hand(affinity: Affinity, z: Tensor, pairs, differs: bool) -> Tensor:
    """The stage as one writes it in torch: K a matrix in z's dtype, its logits and their softmax in float32."""
    left, right = affinity.left.float(), affinity.right.float()
    if affinity.kind == "gaussian":
        logits = affinity.scale * (left @ right.mT)
    else:
        distances = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        logits = -affinity.scale * distances.square()
    if affinity.mask is not None:
        logits = logits.masked_fill(~affinity.mask.unsqueeze(1), -1e30)
        start, z = z, torch.where(affinity.mask.unsqueeze(-1), z, 0)
    kernel = torch.softmax(logits, -1).to(z.dtype)
    for pair in pairs:
        outer, inner = pair if isinstance(pair, tuple) else (pair, None)
        hidden = z if inner is None else z @ inner.mT
        z = z + (kernel @ hidden - hidden if differs else kernel @ hidden) @ outer.mT
    return z if affinity.mask is None else torch.where(affinity.mask.unsqueeze(-1), z, start)


def errors(
    actual: dict[str, Tensor], truth: dict[str, Tensor], left_cancels: bool = False
) -> dict[str, float]:
    """‖actual − truth‖ / ‖truth‖ of each; infinite where anything is not finite.

    left_cancels  see `Problem.left_cancels`: float64's own rounding is no measure then; the gradient to the right,
                  which is made of the same terms, is one
    """
    assert actual.keys() == truth.keys()
    sizes = {name: float(value.norm()) for name, value in truth.items()}
    if left_cancels:
        sizes["left"] = sizes["right"]
    result = {}
    for name, value in actual.items():
        assert value.shape == truth[name].shape
        error = float((value.double() - truth[name]).norm()) / sizes[name]
        result[name] = error if bool(value.isfinite().all()) else float("inf")
    return result


def check(backend: str, *problems: Problem) -> None:
    """As near to float64 as the dtype allows, in value and in all gradients; of several problems the worst."""
    actual, plain = (
        [errors(one.solve(way), one.truth(), one.left_cancels) for one in problems]
        for way in (by(backend), by_hand)
    )
    eps = torch.finfo(problems[0].dtype).eps
    worst = {name: max(one[name] for one in actual) for name in actual[0]}
    allowed = {name: FACTOR * max(eps, *(one[name] for one in plain)) for name in worst}
    assert {name: error for name, error in worst.items() if error > allowed[name]} == {}


def poison(monkeypatch) -> list[int]:
    """From here on, what torch allocates without a value is NaN until it is written; how many numbers that were."""
    made: list[int] = []

    def poisoned(allocate):
        def inner(*args, **keywords):
            x = allocate(*args, **keywords)
            made.append(x.numel())
            return x.fill_(torch.nan) if x.is_floating_point() else x

        return inner

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    return made
