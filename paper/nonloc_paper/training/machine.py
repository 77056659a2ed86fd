"""Where numbers are made: the device, and the machine and versions that belong in every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nonloc import __version__


def device_or_best(device: torch.device | str | None) -> torch.device:
    """`device`, or CUDA where there is one, else the CPU."""
    has_cuda = torch.cuda.is_available()
    try:
        found = torch.device(device or ("cuda" if has_cuda else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is unknown; use cpu or cuda") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is none that nonloc works on; use cpu or cuda")
    if found.type == "cuda" and not has_cuda:
        raise ValueError(f"device={device!r}: this torch sees no CUDA device; use cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device={device!r}: the last CUDA device here is cuda:{last}; use one up to it")
    return found


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Inside, torch makes float32 tensors on the CPU where it is not told otherwise, whatever the caller has set."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    # A device as a context slows every call down, so that it is entered only where it is needed.
    with nullcontext() if device.type == "cpu" else torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Of Python, torch and nonloc; on a CUDA device also of the libraries that do its work."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "nonloc": __version__}
    if commit := _commit():
        found["commit"] = commit
    if device is None or device.type != "cuda":
        return found
    found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    try:
        found["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found["triton"] = "none"
    return found


@cache
def _commit() -> str:
    """The commit of the code: NONLOC_COMMIT where it is set, else the checkout's; empty where neither is known."""
    if set_by_caller := os.environ.get("NONLOC_COMMIT"):
        return set_by_caller
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def machine(device: torch.device) -> dict[str, Any]:
    """The processor, how many cores of it this process may use and how many threads it does, the device's name."""
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
