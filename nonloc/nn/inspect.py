"""What nonlocal modules do with the features that reach them: feature_trace, logit_spreads, stage_inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nonloc._evaluation import evaluating
from nonloc._torch_compat import run_eagerly
from nonloc.nn.affinity import AnyAffinity
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.stage import stages
from nonloc.ops import SparseAffinity, aggregate, diffuse, dirichlet_energy, kernel_logit_spreads

Answer = TypeVar("Answer")
Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
LONGEST_REASON = 300  # characters of another error
NOTHING = 1e-5  # of the features' size: the rounding that float32 leaves in the place of 0


def run_model(model: nn.Module, inputs: Inputs, name: str = "inputs") -> Any:
    """Run the model in evaluation mode on a tensor, a tuple or list of arguments, or a dict of keyword arguments.

    Not as compiled: a program that was compiled before hooks were registered runs without them. Where the model fails,
    a ValueError says so, with the `name` of the inputs.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # its wrapper would wait for the other processes
    with evaluating(model), run_eagerly():
        try:
            if isinstance(inputs, Mapping):
                return model(**inputs)
            if isinstance(inputs, (tuple, list)):
                return model(*inputs)
            return model(inputs)
        except ValueError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:LONGEST_REASON]
            raise ValueError(
                f"the model does not run on {name} ({reason}); give what it takes: a tensor, a tuple of arguments or a "
                "dict of keyword arguments"
            ) from error


def feature_trace(model: nn.Module, inputs: Inputs) -> list[dict[str, Any]]:
    """Run the model once (evaluation mode, no gradients) and measure the features around every sub-block.

    inputs  a tensor, a tuple of arguments, or a dict of keyword arguments of the model

    The result has one dict for every nonlocal module that ran, in the order of running:

        {"name", "form", "channels", "num_blocks",
         "blocks": [{"block": 1, "before": {…}, "after": {…}, "quotient": …, "linear": …}, …]}

    "before" and "after" measure the state Z over its valid positions:

        norm      root mean square over the batch of ‖Z‖_F
        mean      of all entries
        variance  over positions, averaged over batch and channels
        energy    ½ Σ_ij K_ij |Z_i − Z_j|² under the sub-block's own K, averaged over the batch;
                  None with sub-sampled keys, where it has no meaning

    The other two are about the change ΔZ:

        quotient  ⟨g, ΔZ⟩ / ⟨g, g⟩ with g = `diffuse(K, Z)`, or `aggregate(K, Z)` in the original form. Where
                  ΔZ = g Wᵀ, it is the mean of the eigenvalues of sym(W), weighted by the features: a spectrum counts
                  every direction alike, features may have nothing in most. In the diffusive form with a symmetric K
                  the energy falls by 2 ⟨g, ΔZ⟩ to first order. None where g is only rounding, or keys are sub-sampled
        linear    2 ⟨Z, ΔZ⟩ / ⟨Z, Z⟩, both centred over positions: the part of the relative change of the variance that
                  is linear in ΔZ. The rest, ⟨ΔZ, ΔZ⟩ / ⟨Z, Z⟩, is never negative. None where the variance is 0

    >>> from nonloc import DiffusiveStage, feature_trace
    >>> (stage,) = feature_trace(DiffusiveStage(4, 2, init="zero"), torch.ones(1, 4, 3, 3))
    >>> [block["after"]["norm"] for block in stage["blocks"]]  # √(4 · 3 · 3), as before: W = 0
    [6.0, 6.0]
    """
    return _ask_stages(model, inputs, _trace)


def logit_spreads(model: nn.Module, inputs: Inputs) -> dict[str, list[float]]:
    """Run the model once (evaluation mode, no gradients) and return the largest difference of two logits in a row.

    Watch these numbers in training: `nonloc.logit_spread` says what they mean, and what makes them smaller.

    inputs  a tensor, a tuple of arguments, or a dict of keyword arguments of the model

    The result is {name of a nonlocal module: [one number for each of its kernels]}, over all rows of the batch: one
    number where the sub-blocks share an affinity, N in their order where each computes its own. Modules whose kernels
    have no logits are left out: only "gaussian", "embedded_gaussian" and "heat" have them.

    >>> from nonloc import DiffusiveStage, logit_spreads
    >>> logit_spreads(DiffusiveStage(4, 2), torch.zeros(1, 4, 3, 3))  # all positions alike
    {'': [0.0]}
    """

    def ask(name: str, module: NonlocalModule, x: Tensor, mask: Tensor | None) -> tuple[str, list[float]]:
        return name, kernel_logit_spreads(module.affinities(x, mask))

    spreads: dict[str, list[float]] = {}
    for name, numbers in _ask_stages(model, inputs, ask):
        if numbers:
            # A module that a model calls twice has the kernels of both calls.
            spreads.setdefault(name, []).extend(numbers)
    return spreads


