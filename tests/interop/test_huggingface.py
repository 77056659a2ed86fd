"""transformers: a model whose modules put out tuples, and stages that are saved and loaded with a model."""

import json

import pytest
import torch

import nonloc
from nonloc.interop import huggingface

pytestmark = pytest.mark.interop
PLACE = "swin.encoder.layers.0"
STAGE = {"form": "diffusive", "num_blocks": 2, "layout": "positions", "init_std": 0.3}


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(torchvision):  # which transformers imports where it is installed
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2]}
    return SwinForImageClassification(SwinConfig(window_size=4, **sizes)).eval()


@pytest.mark.parametrize(
    "place", [PLACE, "swin.encoder.layers.1.blocks.0", "swin.embeddings", "swin.encoder"]
)
def test_a_stage_follows_the_first_tensor(model, x, place):
    seen = {}
    base = model.get_submodule(place)
    base.register_forward_hook(lambda _, inputs, output: seen.update(before=output))
    (inserted,) = nonloc.insert(model, {place: STAGE}, example=x)
    assert inserted.channels == {PLACE: 24, "swin.embeddings": 12}.get(place, 24)
    model.get_submodule(place).register_forward_hook(lambda _, inputs, output: seen.update(after=output))
    model(x)
    before, after = seen["before"], seen["after"]
    assert type(after) is type(before)
    stage = model.get_submodule(inserted.path)
    assert torch.equal(after[0], stage(before[0]))
    assert not torch.equal(after[0], before[0])
    assert all(one is other for one, other in zip(after[1:], before[1:], strict=True))


def test_stages_are_saved_and_come_back(model, x, tmp_path):
    huggingface.insert(model, {PLACE: STAGE}, example=x)
    later = {"swin.encoder.layers.1": {**STAGE, "form": "original"}, f"{PLACE}.stage": STAGE}
    huggingface.insert(model, later, example=x)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["nonloc_stages"][PLACE] == {
        **STAGE,
        "channels": 24,
    }
    loaded, report = huggingface.from_pretrained(type(model), tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert type(loaded) is type(model)
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(x).logits, model(x).logits)
    # And again: what was loaded can be saved.
    loaded.save_pretrained(tmp_path / "again")
    again = huggingface.from_pretrained(type(model), tmp_path / "again")
    assert again.state_dict().keys() == model.state_dict().keys()


def test_a_plain_model_comes_back_as_it_is(model, x, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = huggingface.from_pretrained(type(model), tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_wrong_arguments(model, x):
    with pytest.raises(ValueError, match="model must be one of transformers' models.*use nonloc.insert"):
        huggingface.insert(torch.nn.Linear(2, 2), {})
    with pytest.raises(ValueError, match=f"'{PLACE}': a configuration holds the keywords of a stage"):
        huggingface.insert(model, {PLACE: nonloc.DiffusiveBlock}, example=x)
    with pytest.raises(ValueError, match="where .*got a list"):
        huggingface.insert(model, [PLACE])


def test_the_hub_mixin_saves_a_model_with_a_stage(tmp_path):
    from huggingface_hub import PyTorchModelHubMixin

    class Network(torch.nn.Module, PyTorchModelHubMixin):
        def __init__(self, channels: int):
            super().__init__()
            self.stage = nonloc.DiffusiveStage(channels, 2)

        def forward(self, x):
            return self.stage(x)

    model, x = Network(channels=4).eval(), torch.ones(1, 4, 3, 3)
    model.save_pretrained(tmp_path)
    assert torch.equal(Network.from_pretrained(tmp_path)(x), model(x))
