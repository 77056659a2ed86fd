"""nonloc map: which rate, which initialisation, how many blocks? Hundreds of short runs into one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_whole, shown
from nonloc.cli.durations import parse_duration
from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.many_runs import RunsProgress, add_many_runs_arguments, parse_changes
from nonloc_paper.commands.parser import CommandParser, add_optional, add_words
from nonloc_paper.map.cells import PARTS, MapPart, find_part
from nonloc_paper.map.table import MapTable
from nonloc_paper.paths import results_folder
from nonloc_paper.suites.archive import lock_folder, note_spent
from nonloc_paper.suites.rows import MOST_SEEDS

PARSER = CommandParser
SUMMARY = "the trainability map: rate × initialisation × blocks, one table of hundreds of short runs"
_WIDTH = max(map(len, PARTS))
_LISTED = "\n".join(
    f"  {name:<{_WIDTH}} {len(part.cells)} cells, {part.seeds} seeds. {part.title}"
    for name, part in PARTS.items()
)
DESCRIPTION = f"""\
Train every cell of a part of the map with every seed, many side by side, and add one line for each to
DIR/<part>.jsonl: how it ended, at which step it diverged, its losses and error, how large its stages make features and
logits at the end, and for a run that diverged what they did in the last 100 steps. Runs have folders in --work only
until their line is written. What the table has is never done again, so the same command continues after any
interruption.

{_LISTED}

  nonloc map one_epoch --device cuda --budget 25m
  nonloc map ten_epochs --device cuda --budget 25m
  nonloc map one_epoch --only "rate 0.1" "original 4" --seeds 1

Exit codes: 0 all done, or --budget spent, whatever diverged; 1 data missing; 2 wrong usage;
4 corrupt data; 5 another process works on the table; 130 and 143 interrupted after saving."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("part", help=f"one of {', '.join(PARTS)}")
    parser.add_argument(
        "--output", default=str(results_folder() / "map"), metavar="DIR", help="the folder of the tables"
    )
    parser.add_argument("--work", default="runs/map", metavar="DIR", help="for the runs that are under way")
    add_words(parser, "--only", "cells whose name has all of these parts")
    add_optional(parser, "--seeds", "seeds a cell; null is the part's own number", int)
    add_many_runs_arguments(parser)
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    part = _arranged(options)
    budget = None if options.budget is None else parse_duration(options.budget)

    from nonloc_paper.map.run import run_part
    from nonloc_paper.training.machine import device_or_best, machine
    from nonloc_paper.training.step import slow_precision

    if slow := slow_precision(part.base, device_or_best(options.device)):
        output.talk(f"{slow}: --set precision=float32 channels_last=false")
    started = time.monotonic()
    # Read while it is held: what another process adds before that is there, and none adds after.
    with (
        lock_folder(options.output),
        RunsProgress(part.name, len(part.runs()), is_shown=not output.is_quiet) as overall,
    ):
        table = MapTable(Path(options.output) / f"{part.name}.jsonl")
        progress = run_part(
            part,
            table,
            options.work,
            data_dir=options.data_dir,
            device=options.device,
            budget=budget,
            side_by_side=options.side_by_side,
            tell=lambda index, recipe: overall.begin(index, f"{recipe.network}, seed {recipe.seed}"),
        )
        overall.reach(progress.total - len(progress.left))
        if progress.new or progress.reason:
            note_spent(
                options.output,
                part=part.name,
                seconds=round(time.monotonic() - started, 1),
                device=machine(device_or_best(options.device))["device"],
                runs=progress.new,
            )
    wanted = {(cell.name, seed) for cell, seed in part.runs()}
    rows = [row for row in table.rows if (row["cell"], row["seed"]) in wanted]
    lines = [
        map_text(rows),
        f"{len(rows)} of {progress.total} runs are done, {progress.new} of them now. {progress.reason}".rstrip(),
        *(
            f"no look at the last steps of {row['cell']}, seed {row['seed']}: {row['before_error']}"
            for row in rows
            if row["before_error"]
        ),
        str(table.path),
    ]
    output.result(
        "\n".join(lines),
        {
            "table": str(table.path),
            "done": len(rows),
            "new": progress.new,
            "left": [f"{cell.name}, seed {seed}" for cell, seed in progress.left],
            "reason": progress.reason,
            "diverged": sum(row["ending"] == "diverged" for row in rows),
        },
    )
    return EXIT_DONE if progress.signal is None else 128 + progress.signal


def _arranged(options: Namespace) -> MapPart:
    part = find_part(options.part)
    changes = parse_changes(options.set)
    fixed = sorted({"network", "learning_rate", "seed"} & changes.keys())
    if fixed:
        raise ValueError(
            f"--set {fixed[0]}: a cell of the map says that itself; choose cells with --only, seeds with --seeds"
        )
    if changes:
        part = replace(part, base=part.base.with_(**changes))
    if options.only:
        cells = tuple(cell for cell in part.cells if all(text in cell.name for text in options.only))
        if not cells:
            raise ValueError(
                f"no cell of {part.name} has {' and '.join(map(shown, options.only))} in its name; names are such as "
                f"{part.cells[0].name!r}"
            )
        part = replace(part, cells=cells)
    if options.seeds is not None:
        part = replace(part, seeds=check_whole("--seeds", options.seeds, most=MOST_SEEDS))
    return part


def map_text(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each rate and initialisation, a column for each form and number of blocks: how many of the runs that
    are there diverged, as 1/2."""
    columns = sorted(
        {(row["form"], row["blocks"]) for row in rows}, key=lambda one: (one[0] != "original", one)
    )
    lines: dict[tuple[float, str], dict[tuple[str, int], list[bool]]] = {}
    for row in rows:
        line = lines.setdefault((row["rate"], row["init"]), {})
        line.setdefault((row["form"], row["blocks"]), []).append(row["ending"] == "diverged")
    names = [f"{form[:4]} {blocks}" for form, blocks in columns]
    table = ["diverged of done".ljust(26) + " ".join(name.rjust(7) for name in names)]
    for (rate, init), line in sorted(lines.items(), key=lambda one: -one[0][0]):
        counts = [f"{sum(line[one])}/{len(line[one])}" if one in line else "–" for one in columns]
        table.append(f"{rate:<5g} {init}".ljust(26) + " ".join(count.rjust(7) for count in counts))
    return "\n".join(table)
