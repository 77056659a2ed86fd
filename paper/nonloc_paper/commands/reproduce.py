"""nonloc reproduce: a whole table, figure or demo, and its report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_choice, check_whole, shortened
from nonloc.cli.durations import format_duration, parse_duration
from nonloc.cli.output import Output, add_output_arguments
from nonloc.cli.parser import unknown_name
from nonloc.outcomes import EXIT_DONE, EXIT_LOCKED
from nonloc_paper.commands.many_runs import RunsProgress, add_many_runs_arguments, parse_changes
from nonloc_paper.commands.parser import CommandParser, add_optional, add_words
from nonloc_paper.paths import real_path, results_folder
from nonloc_paper.runs import Run
from nonloc_paper.suites import SUITES, Suite, arranged_suite
from nonloc_paper.suites.archive import (
    WEIGHTS,
    KeepReport,
    check_keep,
    keep,
    lock_folder,
    move_spent,
    note_spent,
    restore,
)
from nonloc_paper.suites.demo import QUICK_EPOCHS, QUICK_ROWS
from nonloc_paper.suites.rows import MOST_THREADS, read_plan, write_plan
from nonloc_paper.training.recipe import Recipe

if TYPE_CHECKING:
    from nonloc_paper.report.records import Collection
    from nonloc_paper.report.table1_runs import Table1Runs
    from nonloc_paper.suites.train_all import SuiteProgress

DEMO = "demo"
ENGINES = ("local", "ray")
PARSER = CommandParser
SUMMARY = "run all rows of the demo, a table or a figure, and write its report"
_SUITES = "\n".join(f"  {name:<15} {suite.title}" for name, suite in SUITES.items())
DESCRIPTION = f"""\
Train every row of a suite with every seed, look at each trained network, and write DIR/report.html. Runs are kept in
DIR/runs; what is finished is never done again, so the same command continues after any interruption. A run that
diverges is a result. Two processes may work in the same DIR: each passes over what the other holds.

On CUDA several runs are trained side by side in one process, each to the same end as alone, because one small network
does not fill a GPU: --side-by-side says how many. With --budget, runs that are known not to fit into what is left of
it are begun last; when it is spent, all that are under way are saved, and the same command goes on with them. Runs are
begun seed by seed, so that an interrupted table is balanced.

With --engine ray every run is a task of a Ray cluster (pip install 'nonloc-paper[ray]'; RAY_ADDRESS names the cluster,
else it is this machine). --side-by-side runs share a GPU. All machines must see DIR and --data-dir. A run that loses
its machine continues on another.

Runs that the --kept folder has count as done and are copied to DIR/runs, whichever suite they were kept for; with
--kept null and a new DIR all are trained anew. The page of the demo shows the runs on CIFAR-10 that are kept there.
--keep adds what is finished to that folder: <kept>/<suite>/<row>/<seed>/, small files, and the final weights of the
row's median seed, or of the seed nearest to it whose weights are available. To keep records small, some suites choose
the rows that have weights; --weights overrides the choice.

  nonloc reproduce demo --processes 2                          a few minutes on two cores
  nonloc reproduce demo --quick                                half a minute: two rows, one seed, half the steps
  nonloc reproduce table1 --seeds 1 --rows baseline 5-block --device cuda --budget 25m
  nonloc reproduce table1 --device cuda --side-by-side 6
  nonloc reproduce table1 --device cuda --budget 25m --keep    go on, and keep what is finished in paper/results/table1
  nonloc reproduce table1 --budget 0s --keep                   keep what is finished, train nothing
  nonloc reproduce table1 --set precision=float32 channels_last=false stage.init_std=0.07

Suites; those with n3 and n9 have 3 and 9 bottlenecks a group, as many as match the paper's baselines:
{_SUITES}

