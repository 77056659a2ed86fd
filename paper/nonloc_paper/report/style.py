"""One look for all figures, and the three ways to save them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from nonloc.plots import INK, save_figure
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.records import RowRecord

SHADES = {
    None: ("#8f969e", "#70777f"),
    "original": ("#d9772b", "#e3a02c", "#c4513d", "#a8682a", "#e58a76", "#94701c"),
    "diffusive": ("#2f7fc1", "#2fa39a", "#6a6fd0", "#54a3e0", "#1f6f8b", "#8fa3f0"),
}
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))


def row_looks(rows: Sequence[RowRecord]) -> dict[str, dict[str, Any]]:
    """A colour and a dash for each row by label: the hue tells the form, the dash the group of the table."""
    groups = list(dict.fromkeys(row.group for row in rows))
    counts: dict[tuple[str | None, str], int] = {}
    looks = {}
    for row in rows:
        form = NetworkSpec.parse(row.recipe.network).form
        index = counts.setdefault((form, row.group), 0)
        counts[form, row.group] += 1
        shades = SHADES[form]
        looks[row.label] = {
            "color": shades[index % len(shades)],
            "linestyle": DASHES[groups.index(row.group) % len(DASHES)],
        }
    return looks


def svg(figure: Figure) -> bytes:
    """A file of its own, in ink on white."""
    return save_figure(figure, "svg", facecolor="white")


def png(figure: Figure) -> bytes:
    """A file of its own, in ink on white."""
    return save_figure(figure, "png", facecolor="white", dpi=160)


def inline(figure: Figure, name: str) -> str:
    """An <svg> element for a page: in the page's own colour, `name` keeping its ids apart from other figures'."""
    text = save_figure(figure, "svg", salt=name).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A page needs no namespaces. Nothing refers to groups and images, which would share ids where they are alike.
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    text = re.sub(r'(<(?:g|image)\b[^>]*?) id="[^"]*"', r"\1", text)
    # The height follows from the view box, so that the figure shrinks with a narrow page.
    text = re.sub(r' height="[^"]*"', "", text, count=1)
    return text.replace(INK, "currentColor")


def picture(pixels: NDArray[Any], scale: int = 8) -> str:
    """A data: address of an image uint8 [3, H, W], each pixel enlarged to a square."""
    whole = pixels.transpose(1, 2, 0).repeat(scale, 0).repeat(scale, 1)
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
