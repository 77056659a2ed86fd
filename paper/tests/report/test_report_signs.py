"""The sign of a spectrum: the share of the energy against the band, and the largest eigenvalue."""

import pytest
from made_records import CHANCE, records, weight

from nonloc_paper.report.signs import agrees, format_signs, has_bands, negative_share, share_band, weights_at


def bare(share):
    return {name: value for name, value in weight(share).items() if name != "band"}


@pytest.mark.parametrize(
    ("shares", "negative", "positive"),
    [
        ([0.9], True, False),
        ([0.1], False, True),
        ([0.65], False, False),
        ([0.95, 0.95, 0.4], True, False),
        ([0.99, 0.45, 0.45], False, False),
        ([0.99, 0.45], False, False),
        ([0.01, 0.55], False, False),
    ],
)
def test_a_sign_needs_the_energy_and_more_than_half_of_the_largest_eigenvalues(shares, negative, positive):
    weights = [weight(share) for share in shares]
    assert (agrees(weights, -1), agrees(weights, 1)) == (negative, positive)


def test_more_large_negative_eigenvalues_are_no_energy():
    weights = [weight(0.6), weight(0.6), weight(0.6)]
    assert format_signs(weights, -1) == "60 % negative (−−−; 3 of 24 < 0)"
    assert negative_share(weights) == pytest.approx(0.6)
    assert not agrees(weights, -1)


def test_weights_of_zero_have_no_sign():
    nothing = weight(0.5) | {"positive_energy": 0.0, "negative_energy": 0.0}
    assert negative_share([nothing]) is None
    assert not agrees([nothing], -1)
    assert format_signs([nothing], -1).startswith("no energy")


def test_several_weights_have_the_widest_of_their_bands():
    low, high = (weight(0.5) | {"band": {"negative_share": band}} for band in ([0.2, 0.6], [0.3, 0.7]))
    assert share_band([low, high]) == share_band([high, low]) == (0.2, 0.7)


def test_an_epoch_has_the_band_of_the_same_weight_after_training():
    (run,) = records("table1-beside", {"1 original block": [8.0]})
    for line in run.spectra:
        line["stages"] = [{"weights": [bare(0.9)]}]
    assert share_band(weights_at(run, 36)) == tuple(CHANCE)
    assert weights_at(run, 37) == []
    run.spectrum.clear()
    assert weights_at(run, 36) == [bare(0.9)]
    assert not has_bands(weights_at(run, 36))
