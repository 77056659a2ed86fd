"""python -m benchmarks NAME: measurements of the operator, the processes and the certificates, as tables and JSON."""

from __future__ import annotations

import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from nonloc.cli.output import Output, add_output_arguments
from nonloc.cli.parser import Parser, with_underscores
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, NonlocError
from nonloc_paper.runs import finite_or_none, write_atomically, write_json

DESCRIPTION = """\
Measure on this machine and print a table; with --output, keep it as JSON with machine and versions.

  python -m benchmarks NAME

  accuracy      every kernel × normalisation × backend against two plain loops over i and j: the largest
                deviation in value and in gradient, in float64
  memory        peak memory and time of forward and backward against M, each size in a fresh process:
                dot and concat up to 1,048,576 positions, gaussian up to 65,536
  backends      reference against factored, taking turns in one run
  stage         a stage, forward and backward. CUDA: fused against naive, SDPA flash and cuDNN,
                FlexAttention and compiled naive, captured and eager; CPU: factored against naive. Held to
                float64 first: what is off is not timed
  kernels       the kernels of one fused stage, each beside its floors (CUDA)
  convolutions  the convolutions of PreResNet-20, our own kernels against torch's, pass by pass (CUDA)
  graphs        a graph of a million points, ten steps, beside scikit-learn and scipy by hand
  certificates  `certify` on random stages, a third of them at the boundary, against dense norms
  stable        weight="stable", 64 sub-blocks, saturated weights, on inputs chosen to grow
  training      the training step against a plain PyTorch loop: the same losses, then the time, alone and
                with several runs side by side
  learning      the first epochs on CIFAR-10 by a plain PyTorch loop beside several seeds of the library:
                one learning curve
  forms         a training step with 2, 3 and 4 original and proposed blocks: which form costs less
  profile       the kernels of one captured training step, by kind and by name (CUDA)

  python -m benchmarks memory --output benchmarks/results
  python -m benchmarks learning --data-dir data --epochs 5

Exit codes: 0 measured; 1 a deviation is above its limit, losses disagree, or a certificate is wrong; 1, 4 data missing
or corrupt."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("subject", choices=tuple(SUBJECTS), help="what to measure")
    parser.add_argument(
        "--output",
        default=None,
        metavar="DIR",
        help="keep the numbers as DIR/<subject>.json (DIR/stage_cpu.json on the CPU); of stage, kernels, convolutions, "
        "training, learning, forms and profile the table too, as DIR/<subject>.md",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="timings of each side (backends, stage, training, forms)"
    )
    parser.add_argument("--trials", type=int, default=3, help="random problems of each cell (accuracy)")
    parser.add_argument(
        "--cases", type=int, default=10_000, help="random stages (certificates), inputs (stable: a tenth)"
    )
    parser.add_argument(
        "--device",
        default=None,
        help="where (backends, stage, training, learning, forms, profile): cpu or cuda; default: cuda where there is "
        "one for all but backends, else cpu",
    )
    parser.add_argument("--data_dir", default=None, metavar="DIR", help="where the data sets are (learning)")
    parser.add_argument("--epochs", type=int, default=5, help="how many (learning)")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    for name in ("repeats", "trials", "cases", "epochs"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(options, name)}")

    import torch

    from nonloc_paper.training.machine import device_or_best, machine, versions

    if options.device is None:
        has_cuda = options.subject in ON_DEVICE and torch.cuda.is_available()
        options.device = "cuda" if has_cuda else "cpu"
    device = device_or_best(options.device)
    rows, text = SUBJECTS[options.subject](options, output)
    name = "stage_cpu" if options.subject == "stage" and device.type != "cuda" else options.subject
    value = {
        "command": f"python -m benchmarks {options.subject}{'' if name == options.subject else ' --device cpu'}",
        "rows": finite_or_none(rows),
        "machine": machine(device),
        "versions": versions(device),
    }
    if options.output is not None:
        folder = Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", value, indent=1)
        if options.subject in ON_DEVICE:
            write_atomically(folder / f"{name}.md", f"{text}\n".encode())
    output.result(text, value)
    return EXIT_DONE if all(row.get("passed", True) for row in rows) else EXIT_FAILED


Rows = list[dict[str, Any]]


def _accuracy(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import accuracy, table

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = [*accuracy.deviations(options.trials), *accuracy.fused_deviations(device, options.trials)]
    rows = [one.to_dict() for one in found]
    return rows, table.accuracy_table(rows)


def _memory(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import memory, table

    rows = []
    for kind, normalize, sizes in memory.LADDERS:
        for found in memory.ladder(kind, normalize, sizes):
            output.talk(f"{kind} at M = {found.positions:,}: {found.peak_bytes / 2**20:.1f} MiB")
            rows.append(found.to_dict())
    return rows, table.memory_table(rows)


def _backends(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import backends, table

    rows = [found.to_dict() for found in backends.timings(options.repeats, options.device)]
    return rows, table.backends_table(rows)


def _stage(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import stage, stage_cpu

    device = torch.device(options.device)
    if device.type == "cuda":
        rows = [found.to_dict() for found in stage.all_timings(device, options.repeats, output.talk)]
        return rows, stage.table(rows)
    rows = [found.to_dict() for found in stage_cpu.timings(options.repeats, output.talk)]
    return rows, stage_cpu.table(rows)


def _graphs(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import graphs, table

    rows = [graphs.compare()]
    return rows, table.graphs_table(rows)


def _certificates(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import certificates, table

    rows = []
    for by_matrix, share in ((True, 1), (False, 3)):
        found = certificates.audit(max(1, options.cases // share), by_matrix=by_matrix)
        rows.append({**found, "passed": not found["wrong"]})
        output.talk(
            f"{'by matrix' if by_matrix else 'by bounds'}: {len(found['wrong'])} wrong of {found['cases']:,}"
        )
    return rows, table.certificates_table(rows)


def _stable(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import stable_stage, table

    rows = stable_stage.audit(max(1, options.cases // 10))
    return rows, table.stable_table(rows)


def _training(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import training_step

    device = torch.device(options.device)
    rows = [found.to_dict() for found in training_step.all_timings(device, options.repeats)]
    return rows, training_step.table(rows)


def _learning(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import learning
    from nonloc_paper.data import load

    data = load("cifar10", options.data_dir)
    found = learning.curves(data, torch.device(options.device), epochs=options.epochs, tell=output.talk)
    rows = [point.to_dict() for point in found]
    return rows, learning.table(rows)


def _forms(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import forms

    rows = [cost.to_dict() for cost in forms.costs(torch.device(options.device), rounds=options.repeats)]
    return rows, forms.table(rows)


def _profile(options: Namespace, output: Output) -> tuple[Rows, str]:
    import torch

    from benchmarks import profile_step
    from benchmarks.training_step import NETWORKS

    device = torch.device(options.device)
    rows = [profile_step.profile(network, device).to_dict() for network in NETWORKS]
    return rows, profile_step.table(rows)


def _kernels(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import stage_kernels

    found = stage_kernels.measure()
    return [kernel.to_dict() for kernel in found], stage_kernels.table(found)


def _convolutions(options: Namespace, output: Output) -> tuple[Rows, str]:
    from benchmarks import convolutions

    rows = [found.to_dict() for found in convolutions.measure()]
    return rows, convolutions.table(rows)


# What is measured of training is measured where one trains, and kept as a table as well.
ON_DEVICE = ("stage", "kernels", "convolutions", "training", "learning", "forms", "profile")

SUBJECTS = {
    "accuracy": _accuracy,
    "memory": _memory,
    "backends": _backends,
    "stage": _stage,
    "kernels": _kernels,
    "convolutions": _convolutions,
    "graphs": _graphs,
    "certificates": _certificates,
    "stable": _stable,
    "training": _training,
    "learning": _learning,
    "forms": _forms,
    "profile": _profile,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and return its exit code."""
    parser = Parser(prog="python -m benchmarks", description=DESCRIPTION)
    add_arguments(parser)
    try:
        return run(parser.parse_args(with_underscores(sys.argv[1:] if arguments is None else arguments)))
    except (ArgumentError, ValueError, ImportError, NonlocError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, NonlocError) else EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
