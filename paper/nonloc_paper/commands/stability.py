"""nonloc stability: whether the stages of a run can make features grow."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_whole
from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_data_dir
from nonloc_paper.runs import Run, finite_or_none

LARGEST = 1_000_000  # images; more than any data set has
PARSER = CommandParser
SUMMARY = "certify the nonlocal stages of a run as stable or unstable, layer by layer"
DESCRIPTION = """\
Take the newest checkpoint of RUN, feed it the first test images, and ask of every nonlocal stage whether it can make
any signal grow with the kernels that arise there: stable, unstable (a growing signal is known) or not decided, with the
growth factor, the norm in which it holds, and why. Then the same of every sub-block alone, with the largest singular
value of its W and the lowest eigenvalue of sym(W), and the limit (CFL) below which a symmetric W ≥ 0 would be stable.
That is about signals through kernels as they are. Training can run away through the kernels themselves: then their
logits differ by hundreds and more, which is reported too.
Every image takes some seconds for a thousand positions.

  nonloc stability runs/four
  nonloc stability runs/four --images 16 --json
  nonloc stability paper/results/table1/5-block-proposed/4 --keep    as stability.json next to the run's other records

Exit codes: 0 done, whatever the verdict; 2 not a run folder, no weights there, or no nonlocal blocks."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder")
    parser.add_argument(
        "--images", type=int, default=4, help="over how many test images; the worst one counts"
    )
    add_data_dir(parser)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--keep", action="store_true", help="write it to RUN/stability.json; `nonloc report` then shows it"
    )
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    folder = Run.open(options.run)
    check_whole("--images", options.images, most=LARGEST)

    from nonloc_paper.training.certificates import certify_run

    stages = certify_run(
        folder,
        data_dir=options.data_dir,
        device=options.device,
        images=options.images,
        keep=options.keep,
    )
    text = "\n\n".join(_text(stage) for stage in stages)
    output.result(text, {"run": str(folder.path), "images": options.images, "stages": finite_or_none(stages)})
    return EXIT_DONE


def _text(stage: dict[str, Any]) -> str:
    lines = [
        f"{stage['name']}: {stage['num_blocks']} {stage['form']} sub-blocks on {stage['positions']:,} positions",
        f"  {stage['verdict'].upper()}, growth {_growth(stage)} in {stage['norm']}",
        f"  {stage['reason']}",
        *(
            []
            if stage["logit_spread"] is None
            else [f"  logits of a row differ by up to {stage['logit_spread']:.3g}"]
        ),
        "  block  verdict       growth   largest of W   lowest of sym(W)   limit",
    ]
    for number, block in enumerate(stage["blocks"], start=1):
        limit = "–" if block["limit"] is None else f"{block['limit']:.3f}"
        lines.append(
            f"  {number:5d}  {block['verdict']:<11} {_growth(block):>8} {block['largest']:14.3f} "
            f"{block['lowest']:z18.3f} {limit:>7}"
        )
    return "\n".join(lines)


def _growth(certificate: dict[str, Any]) -> str:
    """To four digits, or to as many as tell it from 1; what is above 1 in a stable stage is rounding."""
    growth, digits = certificate["growth"], 4
    while certificate["verdict"] != "stable" and growth != 1 and float(f"{growth:.{digits}g}") == 1:
        digits += 1
    return f"{growth:.{digits}g}"
