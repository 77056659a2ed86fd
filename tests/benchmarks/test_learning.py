"""The learning curves' bench: the plain loop's curve is the library's, and one that is not is told."""

import pytest
import torch

from benchmarks import learning
from benchmarks.side_by_side import PlainLoop, random_images

CPU = torch.device("cpu")
NETWORK = "preresnet8-basic/diffusive-2@3"


def points():
    # 10 images in batches of 4: the last batch of an epoch is short.
    data = random_images(10, CPU)
    return list(learning.curves(data, CPU, networks=[NETWORK], epochs=2, seeds=2, batch_size=4))


def test_the_plain_loop_learns_as_the_library_does():
    found = points()
    assert [(point.network, point.epoch, point.passed) for point in found] == [
        (NETWORK, 1, True),
        (NETWORK, 2, True),
    ]
    for point in found:
        assert point.plain_losses == pytest.approx(point.losses, rel=1e-3)
        assert point.plain_errors == point.errors
        assert point.losses[0] != point.losses[1]
    lines = learning.table([point.to_dict() for point in found]).splitlines()
    assert len(lines) == 4
    assert f"{found[1].losses[1]:.3f}" in lines[3]


@pytest.mark.parametrize("change", [lambda loss: loss + 10, lambda loss: loss * float("nan")])
def test_a_loop_that_learns_otherwise_does_not_pass(monkeypatch, change):
    honest = PlainLoop.step

    def other(self):
        honest(self)
        self.losses[-1] = change(self.losses[-1])

    monkeypatch.setattr(PlainLoop, "step", other)
    assert not any(point.passed for point in points())


def test_one_seed_that_is_lost_is_enough(monkeypatch):
    honest = PlainLoop.step

    def lost(self):
        honest(self)
        if self.recipe.seed == 1:
            self.losses[-1] = self.losses[-1] * float("nan")

    monkeypatch.setattr(PlainLoop, "step", lost)
    assert not any(point.passed for point in points())


def test_a_run_of_the_library_that_diverges_does_not_pass(monkeypatch):
    monkeypatch.setattr(learning, "_plain_curves", lambda recipes, *_: [[(1.0, 50.0)] * 2 for _ in recipes])
    data = random_images(10, CPU)
    recipe = {"networks": [NETWORK], "epochs": 2, "seeds": 2, "batch_size": 4, "learning_rate": 1e30}
    assert [point.passed for point in learning.curves(data, CPU, **recipe)] == [False, False]
