"""certify_run: the verdict of a trained stage, and that it follows the weights."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from tiny import tiny_data, tiny_recipe, train

from nonloc_paper.runs import Run
from nonloc_paper.training import certificates
from nonloc_paper.training.certificates import certify_run
from nonloc_paper.training.checkpoint import latest_valid, save_checkpoint
from nonloc_paper.training.trained import network_of

RECIPE = tiny_recipe(
    network="restorer8/diffusive-2@1", learning_rate=0.01, epochs=1, stage={"normalize": "row"}
)


DATA = tiny_data(labels=False, size=4)


def trained(folder, **changes):
    train(RECIPE.with_(**changes), folder / "run", data=DATA)
    return Run(folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("certificates"))


def certified_with(run, monkeypatch, change):
    """The certificate after `change`, called with the trained network."""

    def network(checkpoint, recipe, device):
        model = network_of(checkpoint, recipe, device)
        change(model)
        return model

    monkeypatch.setattr(certificates, "network_of", network)
    (certificate,) = certify_run(run, DATA, images=2)
    return certificate


def test_the_certificate_follows_the_weights(run, monkeypatch):
    def set_weights(scale):
        def change(model):
            for stage in (m for m in model.modules() if hasattr(m, "weights")):
                monkeypatch.setattr(stage, "weights", lambda: [scale * torch.eye(8)] * 2)

        return change

    stable = certified_with(run, monkeypatch, set_weights(0.5))
    assert (stable["form"], stable["num_blocks"], stable["positions"]) == ("diffusive", 2, 16)
    assert stable["verdict"] == "stable"
    assert stable["growth"] <= 1 + 1e-9
    assert [block["verdict"] for block in stable["blocks"]] == ["stable", "stable"]
    assert all(block["limit"] > 0 for block in stable["blocks"])
    unstable = certified_with(run, monkeypatch, set_weights(-0.5))
    assert unstable["verdict"] == "unstable"
    assert unstable["growth"] > 1.01


def test_the_logits_are_those_of_the_kernel(run, monkeypatch):
    """With features that are scaled by 3 on both sides they spread 9 times as far."""
    (before,) = certify_run(run, DATA, images=2)

    def scale(model):
        for name, parameter in model.named_parameters():
            if "theta" in name or "phi" in name:
                parameter.data *= 3

    after = certified_with(run, monkeypatch, scale)
    assert before["logit_spread"] > 0
    assert after["logit_spread"] == pytest.approx(9 * before["logit_spread"], rel=1e-4)


def test_original_stages_have_no_limit_of_differences(tmp_path):
    run = trained(tmp_path, network="restorer8/original-2@1")
    (certificate,) = certify_run(run, DATA, images=1)
    assert certificate["form"] == "original"
    assert [block["limit"] for block in certificate["blocks"]] == [None, None]


def test_the_recorded_step_is_that_of_the_network(run, tmp_path, monkeypatch):
    """Also when the run, training meanwhile, gets a newer checkpoint."""
    copy = Run(shutil.copytree(run.path, tmp_path / "run"))
    step = latest_valid(copy).step

    def network(checkpoint, recipe, device):
        save_checkpoint(copy, recipe, replace(checkpoint, step=checkpoint.step + 1))
        return network_of(checkpoint, recipe, device)

    monkeypatch.setattr(certificates, "network_of", network)
    copy.result_path.unlink()
    certify_run(copy, DATA, images=1, keep=True)
    assert latest_valid(copy).step == step + 1
    assert json.loads((copy.path / "stability.json").read_text())["step"] == step


def test_too_many_images_and_networks_without_stages_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="test images, not 1000; ask for that many at most"):
        certify_run(run, DATA, images=1000, keep=True)
    assert not (run.path / "stability.json").exists()
    baseline = trained(tmp_path, network="restorer8/baseline")
    with pytest.raises(ValueError, match="restorer8/baseline has no nonlocal blocks"):
        certify_run(baseline, DATA)
