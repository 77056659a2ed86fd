"""certify_run: the verdict of a trained stage, and that it follows the weights."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import tiny_data, tiny_recipe

from nonloc_paper.runs import Run
from nonloc_paper.training import certificates
from nonloc_paper.training.certificates import certify_run
from nonloc_paper.training.checkpoint import latest_valid, save_checkpoint
from nonloc_paper.training.loop import fit
from nonloc_paper.training.trained import network_of

RECIPE = tiny_recipe(
    network="restorer8/diffusive-2@1", learning_rate=0.01, epochs=1, stage={"normalize": "row"}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("certificates") / "run")
    fit(RECIPE, run, data=tiny_data(labels=False), device="cpu", progress=False)
    return run


def certified_with(run, monkeypatch, scale):
    """The certificate when every W of the trained network is `scale` I."""

    def network(checkpoint, recipe, device):
        model = network_of(checkpoint, recipe, device)
        for stage in (m for m in model.modules() if hasattr(m, "weights")):
            monkeypatch.setattr(stage, "weights", lambda: [scale * torch.eye(8)] * 2)
        return model

    monkeypatch.setattr(certificates, "network_of", network)
    (found,) = certify_run(run, tiny_data(labels=False), images=2)
    return found


def test_a_stage_is_described(run):
    (found,) = certify_run(run, tiny_data(labels=False), images=2)
    assert (found["form"], found["num_blocks"], found["positions"]) == ("diffusive", 2, 64)
    assert len(found["blocks"]) == 2
    assert all(block["limit"] > 0 for block in found["blocks"])


def test_original_stages_have_no_limit_of_differences(tmp_path):
    run = Run(tmp_path / "run")
    recipe = RECIPE.with_(network="restorer8/original-2@1")
    fit(recipe, run, data=tiny_data(labels=False), device="cpu", progress=False)
    (found,) = certify_run(run, tiny_data(labels=False), images=1)
    assert found["form"] == "original"
    assert [block["limit"] for block in found["blocks"]] == [None, None]


def test_more_images_than_there_are_would_be_a_record_of_none(run):
    with pytest.raises(ValueError, match="test images, not 1000; ask for that many at most"):
        certify_run(run, tiny_data(labels=False), images=1000, keep=True)
    assert not (run.path / "stability.json").exists()


def test_small_symmetric_weights_are_stable(run, monkeypatch):
    found = certified_with(run, monkeypatch, 0.5)
    assert found["verdict"] == "stable"
    assert found["growth"] <= 1 + 1e-9
    assert [block["verdict"] for block in found["blocks"]] == ["stable", "stable"]


def test_negative_weights_are_not(run, monkeypatch):
    found = certified_with(run, monkeypatch, -0.5)
    assert found["verdict"] == "unstable"
    assert found["growth"] > 1.01


def test_the_logits_are_those_of_the_kernel(run, monkeypatch):
    """With features that are scaled by 3 on both sides they spread 9 times as far."""
    (before,) = certify_run(run, tiny_data(labels=False), images=2)

    def network(checkpoint, recipe, device):
        model = network_of(checkpoint, recipe, device)
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("theta", "phi")):
                parameter.data *= 3
        return model

    monkeypatch.setattr(certificates, "network_of", network)
    (after,) = certify_run(run, tiny_data(labels=False), images=2)
    assert before["logit_spread"] > 0
    assert after["logit_spread"] == pytest.approx(9 * before["logit_spread"], rel=1e-4)


def test_the_step_that_is_kept_is_that_of_the_network(tmp_path, monkeypatch):
    """Also when the run, training meanwhile, gets a newer checkpoint."""
    run = Run(tmp_path / "run")
    fit(RECIPE, run, data=tiny_data(labels=False), device="cpu", progress=False)
    step = latest_valid(run).step

    def network(checkpoint, recipe, device):
        save_checkpoint(run, recipe, replace(checkpoint, step=checkpoint.step + 1))
        return network_of(checkpoint, recipe, device)

    monkeypatch.setattr(certificates, "network_of", network)
    certify_run(run, tiny_data(labels=False), images=1, keep=True)
    assert latest_valid(run).step == step + 1
    assert json.loads((run.path / "stability.json").read_text())["step"] == step


def test_a_network_without_stages_is_refused(tmp_path):
    run = Run(tmp_path / "run")
    recipe = tiny_recipe(network="restorer8/baseline", learning_rate=0.01, epochs=1)
    fit(recipe, run, data=tiny_data(labels=False), device="cpu", progress=False)
    with pytest.raises(ValueError, match="restorer8/baseline has no nonlocal blocks"):
        certify_run(run, tiny_data(labels=False))
