"""nonloc eval: a recorded error, computed again from the weights."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED, CorruptDataError, MissingDataError
from nonloc_paper.commands.parser import CommandParser, add_data_dir, add_device, add_optional
from nonloc_paper.runs import Run, find_runs

if TYPE_CHECKING:
    from nonloc_paper.suites.recheck import Recheck

PARSER = CommandParser
SUMMARY = "compute a run's error again from its weights, next to the recorded one"
DESCRIPTION = """\
Take the final weights of RUN, check them against the hash in its result, evaluate the network on the test images and
print the recorded and the recomputed score and by how many images they differ. RUN may also be a folder with runs
below it: then all that trained and have weights are evaluated, one line each. On the kind of hardware that made the
record the two must be the same to the last image; on another kind they may differ by 0.05 %. A bfloat16 recipe is
computed in bfloat16 on a CPU, too, which takes hours where the processor has no instructions for it; --precision
float32 takes minutes, and may come to other answers on some images, at times on more than those 0.05 %.

  nonloc eval paper/results/table1/5-block-proposed/4 --data-dir data
  nonloc eval paper/results/table1/5-block-proposed/4 --device cpu --precision float32 --json
  nonloc eval paper/results --data-dir data                          all whose weights are kept

Exit codes: 0 they agree; 1 some do not, or the data are missing; 2 not a finished run, or none with its weights; 4 the
weights are not those of the result."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder with its final weights, or a folder with runs")
    add_data_dir(parser)
    add_device(parser)
    text = "float32 or bfloat16; null is the recipe's, which a processor may be slow at"
    add_optional(parser, "--precision", text)
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    below = find_runs(options.run)
    own = [one for one in below if one.path == Path(options.run)]

    from nonloc_paper.data import load
    from nonloc_paper.suites.recheck import recheck
    from nonloc_paper.training.machine import device_or_best, place
    from nonloc_paper.training.recipe import Recipe

    load_once = functools.cache(lambda name: load(name, options.data_dir))
    device = device_or_best(options.device)
    checks: list[tuple[Run, Recheck]] = []
    errors: dict[str, tuple[Run, Exception]] = {}
    for one in own or below:
        try:
            ending = one.read_result()["outcome"]["ending"] if one.is_finished and not own else ""
            if not own and not (ending == "converged" and one.has_weights):
                continue
            recipe = Recipe.of(one)
            checked = recheck(
                one,
                # A module of one's own is refused as such, before its data are looked for.
                None if own or recipe.is_own_network else load_once(recipe.data),
                data_dir=options.data_dir,
                device=device,
                precision=options.precision,
                tell=output.talk,
            )
        except (ValueError, CorruptDataError, MissingDataError) as error:
            # Data that many runs miss are reported once.
            errors.setdefault(str(error), (one, error))
            continue
        checks.append((one, checked))
        if not own:
            output.talk(f"{one.path}: {_difference(checked)}")
    _, first_error = next(iter(errors.values()), (None, None))
    if not checks and not below:
        raise ValueError(
            f"{options.run} is not a run folder, and holds none; name a run with its final weights"
        )
    if not checks:
        raise first_error or ValueError(
            f"none of the {len(below)} runs in {options.run} is finished and has its final weights; name one that is"
        )
    agreed = sum(checked.agrees for _, checked in checks)
    text = _one_text(checks[0][1]) if own else _table(checks, agreed)
    output.result(
        "\n".join([text, *(f"{one.path} is not evaluated: {error}" for one, error in errors.values())]),
        {
            "rows": [{"run": str(one.path), **checked.to_dict()} for one, checked in checks],
            "agree": agreed,
            "errors": list(errors),
            **place(device),
        },
    )
    if first_error is not None:
        # What could be evaluated is printed first.
        raise first_error
    return EXIT_DONE if agreed == len(checks) else EXIT_FAILED


def _one_text(check: Recheck) -> str:
    unit = _unit(check)
    if check.is_same_hardware:
        allowed = "the same hardware"
    elif check.precision == check.stored_precision:
        allowed = f"at most {check.tolerance} {unit} on other hardware"
    else:
        allowed = (
            f"at most {check.tolerance} {unit}; another precision may take more: try {check.stored_precision}"
        )
    return (
        f"recorded    {check.stored:.4f} {unit} on {check.stored_device}, {check.stored_precision}\n"
        f"recomputed  {check.recomputed:.4f} {unit} on {check.device}, {check.precision}\n"
        f"difference  {_difference(check)} ({allowed})"
    )


def _table(checks: list[tuple[Run, Recheck]], agreed: int) -> str:
    from nonloc_paper.report.tables import Table

    lines = tuple(
        (str(run.path), f"{one.stored:.2f}", f"{one.recomputed:.2f}", one.precision, _difference(one))
        for run, one in checks
    )
    shown = Table(("run", "recorded", "recomputed", "precision", "difference"), lines).as_text()
    return f"{shown}\n\n{agreed} of {len(checks)} agree; recomputed on {checks[0][1].device}"


def _difference(check: Recheck) -> str:
    images = "" if check.images is None else f" ({check.images:+d} images)"
    verdict = "agree" if check.agrees else "DIFFER"
    return f"{check.recomputed - check.stored:+.4f} {_unit(check)}{images}: they {verdict}"


def _unit(check: Recheck) -> str:
    return "%" if check.score == "error" else "dB"
