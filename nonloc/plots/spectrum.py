"""plot_spectrum: the eigenvalues of sym(W), block by block, with the band of random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nonloc._checks import check_whole
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.weight import WeightMap
from nonloc.plots.look import CHANCE, NEGATIVE, POSITIVE, make_axes
from nonloc.spectrum import RandomBand, Spectrum, random_band, weight_spectrum

GAP = 4  # bars of width between two blocks


def plot_spectrum(
    spectra: Spectrum | Sequence[Spectrum] | NonlocalModule,
    band: RandomBand | Sequence[RandomBand] | None = None,
    *,
    labels: Sequence[str] | None = None,
    top: int = 32,
    ax: Axes | None = None,
) -> Axes:
    """Draw the largest eigenvalues of sym(W) as bars, positive and negative in two colours, block beside block.

    spectra  of `weight_spectrum`, one or several; or a stage, whose blocks are then drawn with their bands
    band     of `random_band`: 95 % of random W of the same norm and rank lie in it; one for all, or one for each
    labels   below the blocks; "block 1", "block 2" … when left out
    top      how many eigenvalues of each, by magnitude

    The number of negative bars says nothing: a factored W has as many as positive ones. See `nonloc.spectrum`.

    >>> from nonloc import weight_spectrum
    >>> from nonloc.plots import plot_spectrum
    >>> ax = plot_spectrum(weight_spectrum(torch.diag(torch.tensor([1.0, -2.0]))))
    >>> [float(bar.get_height()) for bar in ax.patches]
    [-2.0, 1.0]
    """
    check_whole("top", top)
    if isinstance(spectra, NonlocalModule):
        spectra, band = _of_stage(spectra, band)
    listed = [spectra] if isinstance(spectra, Spectrum) else list(spectra)
    if not listed or not all(isinstance(one, Spectrum) for one in listed):
        raise ValueError(
            "spectra must be a Spectrum, several, or a stage; nonloc.weight_spectrum makes one of W, and "
            "nonloc.nn.stages(network) has the stages of a network"
        )
    bands: list[Any] = list(band) if isinstance(band, Sequence) else [band] * len(listed)
    names = [f"block {number}" for number in range(1, len(listed) + 1)] if labels is None else list(labels)
    for name, count in (("band", len(bands)), ("labels", len(names))):
        if count != len(listed):
            raise ValueError(f"{name} must be as many as spectra, {len(listed)}, got {count}")
    ax = make_axes(ax, (max(3.6, 1.2 + 1.5 * len(listed)), 3.0))
    start, middles = 0, []
    for spectrum, one_band in zip(listed, bands, strict=True):
        values = spectrum.top(top).numpy()
        order = start + np.arange(len(values))
        if one_band is not None:
            low, high = (side[: len(values)].numpy() for side in (one_band.low, one_band.high))
            ax.fill_between(order, low, high, step="mid", color=CHANCE, alpha=0.35, linewidth=0)
        ax.bar(order, values, width=0.72, color=np.where(values > 0, POSITIVE, NEGATIVE))
        middles.append(float(order.mean()) if len(order) else start)
        start += len(values) + GAP
    ax.axhline(0, color=CHANCE, linewidth=0.8)
    ax.set_xticks(middles, names)
    ax.tick_params(axis="x", length=0)
    ax.grid(False, axis="x")
    ax.set(ylabel="eigenvalue of sym(W)")
    if any(one is not None for one in bands):
        ax.set_xlabel("by magnitude; grey: where random weights lie")
    return ax


def _of_stage(stage: NonlocalModule, band: Any) -> tuple[list[Spectrum], Any]:
    """The spectrum of every W of a stage, and their bands where none are given and there can be some."""
    weights = [weight.detach() for weight in stage.weights()]
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise ValueError(
            "the stage has weights that are not finite, so it has no spectrum; its training diverged"
        )
    ranks = [one.rank for one in stage.maps if isinstance(one, WeightMap)]
    if band is None and len(ranks) == len(weights):
        band = [
            random_band(len(weight), rank, float(weight.double().norm()))
            for weight, rank in zip(weights, ranks, strict=True)
        ]
    return [weight_spectrum(weight) for weight in weights], band
