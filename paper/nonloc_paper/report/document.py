"""A document as a value: text, lists, tables, figures, folded details; written as Markdown, CSV and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from nonloc.plots import INK, save_figure, svg
from nonloc_paper.report.tables import Table
from nonloc_paper.runs import write_atomically

FIGURES, DATA = "figures", "data"  # folders next to the Markdown files
REPORT = "report.html"

CSS = (Path(__file__).parent / "page.css").read_text()


@dataclass(frozen=True)
class Data:
    """A long table: a CSV file that the Markdown links, and folded in HTML.

    name     of its file, without ending
    summary  what it holds
    """

    name: str
    summary: str
    table: Table

    def __bool__(self) -> bool:
        return bool(self.table)


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and its caption; false without a figure.

    pdf  whether there is a PDF, too, which the Markdown links
    """

    name: str
    figure: Figure | None
    caption: str
    pdf: bool = False

    def __bool__(self) -> bool:
        return self.figure is not None


@dataclass(frozen=True)
class Html:
    """Contents that only a page has."""

    text: str


@dataclass(frozen=True)
class Details:
    """Contents that are folded below a summary."""

    summary: str
    contents: tuple[Content, ...]


Content = str | list[str] | Table | Data | Picture | Html | Details


@dataclass(frozen=True)
class Section:
    """A heading and its contents; empty contents are left out, and a section that has no others."""

    title: str
    contents: tuple[Content, ...] = ()

    def __bool__(self) -> bool:
        return any(self.contents)


@dataclass(frozen=True)
class Document:
    """One Markdown file, and a part of the page.

    name  of its file, without ending
    """

    name: str
    title: str
    sections: tuple[Section, ...] = ()

    def files(self) -> dict[str, Figure | Table]:
        """Return its figures and long tables by the address that the Markdown has."""
        found: dict[str, Figure | Table] = {}
        for content in (content for section in self.sections for content in section.contents):
            if isinstance(content, Picture) and content.figure is not None:
                for kind in ("svg", "pdf") if content.pdf else ("svg",):
                    found[f"{FIGURES}/{content.name}.{kind}"] = content.figure
            elif isinstance(content, Data) and content:
                found[f"{DATA}/{content.name}.csv"] = content.table
        return found


def write_documents(documents: Sequence[Document], folder: Path, title: str, about: str) -> list[Path]:
    """Write every document as Markdown with its figures as SVG and its data as CSV, and all as one report.html.

    Figures and data that a document had before and has no more are removed; all else in the folder is left alone.
    A file that this report did not write is a ValueError, and nothing is written.
    """
    marks = {folder / f"{one.name}.md": f"# {one.title}\n" for one in documents}
    texts = {path: path.read_text(errors="replace") for path in marks if path.is_file()}
    own = {
        folder / name for name in re.findall(r"\]\(((?:figures|data)/[^/)]+)\)", "\n".join(texts.values()))
    }
    wanted = {folder / name for one in documents for name in one.files()}
    page = folder / REPORT
    foreign = [path for path, text in texts.items() if not text.startswith(marks[path])]
    if page.is_file() and f"<title>{escape(title)}</title>" not in page.read_text(errors="replace"):
        foreign.append(page)
    foreign += sorted(path for path in wanted - own if path.exists())
    if foreign:
        raise ValueError(
            f"{foreign[0]} is not of this report, and would be overwritten; delete it, or name another --output"
        )
    for path in own - wanted:
        path.unlink(missing_ok=True)
    written = []

    def write(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        written.append(path)

    for document in documents:
        # Before its figures, which it names: what is interrupted can be written again.
        write(folder / f"{document.name}.md", as_markdown(document).encode())
        for name, content in document.files().items():
            if isinstance(content, Table):
                write(folder / name, content.as_csv().encode())
            else:
                write(folder / name, save_figure(content, "pdf") if name.endswith(".pdf") else svg(content))
    write(page, as_page(documents, title, about).encode())
    return written


def as_markdown(document: Document) -> str:
    """Return the document as GitHub shows it, its figures and data by their files."""
    parts = [f"# {document.title}"]
    for section in filter(None, document.sections):
        parts += [f"## {section.title}"] if section.title else []
        parts += [_markdown(content) for content in section.contents if content]
    return "\n\n".join(parts) + "\n"


def as_page(documents: Sequence[Document], title: str, about: str) -> str:
    """Return all documents as one page that needs nothing else."""
    body = f'<h1>{escape(title)}</h1><p class="soft">{escape(about)}</p>'
    for one in documents:
        body += f'<h1 id="{one.name}">{escape(one.title)}</h1>{_sections_html(one.sections)}'
    return _page_html(title, {one.name: one.title for one in documents}, body)


def sections_page(sections: Iterable[Section], title: str) -> str:
    """Return sections as a page that needs nothing else."""
    sections = [section for section in sections if section]
    contents = {f"part-{place}": section.title for place, section in enumerate(sections) if section.title}
    return _page_html(title, contents, f"<h1>{escape(title)}</h1>{_sections_html(sections, 'part-')}")


def _page_html(title: str, contents: Mapping[str, str], body: str) -> str:
    """A whole page: no network, no script, readable in light and dark and on a phone.

    contents  titles by the id of what they lead to
    """
    links = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in contents.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav><main>{body}</main></body></html>\n'
    )


def _sections_html(sections: Iterable[Section], prefix: str = "") -> str:
    """The sections that are not empty; with a prefix, their headings have it with their place as ids."""
    body = ""
    for place, section in enumerate(filter(None, sections)):
        name = f' id="{prefix}{place}"' if prefix else ""
        body += f"<h2{name}>{escape(section.title)}</h2>" if section.title else ""
        body += "".join(_html(content) for content in section.contents if content)
    return body


def _markdown(content: Content) -> str:
    match content:
        case Table():
            return content.as_markdown()
        case Data():
            return f"[{content.summary}]({DATA}/{content.name}.csv) (CSV, {len(content.table.lines)} lines)."
        case Picture():
            link = f" [PDF]({FIGURES}/{content.name}.pdf)" if content.pdf else ""
            return f"![{content.name}]({FIGURES}/{content.name}.svg)\n\n*{content.caption}*{link}"
        case Details():
            inside = "\n\n".join(_markdown(one) for one in content.contents if one)
            return f"<details><summary>{escape(content.summary)}</summary>\n\n{inside}\n\n</details>"
        case Html():
            return content.text
        case str():
            return content
    return "\n".join(f"- {item}" for item in content)


def _html(content: Content) -> str:
    match content:
        case Table():
            return content.as_html()
        case Data():
            return f"<details><summary>{escape(content.summary)}</summary>{content.table.as_html()}</details>"
        case Picture():
            assert content.figure is not None, "empty contents are left out"
            return figure_html(inline_svg(content.figure, content.name), content.caption)
        case Details():
            inside = "".join(_html(one) for one in content.contents if one)
            return f"<details><summary>{escape(content.summary)}</summary>{inside}</details>"
        case Html():
            return content.text
        case str():
            return f"<p>{_inline(content)}</p>"
    return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in content)}</ul>"


def _inline(text: str) -> str:
    """Markdown's links, strong words and code as HTML."""
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', escape(text))
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def figure_html(content: str, caption: str) -> str:
    """Return a figure that scrolls sideways, and its caption; it takes the focus, which enlarges it on a phone."""
    shown = f'<div class="scroll" tabindex="0">{content}</div>'
    return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"


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