Exit codes: 0 all done, or --budget spent; 2 wrong usage; 1, 4 data missing or corrupt; 5 the rest is held by another
process; 130 and 143 interrupted after saving."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("suite", help=f"one of {', '.join(SUITES)}")
    add_optional(parser, "--output", "the folder; null is the suite's name", metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="a first look at the demo, in half a minute")
    add_optional(parser, "--seeds", "seeds a row; null is the suite's own number", int)
    add_words(parser, "--rows", "only these rows: numbers, or parts of labels or networks")
    add_many_runs_arguments(parser)
    parser.add_argument(
        "--kept",
        type=str | None,
        default=str(results_folder()),
        metavar="DIR",
        help="where finished runs are kept; what it has is not done again",
    )
    parser.add_argument("--keep", action="store_true", help="add the finished runs to --kept")
    add_optional(
        parser,
        "--weights",
        "of which runs of every row to add the weights: median, all or none; only those of a former median give way; "
        "null is median, of the rows that the suite chooses",
    )
    parser.add_argument("--engine", default="local", help=f"what trains the runs: {' or '.join(ENGINES)}")
    add_optional(parser, "--threads", "processor threads; null is the suite's own choice", int)
    parser.add_argument(
        "--processes", type=int, default=1, help="on the CPU: train in so many processes, each with --threads"
    )
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    if options.quick:
        _make_quick(options)
    plan: dict[str, Any] = {
        "name": options.suite,
        "seeds": options.seeds,
        "rows": list(options.rows),
        "changes": parse_changes(options.set),
    }
    suite = arranged_suite(**plan)
    if "stage" in plan["changes"] and not any(row.recipe.form for row in suite.rows):
        raise ValueError(
            "--set stage: no row that is chosen has nonlocal stages; leave it out, or choose other --rows"
        )
    if options.threads is not None:
        check_whole("threads", options.threads, most=MOST_THREADS)
    budget = None if options.budget is None else parse_duration(options.budget)
    folder = Path(options.output if options.output is not None else suite.name)
    if options.kept is not None and not Path(options.kept).is_dir():
        is_to_be_made = options.keep or options.kept == str(results_folder())
        if not is_to_be_made or Path(options.kept).exists():
            raise ValueError(f"--kept {options.kept} is not a folder; name that of the kept runs, or null")
    if options.keep:
        if options.kept is None:
            raise ValueError("--keep needs a folder to keep runs in; name it with --kept DIR")
        work, kept = real_path(folder), real_path(options.kept)
        if kept in (work, *work.parents) or work in kept.parents:
            raise ValueError(
                f"of --output {folder} and --kept {options.kept} one lies in the other, so runs would be there "
                "twice; name two folders apart"
            )
        check_keep(
            suite, options.kept, changes=plan["changes"], weights=options.weights, runs=folder / "runs"
        )

    from nonloc_paper.report.page import write_page
    from nonloc_paper.report.records import collect
    from nonloc_paper.report.sentences import summary
    from nonloc_paper.report.surprise import surprise
    from nonloc_paper.training.machine import device_or_best, machine
    from nonloc_paper.training.step import slow_precision

    # What cannot be run must not become the plan of a folder.
    if options.engine not in ENGINES:
        raise unknown_name(options.engine, "known engine", ENGINES, "choose one of")
    if options.weights is not None:
        check_choice("weights", options.weights, WEIGHTS)
    is_local = options.engine == "local"
    if not is_local and find_spec("ray") is None:
        raise ValueError("--engine ray needs Ray; pip install 'nonloc-paper[ray]', or leave --engine out")
    if not is_local and options.device not in (None, "cpu", "cuda"):
        raise ValueError(f"--device {shortened(options.device)}: Ray chooses the GPU itself; use cpu or cuda")
    where = device_or_best(options.device if is_local else "cpu")
    if options.side_by_side is not None:
        check_whole("side_by_side", options.side_by_side)
    check_whole("processes", options.processes)
    if options.quick and is_local and where.type == "cpu":
        options.processes = max(2, options.processes)  # its rows are two
    if options.processes > 1 and (where.type != "cpu" or not is_local):
        raise ValueError(
            f"--processes {options.processes} is for the CPU of this machine; use --side-by-side on a GPU"
        )
    before = read_plan(folder)
    if before and before["name"] != suite.name:
        raise ValueError(
            f"{folder} holds the suite {before['name']!r}; use another --output for {suite.name!r}"
        )
    command = command_line(options, folder)
    plan |= {"command": command, "seconds": float(before.get("seconds", 0.0))}
    # Before any work, so that even a killed command leaves a folder that can be reported on.
    write_plan(folder, plan)
    recorded = _recorded(suite, options)
    known = _restore(suite, folder, options, output)
    slow = next(filter(None, (slow_precision(row.recipe, where) for row in suite.rows)), "")
    if slow and is_local:
        output.talk(f"{slow}: --set precision=float32 channels_last=false")
    if options.processes > 1:
        output.talk(f"{options.processes} processes train at once; you see the runs of one")
    started = time.monotonic()
    progress = _train(suite, folder, options, budget, known, shown=not output.is_quiet)
    seconds = time.monotonic() - started
    # Read again: another process may have worked in the folder, too.
    plan["seconds"] = round(read_plan(folder).get("seconds", 0.0) + seconds, 1)
    write_plan(folder, plan)
    if seconds >= 1:
        # Less is no training, but finding out that there is nothing to do.
        for device, its_seconds in (progress.spent or {machine(where)["device"]: seconds}).items():
            note_spent(folder, seconds=round(its_seconds, 1), device=device)
    report = _keep(suite, folder, options, plan["changes"]) if options.keep else None
    collection = collect(folder)
    if suite.name == DEMO and _certify_best(collection):
        collection = collect(folder)
    path = write_page(collection, recorded=recorded)
    left = [
        f"{len(progress.done)} of {len(progress.done) + len(progress.left)} runs are done. {progress.reason}".rstrip(),
        f"Continue with: {command}",
    ]
    done = "" if seconds >= 1 or progress.left else "Everything had been trained before. "
    lines = [
        *(left if progress.left else []),
        *_keep_lines(report),
        *_result_lines(collection, surprise(collection)),
    ]
    output.result(
        "\n".join([*lines, f"{done}{format_duration(plan['seconds'])} in all", str(path)]),
        {
            **summary(collection),
            "report": str(path),
            "done": len(progress.done),
            "left": [recipe.name for recipe in progress.left],
            "reason": progress.reason,
            "seconds": plan["seconds"],
            "kept": report and {"runs": len(report.new) + len(report.same), "bytes": report.size},
        },
    )
    if progress.errors:
        # What could be done is done, recorded and printed.
        raise progress.errors[0]
    if progress.signal is not None:
        return 128 + progress.signal
    return EXIT_LOCKED if progress.locked and not progress.reason else EXIT_DONE


