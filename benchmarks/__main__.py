"""python -m benchmarks NAME: measure on this machine, print a table, and record it as JSON.

A benchmark is a module here with `measure(options, talk)`, which returns rows, and `table(rows)`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from nonloc.cli.entry import CORRECTABLE
from nonloc.cli.output import Output, add_output_arguments
from nonloc.cli.parser import Parser, with_underscores
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, NonlocError
from nonloc_paper.runs import finite_or_none, write_atomically, write_json

# Name: what it measures, and the device it uses when --device is left out.
SUBJECTS = {
    "accuracy": (
        "every kernel × normalisation × backend against two plain loops over i and j, in float64",
        "",
    ),
    "memory": (
        "peak memory and time against M, each size in a fresh process, up to 1,048,576 positions",
        "cpu",
    ),
    "backends": ("reference against factored, in turns", "cpu"),
    "stage": (
        "a stage, forward and backward. CUDA: ours against naive, SDPA, FlexAttention and compiled naive;\n"
        "                CPU: factored against naive. What is far from float64 is not timed",
        "",
    ),
    "modules": ("whole modules as people call them, against the same by hand", ""),
    "graphs": ("a graph of a million points, ten steps, against scikit-learn and scipy by hand", "cpu"),
    "estimators": ("DiffusionMap and LabelDiffusion against what scikit-learn has for it", "cpu"),
    "certificates": (
        "`certify` on random stages, a third of them at the boundary, against dense norms",
        "cpu",
    ),
    "stable": ('weight="stable", 64 sub-blocks, saturated weights, on inputs chosen to grow', "cpu"),
    "training": ("the training step against a plain PyTorch loop: the same losses first, then the time", ""),
    "forms": ("a training step with 2, 3 and 4 original and proposed blocks: which form costs less", ""),
    "profile": ("the kernels of one captured training step, by kind and by name (CUDA)", ""),
}
# These are recorded as a table, too.
WITH_TABLE = ("stage", "modules", "training", "forms", "profile")
LISTED = "\n".join(f"  {name:<13} {summary}" for name, (summary, _) in SUBJECTS.items())
DESCRIPTION = f"""\
Measure on this machine and print a table; with --output, record it as JSON with machine and versions.
benchmarks/NOTES.md has the results of benchmarks that answered their question.

{LISTED}

  python -m benchmarks memory --output benchmarks/results
  python -m benchmarks stage --device cpu --repeats 3

Exit codes: 0 measured; 1 a deviation is above its limit, losses disagree, or a certificate is wrong; 2 wrong usage."""


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and return its exit code."""
    parser = Parser(prog="python -m benchmarks", description=DESCRIPTION)
    add = parser.add_argument
    add("subject", choices=tuple(SUBJECTS), help="what to measure")
    add(
        "--output",
        metavar="DIR",
        help="write DIR/<subject>.json (DIR/stage_cpu.json on the CPU); of stage, modules, training, forms and "
        "profile also the table, DIR/<subject>.md",
    )
    add("--repeats", type=int, default=7, help="timings of each side (backends, stage, training, forms)")
    add("--trials", type=int, default=3, help="random problems of each cell (accuracy)")
    add("--cases", type=int, default=10_000, help="random stages (certificates), inputs (stable: a tenth)")
    add("--device", help="cpu or cuda; default: cuda where there is one, and cpu for what measures the CPU")
    add_output_arguments(parser)
    try:
        options = parser.parse_args(with_underscores(sys.argv[1:] if arguments is None else arguments))
        for name in ("repeats", "trials", "cases"):
            if getattr(options, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(options, name)}")

        from nonloc_paper.training.machine import device_or_best, machine, versions

        subject, output = options.subject, Output(options)
        options.device = device = device_or_best(options.device or SUBJECTS[subject][1] or None)
        on_cpu = subject in ("stage", "modules") and device.type == "cpu"
        name = f"{subject}_cpu" if on_cpu else subject
        module = importlib.import_module(f"benchmarks.{'stage_cpu' if name == 'stage_cpu' else subject}")
        folder = None if options.output is None else Path(options.output)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
        rows = module.measure(options, output.talk)
        text = module.table(rows)
        value = {
            "command": f"python -m benchmarks {subject}{'' if name == subject else ' --device cpu'}",
            "rows": finite_or_none(rows),
            "machine": machine(device),
            "versions": versions(device),
        }
        if folder is not None:
            write_json(folder / f"{name}.json", value, indent=1)
            if subject in WITH_TABLE:
                write_atomically(folder / f"{name}.md", f"{text}\n".encode())
        output.result(text, value)
        return EXIT_DONE if all(row.get("passed", True) for row in rows) else EXIT_FAILED
    except CORRECTABLE as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, NonlocError) else EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
