"""The kernels of one captured training step: what the device does, how often, and for how long."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import STEPS_PER_EPOCH, LibrarySteps, random_images
from benchmarks.table import markdown
from nonloc_paper.training.recipe import Recipe

STEPS = 10

# The first that is found in a kernel's name says what it is for.
KINDS = (
    ("batch norm and ReLU", r"^norm_\w+_kernel|batch_norm|batchnorm|bn_fw|bn_bw"),
    ("nonlocal stage", r"^(begin|forward|turn|adjoint|key|finish|query)_kernel|flash|fmha|attention"),
    ("optimizer and casts", r"multi_tensor_apply|FusedSgd|FusedAdam"),
    ("convolutions", r"conv|wgrad|dgrad|fprop|implicit|xmma|cudnn"),
    ("matrix products", r"gemm|gemv|cutlass|cublas|nvjet|splitK"),
    ("loss", r"softmax|nll|cross_entropy"),
    ("copies and fills", r"memcpy|memset|copy|fill|Cat|transpose"),
    ("indexing and chance", r"index|gather|scatter|random|distribution"),
    ("sums", r"reduce"),
    ("element-wise", r"elementwise|vectorized"),
)
OTHER = "other"


@dataclass(frozen=True)
class Kernel:
    """A kernel in one step: its calls and the microseconds of all of them together."""

    name: str
    kind: str
    calls: float
    microseconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """The kernels of one step, the costliest first."""

    network: str
    batch_size: int
    precision: str
    kernels: tuple[Kernel, ...]

    @property
    def microseconds(self) -> float:
        return sum(kernel.microseconds for kernel in self.kernels)

    @property
    def launches(self) -> float:
        return sum(kernel.calls for kernel in self.kernels)

    def kinds(self) -> list[Kernel]:
        """The kernels of each kind taken together, the costliest kind first."""
        calls: dict[str, float] = defaultdict(float)
        times: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            calls[kernel.kind] += kernel.calls
            times[kernel.kind] += kernel.microseconds
        order = sorted(times, key=lambda kind: -times[kind])
        return [Kernel(kind, kind, calls[kind], times[kind]) for kind in order]

    def to_dict(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "batch_size": self.batch_size,
            "precision": self.precision,
            "launches": self.launches,
            "microseconds": self.microseconds,
            "kinds": [kind.to_dict() for kind in self.kinds()],
            "kernels": [kernel.to_dict() for kernel in self.kernels],
        }


def profile(network: str, device: torch.device, batch_size: int = 128) -> Profile:
    """One step as `fit` does it on CUDA: bfloat16, channels-last, captured; the mean of several replays."""
    if device.type != "cuda":
        raise ValueError(
            f"a kernel table needs a CUDA device, and device is {str(device)!r}; use --device cuda"
        )
    recipe = Recipe(network, batch_size=batch_size, precision="bfloat16", channels_last=True)
    with tempfile.TemporaryDirectory() as folder:
        dataset = random_images(batch_size * STEPS_PER_EPOCH, device)
        steps = LibrarySteps(recipe, dataset, device, Path(folder, "run"))
        for _ in range(3):
            steps.step()
        torch.cuda.synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
            for _ in range(STEPS):
                steps.step()
            torch.cuda.synchronize(device)
        steps.close()
    events = [event for event in trace.key_averages() if event.self_device_time_total > 0]
    return Profile(network, batch_size, recipe.precision, kernels_of(events, STEPS))


def kernels_of(events: Sequence[Any], steps: int) -> tuple[Kernel, ...]:
    """The profiler's events (key, count, self_device_time_total in µs) as kernels of one step."""
    found = [
        Kernel(event.key, kind_of(event.key), event.count / steps, event.self_device_time_total / steps)
        for event in events
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.microseconds))


def kind_of(name: str) -> str:
    """What the kernel `name` is for."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def table(rows: Sequence[dict[str, Any]], most: int = 25) -> str:
    """For each network its kinds of kernels, and the costliest `most` of the kernels, as Markdown."""
    parts = []
    for row in rows:
        parts.append(
            f"**{row['network']}**, batch {row['batch_size']}, {row['precision']}: {row['microseconds'] / 1e3:.3f} ms "
            f"of kernels in {row['launches']:.0f} launches a step"
        )
        parts.append(_kernel_table("kind", row["kinds"], row["microseconds"]))
        parts.append(_kernel_table("kernel", row["kernels"][:most], row["microseconds"]))
        if len(row["kernels"]) > most:
            rest = sum(kernel["microseconds"] for kernel in row["kernels"][most:])
            parts.append(f"and {len(row['kernels']) - most} more, {rest:.1f} µs in all")
    return "\n\n".join(parts)


def _kernel_table(title: str, kernels: Sequence[dict[str, Any]], total: float) -> str:
    cells = [
        [
            _short(kernel["name"]),
            f"{kernel['calls']:.1f}",
            f"{kernel['microseconds']:.1f}",
            f"{100 * kernel['microseconds'] / total:.1f} %",
        ]
        for kernel in kernels
    ]
    return markdown([title, "calls", "µs", "share"], cells)


def _short(name: str, length: int = 80) -> str:
    """A kernel's name without what would break a Markdown table or fill a page."""
    name = re.sub(r"\s+", " ", name.replace("|", "/")).removeprefix("void ")
    return name if len(name) <= length else f"{name[: length - 1]}…"
