"""What a submodule puts out: seen in a forward pass, or read off its last layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from nonloc._torch_compat import is_batch_or_instance_norm
from nonloc.modes import evaluating
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.probe import Inputs, call


@dataclass(frozen=True)
class Layer:
    """A layer that has channels: `width` of them on `axis`, and, where it has run, the shape that it put out."""

    width: int
    axis: int
    is_norm: bool
    shape: torch.Size | None = None


@dataclass(frozen=True)
class Output:
    """What a submodule put out.

    axes  where the channels are, by the layers that ran: (1,) or (−1,), both where they may be on either, none where
          the layers say nothing
    dtype, device  of the output
    """

    shape: torch.Size
    axes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def channels(self, layout: str | None) -> int | None:
        """C; without a layout the layers tell. None where there is no second dimension."""
        if len(self.shape) < 2:
            return None
        return self.shape[-1 if self._is_positions(layout) else 1]

    def positions(self, layout: str | None) -> int:
        """M."""
        return math.prod(self.shape[1:-1] if self._is_positions(layout) else self.shape[2:])

    def _is_positions(self, layout: str | None) -> bool:
        return self.axes == (-1,) if layout is None else layout == "positions"


def recorded_outputs(
    model: nn.Module, modules: Mapping[str, nn.Module], example: Inputs
) -> dict[str, Output]:
    """Run the model once on the example; the output of each module."""
    outputs: dict[str, Output] = {}
    ran: list[Layer] = []

    def note(layer: Layer) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not output.is_nested:
                ran.append(replace(layer, shape=output.shape))

        return hook

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            _check_output(name, output)
            axes = _channel_axes(output.shape, ran)
            seen = outputs.setdefault(name, Output(output.shape, axes, output.dtype, output.device))
            if seen.shape != output.shape:
                raise ValueError(
                    f"{name!r} runs more than once, on {list(seen.shape)} and {list(output.shape)}; "
                    "name a submodule that runs in one place"
                )

        return hook

    # Layers first: one that is itself asked for must have been noted when its output is recorded.
    layers = [(module, layer) for module in model.modules() if (layer := _layer(module)) is not None]
    handles = [module.register_forward_hook(note(layer)) for module, layer in layers]
    handles += [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        with evaluating(model):
            call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    silent = [name for name in modules if name not in outputs]
    if silent:
        raise ValueError(
            f"{', '.join(silent)} never ran on the example, so a stage there would never run either"
        )
    return outputs


def last_channels(base: nn.Module) -> int | None:
    """C by the last convolution or linear map and the normalisation after it; None where they disagree."""
    mapped: int | None = None
    normalised: int | None = None
    for layer in _layers(base):
        if layer.is_norm:
            normalised = layer.width
        else:
            mapped, normalised = layer.width, None
    if mapped is None or normalised is None or mapped == normalised:
        return mapped if mapped is not None else normalised
    return None


def _check_output(name: str, output: Any) -> None:
    if not isinstance(output, Tensor):
        raise ValueError(f"{name!r} puts out a {type(output).__name__}; a stage can follow only a tensor")
    if output.is_nested:
        raise ValueError(
            f"{name!r} puts out a nested tensor, without a shape; nn.TransformerEncoder makes none with "
            "enable_nested_tensor=False"
        )
    if not output.dtype.is_floating_point:
        raise ValueError(f"{name!r} puts out {output.dtype}; a stage can follow only floating point")


def _channel_axes(shape: torch.Size, ran: list[Layer]) -> tuple[int, ...]:
    """Where the channels of an output are, by the layers that ran before it, the last one last."""
    if len(shape) < 3 or not ran:
        return ()
    # Pooling, cropping and appended positions leave the axes in their order; other dimensions mean that they moved.
    alike = [
        layer
        for layer in reversed(ran)
        if layer.shape is not None and len(layer.shape) == len(shape) and shape[layer.axis] == layer.width
    ]
    for layer in (*(layer for layer in alike if layer.shape == shape), *alike):
        return (layer.axis,)
    found = tuple(axis for axis in (1, -1) if shape[axis] == ran[-1].width)
    return (1, -1) if found and _is_rearranged(ran[-1].shape, shape) else found


def _is_rearranged(before: torch.Size | None, after: torch.Size) -> bool:
    """As after a pixel shuffle: as many dimensions and numbers, but others. An equal width may then be chance."""
    if before is None or len(before) != len(after) or sorted(before) == sorted(after):
        return False
    return before.numel() == after.numel()


def _layer(module: nn.Module) -> Layer | None:
    """The layer that a module is; None for one without channels of its own."""
    if isinstance(module, NonlocalModule):
        return Layer(module.channels, -1 if module.layout == "positions" else 1, False)
    if isinstance(module, _ConvNd):
        return Layer(module.out_channels, 1, False)
    if isinstance(module, nn.Linear):
        return Layer(module.out_features, -1, False)
    if isinstance(module, nn.Embedding):
        return Layer(module.embedding_dim, -1, False)
    if is_batch_or_instance_norm(module):
        return Layer(module.num_features, 1, True)
    if isinstance(module, nn.GroupNorm):
        return Layer(module.num_channels, 1, True)
    # A normalisation over several axes does not tell which of them is the channels.
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) == 1:
        return Layer(module.normalized_shape[0], -1, True)
    return None


def _layers(base: nn.Module) -> Iterator[Layer]:
    """The layers in their order; what is inside a nonlocal module says nothing about its output."""
    layer = _layer(base)
    if layer is not None:
        yield layer
    if not isinstance(base, NonlocalModule):
        for child in base.children():
            yield from _layers(child)
