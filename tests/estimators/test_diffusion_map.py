"""DiffusionMap on problems with known eigenvectors, against dense matrices, and at new points."""

import numpy as np
import pytest
from sklearn.datasets import make_swiss_roll

from nonloc.estimators import DiffusionMap, slow_modes
from nonloc.ops import kernel_matrix

RNG = np.random.default_rng


def circle(size):
    angle = 2 * np.pi * np.arange(size) / size
    return np.column_stack([np.cos(angle), np.sin(angle)])


def dense_kernel(x, scale, alpha):
    """K of all pairs, and its stationary law."""
    weights = np.exp(-scale * np.square(x[:, None] - x[None]).sum(-1))
    density = weights.sum(1) ** alpha
    weights = weights / density[:, None] / density
    return weights / weights.sum(1, keepdims=True), weights.sum(1) / weights.sum()


@pytest.mark.parametrize("size", [101, 600], ids=["dense", "sparse"])
def test_on_a_circle_the_eigenvectors_are_cosines_and_sines(size):
    x = circle(size)
    found = DiffusionMap(4, n_neighbors=6, scale=1.0, random_state=0).fit(x)
    # On a circle K is a circulant matrix: its eigenvalues are the Fourier sums of one row.
    step = np.arange(-3, 4)
    weights = np.exp(-4 * np.sin(np.pi * step / size) ** 2)
    values = [weights @ np.cos(2 * np.pi * m * step / size) / weights.sum() for m in (1, 1, 2, 2)]
    assert found.eigenvalues_ == pytest.approx(values, abs=1e-13)
    angle = 2 * np.pi * np.arange(size) / size
    for m, pair in ((1, found.eigenvectors_[:, :2]), (2, found.eigenvectors_[:, 2:])):
        modes = np.sqrt(2) * np.column_stack([np.cos(m * angle), np.sin(m * angle)])
        turn = modes.T @ pair / size
        assert np.abs(turn @ turn.T - np.eye(2)).max() < 1e-8
        assert np.abs(modes @ turn - pair).max() < 1e-7


@pytest.mark.parametrize("alpha", [0, 0.5, 1.0])
@pytest.mark.parametrize("time", [1, 3])
def test_all_coordinates_give_the_diffusion_distances(alpha, time):
    x = RNG(0).random((30, 2))
    found = DiffusionMap(29, n_neighbors=29, scale=7.0, alpha=alpha, diffusion_time=time).fit(x)
    kernel, law = dense_kernel(x, 7.0, alpha)
    walks = np.linalg.matrix_power(kernel, time)
    expected = (np.square(walks[:, None] - walks[None]) / law).sum(-1)
    actual = np.square(found.embedding_[:, None] - found.embedding_[None]).sum(-1)
    assert np.abs(actual - expected).max() < 1e-11
    assert np.abs(law @ found.eigenvectors_).max() < 1e-12
    assert np.abs(law @ found.eigenvectors_**2 - 1).max() < 1e-12
    assert np.abs(kernel_matrix(found.affinity_)[0].numpy() - kernel).max() < 1e-14


CLOUDS = {"thin": make_swiss_roll(600, random_state=0)[0], "thick": RNG(1).standard_normal((600, 5))}


@pytest.mark.parametrize("name", CLOUDS)
def test_sparse_eigenvectors_are_those_of_the_dense_matrix(name, monkeypatch):
    sparse = DiffusionMap(3, random_state=0).fit(CLOUDS[name])
    assert sparse._graph.is_thin == (name == "thin")
    monkeypatch.setattr(slow_modes, "MOST_DENSE", 600)
    dense = DiffusionMap(3).fit(CLOUDS[name])
    assert sparse.eigenvalues_ == pytest.approx(dense.eigenvalues_, abs=1e-12)
    assert np.abs(sparse.eigenvectors_ - dense.eigenvectors_).max() < 1e-6
    kernel = kernel_matrix(dense.affinity_)[0].numpy()
    assert np.abs(kernel @ dense.eigenvectors_ - dense.eigenvalues_ * dense.eigenvectors_).max() < 1e-12


def test_where_lanczos_does_not_converge_factors_do(monkeypatch):
    found = DiffusionMap(3, random_state=0).fit(CLOUDS["thick"])
    monkeypatch.setattr(slow_modes, "LANCZOS_RESTARTS", 1)
    monkeypatch.setattr(slow_modes, "FACTORED_VECTORS", 60)
    again = DiffusionMap(3, random_state=0).fit(CLOUDS["thick"])
    assert np.abs(found.eigenvectors_ - again.eigenvectors_).max() < 1e-6


