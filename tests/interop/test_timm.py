"""timm: NonLocalAttn as our block, our blocks as attention layers, and features of a model with a stage by torch.fx."""

from functools import partial

import pytest
import torch
from torch import nn

import nonloc
from nonloc.interop.timm import from_nonlocal_attn

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("use_scale", [True, False])
def test_the_output_is_theirs(timm, randomized, use_scale):
    module = randomized(timm.layers.NonLocalAttn(16, use_scale=use_scale, rd_ratio=0.25)).eval()
    x = torch.randn(2, 16, 5, 6, generator=torch.Generator().manual_seed(1))
    block = from_nonlocal_attn(module)
    assert (block(x) - x).abs().max() > 0.01
    assert (block(x) - module(x)).abs().max() <= 1e-6 * module(x).abs().max().clamp(min=1)
    module, x = module.double().train(), x.double()
    torch.testing.assert_close(from_nonlocal_attn(module)(x), module(x), rtol=0, atol=1e-12)


def test_another_module_is_refused():
    with pytest.raises(ValueError, match="must be timm's NonLocalAttn, got Conv2d, which has no scale"):
        from_nonlocal_attn(nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize("layer", [nonloc.DiffusiveBlock, partial(nonloc.DiffusiveStage, num_blocks=2)])
def test_a_block_is_an_attention_layer(timm, layer):
    model = timm.create_model("resnet18", block_args={"attn_layer": layer}, dtype=torch.float64).eval()
    assert len(list(nonloc.nn.stages(model))) == 8
    assert model(torch.ones(1, 3, 64, 64, dtype=torch.float64)).shape == (1, 1000)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_features_after_a_stage(library, timm, torchvision):
    if library == "timm":
        from timm.models._features_fx import create_feature_extractor

        model = timm.create_model("resnet18").eval()
    else:
        from torchvision.models.feature_extraction import create_feature_extractor

        model = torchvision.models.resnet18().eval()
    torch.manual_seed(0)
    nonloc.insert(model, {"layer1.1": partial(nonloc.DiffusiveStage, num_blocks=2, init_std=0.3)})
    expected = {}
    for name in ("layer1.1.stage", "layer2"):
        model.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: expected.update({name: output})
        )
    x = torch.randn(1, 3, 64, 64)
    extractor = create_feature_extractor(model, ["layer1.1.stage", "layer2"])
    model(x)
    features = dict(expected)
    actual = extractor(x)
    assert list(actual) == ["layer1.1.stage", "layer2"]
    assert all(torch.equal(actual[name], features[name]) for name in features)
