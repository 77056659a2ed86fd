"""Against others: a diffusion map's Markov matrix, written out with numpy on the same points."""

import numpy as np
import torch

from nonloc.ops import Affinity, kernel_matrix
from nonloc.processes import JumpProcess


def circle(size=80):
    """Points on a noisy circle [M, 2]."""
    generator = np.random.default_rng(0)
    angle = np.sort(generator.uniform(0, 2 * np.pi, size))
    return np.stack([np.cos(angle), np.sin(angle)], -1) + 0.05 * generator.standard_normal((size, 2))


def diffusion_map(points):
    """P = D⁻¹ exp(−|x − y|² / ε) with ε the median of the squared distances, and that ε."""
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    bandwidth = np.median(squares)
    weights = np.exp(-squares / bandwidth)
    return weights / weights.sum(1, keepdims=True), bandwidth


def process_on(points, bandwidth):
    x = torch.from_numpy(points).unsqueeze(0)
    return JumpProcess(Affinity(x, x, "heat", "row", float(1 / bandwidth)))


def test_the_markov_matrix_is_that_of_a_diffusion_map():
    expected, bandwidth = diffusion_map(circle())
    found = process_on(circle(), bandwidth).transition_matrix()[0].numpy()
    assert np.abs(found - expected).max() < 1e-14


def test_its_first_coordinate_decays_at_the_spectral_gap():
    markov, bandwidth = diffusion_map(circle())
    values = np.sort(np.linalg.eigvals(markov).real)
    assert abs(float(process_on(circle(), bandwidth).spectral_gap()) - (1 - values[-2])) < 1e-12


def test_a_density_normalised_map_is_a_measure():
    """Coifman and Lafon's α = 1: weights q(x)⁻¹ k(x, y) q(y)⁻¹, normalised by row again."""
    points = circle()
    _, bandwidth = diffusion_map(points)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    weights = np.exp(-squares / bandwidth)
    density = weights.sum(1)
    corrected = weights / np.outer(density, density)
    expected = corrected / corrected.sum(1, keepdims=True)
    x = torch.from_numpy(points).unsqueeze(0)
    found = kernel_matrix(
        Affinity(x, x, "heat", "row", float(1 / bandwidth), measure=torch.from_numpy(1 / density))
    )
    assert np.abs(found[0].numpy() - expected).max() < 1e-14
