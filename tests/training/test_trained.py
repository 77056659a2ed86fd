"""The trained network out of its run folder."""

import pytest
import torch
from tiny import tiny_data, tiny_recipe

from nonloc.runs import Run
from nonloc.training.loop import fit
from nonloc.training.state import weights_sha256
from nonloc.training.trained import trained_network


def test_it_is_the_network_at_the_end_of_the_run(tmp_path):
    fit(tiny_recipe(epochs=1), tmp_path / "run", data=tiny_data(), device="cpu", progress=False)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    model = trained_network(tmp_path / "run")
    assert weights_sha256(model) == Run(tmp_path / "run").read_result()["weights_sha256"]
    assert not model.training
    assert torch.rand(1).equal(expected)


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    run = Run(tmp_path / "run")
    run.write_recipe(tiny_recipe().to_dict())
    with pytest.raises(ValueError, match="no checkpoint yet"):
        trained_network(run)
