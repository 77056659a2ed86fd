"""Nonlocal means is one step of a nonlocal diffusion: remove noise from a photograph, compared with scikit-image.

    python examples/denoise.py

Positions are pixels, features are patches, the kernel is heat, and its rows sum to 1: then z + diffuse(z) = K z is the
nonlocal means of Buades, Coll and Morel. It uses the whole image without an M × M matrix.

Noise puts equal patches at a distance of 2σ², but a patch is at distance 0 from itself: K keeps too much of the noisy
pixel. The second method corrects the self weight. It divides Σ_j Ω_ij (z_j − z_i), which does not contain it, by the
row sums with exp(−2σ²/h²) in the place of Ω_ii = 1. scikit-image subtracts 2σ² too.

Every method gets the patch and the bandwidth with which it is nearest to the clean image. denoise.png shows them.
"""

import math
import time
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image

from nonloc import Affinity, aggregate, diffuse
from nonloc.plots import png, style
from nonloc.processes.images import patch_features, psnr, to_image, to_signal

SIGMA = 0.1
SIZE = 64
RADII = (1, 2)
BANDWIDTHS = (0.04, 0.05, 0.06, 0.08, 0.1)
# Measured with its formula as a matrix: so changed, one step is equally good.
REASON = (
    "scikit-image is ahead because its fast mode compares 2 × 2 pixels where 3 × 3 are asked for, and takes distances "
    "below those of pure noise for 0"
)


def photograph() -> torch.Tensor:
    """A crop of the flower that comes with scikit-learn, [3, 64, 64] in [0, 1]."""
    pixels = load_sample_image("flower.jpg")[140 : 140 + 2 * SIZE : 2, 240 : 240 + 2 * SIZE : 2]
    return torch.from_numpy(pixels.copy()).movedim(-1, 0).double() / 255


def one_step(noisy: torch.Tensor, radius: int, bandwidth: float) -> torch.Tensor:
    features = patch_features(noisy, radius)
    affinity = Affinity(features, features, "heat", "row", scale=1 / bandwidth**2)
    z = to_signal(noisy)
    return to_image(z + diffuse(affinity, z), *noisy.shape[1:])


def one_step_less_noise(noisy: torch.Tensor, radius: int, bandwidth: float) -> torch.Tensor:
    features = patch_features(noisy, radius)
    affinity = Affinity(features, features, "heat", "none", scale=1 / bandwidth**2)
    z = to_signal(noisy)
    row_sums = aggregate(affinity, torch.ones_like(z[..., :1]))
    row_sums = row_sums - 1 + math.exp(-2 * SIGMA**2 / bandwidth**2)
    return to_image(z + diffuse(affinity, z) / row_sums, *noisy.shape[1:])


def scikit_image(noisy: torch.Tensor, radius: int, bandwidth: float) -> torch.Tensor:
    from skimage.restoration import denoise_nl_means

    denoised = denoise_nl_means(
        noisy.movedim(0, -1).numpy(),
        patch_size=2 * radius + 1,
        patch_distance=11,
        h=bandwidth,
        sigma=SIGMA,
        channel_axis=-1,
    )
    return torch.from_numpy(denoised).movedim(-1, 0)


def save_pictures(pictures: dict[str, torch.Tensor]) -> None:
    """Save the images side by side."""
    with style():
        figure = Figure(figsize=(1.7 * len(pictures), 2.1), layout="constrained")
        for ax, (title, image) in zip(figure.subplots(1, len(pictures)), pictures.items(), strict=True):
            ax.imshow(image.clamp(0, 1).movedim(0, -1).numpy(), interpolation="nearest")
            ax.set_title(title, fontsize=8.5)
            ax.set_axis_off()
    Path("denoise.png").write_bytes(png(figure))


def main() -> None:
    clean = photograph()
    generator = torch.Generator().manual_seed(0)
    noisy = clean + SIGMA * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    print(f"{SIZE} × {SIZE} pixels, noise of deviation {SIGMA}: {psnr(noisy, clean):.2f} dB")
    methods = {"one diffusion step": one_step, "the same less noise": one_step_less_noise}
    try:
        import skimage
    except ImportError:
        print("scikit-image is not installed: it is left out of the comparison")
    else:
        methods[f"scikit-image {skimage.__version__}"] = scikit_image
    pictures = {"clean\n": clean, f"noisy\n{psnr(noisy, clean):.2f} dB": noisy}
    best = {}
    for name, method in methods.items():
        start = time.perf_counter()
        scores = {(r, h): psnr(method(noisy, r, h), clean) for r, h in product(RADII, BANDWIDTHS)}
        seconds = (time.perf_counter() - start) / len(scores)
        radius, bandwidth = max(scores, key=lambda choice: scores[choice])
        side = 2 * radius + 1
        best[name] = scores[radius, bandwidth]
        settings = f"{side} × {side} patches and bandwidth {bandwidth}"
        print(f"{name:<20} {best[name]:.2f} dB with {settings}, {seconds:.2f} s a run")
        title = f"{name}\n{best[name]:.2f} dB"
        pictures[title] = method(noisy, radius, bandwidth)
    if max(best, key=best.__getitem__).startswith("scikit-image"):
        print(REASON)
    save_pictures(pictures)
    print("denoise.png")


if __name__ == "__main__":
    main()
