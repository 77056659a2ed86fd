"""What a submodule puts out: seen in a forward pass, or read off its last layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.probe import Inputs, call, evaluating


def recorded_shapes(
    model: nn.Module, modules: Mapping[str, nn.Module], example: Inputs
) -> dict[str, torch.Size]:
    """Run the model once on the example; the shape of each module's output."""
    shapes: dict[str, torch.Size] = {}

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                raise ValueError(
                    f"{name!r} puts out a {type(output).__name__}; a stage can follow only a tensor"
                )
            if shapes.setdefault(name, output.shape) != output.shape:
                raise ValueError(
                    f"{name!r} runs more than once, on {list(shapes[name])} and {list(output.shape)}; "
                    "name a submodule that runs in one place"
                )

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        with evaluating(model):
            call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    silent = [name for name in modules if name not in shapes]
    if silent:
        raise ValueError(
            f"{', '.join(silent)} never ran on the example, so a stage there would never run either"
        )
    return shapes


def channels_of(shape: torch.Size, layout: str | None, base: nn.Module) -> int:
    """C of an output. Three dimensions are [B, C, L] or [B, M, C]: without a layout the last layer tells."""
    if layout is None:
        ends_in_positions = len(shape) == 3 and last_channels(base) == shape[2] != shape[1]
        layout = "positions" if ends_in_positions else "channels_first"
    return shape[-1 if layout == "positions" else 1]


def positions_of(shape: torch.Size, layout: str | None) -> int:
    """M of an output."""
    return shape[1] if layout == "positions" else math.prod(shape[2:])


def last_channels(base: nn.Module) -> int | None:
    """C by the last convolution or linear map and the normalisation after it; None where they disagree."""
    mapped: int | None = None
    normalised: int | None = None
    for module in _layers(base):
        if isinstance(module, NonlocalModule):
            mapped, normalised = module.channels, None
        elif isinstance(module, _ConvNd):
            mapped, normalised = module.out_channels, None
        elif isinstance(module, nn.Linear):
            mapped, normalised = module.out_features, None
        elif isinstance(module, _BatchNorm):
            normalised = module.num_features
        elif isinstance(module, nn.GroupNorm):
            normalised = module.num_channels
        elif isinstance(module, nn.LayerNorm):
            normalised = module.normalized_shape[-1]
    if mapped is None or normalised is None or mapped == normalised:
        return mapped if mapped is not None else normalised
    return None


def _layers(base: nn.Module) -> Iterator[nn.Module]:
    """The submodules in their order; what is inside a nonlocal module says nothing about its output."""
    yield base
    if not isinstance(base, NonlocalModule):
        for child in base.children():
            yield from _layers(child)
