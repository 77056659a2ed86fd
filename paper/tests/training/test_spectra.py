"""Recording spectra: one entry for every weight of every stage, and nothing that has no spectrum."""

import math

import pytest
import torch

from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.observe import record_spectra, stage_weights


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


def test_every_weight_of_every_stage_is_recorded(run):
    model = build("restorer8/diffusive-2@1,3")
    assert record_spectra(run, stage_weights(model), 7)
    [line] = run.read_spectra()
    assert line["epoch"] == 7
    assert [len(stage["weights"]) for stage in line["stages"]] == [2, 2]
    assert len({stage["name"] for stage in line["stages"]}) == 2


def test_the_eigenvalues_are_those_of_the_symmetric_part(run):
    model = build("restorer4/diffusive-1@1", weight="full")
    [weight] = [value for value in model.parameters() if value.shape == (4, 4)]
    with torch.no_grad():
        weight.copy_(torch.tensor([[1.0, 5, 0, 0], [-5, -3, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]]))
    record_spectra(run, stage_weights(model), 0)
    [stage] = run.read_spectra()[0]["stages"]
    assert stage["weights"][0]["eigenvalues"] == pytest.approx([-3.0, 1.0, 0.5, 0.0], abs=1e-12)


def test_a_network_without_stages_records_nothing(run):
    assert not record_spectra(run, stage_weights(build("restorer8/baseline")), 0)
    assert run.read_spectra() == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_record_nothing(run, bad):
    model = build("restorer8/original-2@2")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "maps.1" in name:
                value.fill_(bad)
    assert not record_spectra(run, stage_weights(model), 0)
    assert run.read_spectra() == []
