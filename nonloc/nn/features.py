"""feature_trace and logit_spreads: what nonlocal modules do with the features that really reach them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nonloc.modes import evaluating
from nonloc.nn.affinity import AnyAffinity
from nonloc.nn.layout import flat_mask, to_positions
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.probe import Inputs, call
from nonloc.nn.stage import stages
from nonloc.ops import SparseAffinity, aggregate, diffuse, dirichlet_energy, kernel_logit_spreads

NOTHING = 1e-5  # of the features' size: what float32 leaves where nothing should be


def feature_trace(model: nn.Module, inputs: Inputs) -> list[dict[str, Any]]:
    """Run the model once (evaluation mode, no gradients) and measure the features around every sub-block.

    inputs  a tensor, a tuple of arguments, or a dict of keyword arguments of the model

    One dict for every nonlocal module that ran, in the order of running:

        {"name", "form", "channels", "num_blocks",
         "blocks": [{"block": 1, "before": {…}, "after": {…}, "quotient": …, "linear": …}, …]}

    with, for the state Z before and after a sub-block, over its valid positions,

        norm      root mean square over the batch of ‖Z‖_F
        mean      of all entries
        variance  over positions, averaged over batch and channels
        energy    ½ Σ_ij K_ij |Z_i − Z_j|² under the sub-block's own K, averaged over the batch;
                  None where sub-sampled keys leave it without a meaning

    and for what the sub-block adds, ΔZ,

        quotient  ⟨g, ΔZ⟩ / ⟨g, g⟩ with g what the kernel brings: `diffuse(K, Z)`, or `aggregate(K, Z)` in the original
                  form. Where ΔZ = g Wᵀ, it is the mean of the eigenvalues of sym(W) with the weights that the features
                  give them: a spectrum counts every direction alike, features may have nothing in most. In the
                  diffusive form with a symmetric K, the energy falls by 2 ⟨g, ΔZ⟩ to first order. None where the
                  kernel brings nothing but rounding, and not computed for sub-sampled keys
        linear    2 ⟨Z, ΔZ⟩ / ⟨Z, Z⟩, both centred over positions: of the relative change of the variance the part that
                  is linear in ΔZ; the rest, ⟨ΔZ, ΔZ⟩ / ⟨Z, Z⟩, can only add. None where the variance is 0
    """
    with evaluating(model):
        return [_trace(*one) for one in stage_inputs(model, inputs)]


def logit_spreads(model: nn.Module, inputs: Inputs) -> dict[str, list[float]]:
    """Run the model once (evaluation mode, no gradients) and tell how far logits are apart: the numbers to watch when
    training runs away. What they mean, and what makes them smaller: `nonloc.logit_spread`.

    inputs  a tensor, a tuple of arguments, or a dict of keyword arguments of the model

    {name of a nonlocal module: [the largest difference of two logits in a row, for each of its kernels]}: one number
    where the sub-blocks share an affinity, N in their order where each computes its own; over all rows of the batch.
    Modules whose kernels have no logits (only "gaussian", "embedded_gaussian" and "heat" have) are left out.
    """
    found: dict[str, list[float]] = {}
    with evaluating(model):
        for name, module, x, mask in stage_inputs(model, inputs):
            spreads = kernel_logit_spreads(module.affinities(x, mask))
            if spreads:
                # A module that a model calls twice has the kernels of both calls.
                found.setdefault(name, []).extend(spreads)
    return found


def stage_inputs(model: nn.Module, inputs: Inputs) -> list[tuple[str, NonlocalModule, Tensor, Tensor | None]]:
    """(name, module, x, mask) of every nonlocal module that ran when the model was run once on `inputs`.

    x and mask are copies. Where none of them ran it is a ValueError.
    """
    seen: list[tuple[str, NonlocalModule, Tensor, Tensor | None]] = []

    def watch(name: str) -> Any:
        def hook(module: NonlocalModule, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            given = dict(zip(("x", "mask"), args, strict=False)) | keywords
            x, mask = given["x"], given.get("mask")
            # Copies: what comes after may change them in place.
            seen.append((name, module, x.detach().clone(), None if mask is None else mask.clone()))

        return hook

    found = list(stages(model))
    if not found:
        raise ValueError(
            "the model has no nonlocal module to trace; insert one, or build a network that has one"
        )
    handles = [module.register_forward_pre_hook(watch(name), with_kwargs=True) for name, module in found]
    try:
        with evaluating(model):
            call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        names = ", ".join(name or "the model itself" for name, _ in found)
        raise ValueError(f"the model ran, but none of its nonlocal modules did ({names}); give other inputs")
    return seen


def _trace(name: str, module: NonlocalModule, x: Tensor, mask: Tensor | None) -> dict[str, Any]:
    valid = None if mask is None else flat_mask(mask, x, module.layout)
    wide = torch.promote_types(x.dtype, torch.float32)
    states = [
        to_positions(state, module.layout, module.channels).to(wide) for state in module.states(x, mask)
    ]
    blocks = []
    for n, affinity in enumerate(module.affinities(x, mask)):
        before, after = (_measure(affinity, states[k], valid, module.backend) for k in (n, n + 1))
        block = {"block": n + 1, "before": before, "after": after}
        block["quotient"] = _quotient(module.form, affinity, states[n], states[n + 1], valid, module.backend)
        block["linear"] = _linear(states[n], states[n + 1], valid)
        blocks.append(block)
    return {
        "name": name,
        "form": module.form,
        "channels": module.channels,
        "num_blocks": module.num_blocks,
        "blocks": blocks,
    }


def _measure(affinity: AnyAffinity, z: Tensor, valid: Tensor | None, backend: str) -> dict[str, float | None]:
    wide, keep = _kept(z, valid)
    counts = keep.sum(1, keepdim=True).clamp(min=1)
    variance = _centred(wide, keep).square().sum(1, keepdim=True) / counts
    energy = dirichlet_energy(affinity, z, backend=backend).double().mean() if _is_square(affinity) else None
    return {
        "norm": float(wide.square().sum((1, 2)).mean().sqrt()),
        "mean": float(wide.sum() / (keep.sum().clamp(min=1) * z.shape[-1])),
        "variance": float(variance.mean()),
        "energy": None if energy is None else float(energy),
    }


def _quotient(
    form: str, affinity: AnyAffinity, before: Tensor, after: Tensor, valid: Tensor | None, backend: str
) -> float | None:
    if not _is_square(affinity):
        return None
    act = diffuse if form == "diffusive" else aggregate
    wide, keep = _kept(before, valid)
    brought, _ = _kept(act(affinity, before, backend=backend), valid)
    added = torch.where(keep, after.double() - wide, 0)
    size = float(brought.square().sum())
    return float((brought * added).sum()) / size if size > NOTHING**2 * float(wide.square().sum()) else None


def _linear(before: Tensor, after: Tensor, valid: Tensor | None) -> float | None:
    wide, keep = _kept(before, valid)
    added = torch.where(keep, after.double() - wide, 0)
    counts = keep.sum(1, keepdim=True).clamp(min=1)
    centred = _centred(wide, keep)
    variance, change = (float((centred * other / counts).sum()) for other in (centred, added))
    return 2 * change / variance if variance > NOTHING**2 * float((wide.square() / counts).sum()) else None


def _kept(z: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """z in float64 with 0 at the positions that do not count, and which do, [B, M, 1]."""
    if valid is None:
        valid = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    keep = valid.unsqueeze(-1)
    return torch.where(keep, z.double(), 0), keep


def _centred(wide: Tensor, keep: Tensor) -> Tensor:
    counts = keep.sum(1, keepdim=True).clamp(min=1)
    return torch.where(keep, wide - wide.sum(1, keepdim=True) / counts, 0)


def _is_square(affinity: AnyAffinity) -> bool:
    return isinstance(affinity, SparseAffinity) or affinity.is_square
