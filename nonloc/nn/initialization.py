"""How the linear maps of a nonlocal module start."""

from __future__ import annotations

import torch
from torch import nn


def initialize_map(linear: nn.Linear, init: str, std: float) -> None:
    """Draw one map in place; biases start at 0, except under "torch".

    "normal"   normal with deviation `std`
    "kaiming"  He's normal by fan-out, deviation √(2 / out_features)
    "fan_in"   normal with deviation 1 / √in_features
    "torch"    PyTorch's own: uniform with deviation 1 / √(3 in_features)
    "zero"     as "torch"; setting W_Z to 0 is up to the module that knows which map it is
    """
    if init in ("torch", "zero"):
        linear.reset_parameters()
        return
    if init == "kaiming":
        nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
    else:
        nn.init.normal_(linear.weight, std=std if init == "normal" else linear.in_features**-0.5)
    if linear.bias is not None:
        with torch.no_grad():
            linear.bias.zero_()
