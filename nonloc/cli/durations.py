"""Durations as people write them: parse and format."""

from __future__ import annotations

import math
import re

from nonloc._checks import shown

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "90s", "25m", "1.5h" or "2d"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    seconds = math.nan if match is None else float(match[1]) * SECONDS[match[2]]
    if not math.isfinite(seconds):
        raise ValueError(f"{shown(text)} is not a length of time; write 90s, 25m, 1.5h or 2d")
    return seconds


def format_duration(seconds: float) -> str:
    """Write "42 s", "3 min 20 s" or "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
