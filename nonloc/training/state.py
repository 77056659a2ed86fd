"""What a network and its optimizer consist of, as flat named tensors: out for saving, in for going on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MODEL = "model."
OPTIMIZER = "optimizer."


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies on the CPU of all parameters, buffers and optimizer state, under their names."""
    tensors = {MODEL + name: _copy(value) for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{name}.{key}"] = _copy(value)
            elif value is not None:
                raise TypeError(
                    f"optimizer state {key!r} of {name!r} is {type(value).__name__}, not a tensor"
                )
    return tensors


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


def has_finite_parameters(model: nn.Module) -> bool:
    """Whether no parameter is NaN or infinite; one look at the device for all of them."""
    return bool(torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()]).all())


def weights_sha256(model: nn.Module) -> str:
    """The SHA-256 over the names, types, shapes and bytes of all parameters and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(_copy(value).flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()
