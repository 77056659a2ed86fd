"""Table: the same cells as text, Markdown and HTML; the table of results; formats of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape

from nonloc_paper.report.records import Collection, RowRecord, RunRecord, score_name

UNITS = {"psnr": "dB", "error": "%"}
TITLES = {"psnr": "PSNR", "error": "error"}


@dataclass(frozen=True)
class Table:
    """A header and lines of cells, in groups; the first column is text, the others are numbers.

    prose  all columns are text, to be broken into lines
    """

    header: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    prose: bool = False

    def as_text(self) -> str:
        """Return aligned columns for a terminal."""
        lines = [line for _, lines in self.groups for line in lines]
        widths = [
            max(len(line[column]) for line in [self.header, *lines]) for column in range(len(self.header))
        ]

        def aligned(cells: Sequence[str]) -> str:
            first, *others = zip(cells, widths, strict=True)
            return "  ".join(
                [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            ).rstrip()

        text = [aligned(self.header), "  ".join("─" * width for width in widths)]
        for title, lines_of_group in self.groups:
            text.extend([title] if title else [])
            text.extend(aligned(line) for line in lines_of_group)
        return "\n".join(text)

    def as_markdown(self) -> str:
        """Return a table for GitHub; the title of a group is a line of its own."""
        lines = [self.header, tuple("---" for _ in self.header)]
        for title, lines_of_group in self.groups:
            lines += [(f"*{title}*", *("" for _ in self.header[1:]))] if title else []
            lines += lines_of_group
        return "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )

    def as_html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.header)
        body = []
        for title, lines in self.groups:
            if title:
                body.append(
                    f'<tr class="group"><th scope="rowgroup" colspan="{len(self.header)}">{escape(title)}</th></tr>'
                )
            for first, *others in lines:
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
                body.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
        kind = "results prose" if self.prose else "results"
        return (
            f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )


def results_table(collection: Collection, score: str) -> Table:
    """Return a line for each row with this score: seeds, median, range, all values, size and time."""
    rows = [row for row in collection.rows if score_name(row.recipe) == score]
    unit = UNITS[score]
    columns: list[tuple[str, Callable[[RowRecord], str]]] = [
        ("network", lambda row: row.label),
        ("n", lambda row: str(len(row.scores))),
        (f"median {TITLES[score]} ({unit})", lambda row: format_score(row.median)),
        (f"range ({unit})", format_range),
        (f"every seed ({unit})", lambda row: ", ".join(format_run(run) for run in row.runs)),
    ]
    if any(row.published is not None for row in rows):
        columns.append((f"published ({unit})", lambda row: format_score(row.published)))
    if score == "psnr" and collection.input_psnr is not None:
        noisy = collection.input_psnr
        columns.append(
            (f"above input ({unit})", lambda row: "–" if row.median is None else f"{row.median - noisy:+.2f}")
        )
    columns += [
        ("parameters", lambda row: format_number(row.parameters, ",")),
        ("seconds a run", lambda row: format_number(row.seconds, ".0f")),
    ]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(tuple(make(row) for _, make in columns))
    return Table(
        tuple(title for title, _ in columns), tuple((title, tuple(lines)) for title, lines in groups.items())
    )


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