def stage_inputs(model: nn.Module, inputs: Inputs) -> list[tuple[str, NonlocalModule, Tensor, Tensor | None]]:
    """Run the model once on `inputs`; return (name, module, x, mask) of every nonlocal module that ran.

    x and mask are copies. It is a ValueError if none of them ran.

    >>> from nonloc.nn import DiffusiveBlock, stage_inputs
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), DiffusiveBlock(8))
    >>> [(name, x.shape) for name, _, x, _ in stage_inputs(model, torch.zeros(1, 3, 6, 6))]
    [('1', torch.Size([1, 8, 6, 6]))]
    """

    def copy(
        name: str, module: NonlocalModule, x: Tensor, mask: Tensor | None
    ) -> tuple[str, NonlocalModule, Tensor, Tensor | None]:
        # Later layers may change them in place.
        return name, module, x.clone(), None if mask is None else mask.clone()

    return _ask_stages(model, inputs, copy)


def _ask_stages(
    model: nn.Module, inputs: Inputs, ask: Callable[[str, NonlocalModule, Tensor, Tensor | None], Answer]
) -> list[Answer]:
    """Run the model once; return ask(name, module, x, mask) of every nonlocal module that ran.

    Each is asked just before it runs. Then the autocast of the model's own code is on, and sharded parameters are
    gathered.
    """
    answers: list[Answer] = []
    here = threading.get_ident()

    def watch(name: str) -> Any:
        # Another thread may run the model, too, and see a hook that is half removed.
        def hook(
            module: NonlocalModule, args: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
        ) -> None:
            if threading.get_ident() != here:
                return
            arguments = dict(zip(("x", "mask"), args, strict=False)) | dict(keywords or {})
            x, mask = arguments.get("x"), arguments.get("mask")
            if not isinstance(x, Tensor) or not isinstance(mask, Tensor | None):
                return  # the module itself says what is wrong
            if x.shape[:1] == (0,):
                raise ValueError(
                    f"{name or 'the model'} got an empty batch (B = 0); give at least one sample"
                )
            answers.append(ask(name, module, x.detach(), mask))

        return hook

    watched = list(stages(model))
    if not watched:
        raise ValueError(
            "the model has no nonlocal module to trace; insert one, or build a network that has one"
        )
    handles = [module.register_forward_pre_hook(watch(name), with_kwargs=True) for name, module in watched]
    try:
        run_model(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not answers:
        names = ", ".join(name or "the model itself" for name, _ in watched)
        raise ValueError(f"the model ran, but none of its nonlocal modules did ({names}); give other inputs")
    return answers


def _trace(name: str, module: NonlocalModule, x: Tensor, mask: Tensor | None) -> dict[str, Any]:
    z, valid = module._enter(x, mask)
    counted = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device) if valid is None else valid
    counted = counted.unsqueeze(-1)
    wide = torch.promote_types(x.dtype, torch.float32)
    before, blocks = z.to(wide), []
    for n, (affinity, state) in enumerate(module._evolve(z, valid, x.shape)):
        after = state.to(wide)
        sizes = [_measure(affinity, one, counted, module.backend) for one in (before, after)]
        block = {"block": n + 1, "before": sizes[0], "after": sizes[1]}
        blocks.append(block | _compare(module, affinity, before, after, counted))
        before = after
    return {
        "name": name,
        "form": module.form,
        "channels": module.channels,
        "num_blocks": module.num_blocks,
        "blocks": blocks,
    }


def _measure(affinity: AnyAffinity, z: Tensor, valid: Tensor, backend: str) -> dict[str, float | None]:
    wide = torch.where(valid, z.double(), 0)
    variance = _centred(wide, valid).square().sum(1, keepdim=True) / _counts(valid)
    energy = dirichlet_energy(affinity, z, backend=backend).double().mean() if _is_square(affinity) else None
    return {
        "norm": float(wide.square().sum((1, 2)).mean().sqrt()),
        "mean": float(wide.sum() / (valid.sum().clamp(min=1) * z.shape[-1])),
        "variance": float(variance.mean()),
        "energy": None if energy is None else float(energy),
    }


def _compare(
    module: NonlocalModule, affinity: AnyAffinity, before: Tensor, after: Tensor, valid: Tensor
) -> dict[str, float | None]:
    wide = torch.where(valid, before.double(), 0)
    added = torch.where(valid, after.double() - wide, 0)
    quotient = linear = None
    if _is_square(affinity):
        operation = diffuse if module.uses_differences else aggregate
        g = torch.where(valid, operation(affinity, before, backend=module.backend).double(), 0)
        size = float(g.square().sum())
        if size > NOTHING**2 * float(wide.square().sum()):
            quotient = float((g * added).sum()) / size
    centred, counts = _centred(wide, valid), _counts(valid)
    variance, change = (float((centred * other / counts).sum()) for other in (centred, added))
    if variance > NOTHING**2 * float((wide.square() / counts).sum()):
        linear = 2 * change / variance
    return {"quotient": quotient, "linear": linear}


def _counts(valid: Tensor) -> Tensor:
    return valid.sum(1, keepdim=True).clamp(min=1)


def _centred(wide: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, wide - wide.sum(1, keepdim=True) / _counts(valid), 0)


def _is_square(affinity: AnyAffinity) -> bool:
    return isinstance(affinity, SparseAffinity) or affinity.is_square
