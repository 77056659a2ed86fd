"""Whole modules under autocast, forward and backward, as people call them: eager and compiled (CUDA).

Beside each stage stands the same written by hand with `scaled_dot_product_attention`.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.shared import format_range, format_size, markdown, time_calls, time_in_turns
from nonloc.nn.stage import DiffusiveStage, OriginalStage

TIMED_MILLISECONDS = 30  # in one repeat
# The form, C, N and the input.
MODULES = (
    ("diffusive", 64, 4, (128, 64, 32, 32)),
    ("diffusive", 64, 1, (128, 64, 32, 32)),
    ("original", 64, 4, (128, 64, 32, 32)),
    ("diffusive", 512, 2, (32, 512, 28, 28)),
)


class ByHand(nn.Module):
    """A stage of N sub-blocks as one writes it: the original form computes its affinity anew in each."""

    def __init__(self, form: str, channels: int, blocks: int) -> None:
        super().__init__()
        self.is_diffusive = form == "diffusive"
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
                q, k = self.theta[n](z).unsqueeze(1), self.phi[n](z).unsqueeze(1)
            g = w_g(z)
            change = scaled_dot_product_attention(q, k, g.unsqueeze(1), scale=1.0).squeeze(1)
            z = z + w_z(change - g if self.is_diffusive else change)
        return z.transpose(1, 2).reshape(x.shape)


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each module, input dtype, and way: milliseconds and bytes at the peak above the input."""
    device, rows = options.device, []
    for form, channels, blocks, shape in MODULES:
        for dtype in (torch.bfloat16, torch.float32):
            stage = {"diffusive": DiffusiveStage, "original": OriginalStage}[form](channels, blocks)
            made = {"nonloc": stage.to(device), "by hand": ByHand(form, channels, blocks).to(device)}
            made |= {f"{name}, compiled": _compiled(one) for name, one in list(made.items())}
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
                row |= {
                    "ms": statistics.median(taken),
                    "range": (min(taken), max(taken)),
                    "repeats": options.repeats,
                }
                talk(f"{form} {channels}, {blocks}, {row['dtype']}, {row['way']}: {row['ms']:.2f} ms")
            rows += mine
    return rows


def _compiled(module: nn.Module) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True)


def _work(module: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def work() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
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
