"""Batch norm with the moments of the whole batch, where each process has a part of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nonloc.ops.collectives import all_sum


def share_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """Make every batch norm in `model` use the moments over all processes; return the model. Names stay."""
    if device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) in _SHARED:
            module.__class__ = _SHARED[type(module)]
    return model


class _SharedMoments(nn.Module):
    """What torch's SyncBatchNorm does on accelerators, by plain operations; torch has none for the CPU."""

    group: Any = None

    def forward(self: Any, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        dims, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
        count = all_sum(wide.new_tensor(wide.numel() / wide.shape[1]), self.group)
        mean = all_sum(wide.sum(dims), self.group) / count
        centred = wide - mean.view(shape)
        variance = all_sum(centred.square().sum(dims), self.group) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        out = centred * (variance + self.eps).rsqrt().view(shape)
        out = out if self.weight is None else out * self.weight.view(shape)
        out = out if self.bias is None else out + self.bias.view(shape)
        return out.to(input.dtype)

    def _track(self: Any, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - share).add_(value, alpha=share)


_SHARED: dict[type[nn.Module], type[nn.Module]] = {
    norm: type(f"Shared{norm.__name__}", (_SharedMoments, norm), {})
    for norm in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}
