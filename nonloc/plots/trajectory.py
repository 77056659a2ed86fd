"""plot_trajectory: the states of a simulation, and what was measured on them."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from nonloc._checks import check_choice, check_flag, check_whole
from nonloc.plots.look import (
    LARGEST,
    NEGATIVE,
    POSITIVE,
    check_size,
    clear_axes,
    make_axes,
    moderate,
    scale_by_log,
)
from nonloc.processes.trajectory import Trajectory

WHAT = ("states", "mean", "variance", "energy")
LABELS = {"mean": "mean of the signal", "variance": "variance over positions", "energy": "Dirichlet energy"}
NOTHING = 1e-9  # relative: smaller changes are rounding
MOST_STATES = 6  # in a strip
MOST_LINES = 2000  # positions in a map of all states


def plot_trajectory(
    trajectory: Trajectory,
    what: str = "variance",
    *,
    size: tuple[int, int] | None = None,
    shared_scale: bool = True,
    sample: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measurement of a simulation over time, or its states.

    trajectory    what `nonloc.simulate` returned
    what          "variance", "energy" or "mean", as curves, averages over channels, a line for each sample of the
                  batch; or "states"
    size          (height, width), for states that are pictures: a strip of some of them. Three channels are colours
                  in [0, 1], the mean of others is a map. When left out, all states are one map over time and position
    shared_scale  whether the maps of a strip have one scale; else each has its own
    sample        whose states, from 0

    >>> from nonloc import Affinity, Diffusion, simulate
    >>> from nonloc.plots import plot_trajectory
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> path = simulate(Diffusion(Affinity(same, same, "heat")), z, num_steps=2, step_size=0.5)
    >>> plot_trajectory(path, "variance").get_lines()[0].get_ydata().tolist()
    [0.25, 0.0625, 0.015625]
    """
    check_trajectory(trajectory)
    check_choice("what", what, WHAT)
    if what != "states":
        return _curves(trajectory, what, make_axes(ax, (4.2, 3.0)))
    if size is not None:
        return _strip(trajectory, state_pixels(trajectory, size, sample, shared_scale), ax)
    check_whole("sample", sample, least=0, most=trajectory.states.shape[1] - 1)
    ax = make_axes(ax)
    values = moderate(trajectory.states[:, sample].double().mean(-1).mT.cpu())
    times = trajectory.times.numpy()
    every = math.ceil(len(values) / MOST_LINES)
    # Every time shows the state that is nearest to it; the last two states may be less far apart than the others.
    edges = np.concatenate([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
    lines = np.append(np.arange(0, len(values), every), len(values)) - 0.5
    drawn = ax.pcolorfast(edges, lines, values[::every])
    ax.grid(False)
    ax.set(xlabel="time", ylabel="position", ylim=(len(values) - 0.5, -0.5))
    ax.figure.colorbar(drawn, ax=ax)
    return ax


def check_trajectory(trajectory: Any) -> None:
    if not isinstance(trajectory, Trajectory):
        raise ValueError(f"trajectory must be what nonloc.simulate returned, got {type(trajectory).__name__}")


def state_pixels(
    trajectory: Trajectory, size: tuple[int, int], sample: int = 0, shared_scale: bool = True
) -> NDArray[Any]:
    """Return the states of one sample as pictures [S, H, W, 4]."""
    saved, batch, positions, channels = trajectory.states.shape
    check_whole("sample", sample, least=0, most=batch - 1)
    check_flag("shared_scale", shared_scale)
    height, width = check_size(size, positions)
    states = np.clip(np.nan_to_num(trajectory.states[:, sample].double().cpu().numpy()), -LARGEST, LARGEST)
    states = states.reshape(saved, height, width, channels)
    if channels == 3:
        return np.concatenate([np.clip(states, 0, 1), np.ones((*states.shape[:3], 1))], -1)
    maps = states.mean(-1)
    axes = None if shared_scale else (1, 2)
    low, high = (function(maps, axis=axes, keepdims=True) for function in (np.min, np.max))
    return matplotlib.colormaps["viridis"]((maps - low) / np.where(high > low, high - low, 1))


def _curves(trajectory: Trajectory, what: str, ax: Axes) -> Axes:
    measured = getattr(trajectory, what)
    if measured is None:
        raise ValueError(f"this process has no kernel, so its trajectory has no {what}; draw another curve")
    times = trajectory.times.numpy()

    def draw(values: Any, label: str, **look: Any) -> NDArray[Any]:
        lines = moderate(values.reshape(*values.shape[:2], -1).double().mean(-1).cpu())
        for number, line in enumerate(lines.T):
            ax.plot(times, line, label=label if number == 0 else None, **look)
        return lines

    if what == "mean":
        values = [draw(measured, "plain mean", color=NEGATIVE)]
        if trajectory.weighted_mean is not None:
            values.append(draw(trajectory.weighted_mean, "mean under π", color=POSITIVE, linestyle="--"))
        numbers = np.ravel(values)
        finite = numbers[np.isfinite(numbers)]
        if finite.size and np.ptp(finite) < NOTHING * np.abs(finite).max():
            # What stays is a straight line, not its rounding.
            ax.set_ylim(*sorted((0.9 * finite.min(), 1.1 * finite.max())))
        ax.legend(frameon=False)
    else:
        # A straight line on a logarithmic scale is exponential decay or growth.
        scale_by_log(ax, draw(measured, what, color=POSITIVE))
    ax.set(xlabel="time", ylabel=LABELS[what])
    return ax


def spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers 0 … count − 1, evenly spaced, the first and the last among them."""
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


def _strip(trajectory: Trajectory, pictures: NDArray[Any], ax: Axes | None) -> Axes:
    """Some of the pictures side by side, with their times above."""
    chosen = spread(len(pictures), MOST_STATES)
    _, height, width, _ = pictures.shape
    gap = max(1, width // 12)
    strip = np.zeros((height, len(chosen) * (width + gap) - gap, 4))
    for place, number in enumerate(chosen):
        strip[:, place * (width + gap) : place * (width + gap) + width] = pictures[number]
    inches = 1.45 * len(chosen)
    ax = make_axes(ax, (inches, 0.45 + inches * strip.shape[0] / strip.shape[1]))
    clear_axes(ax)
    ax.imshow(strip, interpolation="nearest")
    middles = [place * (width + gap) + width / 2 - 0.5 for place in range(len(chosen))]
    ax.set_xticks(middles, [f"t = {float(trajectory.times[number]):.4g}" for number in chosen])
    ax.tick_params(axis="x", length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    return ax
