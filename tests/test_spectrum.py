"""Spectra with known answers, the inertia trap, and the band of chance."""

import json
import math

import pytest
import torch

from nonloc.spectrum import Spectrum, random_band, symmetric_part, weight_spectrum


def rotation(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q


def factored(channels, rank, seed=0):
    generator = torch.Generator().manual_seed(seed)
    w_z = torch.randn(channels, rank, dtype=torch.float64, generator=generator)
    return w_z @ torch.randn(rank, channels, dtype=torch.float64, generator=generator)


def test_known_eigenvalues_come_back_by_magnitude():
    q = rotation(5)
    values = torch.tensor([0.5, -3.0, 2.0, 0.0, -1.0], dtype=torch.float64)
    skew = rotation(5, seed=1)
    w = q @ torch.diag(values) @ q.T + skew - skew.T
    expected = torch.tensor([-3.0, 2.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(weight_spectrum(w).eigenvalues, expected, rtol=0, atol=1e-12)


def test_top_trace_and_energies():
    spectrum = Spectrum(torch.tensor([1.0, -2.0, 0.5, -0.1]))
    assert spectrum.eigenvalues.dtype == torch.float64
    assert spectrum.top(2).tolist() == [-2.0, 1.0]
    assert (spectrum.top(0).numel(), spectrum.top(99).numel()) == (0, 4)
    with pytest.raises(ValueError, match="k must be a whole number ≥ 0, got -1"):
        spectrum.top(-1)
    assert spectrum.trace == pytest.approx(-0.6)
    assert spectrum.positive_energy == pytest.approx(1.25)
    assert spectrum.negative_energy == pytest.approx(4.01)
    assert spectrum.negative_share == pytest.approx(4.01 / 5.26)


def test_single_precision_is_computed_in_double():
    w = factored(16, 8).float()
    torch.testing.assert_close(
        weight_spectrum(w.requires_grad_()).eigenvalues,
        weight_spectrum(w.double()).eigenvalues,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("seed", range(2))
def test_inertia_trap(seed):
    """Nearly positive semi-definite by its energy, and still with as many negative eigenvalues as positive ones."""
    generator = torch.Generator().manual_seed(seed)
    w_z, noise = torch.randn(2, 12, 4, dtype=torch.float64, generator=generator)
    spectrum = weight_spectrum(w_z @ (w_z + 0.1 * noise).T)
    assert spectrum.negative_share < 0.01
    assert int((spectrum.eigenvalues > 1e-9).sum()) == 4
    assert int((spectrum.eigenvalues < -1e-9).sum()) == 4


def test_round_trip_by_json():
    spectrum = weight_spectrum(factored(6, 3))
    values = json.loads(json.dumps(spectrum.to_dict(), allow_nan=False))
    assert torch.equal(Spectrum.from_dict(values).eigenvalues, spectrum.eigenvalues)
    assert values["trace"] == spectrum.trace
    assert values["negative_share"] == spectrum.negative_share


def test_numbers_of_python_keep_their_digits():
    assert Spectrum([0.1, -1e300]).eigenvalues.tolist() == [-1e300, 0.1]


def test_symmetric_part_is_differentiable_and_takes_batches():
    w = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(symmetric_part(w), (w + w.transpose(1, 2)) / 2)
    assert torch.autograd.gradcheck(symmetric_part, (w,))


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (torch.zeros(3, 2), r"w must be square, \[C, C\], got \[3, 2\]"),
        (torch.zeros(3), "w must be square"),
        (torch.zeros(2, 3, 3), "one matrix"),
        (torch.tensor([[1.0, math.nan], [0.0, 1.0]]), "not finite"),
        (torch.tensor([[math.inf, 0.0], [0.0, 1.0]]), "not finite"),
        ([[1.0]], "w must be a tensor.*got list"),
        (1j * torch.eye(3), "w must be real"),
    ],
)
def test_what_has_no_spectrum_is_refused(w, message):
    with pytest.raises(ValueError, match=message):
        weight_spectrum(w)


def test_band_holds_the_stated_part_of_fresh_random_matrices():
    band = random_band(16, 8, 2.0, samples=1000, quantile=0.9)
    generator = torch.Generator().manual_seed(99)
    inside = torch.zeros(16)
    traces = shares = 0
    for _ in range(500):
        w = torch.randn(16, 8, dtype=torch.float64, generator=generator)
        w = w @ torch.randn(8, 16, dtype=torch.float64, generator=generator)
        spectrum = weight_spectrum(2.0 * w / w.norm())
        inside += (spectrum.eigenvalues >= band.low) & (spectrum.eigenvalues <= band.high)
        traces += band.trace[0] <= spectrum.trace <= band.trace[1]
        shares += band.negative_share[0] <= spectrum.negative_share <= band.negative_share[1]
    # 500 draws of a chance of 0.9: one deviation is 0.013; the band itself is known to about 0.01.
    assert (traces / 500, shares / 500) == pytest.approx((0.9, 0.9), abs=0.06)
    assert float((inside / 500 - 0.9).abs().max()) < 0.07


def test_band_is_symmetric_in_sign_and_scales_with_the_norm():
    band, larger = (random_band(16, 8, norm, samples=2000) for norm in (1.0, 3.0))
    torch.testing.assert_close(larger.high, 3 * band.high)
    torch.testing.assert_close(band.low, -band.high, rtol=0, atol=0.03)
    assert sum(band.negative_share) == pytest.approx(1.0, abs=0.05)
    assert band.trace[0] < 0 < band.trace[1]


@pytest.mark.parametrize("norm", [1e-200, 1e200])
def test_shares_of_a_band_are_the_same_for_every_norm(norm):
    assert random_band(4, 2, norm).negative_share == random_band(4, 2, 1.0).negative_share


def test_band_is_json_and_zero_for_norm_zero():
    band = random_band(4, 2, 0.0).to_dict()
    assert json.loads(json.dumps(band, allow_nan=False)) == band
    assert band["trace"] == band["negative_share"] == [0.0, 0.0]


@pytest.mark.parametrize(
    "arguments",
    [(0, 2, 1.0), (4, 0, 1.0), (4, 2, -1.0), (4, 2, math.nan), (4, 2, 1.0, 0), (4, 2, 1.0, 10, 0, 1.0)],
)
def test_wrong_band_is_refused(arguments):
    with pytest.raises(ValueError, match="must"):
        random_band(*arguments)


def test_band_of_full_rank_is_that_of_one_normal_matrix():
    """Wigner's edge: the largest |λ| of sym(W) tends to √2 ‖W‖ / √C. A product of two factors goes 20 % beyond it."""
    assert float(random_band(64, 64, 8.0).high[0]) == pytest.approx(math.sqrt(2), rel=0.06)


def test_the_share_of_small_eigenvalues_is_known_and_zero_has_none():
    spectrum = weight_spectrum(torch.zeros(3, 3))
    assert math.isnan(spectrum.negative_share)
    assert spectrum.to_dict()["negative_share"] is None
    w = torch.diag(torch.tensor([3e-170, -4e-170], dtype=torch.float64))
    assert weight_spectrum(w).negative_share == pytest.approx(16 / 25)
