"""The protocol that all rows share: what the text states, and what was chosen where it is silent. No torch."""

from __future__ import annotations

from nonloc.nn.options import StageOptions
from nonloc_paper.training.recipe import Recipe

SPECTRUM_EPOCHS = (36, 82, 125)  # Figure 2

# Where original blocks break and diffusive ones train, by the ten-epoch part of the map: in words, and as options.
FRAGILE_START = "deviation 0.07"
FRAGILE_STAGE = {"init_std": 0.07}

STAGE = StageOptions(
    affinity="embedded_gaussian",
    scaled=False,
    weight="factored",
    init="normal",
    init_std=0.01,
    batch_norm=False,
)
CIFAR10 = Recipe(stage=STAGE, spectrum_epochs=SPECTRUM_EPOCHS, precision="bfloat16", channels_last=True)
CIFAR100 = CIFAR10.with_(data="cifar100")

NOTES = (
    "Backbone: 64 channels after residual block 2 mean bottleneck blocks of He's widths, 9n + 2 layers.",
    "Affinity: not stated; embedded Gaussian with separate θ and φ and softmax, not divided by √d, as Wang et al.",
    "W: W_Z W_g of rank C/2 in both forms (Figure 4 shows 32 values).",
    "Initialisation and normalisation of the stage: not stated; all four maps normal with deviation 0.01, with which "
    "both forms train, no batch normalisation after W_Z.",
    "Scale of the pixels: not stated; the per-pixel mean is subtracted, then divided by 64.",
    "Score: last epoch; no Nesterov momentum; weight decay on all parameters.",
    "Precision: not stated, and float32 was usual; here bfloat16 autocast with float32 weights, logits and sums, and "
    "the memory layout channels last, for speed. `--set precision=float32 channels_last=false` gives float32.",
)
