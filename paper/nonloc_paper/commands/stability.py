"""nonloc stability: whether the stages of a run can make features grow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_whole
from nonloc.cli.output import Output, add_output_arguments, check_output_folder
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_data_dir, add_optional
from nonloc_paper.runs import Run, finite_or_none, write_atomically

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
Every image takes some seconds for a thousand positions. Writes stability.svg and stability.png.

  nonloc stability runs/four
  nonloc stability runs/four --images 16 --json --output elsewhere
  nonloc stability paper/results/table1/5-block-proposed/4 --keep    as stability.json next to the run's other records

Exit codes: 0 done, whatever the verdict; 2 not a run folder, no weights there, or no nonlocal blocks; 4 damaged
files."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder")
    parser.add_argument(
        "--images",
        type=int,
        default=2,
        help="over how many test images, the records have 2; the worst counts",
    )
    add_optional(parser, "--output", "where the pictures go; null is the run folder", metavar="DIR")
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
    place = folder.path if options.output is None else Path(options.output)
    check_output_folder(place)

    from nonloc.plots import png, svg
    from nonloc_paper.training.certificates import certify_run

    stages = certify_run(
        folder, data_dir=options.data_dir, device=options.device, images=options.images, keep=options.keep
    )
    place.mkdir(parents=True, exist_ok=True)
    figure = _figure(stages)
    written = []
    for path, content in ((place / "stability.svg", svg(figure)), (place / "stability.png", png(figure))):
        write_atomically(path, content)
        written.append(str(path))
    text = "\n\n".join([*(_text(stage) for stage in stages), "\n".join(written)])
    value = {"run": str(folder.path), "images": options.images, "stages": finite_or_none(stages)}
    output.result(text, {**value, "figures": written})
    return EXIT_DONE


def _figure(stages: list[dict[str, Any]]) -> Any:
    """For each stage: the growth of its sub-blocks and of all together, and W between 0 and the limit."""
    from matplotlib.figure import Figure

    from nonloc.plots import CHANCE, NEGATIVE, POSITIVE, WIDTH, style

    with style():
        figure = Figure(figsize=(WIDTH, 3.0 * len(stages)), layout="constrained")
        for (left, right), stage in zip(figure.subplots(len(stages), 2, squeeze=False), stages, strict=True):
            blocks = stage["blocks"]
            numbers = range(1, len(blocks) + 1)
            names, bars = ["all", *map(str, numbers)], [stage, *blocks]
            # A factor that is no number is infinite: its bar is left out, and its word stays.
            heights = [one["growth"] if math.isfinite(one["growth"]) else math.nan for one in bars]
            by_verdict = {"stable": POSITIVE, "unstable": NEGATIVE, "not decided": CHANCE}
            colors = [by_verdict[one["verdict"]] for one in bars]
            drawn = left.bar(names, heights, width=0.6, color=colors)
            left.bar_label(drawn, [_growth(one) for one in bars], padding=2, fontsize=8)
            left.axhline(1, color=CHANCE, linewidth=0.8)
            left.margins(y=0.15)
            left.set(xlabel="sub-block", ylabel="growth of a signal")
            left.set_title(f"{stage['name']}: {stage['verdict']}")
            for name, label, look in (
                ("largest", "largest singular value of W", {"marker": "s", "color": POSITIVE}),
                ("lowest", "lowest eigenvalue of sym(W)", {"marker": "o", "color": NEGATIVE}),
                (
                    "limit",
                    "limit of a symmetric W ≥ 0 (CFL)",
                    {"marker": "_", "markersize": 16, "color": CHANCE},
                ),
            ):
                values = [math.nan if block[name] is None else block[name] for block in blocks]
                right.plot(numbers, values, linestyle="none", label=label, **look)
            right.axhline(0, color=CHANCE, linewidth=0.8)
            right.set_xticks(numbers)
            right.set_xlim(0.5, len(blocks) + 0.5)
            right.margins(y=0.15)
            right.set(xlabel="sub-block")
            right.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)
    return figure


def _text(stage: dict[str, Any]) -> str:
    spread = stage["logit_spread"]
    logits = [] if spread is None else [f"  logits of a row differ by up to {spread:.3g}"]
    lines = [
        f"{stage['name']}: {stage['num_blocks']} {stage['form']} sub-blocks on {stage['positions']:,} positions",
        f"  {stage['verdict'].upper()}, growth {_growth(stage)} in {stage['norm']}",
        f"  {stage['reason']}",
        *logits,
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
