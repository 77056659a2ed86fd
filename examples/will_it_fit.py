"""What a stage costs before any work is done: the paper's site, a video clip, and a full photograph.

    python examples/will_it_fit.py

A stage without contents is enough: on the "meta" device it has shapes and takes no memory.
"""

import torch

from nonloc import DiffusiveStage, estimate

SITES = {
    "CIFAR, after block 2 (B 128, 32×32)": (128, 64, 32, 32),
    "video clip (B 8, 4×14×14)": (8, 512, 4, 14, 14),
    "photograph (B 1, 256×256)": (1, 64, 256, 256),
}


def main() -> None:
    print(
        f"{'a diffusive stage of 4 blocks':<38} {'backend':<10} {'forward':>10} {'training':>10} {'GMAC':>8}"
    )
    for name, shape in SITES.items():
        with torch.device("meta"):
            stage = DiffusiveStage(shape[1], 4)
        costs = estimate(stage, shape=shape)
        for backend, cost in costs.items():
            forward, training = cost.forward_bytes / 2**20, cost.backward_bytes / 2**20
            macs = (cost.forward_macs + cost.backward_macs) / 1e9
            chosen = "  auto takes this" if backend == costs.auto else ""
            print(f"{name:<38} {backend:<10} {forward:>7.0f} MiB {training:>6.0f} MiB {macs:>8.1f}{chosen}")


if __name__ == "__main__":
    main()
