"""The outputs of submodules: read in a forward pass, or off their last layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nonloc._torch_compat import ConvBase, NormBase
from nonloc.nn.inspect import Inputs, run_model
from nonloc.nn.nonlocal_module import NonlocalModule


class Layer(NamedTuple):
    """A layer that has `width` channels on `axis`."""

    width: int
    axis: int
    is_norm: bool


# By class: the attribute that says how many channels there are, their axis, and whether it is a normalisation.
_LAYERS: tuple[tuple[type[nn.Module], str, int, bool], ...] = (
    (ConvBase, "out_channels", 1, False),
    (nn.Linear, "out_features", -1, False),
    (nn.Embedding, "embedding_dim", -1, False),
    (nn.RNNBase, "hidden_size", -1, False),
    (NormBase, "num_features", 1, True),
    (nn.GroupNorm, "num_channels", 1, True),
)


@dataclass(frozen=True)
class Output:
    """The output of a submodule.

    axes  where the channels are, by the layers that ran: (1,) or (−1,), both where they may be on either, none where
          the layers say nothing
    """

    shape: torch.Size
    axes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def channels(self, layout: str | None) -> int | None:
        """Return C; without a layout the layers decide. None where there is no second dimension."""
        if len(self.shape) < 2:
            return None
        return self.shape[-1 if self._is_positions(layout) else 1]

    def positions(self, layout: str | None) -> int:
        """Return M."""
        return math.prod(self.shape[1:-1] if self._is_positions(layout) else self.shape[2:])

    def _is_positions(self, layout: str | None) -> bool:
        return self.axes == (-1,) if layout is None else layout == "positions"


def first_tensor(output: Any) -> Any:
    """Return what a stage follows: the output itself, or the first of a tuple, list or dict of outputs."""
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    if isinstance(output, Mapping) and output:
        return next(iter(output.values()))
    return output


def with_first(output: Any, value: Any) -> Any:
    """Return the output with `value` in the place of its first tensor; other parts of it are the same objects."""
    if isinstance(output, (tuple, list)):
        items = [value, *output[1:]]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    if isinstance(output, Mapping):
        changed: Any = copy.copy(output)
        changed[next(iter(output))] = value
        return changed
    return value


def record_outputs(model: nn.Module, modules: Mapping[str, nn.Module], example: Inputs) -> dict[str, Output]:
    """Run the model once on the example; return the output of each module."""
    outputs: dict[str, Output] = {}
    ran: list[tuple[Layer, torch.Size]] = []

    def note(layer: Layer) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            output = first_tensor(output)
            if not isinstance(output, Tensor) or output.is_nested:
                return
            if isinstance(module, ConvBase) and isinstance(example, Tensor):
                # torch convolves a single image, too.
                unbatched = len(module.kernel_size) + 1
                if example.dim() == output.dim() == unbatched:
                    raise ValueError(
                        f"the example, {list(example.shape)}, has no batch dimension; give x[None]"
                    )
            ran.append((layer, output.shape))

        return hook

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, whole: Any) -> None:
            output = first_tensor(whole)
            if not isinstance(output, Tensor):
                part = "" if output is whole else f", and first in it a {type(output).__name__}"
                raise ValueError(
                    f"{name!r} puts out a {type(whole).__name__}{part}; a stage can follow only a tensor"
                )
            if output.is_nested:
                raise ValueError(
                    f"{name!r} puts out a nested tensor, without a shape; nn.TransformerEncoder makes none with "
                    "enable_nested_tensor=False"
                )
            if not output.dtype.is_floating_point:
                raise ValueError(f"{name!r} puts out {output.dtype}; a stage can follow only floating point")
            axes = _channel_axes(output.shape, ran)
            first = outputs.setdefault(name, Output(output.shape, axes, output.dtype, output.device))
            if first.shape != output.shape:
                raise ValueError(
                    f"{name!r} runs more than once, on {list(first.shape)} and {list(output.shape)}; "
                    "name a submodule that runs in one place"
                )

        return hook

    # Layers first: a named submodule may be a layer itself, and must be noted before its output is recorded.
    layers = [(module, layer) for module in model.modules() if (layer := _layer(module)) is not None]
    handles = [module.register_forward_hook(note(layer)) for module, layer in layers]
    handles += [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        run_model(model, example, "example")
    finally:
        for handle in handles:
            handle.remove()
    if silent := [name for name in modules if name not in outputs]:
        raise ValueError(
            f"{', '.join(silent)} never ran on the example, so a stage there would never run either; gradient "
            "checkpointing, and some models, run the members of an nn.Sequential without calling it: name its last one"
        )
    return outputs


def _channel_axes(shape: torch.Size, ran: list[tuple[Layer, torch.Size]]) -> tuple[int, ...]:
    """Return where the channels of an output are, by the layers that ran before it in their order."""
    if len(shape) < 3 or not ran:
        return ()
    # Pooling, cropping and appended positions keep the order of the axes; with other dimensions they have moved.
    alike = [
        (before == shape, layer.axis)
        for layer, before in ran
        if len(before) == len(shape) and shape[layer.axis] == layer.width
    ]
    if alike:
        same = [axis for is_same, axis in alike if is_same]
        return (same[-1] if same else alike[-1][1],)
    layer, before = ran[-1]
    axes = tuple(axis for axis in (1, -1) if shape[axis] == layer.width)
    # As many dimensions and numbers, but others, as after a pixel shuffle: an equal width may be chance.
    is_rearranged = len(before) == len(shape) and sorted(before) != sorted(shape)
    return (1, -1) if axes and is_rearranged and before.numel() == shape.numel() else axes


def last_channels(base: nn.Module) -> int | None:
    """Return C by the last convolution or linear map and the normalisation after it; None where they disagree."""
    width: int | None = None
    normalized: int | None = None
    for layer in _layers(base):
        if layer.is_norm:
            normalized = layer.width
        else:
            width, normalized = layer.width, None
    if width is None or normalized is None or width == normalized:
        return width if width is not None else normalized
    return None


def _layers(base: nn.Module) -> Iterator[Layer]:
    """Yield the layers in their order; those inside a nonlocal module say nothing about its output."""
    layer = _layer(base)
    if layer is not None:
        yield layer
    if not isinstance(base, NonlocalModule):
        for child in base.children():
            yield from _layers(child)


def _layer(module: nn.Module) -> Layer | None:
    """Return the module as a layer; None for one without channels of its own."""
    if isinstance(module, NonlocalModule):
        return Layer(module.channels, -1 if module.layout == "positions" else 1, False)
    # A normalisation over several axes does not say which of them is the channels.
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) == 1:
        return Layer(module.normalized_shape[0], -1, True)
    for kind, attribute, axis, is_norm in _LAYERS:
        if isinstance(module, kind):
            return Layer(getattr(module, attribute), axis, is_norm)
    return None
