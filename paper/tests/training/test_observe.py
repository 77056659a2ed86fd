"""observe: the record of a trained network, against the network itself."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_data, tiny_recipe, train

from nonloc.nn import feature_trace, stages
from nonloc.nn.inspect import stage_inputs
from nonloc.ops import kernel_matrix
from nonloc.outcomes import CorruptDataError
from nonloc.spectrum import STABLE_CAPTION, weight_spectrum
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run, read_json
from nonloc_paper.training import observe as observing
from nonloc_paper.training.checkpoint import latest_valid, save_checkpoint
from nonloc_paper.training.observe import (
    _apart,
    _spread,
    observe,
    observe_spectra,
    record_spectra,
    stage_weights,
)
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import Classification, Restoration
from nonloc_paper.training.trained import network_of, trained_network

DATA = tiny_data(labels=False)
LABELLED = tiny_data()
TASK = Restoration(tiny_recipe(network="restorer8/baseline"), DATA, "cpu")


def trained(folder, data, **changes):
    run = Run(folder)
    train(tiny_recipe(**changes), run, data=data, throw=False)
    return run


@pytest.fixture(scope="module")
def restorer(tmp_path_factory):
    """A run that restores, observed: (run, its observations, its tensors)."""
    run = trained(
        tmp_path_factory.mktemp("observe") / "run", DATA, network="restorer8/diffusive-2@2", optimizer="adam"
    )
    record = observe(run, DATA, images=3, batch_size=8)
    return run, record, load_file(run.path / "observations.safetensors")


@pytest.fixture
def copy(restorer, tmp_path):
    """The same run, to be changed."""
    return Run(shutil.copytree(restorer[0].path, tmp_path / "copy"))


def psnr(images, clean):
    squares = (images.double() - clean).square().flatten(1).mean(1)
    return (10 * torch.log10(4 / squares)).tolist()


def test_images_and_scores_are_the_networks_own(restorer):
    run, record, tensors = restorer
    assert record == read_json(run.path / "observations.json")
    assert record["step"] == latest_valid(run).step == 15
    noisy, clean = next(iter(TASK.test_batches(len(DATA.test))))
    assert torch.equal(tensors["images"], DATA.test.images[:3])
    assert torch.equal(tensors["noisy"], noisy[:3])
    with torch.no_grad():
        assert torch.allclose(tensors["restored"], trained_network(run)(noisy[:3]), atol=1e-6)
    assert record["psnr"]["restored"] == pytest.approx(psnr(tensors["restored"], clean[:3]))
    assert record["input_psnr"] == pytest.approx(sum(psnr(noisy, clean)) / len(DATA.test))


def test_the_affinity_map_is_the_kernels_row_of_the_marked_position(restorer):
    run, record, tensors = restorer
    network = trained_network(run)
    ((name, stage),) = stages(network)
    (observed,) = record["affinity"]
    assert (observed["stage"], observed["position"], observed["grid"]) == (name, [4, 4], [8, 8])
    with torch.no_grad():
        features = network.stem(tensors["noisy"])
        for block in network.trunk.blocks[:2]:
            features = block(features)
        kernel = kernel_matrix(stage.affinity(features))
    assert torch.allclose(tensors[f"affinity.{name}"], kernel[:, 4 * 8 + 4].reshape(3, 8, 8), atol=1e-6)


def test_the_logits_are_apart_by_the_largest_difference_in_a_row_of_any_image(restorer):
    run, record, _ = restorer
    ((_, stage),) = stages(trained_network(run))
    inputs, _ = next(iter(TASK.test_batches(8)))
    _, _, features, _ = next(iter(stage_inputs(trained_network(run), inputs)))
    with torch.no_grad():
        kernel = kernel_matrix(stage.affinity(features)).double()
    # Of a softmax, logits differ as the logarithms of its entries do.
    spreads = (kernel.amax(-1) / kernel.amin(-1)).log()
    assert record["affinity"][0]["logit_spread"] == pytest.approx(float(spreads.max()), rel=1e-4)


@pytest.mark.parametrize(
    ("kernel", "spread"),
    [(torch.full((5, 5), 0.2), 1.0), (torch.eye(5), 0.2), (torch.eye(4).repeat_interleave(2, 1), 0.25)],
    ids=["uniform", "each to itself", "each to two of eight, not normalised"],
)
def test_the_spread_is_the_share_of_positions_with_weight(kernel, spread):
    assert float(_spread(kernel.double())) == pytest.approx(spread)


@pytest.mark.parametrize(
    ("kernel", "apart"),
    [
        (torch.ones(5, 5), 0.0),
        (torch.tensor([[3.0, 1.0], [6.0, 2.0]]), 0.0),
        (torch.eye(5), 0.8),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 0.25),
    ],
)
def test_rows_are_apart_by_what_they_differ_from_their_mean(kernel, apart):
    assert float(_apart(kernel.double())) == pytest.approx(apart, abs=1e-12)


def test_a_uniform_kernel_has_the_same_share_as_chance(tmp_path):
    """Two colours in halves: a uniform kernel gives equal pixels their part of the positions, no more."""
    images = torch.zeros(24, 3, 8, 8, dtype=torch.uint8)
    images[:, :, :, 4:] = 200
    data = type(DATA)("tiny", type(DATA.train)(images), type(DATA.test)(images))
    run = trained(tmp_path, data, network="restorer8/diffusive-1@2", stage={"init_std": 1e-12}, epochs=1)
    (observed,) = observe(run, data)["affinity"]
    assert observed["same_chance"] == pytest.approx((32 - 1) / 64)
    assert observed["same_share"] == pytest.approx(observed["same_chance"], abs=1e-4)


def test_spectra_come_with_the_band_of_random_weights(restorer):
    run, _, _ = restorer
    observed = observe_spectra(run)
    ((_, stage),) = stages(trained_network(run))
    for weight, entry in zip(stage.weights(), observed["stages"][0]["weights"], strict=True):
        assert entry["eigenvalues"] == pytest.approx(weight_spectrum(weight).eigenvalues.tolist())
        assert entry["norm"] == pytest.approx(float(weight.detach().norm()))
        assert entry["rank"] == 4
        assert len(entry["band"]["low"]) == 8
        assert entry["band"]["low"][0] < 0 < entry["band"]["high"][0]


def test_the_step_of_spectra_is_that_of_the_network(copy, monkeypatch):
    """Also when the run, training meanwhile, gets a newer checkpoint."""

    def network(checkpoint, recipe, device="cpu"):
        save_checkpoint(copy, recipe, replace(checkpoint, step=checkpoint.step + 1))
        return network_of(checkpoint, recipe, device)

    monkeypatch.setattr(observing, "network_of", network)
    copy.result_path.unlink()
    assert observe_spectra(copy)["step"] == 15
    assert latest_valid(copy).step == 16


def test_a_stable_weight_has_no_band_for_its_signs_are_fixed(tmp_path):
    stable = {"weight": "stable"}
    run = trained(tmp_path, DATA, network="restorer8/diffusive-2@2", stage=stable, epochs=1)
    observed = observe_spectra(run)
    weights = observed["stages"][0]["weights"]
    assert len(weights) == 2
    for weight in weights:
        assert "band" not in weight
        assert weight["eigenvalues"][0] > 0
        assert weight["negative_share"] == pytest.approx(0, abs=1e-9)
    assert observed["caption"] == STABLE_CAPTION


def test_a_network_is_observed_once_for_each_format_while_it_has_weights(copy):
    path = copy.path / "observations.json"
    record = read_json(path)
    before = (copy.path / "observations.safetensors").stat().st_mtime_ns
    assert observe(copy, DATA, images=1) == record
    assert (copy.path / "observations.safetensors").stat().st_mtime_ns == before
    older = json.dumps(record | {"format": 1, "features": []})
    path.write_text(older)
    assert observe(copy, DATA, images=3, batch_size=8) == record
    path.write_text(older)
    shutil.rmtree(copy.checkpoints_path)
    assert observe(copy, DATA)["features"] == []


def test_a_folder_in_the_place_of_the_record_is_named(copy):
    path = copy.path / "observations.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptDataError, match=r"observations\.json is not a file"):
        observe(copy, DATA)


def test_a_classifier_is_observed_without_restored_images(tmp_path):
    run = trained(tmp_path, LABELLED, epochs=1)
    record = observe(run, LABELLED, images=2, batch_size=4)
    tensors = load_file(run.path / "observations.safetensors")
    assert set(tensors) == {"images", f"affinity.{record['affinity'][0]['stage']}"}
    inputs, _ = next(iter(Classification(tiny_recipe(), LABELLED, "cpu").test_batches(4)))
    (expected,) = feature_trace(trained_network(run), inputs)
    for name in ("before", "after"):
        assert record["features"][0]["blocks"][0][name] == pytest.approx(expected["blocks"][0][name])
    assert record["affinity"][0]["same_share"] is None


def test_a_baseline_has_images_and_no_stage(tmp_path):
    run = trained(tmp_path, DATA, network="restorer8/baseline", epochs=1)
    record = observe(run, DATA, images=2)
    assert (record["affinity"], record["features"]) == ([], [])
    assert set(load_file(run.path / "observations.safetensors")) == {"images", "noisy", "restored"}
    assert json.loads((run.path / "spectrum.json").read_text())["stages"] == []


def test_a_run_that_diverged_at_once_has_nothing_to_show(tmp_path):
    run = trained(tmp_path, DATA, network="restorer8/diffusive-1@2", learning_rate=1e30)
    assert run.read_result()["outcome"]["ending"] == "diverged"
    assert latest_valid(run) is None
    assert observe(run, DATA)["step"] is None
    assert not (run.path / "observations.safetensors").exists()


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    """Weights so large that the features overflow, though every weight is finite."""
    run = trained(tmp_path, DATA, network="restorer8/original-2@2", epochs=1)
    checkpoint = latest_valid(run)
    tensors = {
        name: value * 1e30 if ".maps." in name else value for name, value in checkpoint.tensors.items()
    }
    save_checkpoint(run, Recipe.from_dict(run.read_recipe()), replace(checkpoint, tensors=tensors))
    record = observe(run, DATA, images=2)
    tensors = load_file(run.path / "observations.safetensors")
    assert "restored" not in tensors
    assert {"images", "noisy"} <= set(tensors)
    assert record["psnr"]["restored"] == [None, None]
    assert record["features"][0]["blocks"][-1]["after"]["norm"] is None
    assert "NaN" not in (run.path / "observations.json").read_text()
    assert json.loads((run.path / "spectrum.json").read_text())["stages"] == []


def test_the_eigenvalues_of_every_weight_are_those_of_its_symmetric_part(run):
    model = build("restorer4/diffusive-2@1,3", weight="full")
    weights = [value for value in model.parameters() if value.shape == (4, 4)]
    with torch.no_grad():
        for number, weight in enumerate(weights):
            weight.copy_(
                torch.tensor([[1.0, 5, 0, 0], [-5, -3, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]]) * 2**number
            )
    record_spectra(run, stage_weights(model), 7)
    [line] = run.read_spectra()
    assert line["epoch"] == 7
    assert len({stage["name"] for stage in line["stages"]}) == len(line["stages"]) == 2
    recorded = [weight["eigenvalues"] for stage in line["stages"] for weight in stage["weights"]]
    expected = [[2**number * value for value in (-3.0, 1.0, 0.5, 0.0)] for number in range(4)]
    assert recorded == [pytest.approx(values, abs=1e-12) for values in expected]


@pytest.mark.parametrize("network", ["restorer8/original-2@2", "restorer8/baseline"])
def test_weights_that_are_not_finite_and_networks_without_stages_record_no_spectra(run, network):
    model = build(network)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "maps.1" in name:
                value.fill_(math.nan)
    record_spectra(run, stage_weights(model), 0)
    assert run.read_spectra() == []