def _restore(suite: Suite, folder: Path, options: Namespace, output: Output) -> list[Recipe]:
    """Copy recorded runs of the suite to the folder's own runs; return their recipes."""
    if options.kept is None:
        return []
    known = restore(suite, options.kept, folder / "runs")
    if known:
        output.talk(
            f"{len(known)} runs are kept in {options.kept} and count as done; "
            "to train them anew: --kept null and a new --output"
        )
    return known


def _keep(suite: Suite, folder: Path, options: Namespace, changes: dict[str, Any]) -> KeepReport:
    kept = Path(options.kept) / suite.name
    with lock_folder(kept, wait=True):
        report = keep(suite, folder / "runs", options.kept, changes=changes, weights=options.weights)
        move_spent(folder, kept)
    return report


def _keep_lines(report: KeepReport | None) -> list[str]:
    if report is None:
        return []
    lines = [
        f"kept: {len(report.new)} new runs, {len(report.same)} as before, {len(report.weights)} with weights, "
        f"{report.size / 1e6:.2f} MB of {report.total / 1e6:.2f} MB in that folder"
    ]
    if report.lacking:
        lines.append(f"weights that are not available: {'; '.join(report.lacking)}")
    return lines


def _recorded(suite: Suite, options: Namespace) -> Table1Runs | None:
    """Return the recorded runs on CIFAR-10 for the page of the demo, which has none of its own."""
    from nonloc_paper.report.reproduction import has_records
    from nonloc_paper.report.table1_runs import read_table1_runs

    if suite.name != DEMO or options.kept is None or not has_records(options.kept):
        return None
    return read_table1_runs(options.kept)


