"""nonloc bench: how exact the operator is, how much memory it takes, which backend is faster where."""

from __future__ import annotations

import json
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED

SUMMARY = "measure the operator: exactness, memory against M, reference against factored"
DESCRIPTION = """\
Measure the operator on this machine and print a table; with --output, keep it as JSON with machine and versions.

  nonloc bench accuracy    every kernel × normalisation × backend against two plain loops over i and j: the largest
                           deviation in value and in gradient, in float64
  nonloc bench memory      peak memory and time of forward and backward against M, each size in a fresh process:
                           dot and concat up to 1,048,576 positions, gaussian up to 65,536
  nonloc bench backends    reference against factored, taking turns in one run

  nonloc bench memory --output results/bench

Exit codes: 0 measured; 1 a deviation is above its limit."""

SUBJECTS = ("accuracy", "memory", "backends")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("subject", choices=SUBJECTS, help="what to measure")
    parser.add_argument(
        "--output",
        type=str | None,
        default=None,
        metavar="DIR",
        help="keep the numbers as DIR/<subject>.json",
    )
    parser.add_argument("--repeats", type=int, default=7, help="timings of each side (backends)")
    parser.add_argument("--trials", type=int, default=3, help="random problems of each cell (accuracy)")
    parser.add_argument("--device", default="cpu", help="where to time (backends): cpu or cuda")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    for name in ("repeats", "trials"):
        if options[name] < 1:
            raise ValueError(f"--{name} must be at least 1, got {options[name]}")

    import torch

    from nonloc.bench import accuracy, backends, memory, table
    from nonloc.runs import write_atomically
    from nonloc.training.machine import machine, versions

    if options.subject == "accuracy":
        rows = [found.to_dict() for found in accuracy.deviations(options.trials)]
        text = table.accuracy_table(rows)
    elif options.subject == "memory":
        rows = []
        for kind, normalize, sizes in memory.LADDERS:
            for found in memory.ladder(kind, normalize, sizes):
                output.talk(f"{kind} at M = {found.positions:,}: {found.peak_bytes / 2**20:.1f} MiB")
                rows.append(found.to_dict())
        text = table.memory_table(rows)
    else:
        rows = [found.to_dict() for found in backends.timings(options.repeats, options.device)]
        text = table.backends_table(rows)
    value = {
        "command": f"nonloc bench {options.subject}",
        "rows": rows,
        "machine": machine(torch.device(options.device)),
        "versions": versions(),
    }
    if options.output is not None:
        folder = Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / f"{options.subject}.json", f"{content}\n".encode())
    output.result(text, value)
    return EXIT_DONE if all(row.get("passed", True) for row in rows) else EXIT_FAILED
