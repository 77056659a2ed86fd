"""Signs of recorded spectra: the negative share of the energy against the band of random weights."""

from __future__ import annotations

from typing import Any

from nonloc_paper.report.records import RunRecord

TOP = 32  # eigenvalues shown, as in the paper
Weight = dict[str, Any]


def weights_at(run: RunRecord, epoch: int | None = None) -> list[Weight]:
    """Return the spectra of every W of a run, in the order of the blocks, after `epoch` (None: after training).

    Those of an epoch were recorded without a band, and get "share_band" from the same W after training.
    """
    last = _flat(run.spectrum.get("stages", []))
    if epoch is None:
        return last
    early = _flat(next((line["stages"] for line in run.spectra if line["epoch"] == epoch), []))
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


def has_bands(weights: list[Weight]) -> bool:
    """Whether there are W, and each was recorded with the band of random ones."""
    return bool(weights) and all("band" in one or "share_band" in one for one in weights)


def share_band(weights: list[Weight]) -> tuple[float, float]:
    """Return between which shares one random W lies: the widest of the bands of these W, each of which has one."""
    bands = [one["band"]["negative_share"] if "band" in one else one["share_band"] for one in weights]
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
