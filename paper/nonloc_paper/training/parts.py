"""Parts: on what, and for how long, a run was worked on, when it was carried from one machine to another.

A part is {"machine", "versions", "seconds"}: the first two as `machine` and `versions` give them, the last of work
there. Processes on the same machine with the same versions are one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nonloc_paper.training.machine import machine, versions

Part = dict[str, Any]


def place(device: torch.device) -> Part:
    """Where this process works: a part without its seconds."""
    return {"machine": machine(device), "versions": versions(device)}


def with_part(parts: Sequence[Part], here: Part, seconds: float) -> list[Part]:
    """`parts`, and `seconds` more of work at the place `here`."""
    before = sum(part["seconds"] for part in parts if _is_at(part, here))
    return [*elsewhere(parts, here), here | {"seconds": before + seconds}]


def elsewhere(parts: Sequence[Part], here: Part) -> list[Part]:
    """Those of the parts that were not done at the place `here`."""
    return [part for part in parts if not _is_at(part, here)]


def _is_at(part: Part, here: Part) -> bool:
    return (part["machine"], part["versions"]) == (here["machine"], here["versions"])
