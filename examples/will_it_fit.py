"""What a stage costs before any work is done: the paper's site, a video clip, and a full photograph.

    python examples/will_it_fit.py

A stage without contents is enough: on the "meta" device it has shapes and takes no memory. will_it_fit.png compares
the memory.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from nonloc import DiffusiveStage, estimate
from nonloc.plots import COLORS, png, style

SITES = {
    "CIFAR, after block 2 (B 128, 32×32)": (128, 64, 32, 32),
    "video clip (B 8, 4×14×14)": (8, 512, 4, 14, 14),
    "photograph (B 1, 256×256)": (1, 64, 256, 256),
}


def save_picture(needed: dict[str, dict[str, float]]) -> None:
    """Save the MiB of every backend at every site, as bars."""
    with style():
        figure = Figure(figsize=(7, 3), layout="constrained")
        ax = figure.subplots()
        for number, sizes in enumerate(needed.values()):
            for place, (backend, mebibytes) in enumerate(sizes.items()):
                height = number + 0.27 * (place - (len(sizes) - 1) / 2)
                label = backend if number == 0 else None
                bar = ax.barh(height, mebibytes, 0.24, color=COLORS[place], label=label)
                ax.bar_label(bar, fmt="{:,.0f}", padding=3, fontsize=8)
        ax.set(xscale="log", xlabel="MiB to train")
        ax.set_yticks(range(len(needed)), [name.replace(" (", "\n(") for name in needed])
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    Path("will_it_fit.png").write_bytes(png(figure))


def main() -> None:
    print(
        f"{'a diffusive stage of 4 blocks':<38} {'backend':<10} {'forward':>10} {'training':>10} {'GMAC':>8}"
    )
    needed: dict[str, dict[str, float]] = {}
    for name, shape in SITES.items():
        with torch.device("meta"):
            stage = DiffusiveStage(shape[1], 4)
        costs = estimate(stage, shape=shape)
        for backend, cost in costs.items():
            forward, training = cost.forward_bytes / 2**20, cost.backward_bytes / 2**20
            macs = (cost.forward_macs + cost.backward_macs) / 1e9
            needed.setdefault(name, {})[backend] = training
            takers = {"a CPU": costs.auto, "a GPU": costs.auto_on_cuda}
            taken = " and ".join(device for device, auto in takers.items() if auto == backend)
            chosen = f"  auto takes this on {taken}" if taken else ""
            print(f"{name:<38} {backend:<10} {forward:>7.0f} MiB {training:>6.0f} MiB {macs:>8.1f}{chosen}")
    save_picture(needed)
    print("will_it_fit.png")


if __name__ == "__main__":
    main()
