"""feature_trace: what every nonlocal sub-block does to the features that really reach it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nonloc.nn.affinity import AnyAffinity
from nonloc.nn.layout import flat_mask, to_positions
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.probe import Inputs, call, evaluating
from nonloc.nn.stage import stages
from nonloc.ops import SparseAffinity, aggregate, diffuse, dirichlet_energy


def feature_trace(model: nn.Module, inputs: Inputs) -> list[dict[str, Any]]:
    """Run the model once (evaluation mode, no gradients) and measure the features around every sub-block.

    inputs  a tensor, a tuple of arguments, or a dict of keyword arguments of the model

    One dict for every nonlocal module that ran, in the order of running:

        {"name", "form", "channels", "num_blocks",
         "blocks": [{"block": 1, "before": {…}, "after": {…}, "quotient": …}, …]}

    with, for the state Z before and after a sub-block, over its valid positions,

        norm      root mean square over the batch of ‖Z‖_F
        mean      of all entries
        variance  over positions, averaged over batch and channels
        energy    ½ Σ_ij K_ij |Z_i − Z_j|² under the sub-block's own K, averaged over the batch;
                  None where sub-sampled keys leave it without a meaning

    and of the sub-block ⟨g, ΔZ⟩ / ⟨g, g⟩, with g = KZ − Z, or KZ in the original form, and ΔZ what it adds. Where that
    is W g, the quotient is the mean of the eigenvalues of sym(W) with the weight that the features give them: the
    spectrum counts every direction alike, features have most of their energy in a few. Above 0 the sub-block diffuses
    (the original form enlarges), below 0 it sharpens (it damps). None where g is 0 or has no meaning.
    """
    with evaluating(model):
        return [_trace(*one) for one in stage_inputs(model, inputs)]


def stage_inputs(model: nn.Module, inputs: Inputs) -> list[tuple[str, NonlocalModule, Tensor, Tensor | None]]:
    """(name, module, x, mask) of every nonlocal module that ran when the model was run once on `inputs`."""
    seen: list[tuple[str, NonlocalModule, Tensor, Tensor | None]] = []

    def watch(name: str) -> Any:
        def hook(module: NonlocalModule, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            given = dict(zip(("x", "mask"), args, strict=False)) | keywords
            seen.append((name, module, given["x"], given.get("mask")))

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
    return seen


def _trace(name: str, module: NonlocalModule, x: Tensor, mask: Tensor | None) -> dict[str, Any]:
    valid = flat_mask(mask, x, module.layout)
    states = [to_positions(state, module.layout, module.channels).float() for state in module.states(x, mask)]
    blocks = []
    for n, affinity in enumerate(module.affinities(x, mask)):
        before, after = (_measure(affinity, states[k], valid, module.backend) for k in (n, n + 1))
        quotient = _quotient(module.form, affinity, states[n], states[n + 1], valid, module.backend)
        blocks.append({"block": n + 1, "before": before, "after": after, "quotient": quotient})
    return {
        "name": name,
        "form": module.form,
        "channels": module.channels,
        "num_blocks": module.num_blocks,
        "blocks": blocks,
    }


def _measure(affinity: AnyAffinity, z: Tensor, valid: Tensor | None, backend: str) -> dict[str, float | None]:
    wide = z.double()
    if valid is None:
        valid = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    keep = valid.unsqueeze(-1)
    wide = torch.where(keep, wide, 0)
    counts = keep.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(keep, wide - wide.sum(1, keepdim=True) / counts, 0)
    variance = centred.square().sum(1, keepdim=True) / counts
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
    brought = act(affinity, before, backend=backend).double()
    if valid is not None:
        brought = torch.where(valid.unsqueeze(-1), brought, 0)
    size = float(brought.square().sum())
    return float((brought * (after.double() - before.double())).sum()) / size if size else None


def _is_square(affinity: AnyAffinity) -> bool:
    return isinstance(affinity, SparseAffinity) or affinity.is_square
