"""What the runs of a folder have cost: one line for every command that trained, in spent.jsonl. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nonloc_paper.runs import NUMBER, check_lines_hold, read_lines, write_atomically

NAME = "spent.jsonl"


def note_spent(folder: str | os.PathLike[str], **entry: Any) -> None:
    """Add a line such as {"seconds": 1500.2, "device": "NVIDIA H200", "runs": 8}.

    The seconds are those of the clock on the wall: runs side by side share them, while each run's own result has all
    the time that it was under way.
    """
    path = Path(folder) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.is_file() else b""
    write_atomically(path, before + (json.dumps(entry, ensure_ascii=False) + "\n").encode())


def read_spent(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines, in order; each has its seconds."""
    path = Path(folder) / NAME
    lines = read_lines(path)
    check_lines_hold(lines, {"seconds": NUMBER}, path)
    return lines


def read_all_spent(root: str | os.PathLike[str]) -> dict[Path, list[dict[str, Any]]]:
    """The lines of every folder below `root` that has some, by folder."""
    return {path.parent: read_spent(path.parent) for path in sorted(Path(root).rglob(NAME))}
