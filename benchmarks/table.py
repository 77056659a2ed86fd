"""The measurements as Markdown, which reads well in a terminal and in a README alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.memory import exponent


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned for reading as plain text: words left, numbers right."""
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    is_number = [all(cell[:1].isdigit() for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = (
        "-" * (width + 1) + ":" if right else "-" * (width + 2)
        for width, right in zip(widths, is_number, strict=True)
    )
    return "\n".join([line(headers), f"|{'|'.join(rule)}|", *(line(row) for row in rows)])


def accuracy_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            r["kind"],
            r["normalize"],
            # The others are in float64.
            f"{r['backend']}, {r['dtype']}" if r.get("dtype", "float64") != "float64" else r["backend"],
            f"{r['value']:.1e}",
            f"{r['gradient']:.1e}",
            _mark(r["passed"]),
        ]
        for r in rows
    ]
    return markdown(["kind", "normalize", "backend", "value", "gradient", "within limit"], cells)


def memory_table(rows: Sequence[dict[str, Any]]) -> str:
    """M against peak bytes and seconds, with the exponent of each kernel's memory and time in its last row."""
    cells = []
    for row in rows:
        ladder = [r for r in rows if r["kind"] == row["kind"]]
        is_last = row is ladder[-1] and len(ladder) > 1
        powers: tuple[str, ...] = ("", "")
        if is_last:
            sizes = [r["positions"] for r in ladder]
            powers = tuple(
                f"M^{exponent(sizes, [r[name] for r in ladder]):.2f}" for name in ("peak_bytes", "seconds")
            )
        cells.append(
            [
                f"{row['kind']}, {row['normalize']}",
                f"{row['positions']:,}",
                f"{row['peak_bytes'] / 2**20:.1f} MiB",
                f"{row['seconds']:.2f} s",
                *powers,
            ]
        )
    return markdown(["kernel", "M", "peak memory", "time", "memory grows as", "time grows as"], cells)


def backends_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"{r['kind']}, {r['normalize']}",
            f"{r['batch']} × {r['positions']:,} × {r['channels']}, N {r['num_blocks']}",
            _range(r["reference"], r["reference_range"]),
            _range(r["factored"], r["factored_range"]),
            r["auto"],
        ]
        for r in rows
    ]
    return markdown(["kernel", "B × M × C", "reference, ms", "factored, ms", "auto takes"], cells)


def graphs_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [name, f"{row['seconds'][side]:.2f} s", f"{row['peak_bytes'][side] / 2**20:.0f} MiB"]
        for row in rows
        for side, name in (("nonloc", "nonloc"), ("by_hand", "scikit-learn and scipy by hand"))
    ]
    row = rows[0]
    shown = markdown(
        [f"{row['points']:,} points, k = {row['k']}, {row['steps']} steps", "time", "peak memory"], cells
    )
    return f"{shown}\n\nTime ratio {row['time_ratio']:.2f}; the final states differ by {row['largest_difference']:.1e}."


def certificates_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            "as matrices" if row["by_matrix"] else "by bounds alone",
            f"{row['cases']:,}",
            f"{row['near the boundary']:,}",
            *(f"{row[verdict]:,}" for verdict in ("stable", "unstable", "not decided")),
            str(len(row["wrong"])),
        ]
        for row in rows
    ]
    shown = markdown(
        ["kernels are looked at", "stages", "within 1e-3 of 1", "stable", "unstable", "not decided", "wrong"],
        cells,
    )
    why = (
        f"Not decided {'as matrices' if row['by_matrix'] else 'by bounds'}: "
        + "; ".join(f"{reason}: {count:,}" for reason, count in row["undecided_because"].items())
        for row in rows
        if row["undecided_because"]
    )
    return "\n\n".join([shown, *why])


def stable_table(rows: Sequence[dict[str, Any]]) -> str:
    names = ("constant", "top mode", "random", "control")
    cells = [
        [
            f"{row['dtype']}, {row['embedding']}",
            *(_growth(row[name]) for name in names),
            _growth(row["allowed"]),
            _mark(row["passed"]),
        ]
        for row in rows
    ]
    blocks = rows[0]["blocks"]
    return markdown([f"growth over {blocks} sub-blocks", *names, "allowed", "passed"], cells)


def _growth(value: float) -> str:
    return f"1 {'+' if value >= 1 else '−'} {abs(value - 1):.1e}"


def _mark(passed: bool) -> str:
    return "yes" if passed else "NO"


def _range(median: float, extremes: Sequence[float]) -> str:
    return f"{median:.2f} ({extremes[0]:.2f}–{extremes[1]:.2f})"
