"""HTML for pages that need nothing else: no network, no script, readable in light and dark."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from nonloc.plots import INK, save_figure

CSS = """
:root { color-scheme: light dark; --ink: #202428; --soft: #5b6470; --line: #d9dde2; --paper: #fdfdfc; --tint: #f1f3f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --soft: #a2abb5; --line: #3a4148; --paper: #16191c; --tint: #20252a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
p, li { max-width: 46rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; }
figcaption { max-width: 46rem; margin-top: .4rem; }
figure svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.results th, .results td { padding: .35rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
.results th:first-child, .results td:first-child { text-align: left; padding-left: 0; }
.results thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.results tbody th { font-weight: 600; white-space: nowrap; }
.results td { white-space: nowrap; }
.prose th, .prose td, .prose tbody th { text-align: left; white-space: normal; vertical-align: top; font-weight: 400; }
.prose th { min-width: 11rem; }
.results .group th { color: var(--soft); font-weight: 400; padding-top: .9rem; }
.images th { width: 6.8rem; padding: 0 .3rem .3rem; text-align: left; vertical-align: bottom; }
.images th { font-weight: 600; font-size: .8rem; line-height: 1.25; }
.images td { padding: .2rem .3rem; text-align: center; font-size: .8rem; color: var(--soft); }
.images img { display: block; width: 6.2rem; height: 6.2rem; image-rendering: pixelated; border-radius: 3px; }
code, pre { font: .88em/1.5 ui-monospace, monospace; background: var(--tint); border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .7rem .9rem; overflow-x: auto; }
summary { cursor: pointer; color: var(--soft); margin: .6rem 0; }
"""


def page_html(title: str, body: str) -> str:
    """Return a whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{body}</main></body></html>\n"
    )


def figure_html(content: str, caption: str) -> str:
    """Return a figure that scrolls sideways, and its caption."""
    return f'<figure><div class="scroll">{content}</div><figcaption>{escape(caption)}</figcaption></figure>'


def list_html(items: Iterable[str]) -> str:
    """Return a list; "" without items."""
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{entries}</ul>" if entries else ""


def inline_svg(figure: Figure, name: str) -> str:
    """Return an <svg> element in the page's own colour; `name` keeps its ids apart from those of other figures."""
    text = save_figure(figure, "svg", salt=name).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A page needs no namespaces. Nothing refers to groups and images, whose ids could be the same in two figures.
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    text = re.sub(r'(<(?:g|image)\b[^>]*?) id="[^"]*"', r"\1", text)
    # The height follows from the view box, so that the figure shrinks with a narrow page.
    text = re.sub(r' height="[^"]*"', "", text, count=1)
    return text.replace(INK, "currentColor")


def image_address(pixels: NDArray[Any], scale: int = 8) -> str:
    """Return the data: address of an image uint8 [3, H, W], each pixel enlarged to a square."""
    whole = pixels.transpose(1, 2, 0).repeat(scale, 0).repeat(scale, 1)
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
