"""A document as a value: headed sections of text, lists, tables and figures, written as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from nonloc.plots import png, svg
from nonloc_paper.report.page import CSS
from nonloc_paper.report.style import inline
from nonloc_paper.report.tables import Table
from nonloc_paper.runs import write_atomically

FIGURES = "figures"  # the folder beside the Markdown files
REPORT = "report.html"


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and what stands below it."""

    name: str
    figure: Figure
    caption: str


Content = str | list[str] | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: paragraphs, lists of sentences, tables and figures."""

    title: str
    contents: tuple[Content, ...] = ()


@dataclass(frozen=True)
class Document:
    """One Markdown file, and a part of the page.

    name  of its file, without ending
    """

    name: str
    title: str
    sections: tuple[Section, ...] = field(default_factory=tuple)

    @property
    def pictures(self) -> list[Picture]:
        return [part for one in self.sections for part in one.contents if isinstance(part, Picture)]


def write_documents(documents: Sequence[Document], folder: Path, title: str, about: str) -> list[Path]:
    """Write every document as Markdown with its figures as SVG and PNG, and all of them as one report.html.

    Figures that a document had before and has no more are taken away; everything else in the folder is left alone. A
    file of somebody else where one of these is to be written is a ValueError, and nothing is written.
    """
    before = _figures_before(documents, folder, title)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    written = []

    def write(path: Path, content: bytes) -> None:
        write_atomically(path, content)
        written.append(path)

    pictures = _pictures(documents, folder)
    for path in before - pictures:
        path.unlink(missing_ok=True)
    for document in documents:
        # Before its figures, which it vouches for: what is interrupted can be written again.
        write(folder / f"{document.name}.md", as_markdown(document).encode())
        for picture in document.pictures:
            write(folder / FIGURES / f"{picture.name}.svg", svg(picture.figure))
            # Laid out once: the other forms are the same picture, and most of the work is saved.
            picture.figure.set_layout_engine("none")
            write(folder / FIGURES / f"{picture.name}.png", png(picture.figure))
    write(folder / REPORT, as_page(documents, title, about).encode())
    return written


def _figures_before(documents: Sequence[Document], folder: Path, title: str) -> set[Path]:
    """The figures of the documents that are there now; ValueError where something else is in the way."""
    marks = {folder / f"{one.name}.md": f"# {one.title}\n" for one in documents}
    texts = {path: path.read_text(errors="replace") for path in marks if path.is_file()}
    theirs = [path for path, text in texts.items() if not text.startswith(marks[path])]
    page = folder / REPORT
    if page.is_file() and f"<title>{escape(title)}</title>" not in page.read_text(errors="replace"):
        theirs.append(page)
    names = re.findall(rf"\]\({FIGURES}/([^/)]+)\.svg\)", "\n".join(texts.values()))
    found = _figure_paths(folder, names)
    theirs += sorted(path for path in _pictures(documents, folder) - found if path.exists())
    if theirs:
        raise ValueError(
            f"{theirs[0]} is not of this report, and would be overwritten; delete it, or name another --output"
        )
    return found


def _pictures(documents: Sequence[Document], folder: Path) -> set[Path]:
    return _figure_paths(folder, [picture.name for one in documents for picture in one.pictures])


def _figure_paths(folder: Path, names: Iterable[str]) -> set[Path]:
    return {folder / FIGURES / f"{name}{ending}" for name in names for ending in (".svg", ".png")}


def as_markdown(document: Document) -> str:
    """The document as GitHub shows it, its figures by their files."""
    parts = [f"# {document.title}"]
    for section in document.sections:
        parts += [f"## {section.title}"] if section.title else []
        parts += [_markdown(content) for content in section.contents if content]
    return "\n\n".join(parts) + "\n"


def as_page(documents: Sequence[Document], title: str, about: str) -> str:
    """All documents as one page that needs nothing else."""
    names = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in documents)
    body = [f'<h1>{escape(title)}</h1><p class="soft">{escape(about)}</p><ul>{names}</ul>']
    for document in documents:
        body.append(f'<h1 id="{document.name}">{escape(document.title)}</h1>')
        for section in document.sections:
            body += [f"<h2>{escape(section.title)}</h2>"] if section.title else []
            body += [_html(content) for content in section.contents if content]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _markdown(content: Content) -> str:
    if isinstance(content, Table):
        return content.as_markdown()
    if isinstance(content, Picture):
        return f"![{content.name}]({FIGURES}/{content.name}.svg)\n\n*{content.caption}*"
    return content if isinstance(content, str) else "\n".join(f"- {item}" for item in content)


def _html(content: Content) -> str:
    if isinstance(content, Table):
        return content.as_html()
    if isinstance(content, Picture):
        shown = inline(content.figure, content.name)
        return f'<figure><div class="scroll">{shown}</div><figcaption>{escape(content.caption)}</figcaption></figure>'
    if isinstance(content, str):
        return f"<p>{escape(content)}</p>"
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in content)}</ul>"
