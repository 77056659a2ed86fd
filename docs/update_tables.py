"""Fill the tables of docs/performance.md from the records in benchmarks/results.

    python -m benchmarks stage --output benchmarks/results
    python docs/update_tables.py

A table stands between <!-- NAME --> and <!-- /NAME -->, where NAME.json is its record; below it stand the machine and
the versions of the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    backends,
    certificates,
    estimators,
    graphs,
    memory,
    modules,
    stable,
    stage,
    stage_cpu,
    training,
)
from benchmarks.shared import format_size, markdown

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
VERSIONS = {"torch": "torch", "triton": "Triton", "cuda": "CUDA", "cudnn": "cuDNN", "python": "Python"}


def conditions(record: dict[str, Any]) -> str:
    """Return the machine and the versions of a record, in italics."""
    machine, versions = record["machine"], record["versions"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
    used = ", ".join(f"{word} {versions[name]}" for name, word in VERSIONS.items() if name in versions)
    return f"*{device}{machine['cpu']}, {machine['cores']} cores, {threads}; {used}.*"


def largest_deviations(rows: Sequence[dict[str, Any]]) -> str:
    """Return the largest deviation of each backend in float64, with the cell that has it."""
    exact = [row for row in rows if row.get("dtype", "float64") == "float64"]
    cells = []
    for backend in dict.fromkeys(row["backend"] for row in exact):
        of_backend = [row for row in exact if row["backend"] == backend]
        worst = [(what, max(of_backend, key=lambda row: row[what])) for what in ("value", "gradient")]
        cells.append(
            [backend, *(f"{row[what]:.1e} ({row['kind']}, {row['normalize']})" for what, row in worst)]
        )
    return markdown(["largest deviation", "value", "gradient"], cells)


def common_backends(rows: Sequence[dict[str, Any]]) -> str:
    """Return two sizes of three kernels; the other rows are in the record."""
    sizes = {(1, 256), (1, 4096)}
    kernels = [row for row in rows if row["kind"] != "heat" and row["normalize"] == "row"]
    return backends.table([row for row in kernels if (row["batch"], row["positions"]) in sizes])


def largest_sizes(rows: Sequence[dict[str, Any]]) -> str:
    """Return the largest size of each kernel, with the exponents over all its sizes."""
    header, rule, *lines = memory.table(rows).splitlines()
    return "\n".join([header, rule, *(line for line in lines if "M^" in line)])


def best_stages(rows: Sequence[dict[str, Any]]) -> str:
    """Return "auto" beside the fastest public way, captured and eager; all ways are in the record."""
    cells = []
    for auto in (row for row in rows if row["way"] == "auto"):
        shape = stage.shape_of(auto)
        same = [row for row in rows if stage.shape_of(row) == shape]
        took = [row["way"] for row in same if row["is_ours"] and row["memory"] == auto["memory"]]
        cell = [str(shape), next((way for way in took if "auto" not in way), "–")]
        for column in ("captured", "eager"):
            best = min(stage.rivals(same, "auto", column), key=lambda row: row[column])
            ours, theirs = auto[column], best[column]
            cell += [f"{ours:.2f}", f"{theirs:.2f} ({best['way']})", f"{ours / theirs:.2f}×"]
        cells.append([*cell, format_size(auto["memory"])])
    against = ("best public", "ratio")
    headers = ["C, d; B × M, N", "auto takes", "captured, ms", *against, "eager, ms", *against, "memory"]
    return markdown(headers, cells)


def eager_modules(rows: Sequence[dict[str, Any]]) -> str:
    """Return the modules without the compiled ones, which are in the record."""
    return modules.table([row for row in rows if "compiled" not in row["way"]])


def without_pairs(rows: Sequence[dict[str, Any]]) -> str:
    """Return all ways but two runs side by side."""
    return training.table([row for row in rows if row["way"] != "captured, 2 side by side"])


def certificate_counts(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts without the reasons below them."""
    return certificates.table(rows).partition("\n\n")[0]


TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {
    "accuracy": largest_deviations,
    "memory": largest_sizes,
    "backends": common_backends,
    "stage": best_stages,
    "modules": eager_modules,
    "stage_cpu": stage_cpu.table,
    "modules_cpu": modules.table,
    "training": without_pairs,
    "graphs": graphs.table,
    "estimators": estimators.table,
    "certificates": certificate_counts,
    "stable": stable.table,
}


def filled(text: str) -> str:
    """Return the document with every table made anew."""
    for name, make in TABLES.items():
        record = json.loads((RESULTS / f"{name}.json").read_text())
        section = f"<!-- {name} -->\n{make(record['rows'])}\n\n{conditions(record)}\n<!-- /{name} -->"
        text, count = re.subn(
            rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, new=section: new, text, flags=re.DOTALL
        )
        assert count == 1, f"{DOCUMENT.name} needs one table {name}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
