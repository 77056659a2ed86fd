"""The kernels of one captured training step: what the device does, how often, and for how long."""

from __future__ import annotations

import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import markdown
from benchmarks.training import NETWORKS, STEPS_PER_EPOCH, LibrarySteps, random_images
from nonloc_paper.training.recipe import Recipe

STEPS = 10

# The first pattern that a kernel's name matches says what the kernel is for.
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


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return [profile(network, options.device) for network in NETWORKS]


def profile(network: str, device: torch.device, batch_size: int = 128) -> dict[str, Any]:
    """Profile one step as `fit` does it on CUDA: bfloat16, channels-last, captured; the mean of several replays."""
    if device.type != "cuda":
        raise ValueError(
            f"a kernel table needs a CUDA device, and device is {str(device)!r}; use --device cuda"
        )
    recipe = Recipe(network, batch_size=batch_size, precision="bfloat16", channels_last=True)
    recipe = recipe.with_(stage=NETWORKS.get(network, {}))
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
    row = {"network": network, "batch_size": batch_size, "precision": recipe.precision}
    return row | kernels_of(events, STEPS)


def kernels_of(events: Sequence[Any], steps: int) -> dict[str, Any]:
    """Return launches, microseconds, kinds and kernels of one step, the costliest first.

    events  of torch's profiler: key, count, self_device_time_total in µs
    """
    kernels = [
        {
            "name": event.key,
            "kind": kind_of(event.key),
            "calls": event.count / steps,
            "microseconds": event.self_device_time_total / steps,
        }
        for event in sorted(events, key=lambda event: -event.self_device_time_total)
    ]
    kinds: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        kind = kernel["kind"]
        total = kinds.setdefault(kind, {"name": kind, "kind": kind, "calls": 0.0, "microseconds": 0.0})
        for name in ("calls", "microseconds"):
            total[name] += kernel[name]
    return {
        "launches": sum(kernel["calls"] for kernel in kernels),
        "microseconds": sum(kernel["microseconds"] for kernel in kernels),
        "kinds": sorted(kinds.values(), key=lambda kind: -kind["microseconds"]),
        "kernels": kernels,
    }


def kind_of(name: str) -> str:
    """Return what the kernel `name` is for."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def table(rows: Sequence[dict[str, Any]], most: int = 25) -> str:
    """For each network its kinds of kernels, and the `most` costliest kernels."""
    parts = []
    for row in rows:
        total, kernels = row["microseconds"], row["kernels"]
        parts.append(
            f"**{row['network']}**, batch {row['batch_size']}, {row['precision']}: {total / 1e3:.3f} ms "
            f"of kernels in {row['launches']:.0f} launches a step"
        )
        for title, listed in (("kind", row["kinds"]), ("kernel", kernels[:most])):
            cells = [
                [
                    _short(one["name"]),
                    f"{one['calls']:.1f}",
                    f"{one['microseconds']:.1f}",
                    f"{100 * one['microseconds'] / total:.1f} %",
                ]
                for one in listed
            ]
            parts.append(markdown([title, "calls", "µs", "share"], cells))
        if len(kernels) > most:
            rest = sum(kernel["microseconds"] for kernel in kernels[most:])
            parts.append(f"and {len(kernels) - most} more, {rest:.1f} µs in all")
    return "\n\n".join(parts)


def _short(name: str) -> str:
    """A kernel's name without what would break a Markdown table or fill a page."""
    name = re.sub(r"\s+", " ", name.replace("|", "/")).removeprefix("void ")
    return name if len(name) <= 80 else f"{name[:79]}…"
