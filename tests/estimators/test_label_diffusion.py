"""LabelDiffusion against dense linear systems and scikit-learn, on paths with known answers, and at new points."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_swiss_roll
from sklearn.semi_supervised import LabelSpreading

from nonloc.estimators import LabelDiffusion, label_diffusion

RNG = np.random.default_rng
CLOUDS = {"thin": make_swiss_roll(300, random_state=0)[0], "thick": RNG(1).standard_normal((300, 6))}


def some_labels(x, classes=3):
    labels = RNG(0).integers(classes, size=len(x))
    labels[RNG(1).random(len(x)) > 0.1] = -1
    return labels


def weights_of(found):
    weights = found._graph.weights.toarray()
    np.fill_diagonal(weights, 0)
    return weights


def test_on_a_path_labels_of_both_ends_fall_off_linearly():
    x = np.arange(9.0)[:, None]
    y = np.array([7] + 7 * [-1] + [3])
    found = LabelDiffusion(n_neighbors=1, scale=0.1).fit(x, y)
    assert found.classes_.tolist() == [3, 7]
    assert found.label_distributions_[:, 0] == pytest.approx(np.arange(9) / 8, abs=1e-13)
    assert found.transduction_[:4].tolist() == [7] * 4
    assert found.transduction_[5:].tolist() == [3] * 4


@pytest.mark.parametrize("name", CLOUDS)
def test_clamped_labels_solve_the_dense_linear_system(name):
    x = CLOUDS[name]
    y = some_labels(x)
    found = LabelDiffusion().fit(x, y)
    assert found._graph.is_thin == (name == "thin")
    weights, free = weights_of(found), y == -1
    laplacian = np.diag(weights.sum(1)) - weights
    known = np.eye(3)[y[~free]]
    expected = np.linalg.solve(laplacian[np.ix_(free, free)], weights[np.ix_(free, ~free)] @ known)
    assert np.abs(found.label_distributions_[free] - expected).max() < 1e-10
    assert np.array_equal(found.label_distributions_[~free], known)


@pytest.mark.parametrize("alpha", [0.2, 0.9])
def test_a_source_is_scikit_learn_s_label_spreading_at_rest(alpha):
    x = RNG(2).random((60, 3))
    y = some_labels(x)
    found = LabelDiffusion(n_neighbors=59, scale=5.0, alpha=alpha).fit(x, y)
    rest = LabelSpreading(kernel="rbf", gamma=5.0, alpha=alpha, max_iter=1000, tol=1e-14).fit(x, y)
    assert np.abs(found.label_distributions_ - rest.label_distributions_).max() < 1e-11
    assert np.array_equal(found.transduction_, rest.transduction_)


@pytest.mark.parametrize("alpha", [1e-9, 0.5, 0.99, 0.9999])
def test_a_source_solves_the_dense_linear_system(alpha):
    x = CLOUDS["thick"]
    y = some_labels(x)
    found = LabelDiffusion(n_neighbors=100, alpha=alpha).fit(x, y)
    weights = weights_of(found)
    half = np.sqrt(weights.sum(1))
    known = np.where(y[:, None] == range(3), 1.0, 0.0)
    rest = np.linalg.solve(np.eye(len(x)) - alpha * weights / np.outer(half, half), known)
    expected = rest / rest.sum(1, keepdims=True)
    assert np.abs(found.label_distributions_ - expected).max() < 1e-9


def test_an_unlabelled_point_that_comes_again_gets_what_it_had():
    """f is harmonic there, so the mean over its row is f itself."""
    x = CLOUDS["thin"]
    y = some_labels(x)
    found = LabelDiffusion().fit(x, y)
    assert np.abs(found.predict_proba(x) - found.label_distributions_)[y == -1].max() < 1e-10
    assert np.array_equal(found.predict(x)[y == -1], found.transduction_[y == -1])


def test_one_label_a_cluster_is_enough():
    x, truth = make_blobs(200, centers=[[0, 0], [30, 0], [0, 30]], random_state=0)
    names = np.array(["a", "b", "c"], dtype=object)[truth]
    y = np.where(np.isin(np.arange(200), np.unique(truth, return_index=True)[1]), names, -1)
    found = LabelDiffusion(n_neighbors=10).fit(x, y)
    assert np.array_equal(found.transduction_, names)
    assert found.predict([[1, -1], [29, 1], [2, 40]]).tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_what_no_label_reaches_gets_the_frequencies_of_labels(alpha):
    x, truth = make_blobs(60, centers=[[0, 0], [30, 0]], random_state=0)
    y = np.full(60, -1)
    y[np.flatnonzero(truth == 0)[:4]] = [5, 6, 6, 6]
    with pytest.warns(UserWarning, match="30 points are reached by no label"):
        found = LabelDiffusion(n_neighbors=5, alpha=alpha).fit(x, y)
    assert np.abs(found.label_distributions_[truth == 1] - [0.25, 0.75]).max() == 0
    assert np.abs(found.label_distributions_.sum(1) - 1).max() < 1e-14


def test_weights_that_are_lost_in_rounding_reach_nothing():
    """Two points joined to the others by exp(−64): they had the label of the last class, wherever it was."""
    x = [[0.0], [1.0], [2.0], [10.0], [10.5]]
    with pytest.warns(UserWarning, match="2 points are reached by no label"):
        found = LabelDiffusion(n_neighbors=2, scale=1.0).fit(x, [1, -1, 0, -1, -1])
    assert found.label_distributions_[3:].tolist() == [[0.5, 0.5]] * 2


def test_where_conjugate_gradients_do_not_converge_factors_do(monkeypatch):
    x = CLOUDS["thick"]
    y = some_labels(x)
    expected = LabelDiffusion().fit(x, y).label_distributions_
    monkeypatch.setattr(label_diffusion, "cg", lambda matrix, right, **options: (right, 1))
    assert np.abs(LabelDiffusion().fit(x, y).label_distributions_ - expected).max() < 1e-10


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({"alpha": 1}, [0, 1, -1], "alpha must be None, or a number between 0 and 1, got 1"),
        ({"n_neighbors": 1.5}, [0, 1, -1], "n_neighbors must be a whole number ≥ 1, got 1.5"),
        ({}, [-1, -1, -1], "y has no label, only -1"),
        ({}, [0.1, 0.2, 0.3], "Unknown label type"),
        ({}, np.ma.masked_equal([0, 1, 2], 2), r"y has masked entries.*y\.filled\(value\)"),
        ({}, ["a", "b", "-1"], "by the number -1.*dtype object"),
        ({}, np.array(["a", "b", None], dtype=object), "by the number -1"),
    ],
)
def test_wrong_arguments_name_the_fix(options, y, message):
    with pytest.raises(ValueError, match=message):
        LabelDiffusion(**options).fit([[0.0], [1.0], [2.0]], y)
