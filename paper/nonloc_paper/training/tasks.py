"""Tasks: the batches, the loss and the score of classification and of restoration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.training.augment import PAD, augment, batch_kernel, draw
from nonloc_paper.training.plan import mix
from nonloc_paper.training.recipe import Recipe

Chance = torch.Generator | Tensor
"""The source of a batch's augmentation and noise: a generator on the device; or, for a task that `draws_by_seed`, its
seed, an int64 tensor [1] there."""


class Task(ABC):
    """The data on their device, and what a network should do with them.

    score          the name of the measure in metrics: "error" in % (lower is better) or "psnr" in dB (higher is)
    draws_by_seed  whether a seed is enough for a training batch, so that no generator is needed
    """

    score: ClassVar[str]
    draws_by_seed: bool = False

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device | str) -> None:
        self.recipe = recipe
        self.device = torch.device(device)
        self.train = _first(dataset.train, recipe.train_images, "train_images", dataset.name)
        self.test = _first(dataset.test, recipe.test_images, "test_images", dataset.name)

    @abstractmethod
    def train_batch(self, indices: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """Return (inputs [B, 3, H, W], targets) of the training images `indices` [B]."""

    @abstractmethod
    def test_batch(self, which: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return (inputs [B, 3, H, W], targets) of test images, the same for every run.

        which  their numbers [B], or a slice, whose inputs are plain: float32 and contiguous
        """

    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, targets) over the whole test split, in order, as slices."""
        for first in range(0, len(self.test), batch_size):
            yield self.test_batch(slice(first, first + batch_size))

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the batch, a tensor []."""

    @abstractmethod
    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return float64 [2]: the loss and the score, each summed over the images of the batch."""


class Preprocess(nn.Module):
    """uint8 images [N, 3, H, W] as a network that classifies sees them: less the mean image, divided by `scale`."""

    mean: Tensor

    def __init__(self, mean: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        # A product is the same on every device; torch divides by a number in several ways.
        self.inverse_scale = float(torch.tensor(1.0) / torch.tensor(scale))

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.shape[1:] != self.mean.shape:
            raise ValueError(
                f"images must be uint8 [N, {', '.join(map(str, self.mean.shape))}], with values from 0 to 255; "
                f"got {images.dtype} {list(images.shape)}"
            )
        return (images.float() - self.mean) * self.inverse_scale


class Classification(Task):
    """Cross-entropy and the error in percent.

    The mean of each pixel over the training images is subtracted; the rest is divided by
    `recipe.pixel_scale`, one number for all pixels.

    On CUDA a batch is made in one launch, in the layout and precision of the network's first convolution; by plain
    torch once `draws_by_seed` is set to False.
    """

    score = "error"

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device | str) -> None:
        super().__init__(recipe, dataset, device)
        if self.train.labels is None or self.test.labels is None:
            raise ValueError(
                f"network={recipe.network!r} classifies, but data={dataset.name!r} has no labels; "
                'choose labelled data such as "cifar10", or a network that restores ("restorer…")'
            )
        for labels in (self.train.labels, self.test.labels):
            # On CUDA, a label that is no class would end the process with an error that does not name it.
            if int(labels.min()) < 0 or int(labels.max()) >= dataset.num_classes:
                raise ValueError(
                    f"data={dataset.name!r} has {dataset.num_classes} classes, so labels go from 0 to "
                    f"{dataset.num_classes - 1}; got {int(labels.min())} to {int(labels.max())}"
                )
        mean, deviation = pixel_statistics(self.train.images)
        scale = deviation if recipe.pixel_scale == "std" else recipe.pixel_scale
        if not scale > 0:
            raise ValueError('pixel_scale="std" needs training images that differ; use a number')
        self._normalize = Preprocess(mean, scale).to(self.device)
        self.train, self.test = (_contiguous(split.to(self.device)) for split in (self.train, self.test))
        self.draws_by_seed = self.device.type == "cuda" and batch_kernel() is not None

    def train_batch(self, indices: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        assert self.train.labels is not None
        if self.draws_by_seed:
            return self._make_batch(self.train, indices, chance if self.recipe.augment else None)
        images = self._normalize(self.train.images[indices])
        if self.recipe.augment:
            assert isinstance(chance, torch.Generator)
            images = augment(images, chance)
        return images, self.train.labels[indices]

    def test_batch(self, which: Tensor | slice) -> tuple[Tensor, Tensor]:
        assert self.test.labels is not None
        if self.draws_by_seed and isinstance(which, Tensor):
            return self._make_batch(self.test, which, None)
        return self._normalize(self.test.images[which]), self.test.labels[which]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs.double(), targets, reduction="sum")
        # argmax returns a class even where all outputs are NaN; such an answer is never right.
        right = (outputs.argmax(1) == targets) & outputs.isfinite().all(1)
        return torch.stack([loss, 100.0 * (~right).sum().double()])

    def _make_batch(self, split: Split, indices: Tensor, chance: Chance | None) -> tuple[Tensor, Tensor]:
        kernel = batch_kernel()
        assert kernel is not None
        offsets, flips, seed = None, None, None
        if isinstance(chance, torch.Generator):
            offsets, flips = draw(len(indices), chance)
        else:
            seed = chance
        with torch.cuda.device(self.device):
            return kernel.make_batch(
                split.images,
                split.labels,
                indices,
                self._normalize.mean,
                self._normalize.inverse_scale,
                dtype=torch.bfloat16 if self.recipe.precision == "bfloat16" else torch.float32,
                channels_last=self.recipe.channels_last,
                offsets=offsets,
                flips=flips,
                seed=seed,
                pad=PAD,
            )


class Restoration(Task):
    """Mean squared error and the PSNR in dB: the input is the image with noise, the target the image.

    Images are scaled to [−1, 1], so the peak of the PSNR is 2; it is the mean over the images of each image's
    own PSNR. The noise of test image i is a function of i alone: the same for all runs, seeds and devices.
    """

    score = "psnr"
    PEAK: ClassVar[float] = 2.0

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device | str) -> None:
        super().__init__(recipe, dataset, device)
        self._test_noise = recipe.noise * fixed_noise(self.test.images.shape).to(self.device)
        self.train, self.test = self.train.to(self.device), self.test.to(self.device)

    def train_batch(self, indices: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        assert isinstance(chance, torch.Generator)
        images = self._scale(self.train.images[indices])
        if self.recipe.augment:
            images = augment(images, chance)
        noise = torch.randn(images.shape, generator=chance, device=self.device)
        return images + self.recipe.noise * noise, images

    def test_batch(self, which: Tensor | slice) -> tuple[Tensor, Tensor]:
        images = self._scale(self.test.images[which])
        return images + self._test_noise[which], images

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        squares = (outputs.double() - targets.double()).square().flatten(1).mean(1)  # [B]
        return torch.stack([squares.sum(), (10 * torch.log10(self.PEAK**2 / squares)).sum()])

    def _scale(self, images: Tensor) -> Tensor:
        return images.float() / 127.5 - 1


TASKS: dict[str, type[Task]] = {"classification": Classification, "restoration": Restoration}


def pixel_statistics(images: Tensor) -> tuple[Tensor, float]:
    """Return, of uint8 [N, 3, H, W], the mean of every pixel, float32 [3, H, W], and the deviation from it."""
    total = torch.zeros(images.shape[1:], dtype=torch.int64, device=images.device)
    squares = torch.zeros_like(total)
    # Whole numbers below 2**24 are exact in float32, on every device; only the CPU rounds, below.
    for chunk in images.split(2**24 // 255**2):
        whole = chunk.float()
        total += whole.sum(0).long()
        squares += whole.square().sum(0).long()
    total, squares = total.cpu(), squares.cpu()
    mean = total.double() / len(images)
    variance = (squares.double() / len(images) - mean.square()).mean()
    return mean.float(), float(variance.clamp_min(0).sqrt())


def fixed_noise(shape: torch.Size) -> Tensor:
    """Draw standard normal float32 [N, …]; row i depends on i and the row's shape only, not on N."""
    noise = torch.empty(shape, dtype=torch.float32, device="cpu")
    for index, row in enumerate(noise):
        generator = torch.Generator("cpu").manual_seed(mix("test noise", index))
        torch.randn(row.shape, generator=generator, out=row, dtype=row.dtype, device=row.device)
    return noise


def _contiguous(split: Split) -> Split:
    labels = None if split.labels is None else split.labels.contiguous()
    return Split(split.images.contiguous(), labels)


def _first(split: Split, wanted: int | None, name: str, data: str) -> Split:
    if wanted is None:
        return split
    if wanted > len(split):
        raise ValueError(f"{name}={wanted}, but data={data!r} has {len(split)}; use no more, or None")
    return Split(split.images[:wanted], None if split.labels is None else split.labels[:wanted])
