"""What a network and its optimizer consist of, as flat named tensors: out for saving, in for going on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MODEL = "model."
OPTIMIZER = "optimizer."


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies on the CPU of all parameters, buffers and optimizer state, under their names."""
    tensors = {MODEL + name: value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{name}.{key}"] = value
            elif value is not None:
                raise TypeError(
                    f"optimizer state {key!r} of {name!r} is {type(value).__name__}, not a tensor"
                )
    return _copies(tensors)


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the captured parameters and buffers into `model`; every name must be there, and no other."""
    model.load_state_dict(
        {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
    )


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Put the captured state into `optimizer`, which is newly made from the same recipe for `model`."""
    state: dict[int, dict[str, Any]] = {}
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    for full_name, value in tensors.items():
        if full_name.startswith(OPTIMIZER):
            name, key = full_name.removeprefix(OPTIMIZER).rsplit(".", 1)
            state.setdefault(numbers[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    # Files know no memory layout, but the fused kernels want that of the parameters.
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
            if is_alike and value.stride() != parameter.stride():
                values[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


@contextmanager
def without_trace(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, `model` may be trained; afterwards all its numbers and the optimizer's are, in place, what they were.

    Optimizer state that is made inside stays, as zeros: for momentum (without dampening) and for Adam that is the same
    as none.
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    states = {
        parameter: {key: value.clone() for key, value in values.items() if isinstance(value, Tensor)}
        for parameter, values in optimizer.state.items()
    }
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
            for parameter, values in optimizer.state.items():
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        known = states.get(parameter, {})
                        value.copy_(known[key]) if key in known else value.zero_()


def has_finite_parameters(model: nn.Module) -> bool:
    """Whether no parameter is NaN or infinite; one look at the device for all of them."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    return bool(torch.nn.utils.get_total_norm(parameters, math.inf).isfinite())


def weights_sha256(model: nn.Module) -> str:
    """The SHA-256 over the names, types, shapes and bytes of all parameters and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(_copies(model.state_dict()).items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous ones on the CPU; in few pieces, because a device that is asked for each tensor stands still."""
    alike: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, value in tensors.items():
        alike.setdefault((value.dtype, value.device), []).append(name)
    copies: dict[str, Tensor] = {}
    for names in alike.values():
        whole = torch.cat([tensors[name].detach().reshape(-1) for name in names]).cpu()
        pieces = whole.split([tensors[name].numel() for name in names])
        for name, piece in zip(names, pieces, strict=True):
            copies[name] = piece.clone().view(tensors[name].shape)
    return {name: copies[name] for name in tensors}
