"""Which data sets there are, known without torch, so that recipes and `--help` can be checked cheaply."""

from __future__ import annotations

# classes: 0 for images without labels; size: height and width in pixels.
DATASETS: dict[str, dict[str, int]] = {
    "motifs": {"classes": 0, "size": 12},
    "cifar10": {"classes": 10, "size": 32},
    "cifar100": {"classes": 100, "size": 32},
}
NAMES = tuple(DATASETS)
