"""Put a nonlocal stage into a model you already have, and see that it is there.

    python examples/drop_in.py

Uses torchvision's ResNet-18 where torchvision is installed, and a small stand-in with the same names where not.
drop_in.png shows where two positions look. Nothing is trained here: they look as random weights make them.
"""

import torch
from sklearn.datasets import load_sample_images
from torch import nn

from nonloc import DiffusiveStage, insert, kernel_matrix
from nonloc.nn import stage_inputs
from nonloc.plots import plot_affinity


def resnet() -> nn.Module:
    try:
        from torchvision.models import resnet18
    except ImportError:
        stem = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        layer1 = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1))
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))
        model = nn.Sequential()
        for name, module in (("stem", stem), ("layer1", layer1), ("head", head)):
            model.add_module(name, module)
        return model
    return resnet18()


def main() -> None:
    torch.manual_seed(0)
    model = resnet().eval()
    photographs = torch.stack([torch.tensor(one) for one in load_sample_images().images])
    images = photographs[:, 50:370:5, 150:470:5].movedim(-1, 1) / 127.5 - 1  # [2, 3, 64, 64]
    before = model(images)

    # init_std=0.2 instead of the default 0.01, with which all positions look everywhere alike at first.
    (done,) = insert(
        model,
        {"layer1.1": lambda channels: DiffusiveStage(channels, 4, scaled=True, init_std=0.2)},
        example=images,
    )
    print(
        f"inserted {done.num_blocks} sub-blocks at {done.path}: {done.channels} channels, {done.positions} positions"
    )
    after = model(images)
    print(f"the output changed by {float((after - before).detach().abs().max()):.2e}")

    _, stage, features, _ = stage_inputs(model, images)[0]
    affinity = kernel_matrix(stage.affinity(features)).detach()
    print(f"affinity map {list(affinity.shape)}, rows sum to {float(affinity.sum(-1).mean()):.6f}")
    looks = affinity[1, 136].view(16, 16)
    row, column = divmod(int(looks.argmax()), 16)
    print(
        f"in image 1, position (8, 8) looks most at ({row}, {column}), with weight {float(looks.max()):.4f}"
    )
    ax = plot_affinity(stage, features, position=[(8, 8), (2, 3)], image=images[1], sample=1)
    ax.figure.savefig("drop_in.png", dpi=160)
    print("drop_in.png")
    print(f"weights: {len(stage.weights())} matrices {list(stage.weights()[0].shape)}")


if __name__ == "__main__":
    main()
