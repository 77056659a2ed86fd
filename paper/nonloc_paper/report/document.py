"""A document as a value: sections of text, lists, tables, figures and folded details; written as Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from nonloc.plots import svg
from nonloc_paper.report.html import figure_html, inline_svg, list_html, page_html
from nonloc_paper.report.tables import Table
from nonloc_paper.runs import write_atomically

FIGURES = "figures"  # the folder next to the Markdown files
REPORT = "report.html"


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and its caption."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Details:
    """Contents that are folded below a summary."""

    summary: str
    contents: tuple[Content, ...]


Content = str | list[str] | Table | Picture | Details


@dataclass(frozen=True)
class Section:
    """A heading and its contents; empty contents are left out."""

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
        def inside(contents: Sequence[Content]) -> Iterator[Picture]:
            for content in contents:
                if isinstance(content, Details):
                    yield from inside(content.contents)
                elif isinstance(content, Picture):
                    yield content

        return [picture for section in self.sections for picture in inside(section.contents)]


def write_documents(documents: Sequence[Document], folder: Path, title: str, about: str) -> list[Path]:
    """Write every document as Markdown with its figures as SVG, and all of them as one report.html.

    Figures that a document had before and has no more are removed; everything else in the folder is left alone.
    A file that this report did not write is a ValueError, and nothing is written.
    """
    before = _own_figures(documents, folder, title)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    written = []

    def write(path: Path, content: bytes) -> None:
        write_atomically(path, content)
        written.append(path)

    for path in before - _figure_paths(documents, folder):
        path.unlink(missing_ok=True)
    for document in documents:
        # Before its figures, which it names: what is interrupted can be written again.
        write(folder / f"{document.name}.md", as_markdown(document).encode())
        for picture in document.pictures:
            write(folder / FIGURES / f"{picture.name}.svg", svg(picture.figure))
    write(folder / REPORT, as_page(documents, title, about).encode())
    return written


def _own_figures(documents: Sequence[Document], folder: Path, title: str) -> set[Path]:
    """The figures that the documents name now; ValueError where a foreign file would be overwritten."""
    marks = {folder / f"{one.name}.md": f"# {one.title}\n" for one in documents}
    texts = {path: path.read_text(errors="replace") for path in marks if path.is_file()}
    foreign = [path for path, text in texts.items() if not text.startswith(marks[path])]
    page = folder / REPORT
    if page.is_file() and f"<title>{escape(title)}</title>" not in page.read_text(errors="replace"):
        foreign.append(page)
    names = re.findall(rf"\]\({FIGURES}/([^/)]+\.svg)\)", "\n".join(texts.values()))
    own = {folder / FIGURES / name for name in names}
    foreign += sorted(path for path in _figure_paths(documents, folder) - own if path.exists())
    if foreign:
        raise ValueError(
            f"{foreign[0]} is not of this report, and would be overwritten; delete it, or name another --output"
        )
    return own


def _figure_paths(documents: Sequence[Document], folder: Path) -> set[Path]:
    return {folder / FIGURES / f"{picture.name}.svg" for one in documents for picture in one.pictures}


def as_markdown(document: Document) -> str:
    """Return the document as GitHub shows it, its figures by their files."""
    parts = [f"# {document.title}"]
    for section in document.sections:
        parts += [f"## {section.title}"] if section.title else []
        parts += [_markdown(content) for content in section.contents if content]
    return "\n\n".join(parts) + "\n"


def as_page(documents: Sequence[Document], title: str, about: str) -> str:
    """Return all documents as one page that needs nothing else."""
    names = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in documents)
    body = [f'<h1>{escape(title)}</h1><p class="soft">{escape(about)}</p><ul>{names}</ul>']
    for document in documents:
        body.append(f'<h1 id="{document.name}">{escape(document.title)}</h1>')
        for section in document.sections:
            body += [f"<h2>{escape(section.title)}</h2>"] if section.title else []
            body += [_html(content) for content in section.contents if content]
    return page_html(title, "".join(body))


def _markdown(content: Content) -> str:
    match content:
        case Table():
            return content.as_markdown()
        case Picture():
            return f"![{content.name}]({FIGURES}/{content.name}.svg)\n\n*{content.caption}*"
        case Details():
            inside = "\n\n".join(_markdown(one) for one in content.contents if one)
            return f"<details><summary>{escape(content.summary)}</summary>\n\n{inside}\n\n</details>"
        case str():
            return content
    return "\n".join(f"- {item}" for item in content)


def _html(content: Content) -> str:
    match content:
        case Table():
            return content.as_html()
        case Picture():
            return figure_html(inline_svg(content.figure, content.name), content.caption)
        case Details():
            inside = "".join(_html(one) for one in content.contents if one)
            return f"<details><summary>{escape(content.summary)}</summary>{inside}</details>"
        case str():
            return f"<p>{escape(content)}</p>"
    return list_html(content)
