"""nonloc eval: a recorded error, computed again from the weights."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED
from nonloc.runs import Run

SUMMARY = "compute a run's error again from its weights, beside the recorded one"
DESCRIPTION = """\
Take the final weights of RUN, check them against the hash in its result, evaluate the network on the test images and
print the recorded and the recomputed score and by how many images they differ. On the kind of hardware that made the
record they must be the same to the last image; on another kind they may differ by 0.05 %. A bfloat16 recipe is computed
in bfloat16 on a CPU, too, which takes hours where the processor has no instructions for it; --precision float32 takes
minutes, and may come to other answers on some images.

  nonloc eval results/table1/5-block-proposed/0 --data-dir data
  nonloc eval results/table1/5-block-proposed/0 --device cpu --precision float32 --json

Exit codes: 0 they agree; 1 they do not, or the data are missing; 2 not a finished run, or without its weights; 4 the
weights are not those of the result."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder with its final weights")
    parser.add_argument(
        "--data_dir", type=str | None, default=None, metavar="DIR", help="where the data sets are"
    )
    parser.add_argument(
        "--device", type=str | None, default=None, help="cpu or cuda; null is cuda where there is one"
    )
    parser.add_argument(
        "--precision",
        type=str | None,
        default=None,
        help="float32 or bfloat16; null is the recipe's, which a processor may be slow at",
    )
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    folder = Run.open(options.run)

    from nonloc.paper.recheck import recheck

    found = recheck(
        folder,
        data_dir=options.data_dir,
        device=options.device,
        precision=options.precision,
        tell=output.talk,
    )
    unit = "%" if found.score == "error" else "dB"
    images = "" if found.images is None else f" ({found.images:+d} images)"
    verdict = "agree" if found.agrees else "DIFFER"
    allowed = "the same hardware" if found.is_same_hardware else f"within {found.tolerance} {unit}"
    output.result(
        f"recorded    {found.stored:.4f} {unit} on {found.stored_device}\n"
        f"recomputed  {found.recomputed:.4f} {unit} on {found.device}, {found.precision}\n"
        f"difference  {found.recomputed - found.stored:+.4f} {unit}{images}: they {verdict} ({allowed})",
        {"run": str(folder.path), **found.to_dict()},
    )
    return EXIT_DONE if found.agrees else EXIT_FAILED
