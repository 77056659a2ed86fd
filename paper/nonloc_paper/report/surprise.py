"""surprise: what the best denoiser of a folder has learned, as sentences, as far as its records say so."""

from __future__ import annotations

import numpy as np

from nonloc_paper.report.records import Collection, RowRecord, RunRecord, score_name
from nonloc_paper.report.signs import has_bands, negative_share, share_band, weights_at

CLEAR_CORRELATION = 0.5


def best_row(collection: Collection) -> RowRecord | None:
    """Return the row with the highest median PSNR; None where no run has one."""
    rows = [row for row in collection.rows if score_name(row.recipe) == "psnr" and row.median is not None]
    return max(rows, key=lambda row: row.median or 0.0, default=None)


def surprise(collection: Collection) -> list[str]:
    """Return which row is best; then, of its first network, whether it sharpens, may make signals grow, and why."""
    row = best_row(collection)
    if row is None or row.median is None:
        return []
    noisy = collection.input_psnr
    above = "" if noisy is None else f", {row.median - noisy:.2f} dB more than the noisy images"
    sentences = [f"Best here: “{row.label}”, {row.median:.2f} dB{above}."]
    if row.example is None or not (sharpens := _sharpens(row.example)):
        return sentences
    return [*sentences, sharpens, *filter(None, (_grows(row.example), _why(row.example)))]


def _sharpens(run: RunRecord) -> str:
    """Whether the energy of every diffusive W is more negative than chance gives it."""
    weights = weights_at(run)
    share = negative_share(weights)
    if run.recipe.form != "diffusive" or share is None or not has_bands(weights):
        return ""
    if not all((one["negative_share"] or 0) > one["band"]["negative_share"][1] for one in weights):
        return ""
    low, high = share_band(weights)
    return (
        f"It sharpens: {100 * share:.0f} % of the energy of its weights is negative, which "
        f"is diffusion backwards (random weights have {100 * low:.0f} to {100 * high:.0f} %). The paper reports mostly "
        "positive energy, diffusion, in its classifiers."
    )


def _grows(run: RunRecord) -> str:
    unstable = [stage for stage in run.stability.get("stages", []) if stage["verdict"] == "unstable"]
    factors = [stage["growth"] for stage in unstable if stage["growth"] is not None]
    if not factors:
        return ""
    return (
        f"The certificate calls it unstable: some signal grows × {max(factors):.3g} in its stage. That is no fault of "
        'this network, whose last layers are trained with it; weight="stable" forbids it where it would be one.'
    )


def _why(run: RunRecord) -> str:
    """Whether the network takes the noise away by bringing it out."""
    blocks = [block for stage in run.observations.get("features", []) for block in stage["blocks"]]
    before, after = (
        (blocks[0]["before"]["variance"], blocks[-1]["after"]["variance"]) if blocks else (None, None)
    )
    tensors = run.tensors
    if not before or not after or after <= before or not {"images", "noisy", "restored"} <= set(tensors):
        return ""
    clean = tensors["images"] / 127.5 - 1.0
    added, noise = (tensors["restored"] - tensors["noisy"]).flatten(), (tensors["noisy"] - clean).flatten()
    correlation = float(np.corrcoef(added, -noise)[0, 1])
    if not correlation > CLEAR_CORRELATION:
        return ""
    return (
        "Why that pays in denoising: the network adds a correction to its input, and the right one is minus the noise "
        f"(here they correlate by {correlation:.2f}). So the stage need not smooth the image. It enlarges the "
        f"differences between positions, × {after / before:.0f} in variance, and the layers behind it take away the "
        "noise that stands out."
    )
