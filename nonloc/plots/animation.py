"""animate_trajectory: a simulation as a moving picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.animation import FFMpegWriter, PillowWriter
from matplotlib.figure import Figure

from nonloc._checks import check_whole
from nonloc.plots.look import GRID, NEGATIVE, clear_axes
from nonloc.plots.trajectory import check_trajectory, plot_trajectory, spread, state_pixels
from nonloc.processes.trajectory import Trajectory

WRITERS: dict[str, Any] = {".gif": PillowWriter, ".mp4": FFMpegWriter}
INCHES, DOTS = (3.6, 4.8), 100


def animate_trajectory(
    trajectory: Trajectory,
    path: str | os.PathLike[str],
    *,
    size: tuple[int, int],
    what: str = "variance",
    shared_scale: bool = True,
    sample: int = 0,
    frames_per_second: int = 10,
    most_frames: int | None = None,
) -> Path:
    """Write the states as frames of a GIF or an MP4, above a curve with a dot that moves along; return the path.

    trajectory    what `nonloc.simulate` returned, on the pixels of a picture
    path          ends with .gif, or with .mp4 where ffmpeg is installed
    size          (height, width) of the picture
    what          the curve: "variance", "energy" or "mean"
    shared_scale  as for `plot_trajectory`, as is sample
    most_frames   draw no more states than so many, evenly spaced; None: all. Each takes about a tenth of a second

    >>> from nonloc import Affinity, Diffusion, simulate
    >>> from nonloc.plots import animate_trajectory
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> path = simulate(Diffusion(Affinity(same, same, "heat")), z, num_steps=1, step_size=0.5)
    >>> animate_trajectory(path, "path.gif", size=(1, 2)).name
    'path.gif'
    """
    check_trajectory(trajectory)
    check_whole("frames_per_second", frames_per_second, most=100)
    if most_frames is not None:
        check_whole("most_frames", most_frames, least=2)
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"path must end with {' or '.join(WRITERS)}, got {path.name}")
    if not writer.isAvailable():
        needed = "ffmpeg, which is not installed; write a .gif" if writer is FFMpegWriter else "pillow"
        raise ValueError(f"{path.name} needs {needed}")
    if what == "states":
        raise ValueError('what must be a curve, "variance", "energy" or "mean"; the states are the picture')
    pictures = state_pixels(trajectory, size, sample, shared_scale)
    figure = Figure(figsize=INCHES, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2.2, 1))
    clear_axes(above)
    shown = above.imshow(pictures[0], interpolation="nearest")
    plot_trajectory(trajectory, what, ax=below)
    below.set_ylabel(what)
    below.spines[["top", "right"]].set_visible(False)
    below.grid(**GRID)
    line = below.get_lines()[min(sample, len(below.get_lines()) - 1)]
    (dot,) = below.plot([], [], "o", color=NEGATIVE, markersize=7)
    frames = writer(fps=frames_per_second)
    with frames.saving(figure, str(path), DOTS):
        for number in range(len(pictures)) if most_frames is None else spread(len(pictures), most_frames):
            shown.set_data(pictures[number])
            above.set_title(f"t = {float(trajectory.times[number]):.4g}")
            dot.set_data([line.get_xdata()[number]], [line.get_ydata()[number]])
            frames.grab_frame()
            # The layout of the first frame counts for all.
            figure.set_layout_engine("none")
    return path
