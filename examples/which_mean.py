"""Which mean a diffusion step conserves depends on how the kernel is normalised.

    python examples/which_mean.py

The paper's row normalisation divides a symmetric kernel by its row sums 𝒞 and so makes it asymmetric: the plain
mean drifts, the 𝒞-weighted one does not. The other normalisations keep the symmetry, and with it the plain mean.
"""

import torch

from nonloc import Affinity, diffuse, kernel_matrix


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


if __name__ == "__main__":
    main()
