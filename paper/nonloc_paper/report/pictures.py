"""Pictures of what was observed: restored images side by side, and affinity maps beside their image."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nonloc_paper.report import figures
from nonloc_paper.report.records import RowRecord, RunRecord, of_stage
from nonloc_paper.report.style import picture


def image_table(rows: Sequence[RowRecord]) -> str:
    """An HTML table: one line for each test image; clean, noisy, and restored by each row's network. "" without any."""
    runs = [
        (row.label, row.example) for row in rows if row.example is not None and "noisy" in row.example.tensors
    ]
    if not runs:
        return ""
    first = runs[0][1]
    images, noisy = first.tensors["images"], first.tensors["noisy"]
    head = "".join(
        f'<th scope="col">{escape(label)}</th>' for label in ("clean", "noisy", *(label for label, _ in runs))
    )
    lines = []
    for number, image in enumerate(images):
        cells = [
            _cell(image, "clean", ""),
            _cell(to_pixels(noisy[number]), "noisy", _psnr(first, "noisy", number)),
        ]
        for label, run in runs:
            if "restored" in run.tensors:
                pixels = to_pixels(run.tensors["restored"][number])
                cells.append(_cell(pixels, f"restored by {label}", _psnr(run, "restored", number)))
            else:
                cells.append("<td>not finite</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="images"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def affinity_figures(rows: Sequence[RowRecord], count: int = 2) -> list[Figure]:
    """For each of the first `count` images: where each row's network looks from the marked position."""
    runs = [(row.label, row.example) for row in rows if row.example is not None]
    maps = [entry for label, run in runs for entry in _maps(label, run)]
    if not maps:
        return []
    source = maps[0][1]
    images = source.tensors["images"]
    made = []
    for number, image in enumerate(images[:count]):
        noisy = to_pixels(source.tensors["noisy"][number]) if "noisy" in source.tensors else None
        shown = [(label, position, values[number]) for label, _, position, values in maps]
        made.append(figures.affinity(image, noisy, shown))
    return made


def to_pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """float [3, H, W] in [−1, 1] as uint8; what lies outside is cut off."""
    return np.clip(np.rint((values + 1) * 127.5), 0, 255).astype(np.uint8)


def _maps(label: str, run: RunRecord) -> list[tuple[str, RunRecord, list[int], NDArray[Any]]]:
    """(label, run, position, [K, h, w]) of every stage of a run whose map is finite."""
    found = []
    for stage in run.observations.get("affinity", []):
        values = run.tensors.get(f"affinity.{stage['stage']}")
        if values is not None:
            name = of_stage(run.recipe, stage["stage"])
            found.append((f"{label}{name}", run, stage["position"], values))
    return found


def _cell(pixels: NDArray[Any], text: str, below: str) -> str:
    return (
        f'<td><img src="{picture(pixels)}" alt="{escape(text, quote=True)}">{escape(below) or "&nbsp;"}</td>'
    )


def _psnr(run: RunRecord, which: str, number: int) -> str:
    value = run.observations["psnr"][which][number]
    return "" if value is None else f"{value:.1f}"
