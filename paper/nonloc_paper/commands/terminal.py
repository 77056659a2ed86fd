"""fit_table: a table as text that is no wider than the terminal."""

from __future__ import annotations

import shutil
import sys
from textwrap import fill

from nonloc_paper.report.tables import Table


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None where it is something else."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def fit_table(table: Table, width: int | None) -> str:
    """Return the table as text, without its last columns where it is too wide, and a line that names them."""
    if width is None:
        return table.as_text()
    left_out: list[str] = []
    titles = {line[0] for line in table.lines if len(line) == 1}
    while len(table.header) > 2 and _columns_width(table) > width:
        left_out.insert(0, table.header[-1])
        lines = [line[:-1] if len(line) > 1 else line for line in table.lines]
        table = Table(table.header[:-1], lines, table.prose)
    text = "\n".join(fill(line, width) if line in titles else line for line in table.as_text().splitlines())
    if not left_out:
        return text
    more = fill(f"On the page, too: {', '.join(left_out)}.", width)
    return f"{text}\n{more}"


def _columns_width(table: Table) -> int:
    lines = [table.header, *(line for line in table.lines if len(line) > 1)]
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2
