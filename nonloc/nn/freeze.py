"""freeze: a copy of a model for export, in which all that does not depend on the input is a constant."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_linear_bn_eval
from torch.nn.utils.parametrize import is_parametrized

from nonloc._checks import check_whole
from nonloc._torch_compat import is_untouched
from nonloc.nn.affinity import PairwiseAffinity
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.stable_weight import StableWeightMap
from nonloc.nn.weight import WeightMap, make_map

Model = TypeVar("Model", bound=nn.Module)


def freeze(model: Model, *, sinkhorn_steps: int = 40) -> Model:
    """Return a copy of a model, or of a stage, in evaluation mode and without gradients, to be exported.

    sinkhorn_steps  normalize="sinkhorn" takes this many steps, since a program in ONNX does not look at its numbers.
                    Each leaves 0.17 of the error of a kernel that is positive semi-definite, as with one embedding

    In its stages weight="stable" becomes a product of two matrices, parametrizations become plain weights, and batch
    normalisation becomes a part of W_Z. Other modules stay as they are. An affinity module of your own says
    `Affinity(…, sinkhorn_steps=…)` itself.

    >>> from nonloc import DiffusiveStage, freeze
    >>> frozen = freeze(DiffusiveStage(4, 2, weight="stable"))
    >>> frozen.training, any(parameter.requires_grad for parameter in frozen.parameters())
    (False, False)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}")
    sinkhorn_steps = check_whole("sinkhorn_steps", sinkhorn_steps)
    try:
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
    except RuntimeError as error:
        if "deepcopy protocol" not in str(error):
            raise
        raise ValueError(
            "torch does not copy a weight computed in training, as by pruning or the older weight and spectral "
            "norms; run the model once in evaluation mode under torch.no_grad(), or first make the weight permanent "
            "(prune.remove, remove_weight_norm, remove_spectral_norm)"
        ) from error
    for stage in [one for one in frozen.modules() if isinstance(one, NonlocalModule)]:
        for module in list(stage.modules()):
            for name, child in list(module.named_children()):
                # Not by torch's remove_parametrizations: the copy shares its class with the original.
                if isinstance(child, nn.Linear) and is_parametrized(child):
                    setattr(module, name, _plain(child))
            if isinstance(module, PairwiseAffinity) and module.normalize == "sinkhorn":
                module.sinkhorn_steps = sinkhorn_steps
            elif isinstance(module, WeightMap):
                _fuse_norm(module)
        for n, weight in enumerate(stage.maps):
            if isinstance(weight, StableWeightMap):
                stage.maps[n] = _product(weight)
    return frozen.requires_grad_(False)


@torch.no_grad()
def _plain(linear: nn.Linear) -> nn.Linear:
    weight, bias = linear.weight, linear.bias
    plain = make_map(
        linear.in_features, linear.out_features, bias is not None, device=weight.device, dtype=weight.dtype
    )
    plain.weight.copy_(weight)
    if bias is not None:
        plain.bias.copy_(bias)
    return plain.eval()


def _fuse_norm(weight: WeightMap) -> None:
    norm, w_z = weight.norm, weight.w_z
    # Without γ and β, or without running statistics, torch does not fuse it.
    if not is_untouched(norm, nn.BatchNorm1d) or not (norm.affine and norm.track_running_stats):
        return
    if is_untouched(w_z, nn.Linear):
        weight.w_z, weight.norm = fuse_linear_bn_eval(w_z, norm), None


@torch.no_grad()
def _product(weight: StableWeightMap) -> WeightMap:
    outer, inner = weight.factors()
    product = WeightMap(outer.shape[0], hidden=weight.rank, device=outer.device, dtype=outer.dtype)
    assert product.w_g is not None
    product.w_z.weight.copy_(outer)
    product.w_g.weight.copy_(inner)
    return product.eval()
