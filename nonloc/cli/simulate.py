"""nonloc simulate: a nonlocal process on the pixels of an image, as numbers, curves and a strip of states."""

from __future__ import annotations

import math
import os
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from nonloc._checks import check_memory, shortened, shown
from nonloc.cli.durations import format_duration
from nonloc.cli.output import Output, add_output_arguments, check_output_folder
from nonloc.cli.parser import as_options
from nonloc.cli.simulate_picture import read_picture
from nonloc.outcomes import EXIT_DIVERGED, EXIT_DONE, Outcome

SUMMARY = (
    "run a nonlocal process on an image: diffusion, the original flow, a jump process, diffusion reversed"
)
DESCRIPTION = """\
Pixels are positions and the patches around them features; the kernel between all pairs moves the image in time.

  diffusion   ∂z = ℒz, the proposed stage: repeated structure is averaged, the mean under π stays
  damped      ∂z = −Kz, the original operation: the image fades to black
  reverse     ∂z = −ℒz, diffusion backwards: contrast grows, boundedly in finite time
  jump        the law of a walker that jumps from pixel to like pixel, begun in the middle of the image

Writes simulate-PROCESS.svg and .png (means, variance, energy over time), states-PROCESS.png (a strip of states) and
simulate-PROCESS.json (the numbers); with --animate also states-PROCESS.gif, a moving picture. Without --image a flower
that comes with scikit-learn is used.

  nonloc simulate diffusion
  nonloc simulate reverse --image cat.jpg --steps 5 --output pictures

Every step goes through all pairs of pixels. Up to --size 76 the matrix of the kernel is stored (256 MiB). Above,
a step takes much longer, and an estimate of the time is printed first.

Greys, palettes, transparency (shown on white), 16 bits and CMYK are taken; the first frame of an animation counts.

Exit codes: 0 done; 2 wrong usage; 3 it diverged: the values stopped being finite, or the step is beyond the limit of
stability and they are growing (all finite states are written)."""

# A smaller one shows the rounding of |x − y|², not the image; with a larger one all positions are equal to rounding.
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-5, 1e9
TIMED_PAIRS = 2**24  # of the product that is timed
LONG = 10  # seconds
MOST_FRAMES = 200  # of a moving picture: 20 seconds, and as long to draw them
PROCESSES = ("diffusion", "damped", "jump", "reverse")