def _make_quick(options: Namespace) -> None:
    """Set the options that make the demo short; a ValueError for what --quick does not go with."""
    if options.suite != DEMO:
        raise ValueError(f"--quick is for the demo; leave it out, or reproduce {DEMO}")
    if options.rows or options.set or options.seeds is not None:
        raise ValueError("--quick chooses rows, seeds and steps itself; leave out --rows, --set and --seeds")
    options.seeds, options.rows, options.set = 1, list(QUICK_ROWS), [f"epochs={QUICK_EPOCHS}"]
    if options.output is None:
        options.output = f"{DEMO}-quick"


def _certify_best(collection: Collection) -> bool:
    """Certify the network of the best row that the page looks at; return whether that is new."""
    from nonloc_paper.report.surprise import best_row
    from nonloc_paper.training.certificates import certify_run

    row = best_row(collection)
    example = None if row is None else row.example
    if example is None or example.stability or not example.spectrum.get("stages"):
        return False
    run = Run(example.path)
    if not run.has_weights:
        return False
    certify_run(run, keep=True)
    return True


def _result_lines(collection: Collection, sentences: Sequence[str]) -> list[str]:
    """The tables, no wider than the terminal, and what they say."""
    from nonloc_paper.commands.terminal import fit_table, terminal_width
    from nonloc_paper.report.records import score_name
    from nonloc_paper.report.tables import results_table

    width = terminal_width()
    lines: list[str] = []
    for score in sorted({score_name(row.recipe) for row in collection.rows}):
        lines += [fit_table(results_table(collection, score), width), ""]
    for sentence in sentences:
        lines += [sentence if width is None else fill(sentence, width), ""]
    return lines


def _train(
    suite: Suite,
    folder: Path,
    options: Namespace,
    budget: float | None,
    known: Sequence[Recipe],
    *,
    shown: bool,
) -> SuiteProgress:
    import torch

    from nonloc_paper.suites.processes import train_all_by_processes

    threads = suite.threads if options.threads is None else options.threads
    if threads is not None:
        torch.set_num_threads(threads)
    # Seed by seed and not row by row: what a budget cuts off is then seeds, and rows can be compared early.
    recipes = sorted(
        (recipe for row in suite.rows for recipe in suite.recipes(row)), key=lambda recipe: recipe.seed
    )
    todo = [recipe for recipe in recipes if recipe not in known]
    done = len(recipes) - len(todo)
    with RunsProgress(suite.name, len(recipes), is_shown=shown) as overall:
        common: dict[str, Any] = {
            "data_dir": options.data_dir,
            "device": options.device,
            "budget": budget,
            "side_by_side": options.side_by_side,
            "tell": lambda index, recipe: overall.begin(done + index, suite.run_label(recipe)),
        }
        if options.engine == "ray":
            from nonloc_paper.suites.ray_engine import train_all_by_ray

            progress = train_all_by_ray(todo, folder / "runs", **common)
        else:
            progress = train_all_by_processes(
                todo,
                folder / "runs",
                processes=options.processes,
                progress=shown,
                others=[(recipe, Run(folder / "runs" / recipe.name)) for recipe in known],
                label=suite.run_label,
                **common,
            )
        overall.reach(done + len(progress.done))
    return replace(progress, done=(*known, *progress.done))


def command_line(options: Namespace, folder: Path) -> str:
    """The command that makes the same again, or goes on with it."""
    words = ["nonloc", "reproduce", options.suite, "--output", str(folder)]
    words += [] if options.engine == "local" else ["--engine", options.engine]
    words += [] if options.processes == 1 else ["--processes", str(options.processes)]
    for name in ("seeds", "threads", "device", "side_by_side", "data_dir", "weights"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if options.kept != str(results_folder()):
        words += ["--kept", "null" if options.kept is None else options.kept]
    words += ["--keep"] if options.keep else []
    for name in ("rows", "set"):
        if getattr(options, name):
            words += [f"--{name}", *getattr(options, name)]
    return shlex.join(words)
