"""The training step's bench: the library's losses are the plain loop's, and where they are not there is no time."""

import pytest
import torch

from benchmarks import training
from benchmarks.training import LibrarySteps, PlainLoop, random_images
from nonloc_paper.training.recipe import Recipe

CPU = torch.device("cpu")
SMALL = {"batch_size": 4, "repeats": 2, "steps": 1}


@pytest.mark.parametrize("network", ["preresnet8-basic/baseline", "preresnet8-basic/diffusive-2@3"])
def test_the_library_trains_as_the_plain_loop_does(network, tmp_path):
    recipe, data = Recipe(network, batch_size=4), random_images(400, CPU)
    plain, library = PlainLoop(recipe, data, CPU), LibrarySteps(recipe, data, CPU, tmp_path / "run")
    for _ in range(3):
        plain.step()
        library.step()
    assert library.losses() == pytest.approx([float(loss) for loss in plain.losses], rel=1e-4)
    library.close()


def test_rows_and_table_on_the_cpu():
    rows = training.measure_network("preresnet8-basic/baseline", CPU, **SMALL)
    assert [(row["way"], row["runs"]) for row in rows] == [("plain loop", 1), ("the library's step", 1)]
    assert all(row["passed"] and row["range"][0] <= row["milliseconds"] <= row["range"][1] for row in rows)
    assert rows[0]["gain"] == 1
    lines = training.table(rows).splitlines()
    assert len(lines) == 4
    assert "1.00×" in lines[2]


def test_other_losses_get_no_time(monkeypatch):
    honest = PlainLoop.step

    def other(self):
        honest(self)
        self.losses[-1] = self.losses[-1] * 1.01

    monkeypatch.setattr(PlainLoop, "step", other)
    (row,) = training.measure_network("preresnet8-basic/baseline", CPU, **SMALL)
    assert not row["passed"]
    assert row["milliseconds"] is None
    assert row["difference"] == pytest.approx(0.01, rel=0.02)
    assert "no: no time" in training.table([row])


def test_losses_that_are_not_finite_do_not_pass(monkeypatch):
    monkeypatch.setattr(LibrarySteps, "losses", lambda self: [float("nan")])
    (row,) = training.measure_network("preresnet8-basic/baseline", CPU, **SMALL)
    assert not row["passed"]


@pytest.mark.gpu
def test_cuda_captured_steps_alone_and_side_by_side():
    rows = training.measure_network(
        "preresnet20/baseline", torch.device("cuda"), side_by_side=(2,), repeats=2, steps=5
    )
    assert [(row["way"], row["runs"]) for row in rows] == [
        ("plain loop", 1),
        ("captured", 1),
        ("captured, 2 side by side", 2),
    ]
    assert all(row["passed"] and row["memory"] > 0 for row in rows)
    assert rows[1]["milliseconds"] < rows[0]["milliseconds"]