def add_arguments(parser: ArgumentParser) -> None:
    from nonloc.nn.options import NORMALIZATIONS

    add = parser.add_argument
    add("process", choices=PROCESSES, help="what moves the image")
    add("--image", default=None, metavar="FILE", help="an image file; the default is a flower")
    add("--size", type=int, default=64, help="the longer side in pixels; the image is scaled to it")
    add("--radius", type=int, default=1, help="patches of (2 radius + 1)² pixels are the features")
    add("--bandwidth", type=float, default=0.1, help="h of exp(−|patch − patch'|²/h²), pixels in [0, 1]")
    add("--normalize", choices=NORMALIZATIONS, default="row", help="how the kernel is normalised")
    add("--steps", type=int, default=20, help="number of steps")
    add("--step_size", type=float, default=0.5, help="time of a step")
    add("--stepper", choices=("euler", "exact", "implicit"), default="euler", help="how a step is made")
    add("--animate", action="store_true", help=f"write up to {MOST_FRAMES} states as a moving picture, too")
    add("--output", default=".", metavar="DIR", help="where the files go")
    add("--device", default="cpu", help="cpu or cuda")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    for name in ("size", "steps"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {shown(getattr(options, name))}")
    if not 0 < options.step_size < float("inf"):
        raise ValueError(
            f"--step_size must be a number > 0, got {options.step_size}; back in time goes `nonloc simulate reverse`"
        )
    if not SMALLEST_BANDWIDTH <= options.bandwidth <= LARGEST_BANDWIDTH:
        raise ValueError(
            f"--bandwidth must be between {SMALLEST_BANDWIDTH:g} and {LARGEST_BANDWIDTH:g}, got {options.bandwidth}"
        )
    folder = Path(options.output)
    check_output_folder(folder)

    import json

    import torch

    from nonloc import processes
    from nonloc.ops import Affinity
    from nonloc.plots import animate_trajectory, plot_trajectory, png, style, svg
    from nonloc.processes.images import patch_features, to_signal

    image = _on_device(read_picture(options.image, options.size), options.device)
    height, width = image.shape[1:]
    check_memory(
        f"--steps {shown(options.steps)} of {height} × {width} pixels, each kept,",
        options.steps * image.numel() * image.element_size(),
        "take fewer steps or a smaller --size",
    )
    patches = (2 * max(0, options.radius) + 1) ** 2 * image.numel() * image.element_size()
    check_memory(f"--radius {shown(options.radius)}", patches, "use a smaller one, or a smaller --size")
    features = patch_features(image, options.radius)
    affinity = Affinity(features, features, "heat", options.normalize, scale=1 / options.bandwidth**2)
    z = to_signal(image)
    if options.process == "jump":
        process: Any = processes.JumpProcess(affinity)
        z = torch.zeros_like(z[..., :1])
        z[0, (height // 2) * width + width // 2] = 1
    elif options.process == "damped":
        process = processes.DampedFlow(affinity)
    else:
        process = processes.Diffusion(affinity, backwards=options.process == "reverse")
    if not output.is_quiet and (estimate := _estimate(affinity, z, options)):
        output.talk(estimate)
    trajectory = processes.simulate(
        process,
        z,
        num_steps=options.steps,
        step_size=options.step_size,
        stepper=options.stepper,
        throw=False,
        progress=not output.is_quiet,
    )
    outcome = replace(trajectory.outcome, message=as_options(trajectory.outcome.message, vars(options)))
    series = _series(trajectory)
    # A law spreads from one pixel over all of them: no scale shows both.
    drawn: Any = {"size": (height, width), "shared_scale": options.process != "jump"}
    with style():
        figure = _curves(trajectory)
        strip = plot_trajectory(trajectory, "states", **drawn)
    value = {
        "process": options.process,
        "positions": height * width,
        "normalize": options.normalize,
        "stepper": options.stepper,
        "step_size": options.step_size,
        "outcome": outcome.to_dict(),
        **series,
    }
    files = {
        f"simulate-{options.process}.svg": svg(figure),
        f"simulate-{options.process}.png": png(figure),
        f"states-{options.process}.png": png(cast(Any, strip.figure)),  # new axes are no subfigure
        f"simulate-{options.process}.json": f"{json.dumps(value, indent=1)}\n".encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = [str(folder / name) for name in files]
    with TemporaryDirectory(dir=folder) as place:  # a file gets its name when it is whole
        for name, content in files.items():
            Path(place, name).write_bytes(content)
            os.replace(Path(place, name), folder / name)
        if options.animate:
            # After the others: it takes longest, and an interruption must not cost them.
            name = f"states-{options.process}.gif"
            animate_trajectory(trajectory, Path(place, name), most_frames=MOST_FRAMES, **drawn)
            os.replace(Path(place, name), folder / name)
            written.append(str(folder / name))
    output.result(_text(trajectory, outcome, series, written), {**value, "files": written})
    return EXIT_DONE if outcome.ending == "finished" else EXIT_DIVERGED


def _estimate(affinity: Any, z: Any, options: Namespace) -> str:
    """An estimate of the time, where the matrix is too large to be stored and that is long; else ""."""
    import time

    from nonloc.ops import Affinity, aggregate, choose_backend
    from nonloc.processes.kernel import LARGEST_MATRIX, stores_matrix

    if choose_backend(affinity) == "reference" or stores_matrix(affinity, z.dtype):
        return ""
    size = affinity.positions
    few = Affinity(
        affinity.left[:, : max(1, TIMED_PAIRS // size)], affinity.right, "heat", scale=affinity.scale
    )
    for _ in range(2):  # the first one warms up
        start = time.perf_counter()
        float(aggregate(few, z, backend="factored").sum())  # waits for a GPU
        product = (time.perf_counter() - start) * size / few.positions
    # A step, and the energy of every state. Other steppers and sinkhorn take more, an unknown number.
    products = 3 * options.steps + 2
    is_open = options.stepper != "euler" or options.normalize == "sinkhorn"
    seconds = product * products
    if seconds < LONG and not is_open:
        return ""
    more, largest = "far more than " if is_open else "", math.isqrt(math.isqrt(LARGEST_MATRIX // 8))
    return (
        f"{size:,} pixels are {size**2:,} pairs, too many for their matrix to be stored: a product with the kernel "
        f"takes about {product:.2g} s, and {more or 'about '}{products} are needed, {more}{format_duration(seconds)}. "
        f"Up to --size {largest} the matrix is stored, which is much faster."
    )


def _on_device(image: Any, device: str) -> Any:
    try:
        if str(device).startswith("meta"):
            raise RuntimeError("it holds no numbers")
        return image.to(device)
    except Exception as error:  # torch has many answers to a device that it does not know, or have
        reason = shortened(str(error).partition("\n")[0])
        raise ValueError(f"--device {shortened(device)} cannot be used here ({reason}); use cpu") from None


def _curves(trajectory: Any) -> Any:
    """A figure of means, variance and, where there is one, energy over time."""
    from matplotlib.figure import Figure

    from nonloc.plots import WIDTH, plot_trajectory

    shown = ["mean", "variance", *(["energy"] if trajectory.energy is not None else [])]
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    for axes, what in zip(figure.subplots(1, len(shown)), shown, strict=True):
        plot_trajectory(trajectory, what, ax=axes)
    return figure


def _series(trajectory: Any) -> dict[str, Any]:
    """The trajectory's numbers as lists: averages over channels of its one sample; None where they overflowed."""

    def average(values: Any) -> list[float | None] | None:
        if values is None:
            return None
        means = values[:, 0].reshape(len(values), -1).mean(-1).tolist()
        return [mean if math.isfinite(mean) else None for mean in means]

    return {
        "times": trajectory.times.tolist(),
        "mean": average(trajectory.mean),
        "weighted_mean": average(trajectory.weighted_mean),
        "variance": average(trajectory.variance),
        "energy": average(trajectory.energy),
    }


def _text(trajectory: Any, outcome: Outcome, series: dict[str, Any], written: list[str]) -> str:
    lines = [repr(trajectory)]
    for name, label in (("mean", "plain mean"), ("weighted_mean", "mean under π"), ("variance", "variance")):
        values = series[name]
        if values is not None:
            first, last = (
                "overflow" if value is None else f"{value:.6g}" for value in (values[0], values[-1])
            )
            lines.append(f"{label:<13} {first} → {last}")
    if outcome.ending != "finished":
        lines.append(outcome.sentence)
    return "\n".join([*lines, "", *written])
