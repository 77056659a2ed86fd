"""Do nonlocal blocks damp or over-smooth your features? Look inside your own model, before and after training.

    python examples/over_smoothing.py

Replace `model`, `batches` and the name in `WHERE` by yours. Here a few steps on random labels stand for training:
they show how to look, not what a trained network shows. over_smoothing.png has the features and the weights of both
forms.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy

from nonloc import DiffusiveStage, OriginalStage, certify, feature_trace, insert, weight_spectrum
from nonloc.nn import stage_inputs
from nonloc.plots import plot_features, plot_spectrum, png, style
from nonloc.spectrum import random_band

WHERE, BLOCKS, STEPS = "body", 4, 30


def model() -> nn.Sequential:
    network = nn.Sequential()
    network.add_module("stem", nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.ReLU()))
    network.add_module("body", nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()))
    network.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)))
    return network


def batches(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(number)]


def train(network: nn.Module) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network.train()
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()


def show_features(network: nn.Module, images: torch.Tensor) -> None:
    """What each sub-block does to the features that reach it, each number as after / before."""
    for stage in feature_trace(network, images):
        for block in stage["blocks"]:
            before, after = block["before"], block["after"]
            # Damping shows in the norm. Over-smoothing shows in the variance over positions, relative to the norm:
            # features that shrink all alike are damped, and have lost no contrast.
            norm = after["norm"] / before["norm"]
            contrast = after["variance"] / before["variance"] / norm**2
            # W where the features are: a spectrum of W counts every direction, whether features lie in it or not.
            along = block["quotient"]
            print(
                f"  {stage['name']} block {block['block']}: norm × {norm:.4f}, contrast × {contrast:.4f}, "
                f"W along the features {along:+.4f}"
            )


def show_weights(stage: nn.Module) -> None:
    """The eigenvalues of sym(W): a large negative part damps in the original form and sharpens in the diffusive."""
    for number, weight in enumerate(stage.weights(), 1):
        spectrum = weight_spectrum(weight)
        # Half of the signs are negative by chance alone, so the share is read against random W of the same rank.
        band = random_band(stage.channels, stage.channels // 2, float(weight.detach().norm()))
        low, high = band.negative_share
        print(
            f"  W{number}: trace {spectrum.trace:+.3f}, negative share {spectrum.negative_share:.2f} "
            f"(chance: {low:.2f}–{high:.2f})"
        )


def main() -> None:
    torch.manual_seed(0)
    images, _ = batches(1)[0]
    with style():
        figure = Figure(figsize=(7.5, 6.2), layout="constrained")
        panels = figure.subplot_mosaic("AB;CC;DD", height_ratios=(1.3, 1, 1))
    for kind, below in ((OriginalStage, "C"), (DiffusiveStage, "D")):
        network = model()
        # init_std=0.1 instead of the default 0.01: in 30 steps nothing else would move far enough to be seen.
        place = {WHERE: lambda channels, kind=kind: kind(channels, BLOCKS, init_std=0.1)}
        insert(network, place, example=images)
        train(network)
        print(f"{kind.__name__}, trained")
        show_features(network, images)
        for what, panel in (("norm", "A"), ("variance", "B")):
            plot_features(feature_trace(network, images), what, label=kind.__name__, ax=panels[panel])
        # The features above are those of one batch. A certificate is about every signal, with the kernel as it is
        # at the stage's real input, which stage_inputs records.
        for name, stage, x, _ in stage_inputs(network, images):
            show_weights(stage)
            plot_spectrum(stage, ax=panels[below]).set_title(kind.__name__, loc="left")
            certificate = certify(stage, x[:2])
            print(
                f"  {name}: {certificate.verdict}, growth × {certificate.growth:.3f} ({certificate.reason})"
            )
    Path("over_smoothing.png").write_bytes(png(figure))
    print("over_smoothing.png")


if __name__ == "__main__":
    main()
