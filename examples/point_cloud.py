"""Diffuse on your own point cloud: a graph of neighbours, stable steps, and walkers with the same law.

    python examples/point_cloud.py

Replace `cloud` by your points [M, d] and `signal` by your numbers on them; everything else stays. point_cloud.png shows
the noisy signal, the diffused one, and what a step beyond the limit does.
"""

import math
from pathlib import Path

import torch
from matplotlib.figure import Figure

from nonloc import Diffusion, cfl_limit, simulate
from nonloc.plots import plot_trajectory, png, style
from nonloc.processes import JumpProcess, Trajectory, neighbors

POINTS, NEIGHBORS, WALKERS = 1000, 10, 20_000


def cloud(generator: torch.Generator) -> torch.Tensor:
    """A noisy spiral [M, 2]: its ends are near in the plane's distance, and far along the cloud."""
    along = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    angle, radius = 3 * math.pi * along, 0.3 + along
    spiral = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return spiral + 0.02 * torch.randn(POINTS, 2, dtype=torch.float64, generator=generator)


def save_picture(
    points: torch.Tensor, signals: dict[str, torch.Tensor], paths: dict[str, Trajectory]
) -> None:
    """Save signals on the points, with one scale, and the variance of simulations."""
    most = max(float(signal.abs().max()) for signal in signals.values())
    with style():
        figure = Figure(figsize=(9, 3), layout="constrained")
        *panels, last = figure.subplots(1, len(signals) + 1)
        for ax, (title, signal) in zip(panels, signals.items(), strict=True):
            drawn = ax.scatter(*points.T.numpy(), c=signal.numpy(), s=6, vmin=-most, vmax=most)
            ax.set_title(title)
            ax.set_axis_off()
            ax.set_aspect("equal")
        figure.colorbar(drawn, ax=panels, shrink=0.8)
        for (title, path), color in zip(paths.items(), ("#2f7fc1", "#d9772b"), strict=True):
            plot_trajectory(path, ax=last).get_lines()[-1].set(label=title, color=color)
        last.legend()
    Path("point_cloud.png").write_bytes(png(figure))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    points = cloud(generator)
    noise = torch.randn(POINTS, dtype=torch.float64, generator=generator)
    signal = torch.linspace(-1, 1, POINTS, dtype=torch.float64) + 0.5 * noise
    z0 = signal.view(1, -1, 1)  # [B, M, C]: one sample, a number a point

    # "auto" takes the scale from the distances: a kernel that is 1, or 0, for all neighbours is useless.
    # "sinkhorn" makes K symmetric, so that it is the plain mean that stays; "row" would keep one weighted by 𝒞.
    graph = neighbors(points, NEIGHBORS, scale="auto", normalize="sinkhorn")
    print(f"{graph.matrix.values().numel():,} of {POINTS**2:,} pairs are joined")

    limit = cfl_limit(graph)
    print(f"the largest stable step is {limit.limit:.3f} ({limit.kind}: {limit.reason})")

    # Up to the limit every step smooths: the mean stays and the variance falls.
    process, time = Diffusion(graph), 100.0
    exact = simulate(process, z0, num_steps=1, step_size=time, stepper="exact").final
    for part in (0.9, 0.45, 0.225):
        steps = math.ceil(time / (part * limit.limit))
        walked = simulate(process, z0, num_steps=steps, step_size=time / steps, save_every=steps)
        moved = float((walked.mean[-1] - walked.mean[0]).abs().max())
        first, last = (float(v.mean()) for v in (walked.variance[0], walked.variance[-1]))
        # Euler's error is proportional to the step; its limit is the exact stepper.
        error = float((walked.final - exact).abs().max())
        print(
            f"{steps:4d} steps of {time / steps:.3f}: mean moved by {moved:.0e}, "
            f"variance {first:.3f} → {last:.3f}, {error:.1e} from exact"
        )

    # Beyond the limit the roughest mode grows at every step. The outcome says so long before numbers overflow.
    broken = simulate(process, z0, num_steps=300, step_size=1.2 * limit.limit, throw=False)
    print(f"steps of {1.2 * limit.limit:.3f}: {broken.outcome.ending}, from state {broken.outcome.step} on")

    # The same K moves walkers: where they are after a time is the law that the master equation gives.
    walk = JumpProcess(graph)
    start = torch.zeros(1, POINTS, 1, dtype=torch.float64)
    start[0, 0] = 1  # all of them begin at the inner end
    law = simulate(walk, start, num_steps=1, step_size=time, stepper="exact").final.flatten()
    ends = walk.sample_paths(WALKERS, until=time, start=0, only_final=True, generator=generator)
    seen = float(signal[ends].mean())
    # K is symmetric: the average signal of walkers that start at i is what diffusion leaves at i.
    print(f"{WALKERS:,} walkers: {seen:+.4f} on average; their law says {float(law @ signal):+.4f}, ", end="")
    print(f"diffusion {float(exact[0, 0, 0]):+.4f}")
    # The slowest difference between two starts shrinks by the factor e in the time 1 / gap.
    gap = float(walk.spectral_gap().value)
    print(f"where they started is forgotten in a time of the order of {1 / gap:,.0f}")
    paths = {
        f"steps of {part} × the limit": simulate(
            process, z0, num_steps=30, step_size=part * limit.limit, throw=False
        )
        for part in (0.9, 1.2)
    }
    save_picture(points, {"noisy": signal, f"at time {time:g}": exact.flatten()}, paths)
    print("point_cloud.png")


if __name__ == "__main__":
    main()
