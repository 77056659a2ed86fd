"""Signs of recorded spectra: the negative share of the energy against the band of random weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nonloc_paper.report.records import RunRecord

TOP = 32  # eigenvalues shown, as in the paper
Weight = dict[str, Any]


def weights_at(run: RunRecord, epoch: int | None = None) -> list[Weight]:
    """Return the spectra of every W of a run, in the order of the blocks, after `epoch` (None: after training).

    Those of an epoch were recorded without a band, and get "share_band" from the same W after training.
    """
    last = _flat(run.spectrum.get("stages", []))
    if epoch is None and last:
        return last
    wanted = run.recipe.epochs if epoch is None else epoch
    early = _flat(next((line["stages"] for line in run.spectra if line["epoch"] == wanted), []))
    if len(early) != len(last) or any("band" not in one for one in last):
        return early
    return [
        {**one, "share_band": other["band"]["negative_share"]} for one, other in zip(early, last, strict=True)
    ]


def negative_share(weights: list[Weight]) -> float | None:
    """Return the negative part of all energy of these W together; None where they have none."""
    negative = sum(weight["negative_energy"] for weight in weights)
    whole = negative + sum(weight["positive_energy"] for weight in weights)
    return negative / whole if whole else None


def share_band(weights: list[Weight]) -> tuple[float, float]:
    """Return between which shares one random W lies: the widest of the bands of these W.

    The band of a share does not depend on the norm, so a W that was recorded without one has that of its size.
    """
    bands = []
    for weight in weights:
        known = weight["band"]["negative_share"] if "band" in weight else weight.get("share_band")
        bands.append(known or _random_band(*_size(weight)))
    return min(low for low, _ in bands), max(high for _, high in bands)


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
    return beyond and 2 * _signs(weights).count(sign) > len(weights)


def has_large_positive(weights: list[Weight]) -> bool:
    """Whether some W has a positive eigenvalue above the band of the largest one; each has a band.

    The bands of smaller ones decide nothing: of 128 eigenvalues three pass their own by chance.
    """
    return any(max(weight["eigenvalues"]) > weight["band"]["high"][0] for weight in weights)


def format_largest(weights: list[Weight]) -> str:
    """Return such as "0.38 (band to 0.33)": the largest positive eigenvalue of the W in which it is most above."""
    pairs = [(max(weight["eigenvalues"]), weight["band"]["high"][0]) for weight in weights]
    largest, chance = max(pairs, key=lambda pair: pair[0] / pair[1])
    return f"{largest:.3f} (band to {chance:.3f})"


def format_signs(weights: list[Weight], sign: int) -> str:
    """Return such as "83 % negative (−−+; 49 of 96 < 0)".

    The share of the energy, the sign of the largest eigenvalue of each W, and how many of the TOP largest are negative.
    """
    share = negative_share(weights)
    shown = "no energy"
    if share is not None:
        shown = f"{100 * share:.0f} % negative" if sign < 0 else f"{100 * (1 - share):.0f} % positive"
    signs = "".join("+" if one > 0 else "−" for one in _signs(weights))
    return f"{shown} ({signs}; {count_negative(weights)} of {sum(len(top(one)) for one in weights)} < 0)"


def count_negative(weights: list[Weight]) -> int:
    """Return how many of the TOP largest eigenvalues of each W are negative. Of random weights half are."""
    return sum(value < 0 for weight in weights for value in top(weight))


def top(weight: Weight) -> list[float]:
    """Return the TOP largest eigenvalues of W, by magnitude."""
    return list(weight["eigenvalues"][:TOP])


def _signs(weights: list[Weight]) -> list[int]:
    """The sign of the eigenvalue of largest magnitude of each W."""
    return [1 if weight["eigenvalues"][0] > 0 else -1 for weight in weights]


def _flat(stages: list[dict[str, Any]]) -> list[Weight]:
    return [weight for stage in stages for weight in stage["weights"]]


def _size(weight: Weight) -> tuple[int, int]:
    channels = len(weight["eigenvalues"])
    return channels, int(weight.get("rank", max(1, channels // 2)))


@lru_cache(maxsize=16)
def _random_band(channels: int, rank: int) -> tuple[float, float]:
    # Reports need torch only for runs that were kept without spectrum.json.
    from nonloc.spectrum import random_band

    return random_band(channels, rank, norm=1.0).negative_share
