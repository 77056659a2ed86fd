"""What a stage costs before any work is done: the paper's site, a video clip, and a full photograph.

python examples/will_it_fit.py
"""

from nonloc import estimate

SITES = {
    "CIFAR, after block 2 (B 128, 32×32)": {"batch": 128, "positions": 32 * 32, "channels": 64, "embed": 32},
    "video clip (B 8, 4×14×14)": {"batch": 8, "positions": 4 * 14 * 14, "channels": 512, "embed": 256},
    "photograph (B 1, 256×256)": {"batch": 1, "positions": 256 * 256, "channels": 64, "embed": 32},
}


def main() -> None:
    print(
        f"{'a diffusive stage of 4 blocks':<38} {'backend':<10} {'forward':>10} {'training':>10} {'GMAC':>8}"
    )
    for name, sizes in SITES.items():
        for backend, cost in estimate("gaussian", "row", num_blocks=4, **sizes).items():
            forward, training = cost.forward_bytes / 2**20, cost.backward_bytes / 2**20
            macs = (cost.forward_macs + cost.backward_macs) / 1e9
            print(f"{name:<38} {backend:<10} {forward:>7.0f} MiB {training:>6.0f} MiB {macs:>8.1f}")


if __name__ == "__main__":
    main()
