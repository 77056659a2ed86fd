"""Data sets as uint8 images and labels; nothing here imports torch before it is needed."""

from nonloc._lazy import lazy

# At once and not lazily: a submodule imported later would take the place of the function of the same name.
from nonloc_paper.data.download import download as download
from nonloc_paper.data.load import load as load

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DATASETS": ".names",
        "NAMES": ".names",
        "Dataset": ".dataset",
        "Split": ".dataset",
        "download": ".download",
        "load": ".load",
        "load_motifs": ".motifs",
        "motif_boxes": ".motifs",
        "read_cifar": ".cifar",
    },
)
