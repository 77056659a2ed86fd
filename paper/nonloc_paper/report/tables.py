"""Table: the same cells as text, Markdown, HTML and CSV; the table of results; formats of numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape

from nonloc_paper.report.records import Collection, RowRecord, RunRecord, score_name

UNITS = {"psnr": "dB", "error": "%"}
TITLES = {"psnr": "PSNR", "error": "error"}
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A header and lines of cells; the first column is text, the others are numbers. Without lines it is false.

    lines  a line of one cell is the title of the lines that follow
    prose  all columns are text, to be broken into lines
    key    the column that a phone shows before the first one, such as the score before the network
    """

    header: Cells
    lines: Sequence[Cells]
    prose: bool = False
    key: str | None = None

    def __bool__(self) -> bool:
        return bool(self.lines)

    @staticmethod
    def grouped(
        header: Cells, lines: Iterable[tuple[str, Cells]], prose: bool = False, key: str | None = None
    ) -> Table:
        """Return the table of (title, line), lines of one title together; the title "" is not shown."""
        groups: dict[str, list[Cells]] = {}
        for title, line in lines:
            groups.setdefault(title, [(title,)] if title else []).append(line)
        return Table(header, [line for group in groups.values() for line in group], prose, key)

    def as_text(self) -> str:
        """Return aligned columns for a terminal."""
        whole = [self.header, *(line for line in self.lines if len(line) > 1)]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]

        def aligned(cells: Cells) -> str:
            first, *others = zip(cells, widths, strict=len(cells) > 1)
            return "  ".join(
                [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            ).rstrip()

        return "\n".join(
            [aligned(self.header), "  ".join("─" * width for width in widths), *map(aligned, self.lines)]
        )

    def as_markdown(self) -> str:
        """Return a table for GitHub; a title is a line of its own."""
        lines = [self.header, ("---",) * len(self.header)]
        for line in self.lines:
            lines.append(line if len(line) > 1 else (f"*{line[0]}*", *("" for _ in self.header[1:])))
        return "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)

    def as_html(self) -> str:
        """Return a table; its cells know their columns, for a phone that stacks them."""
        key = None if self.key is None else self.header.index(self.key)
        head = "".join(
            f'<th scope="col"{_class(key=place == key)}>{_html_cell(cell)}</th>'
            for place, cell in enumerate(self.header)
        )
        body = ""
        for line in self.lines:
            name = _html_cell(line[0])
            if len(line) == 1:
                body += (
                    f'<tr class="group"><th scope="rowgroup" colspan="{len(self.header)}">{name}</th></tr>'
                )
                continue
            shown = "" if key is None else f' data-key="{_html_cell(line[key])}"'
            body += f'<tr><th scope="row"{shown}>{name}</th>'
            for place, (label, cell) in enumerate(zip(self.header[1:], line[1:], strict=True), start=1):
                kind = _class(key=place == key, empty=cell in ("", "–"))
                body += f'<td{kind} data-label="{_html_cell(label)}">{_html_cell(cell)}</td>'
            body += "</tr>"
        return (
            f'<div class="scroll"><table{_class(results=True, prose=self.prose)}><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def as_csv(self) -> str:
        """Return the cells for programs: minus signs are hyphens, and a dash is an empty cell."""
        text = io.StringIO()
        cells = ([cell.replace("−", "-") if cell != "–" else "" for cell in line] for line in self.lines)
        csv.writer(text, lineterminator="\n").writerows([self.header, *cells])
        return text.getvalue()


def _markdown_cell(text: str) -> str:
    """The text in one line, where neither | nor < has a meaning; "< 0" has none."""
    return re.sub(r"<(?=\S)", "&lt;", " ".join(text.splitlines()).replace("|", r"\|"))


def _class(**names: bool) -> str:
    """The attribute with the names that are true."""
    chosen = " ".join(name for name, is_so in names.items() if is_so)
    return f' class="{chosen}"' if chosen else ""


def _html_cell(text: str) -> str:
    """The text escaped; where a cell is broken into lines, "n = 5", ranges and what is in brackets stay whole."""
    whole = r" = |[+−\d.]+ to [+−\d.]+|\([^()]{,25}\)|\[[^][]{,25}\](, n = \d+)?"
    return re.sub(whole, lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), escape(text))


def results_table(collection: Collection, score: str) -> Table:
    """Return a line for each row with this score: seeds, median, range, all values, size and time."""
    rows = [row for row in collection.rows if score_name(row.recipe) == score]
    columns = score_columns(score)
    if any(row.published is not None for row in rows):
        columns[f"published ({UNITS[score]})"] = lambda row: format_score(row.published)
    noisy = collection.input_psnr
    if score == "psnr" and noisy is not None:
        columns["above input (dB)"] = lambda row: (
            "–" if row.median is None else with_minus(f"{row.median - noisy:+.2f}")
        )
    columns["parameters"] = lambda row: format_number(row.parameters, ",")
    columns["seconds a run"] = lambda row: format_number(row.seconds, ".0f")
    return rows_by(columns, rows)


Columns = dict[str, Callable[[RowRecord], str]]


def score_columns(score: str) -> Columns:
    """Return what all tables of rows have: seeds, median, range and every seed."""
    unit = UNITS[score]
    return {
        "network": lambda row: row.label,
        "seeds": lambda row: str(len(row.scores)),
        f"median {TITLES[score]} ({unit})": lambda row: format_score(row.median),
        f"range ({unit})": format_range,
        f"every seed ({unit})": lambda row: ", ".join(format_run(run) for run in row.runs) or "–",
    }


def rows_by(columns: Columns, rows: Iterable[RowRecord]) -> Table:
    """Return a line for each row, in the groups of the rows."""
    median = next(name for name in columns if name.startswith("median"))
    lines = ((row.group, tuple(make(row) for make in columns.values())) for row in rows)
    return Table.grouped(tuple(columns), lines, key=median)


def join_words(words: Iterable[str]) -> str:
    """Return such as "original, diffusive and stable"; there is at least one word."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def with_minus(text: str) -> str:
    """Replace hyphens by the minus signs that they stand for."""
    return text.replace("-", "−")


def format_number(value: float | None, spec: str) -> str:
    """Return the number in this format; a dash for None."""
    return "–" if value is None else f"{value:{spec}}"


def format_score(value: float | None) -> str:
    """Return two decimals, a half always up: the median of two errors may end in 5."""
    return "–" if value is None else str(Decimal(f"{value:.6f}").quantize(Decimal("0.01"), ROUND_HALF_UP))


def format_range(row: RowRecord) -> str:
    """Return the range of a row's scores, such as "8.31 to 8.67"."""
    return f"{min(row.scores):.2f} to {max(row.scores):.2f}" if len(row.scores) > 1 else "–"


def format_run(run: RunRecord | None) -> str:
    """Return a run's score, or why it has none."""
    if run is None:
        return "missing"
    if run.diverged_at is not None:
        return f"diverged at step {run.diverged_at}"
    if run.result is None:
        return "unfinished"
    return "not finite" if run.score is None else format_score(run.score)