@pytest.mark.parametrize("time", [0, 0.5, 1, 2])
@pytest.mark.parametrize("dimensions", [2, 20], ids=["tree", "products"])
def test_the_extension_to_fitted_points_is_their_own_place(dimensions, time):
    x = RNG(2).standard_normal((300, dimensions))
    found = DiffusionMap(2, diffusion_time=time).fit(x)
    assert np.abs(found.transform(x) - found.embedding_).max() < 1e-9
    # One at a time, because a row depends on no other.
    assert np.abs(found.transform(x[:1]) - found.embedding_[:1]).max() < 1e-9


def test_the_extension_to_fitted_points_with_equal_distances():
    x = np.stack(np.meshgrid(np.arange(9.0), np.arange(7.0)), -1).reshape(-1, 2)
    found = DiffusionMap(2, n_neighbors=5).fit(x)
    assert np.abs(found.transform(x[::-1]) - found.embedding_[::-1]).max() < 1e-12


def test_a_new_point_on_the_circle_gets_its_cosine_and_sine():
    size = 200
    found = DiffusionMap(2, n_neighbors=size - 1, scale=3.0, diffusion_time=0).fit(circle(size))
    new = circle(3 * size)
    # Each coordinate is a wave √2 cos(angle − phase), and those of all fitted points determine its phase.
    waves = circle(size).T @ found.embedding_ * 2 / size
    assert np.abs(found.transform(new) - new @ waves).max() < 1e-9


def test_far_from_all_points_the_nearest_decides():
    x = RNG(3).random((50, 2))
    found = DiffusionMap(2, n_neighbors=10).fit(x)
    far = found.transform(np.array([[1e6, 1e6]]))
    nearest = np.square(x - 1e6).sum(1).argmin()
    assert far == pytest.approx(found.eigenvectors_[nearest : nearest + 1], abs=1e-6)


def test_separate_clusters_are_told_apart_by_the_first_coordinate():
    x = np.concatenate([RNG(4).random((30, 2)), 100 + RNG(5).random((10, 2))])
    with pytest.warns(UserWarning, match="has 2 separate parts, and the first 1 components"):
        found = DiffusionMap(2, n_neighbors=5, alpha=0).fit(x)
    assert found.eigenvalues_[0] == 1
    assert found.eigenvalues_[1] < 1
    first = found.eigenvectors_[:, 0]
    weights = found.affinity_.matrix.to_dense().numpy().sum(1)
    share = weights[:30].sum() / weights.sum()
    # Mean 0 and mean square 1 under π determine both values, up to the sign.
    expected = np.where(np.arange(40) < 30, -np.sqrt((1 - share) / share), np.sqrt(share / (1 - share)))
    assert first == pytest.approx(expected, abs=1e-12)


def test_the_scale_is_that_of_the_neighbours():
    x = 10 * circle(50)
    found = DiffusionMap(2, n_neighbors=4).fit(x)
    assert found.scale_ == pytest.approx(1 / (20 * np.sin(2 * np.pi / 50)) ** 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n_components": 5},
            "n_components = 5 needs at least 6 points, got n_samples = 5; use n_components ≤ 4",
        ),
        ({"n_components": 0}, "n_components must be a whole number ≥ 1, got 0"),
        ({"n_neighbors": 0}, "n_neighbors must be a whole number ≥ 1, got 0"),
        ({"scale": -1}, 'scale must be a number > 0, or "auto", got -1'),
        ({"alpha": -0.5}, "alpha must be a finite number ≥ 0, got -0.5"),
        ({"diffusion_time": float("nan")}, "diffusion_time must be a finite number ≥ 0, got nan"),
        (
            {"n_components": 4, "n_neighbors": 1, "diffusion_time": 0.5, "scale": 0.01},
            "eigenvalues ≤ 0, which have no power 0.5; use n_components ≤ 3",
        ),
    ],
)
def test_wrong_arguments_name_the_fix(options, message):
    x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    with pytest.raises(ValueError, match=message):
        DiffusionMap(**options).fit(x)


def test_points_whose_mask_would_be_lost_are_refused():
    x = RNG(0).standard_normal((5, 2))
    for ask in (DiffusionMap().fit, DiffusionMap().fit(x).transform):
        with pytest.raises(ValueError, match=r"X has masked entries.*X\.filled\(value\)"):
            ask(np.ma.masked_greater(x, 0))
    nothing_masked = DiffusionMap().fit(np.ma.asarray(x)).embedding_
    assert np.array_equal(nothing_masked, DiffusionMap().fit(x).embedding_)


def test_distances_that_overflow_are_refused():
    x = RNG(0).standard_normal((5, 2))
    for ask in (DiffusionMap().fit, DiffusionMap().fit(x).transform):
        with pytest.raises(ValueError, match="their distances overflow; scale them down"):
            ask(1e300 * x)
