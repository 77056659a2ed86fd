"""Whole modules, forward and backward, as people call them. On CUDA under autocast, eager and compiled.

Beside each stage stands the same written by hand with `scaled_dot_product_attention`; on the CPU with the matrix, too,
as mmcv and timm compute it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.shared import format_range, format_size, markdown, median_and_range, time_calls, time_in_turns
from nonloc.nn.stage import STAGE_OF_FORM

TIMED_MILLISECONDS = 30  # in one repeat
# The form, C, N and the input.
MODULES = (
    ("diffusive", 64, 4, (128, 64, 32, 32)),
    ("diffusive", 64, 1, (128, 64, 32, 32)),
    ("original", 64, 4, (128, 64, 32, 32)),
    ("diffusive", 512, 2, (32, 512, 28, 28)),
)
ON_THE_CPU = (("original", 64, 1, (4, 64, 32, 32)), ("diffusive", 64, 4, (4, 64, 32, 32)))


class ByHand(nn.Module):
    """A stage of N sub-blocks as one writes it: the original form computes its affinity anew in each."""

    def __init__(self, form: str, channels: int, blocks: int, *, has_matrix: bool = False) -> None:
        super().__init__()
        self.is_diffusive = form == "diffusive"
        self.apply_kernel = _by_matrix if has_matrix else _by_attention
        hidden = channels // 2

        def maps(count: int, inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(count))

        kernels = 1 if self.is_diffusive else blocks
        self.theta, self.phi = (maps(kernels, channels, hidden) for _ in range(2))
        self.w_g, self.w_z = maps(blocks, channels, hidden), maps(blocks, hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(2).transpose(1, 2)
        for n, (w_g, w_z) in enumerate(zip(self.w_g, self.w_z, strict=True)):
            if n < len(self.theta):
                q, k = self.theta[n](z), self.phi[n](z)
            g = w_g(z)
            change = self.apply_kernel(q, k, g)
            z = z + w_z(change - g if self.is_diffusive else change)
        return z.transpose(1, 2).reshape(x.shape)


def _by_attention(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
    q, k, g = (x.unsqueeze(1) for x in (q, k, g))
    return scaled_dot_product_attention(q, k, g, scale=1.0).squeeze(1)


def _by_matrix(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2), -1) @ g


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each module, input dtype, and way: milliseconds and bytes at the peak above the input."""
    device, rows = options.device, []
    on_cuda = device.type == "cuda"
    for form, channels, blocks, shape in MODULES if on_cuda else ON_THE_CPU:
        for dtype in (torch.bfloat16, torch.float32) if on_cuda else (torch.float32,):
            stage = STAGE_OF_FORM[form](channels, blocks)
            made: dict[str, Any] = {
                "nonloc": stage.to(device),
                "by hand": ByHand(form, channels, blocks).to(device),
            }
            if on_cuda:
                made |= {f"{name}, compiled": _compiled(one) for name, one in list(made.items())}
            else:
                made["by hand, with the matrix"] = ByHand(form, channels, blocks, has_matrix=True)
            x = torch.randn(shape, device=device).to(dtype).requires_grad_()
            works = {name: _work(one, x) for name, one in made.items()}
            mine: list[dict[str, Any]] = [
                {"form": form, "channels": channels, "blocks": blocks, "shape": shape, "way": name,
                 "dtype": str(dtype).removeprefix("torch."), "memory": _memory(work, device)}
                for name, work in works.items()
            ]  # fmt: skip
            counts = [
                max(1, round(TIMED_MILLISECONDS / time_calls(work, 2, device))) for work in works.values()
            ]
            times = time_in_turns(list(works.values()), counts, options.repeats, device)
            for row, taken in zip(mine, times, strict=True):
                row["ms"], row["range"] = median_and_range(taken)
                row["repeats"] = options.repeats
                talk(f"{form} {channels}, {blocks}, {row['dtype']}, {row['way']}: {row['ms']:.2f} ms")
            rows += mine
    return rows


def _compiled(module: nn.Module) -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    return torch.compile(module, fullgraph=True)


def _work(module: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def work() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            y = module(x)
        y.backward(x.detach().to(y.dtype))

    return work


def _memory(work: Callable[[], None], device: torch.device) -> int | None:
    work()
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row."""
    cells = [
        [
            f"{row['form']} {row['channels']}, N {row['blocks']}",
            " × ".join(map(str, row["shape"])),
            row["dtype"],
            row["way"],
            format_range(row["ms"], row["range"], 2),
            format_size(row["memory"]),
        ]
        for row in rows
    ]
    return markdown(["stage", "input", "its dtype", "way", "ms", "memory"], cells)
