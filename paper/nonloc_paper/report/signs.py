"""What recorded spectra say about signs: the negative share of the energy beside the band of random weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nonloc_paper.report.records import RunRecord
from nonloc_paper.report.tables import with_minus

Weight = dict[str, Any]


def weights_at(run: RunRecord, epoch: int | None = None) -> list[Weight]:
    """The spectra of every W of a run, in the order of the blocks, after `epoch` (None: after training).

    Those of an epoch were recorded without a band, and get "share_band" from the same W after training.
    """
    last = _flat(run.spectrum.get("stages", []))
    if epoch is None and last:
        return last
    wanted = run.recipe.epochs if epoch is None else epoch
    found = _flat(next((line["stages"] for line in run.spectra if line["epoch"] == wanted), []))
    if len(found) != len(last) or any("band" not in one for one in last):
        return found
    return [
        {**one, "share_band": other["band"]["negative_share"]} for one, other in zip(found, last, strict=True)
    ]


def negative_share(weights: list[Weight]) -> float | None:
    """The negative part of all energy of these W together; None where they have none."""
    negative = sum(weight["negative_energy"] for weight in weights)
    whole = negative + sum(weight["positive_energy"] for weight in weights)
    return negative / whole if whole else None


def share_band(weights: list[Weight]) -> tuple[float, float]:
    """Between which shares one random W lies: the widest of the bands of these W.

    The band of a share does not depend on the norm, so a W that was recorded without one has that of its size.
    """
    bands = [_band(weight) for weight in weights]
    return min(low for low, _ in bands), max(high for _, high in bands)


def signs(weights: list[Weight]) -> list[int]:
    """The sign of the eigenvalue of largest magnitude of each W."""
    return [1 if weight["eigenvalues"][0] > 0 else -1 for weight in weights]


def agrees(weights: list[Weight], sign: int) -> bool:
    """Whether the large eigenvalues have this sign beyond chance.

    The share of the energy with that sign lies outside the band, on its side, and so does the eigenvalue of
    largest magnitude in more than half of the W.
    """
    share = negative_share(weights)
    if share is None:
        return False
    low, high = share_band(weights)
    beyond = share > high if sign < 0 else share < low
    return beyond and 2 * signs(weights).count(sign) > len(weights)


def has_large_positive(weights: list[Weight]) -> bool:
    """Whether the eigenvalue of largest magnitude of some W is positive, and larger than chance has it.

    As half of all random W have a positive one, the sign alone would be found in nearly every network of some blocks.
    """
    return any(weight["eigenvalues"][0] > _largest_by_chance(weight) for weight in weights)


def told(weights: list[Weight], sign: int) -> str:
    """Such as "83 % negative, λ₁ − − +", or the positive share, for a claim about the positive ones."""
    share = negative_share(weights)
    if share is None:
        shown = "no energy"
    else:
        shown = f"{100 * share:.0f} % negative" if sign < 0 else f"{100 * (1 - share):.0f} % positive"
    return f"{shown}, λ₁ {' '.join('+' if sign > 0 else '−' for sign in signs(weights))}"


def caption(label: str, weights: list[Weight]) -> str:
    """Trace, energies and the negative share of every W of a network, in a sentence for a caption."""
    blocks = "; ".join(
        f"block {number}: trace {_minus(weight['trace'])}, energy {weight['positive_energy']:.3g} positive and "
        f"{weight['negative_energy']:.3g} negative ({_share(weight)})"
        for number, weight in enumerate(weights, start=1)
    )
    return f"{label}: {blocks}." if blocks else f"{label}: no spectrum is recorded."


def _share(weight: Weight) -> str:
    share = negative_share([weight])
    if share is None:
        return "no energy"
    low, high = share_band([weight])
    return f"{100 * share:.0f} %, chance {100 * low:.0f} to {100 * high:.0f} %"


def _minus(value: float) -> str:
    return with_minus(f"{value:.3g}")


def _flat(stages: list[dict[str, Any]]) -> list[Weight]:
    return [weight for stage in stages for weight in stage["weights"]]


def _band(weight: Weight) -> tuple[float, float]:
    known = weight["band"]["negative_share"] if "band" in weight else weight.get("share_band")
    if known is not None:
        low, high = known
        return low, high
    channels = len(weight["eigenvalues"])
    return _random_band(channels, int(weight.get("rank", max(1, channels // 2))))


def _largest_by_chance(weight: Weight) -> float:
    if "band" in weight:
        return float(weight["band"]["high"][0])

    from nonloc.spectrum import random_band

    channels = len(weight["eigenvalues"])
    rank = int(weight.get("rank", max(1, channels // 2)))
    return float(random_band(channels, rank, norm=weight["norm"]).high[0])


@lru_cache(maxsize=16)
def _random_band(channels: int, rank: int) -> tuple[float, float]:
    # Reports need no torch, but for runs that were kept without spectrum.json.
    from nonloc.spectrum import random_band

    return random_band(channels, rank, norm=1.0).negative_share
