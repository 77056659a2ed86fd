"""Which mean a diffusion step conserves depends on how the kernel is normalised.

    python examples/which_mean.py

The paper's row normalisation divides a symmetric kernel by its row sums 𝒞 and so makes it asymmetric: the plain
mean drifts, the 𝒞-weighted one does not. The other normalisations keep the symmetry, and with it the plain mean.
which_mean.png shows both means over 30 steps, for two of them.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from nonloc import Affinity, Diffusion, diffuse, kernel_matrix, simulate
from nonloc.plots import plot_trajectory, png, style


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 200, 3, dtype=torch.float64)
    z = torch.randn(1, 200, 1, dtype=torch.float64)
    row_sums = kernel_matrix(Affinity(x, x, "heat", "none")).sum(-1, keepdim=True)
    print(f"{'normalize':<12} {'plain mean moves by':>20} {'𝒞-weighted mean by':>20}")
    for normalize in ("row", "count", "none", "symmetric", "sinkhorn"):
        change = diffuse(Affinity(x, x, "heat", normalize), z)
        plain = change.mean().abs()
        weighted = ((row_sums * change).sum() / row_sums.sum()).abs()
        print(f"{normalize:<12} {float(plain):>20.1e} {float(weighted):>20.1e}")
    with style():
        figure = Figure(figsize=(7, 2.8), layout="constrained")
        for ax, normalize in zip(figure.subplots(1, 2, sharey=True), ("row", "sinkhorn"), strict=True):
            path = simulate(Diffusion(Affinity(x, x, "heat", normalize)), z, num_steps=30)
            plot_trajectory(path, "mean", ax=ax).set_title(f'normalize="{normalize}"')
            ax.label_outer()
    Path("which_mean.png").write_bytes(png(figure))
    print("which_mean.png")


if __name__ == "__main__":
    main()
