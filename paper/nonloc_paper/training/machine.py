"""The device and the machine that compute a run, and the versions that belong in every result.

A run may move from one machine to another. A part of it is {"machine", "versions", "seconds"}: the first two as
`machine` and `versions` return them, and the seconds of work there. Processes on the same machine with the same
versions make one part.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nonloc import __version__

Part = dict[str, Any]


def device_or_best(device: torch.device | str | None) -> torch.device:
    """Return `device` if it is usable; for None CUDA where there is one, else the CPU."""
    has_cuda = torch.cuda.is_available()
    try:
        chosen = torch.device(device or ("cuda" if has_cuda else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is unknown; use cpu or cuda") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is none that nonloc works on; use cpu or cuda")
    if chosen.type == "cuda" and not has_cuda:
        raise ValueError(f"device={device!r}: this torch sees no CUDA device; use cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device={device!r}: the last CUDA device here is cuda:{last}; use one up to it")
    return chosen


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Inside, torch's default is float32 on the CPU, even if the caller has set another one."""
    # torch 2.6 cannot tell its default device once `set_default_device(None)` was called.
    dtype, device = torch.get_default_dtype(), torch.empty(0).device
    # A device as a context slows every call down: enter it only where it is needed.
    with nullcontext() if device.type == "cpu" else torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions of Python, torch and nonloc; on a CUDA device also of its libraries."""
    names = {"python": platform.python_version(), "torch": str(torch.__version__), "nonloc": __version__}
    if commit := _commit():
        names["commit"] = commit
    if device is None or device.type != "cuda":
        return names
    names |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    try:
        names["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        names["triton"] = "none"
    return names


@cache
def _commit() -> str:
    """Return the commit of the code: NONLOC_COMMIT if it is set, else the checkout's, else ""."""
    if set_by_caller := os.environ.get("NONLOC_COMMIT"):
        return set_by_caller
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def machine(device: torch.device) -> dict[str, Any]:
    """Return the processor, its cores that this process may use, its threads, and the device's name."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "platform": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def place(device: torch.device) -> Part:
    """Return where this process works: a part without its seconds."""
    return {"machine": machine(device), "versions": versions(device)}


def with_part(parts: Sequence[Part], here: Part, seconds: float) -> list[Part]:
    """Return `parts` with `seconds` more of work at the place `here`."""
    before = sum(part["seconds"] for part in parts if _is_at(part, here))
    return [*elsewhere(parts, here), here | {"seconds": before + seconds}]


def elsewhere(parts: Sequence[Part], here: Part) -> list[Part]:
    """Return the parts that were not done at the place `here`."""
    return [part for part in parts if not _is_at(part, here)]


def _is_at(part: Part, here: Part) -> bool:
    return (part["machine"], part["versions"]) == (here["machine"], here["versions"])
