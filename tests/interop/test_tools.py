"""Tools that look into a model: they count its layers, replace its weights, or trace it."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import nonloc

pytestmark = pytest.mark.interop
C = 16


@pytest.fixture
def model():
    torch.manual_seed(0)
    stage = nonloc.DiffusiveStage(C, 3, init_std=0.3)
    return nn.Sequential(nn.Conv2d(3, C, 3, padding=1), stage, nn.Flatten(), nn.Linear(C * 64, 10)).eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def parameters(model):
    return sum(one.numel() for one in model.parameters())


def test_torchinfo(model, x):
    import torchinfo

    summary = torchinfo.summary(model, input_data=x, verbose=0)
    assert summary.total_params == parameters(model)
    (affinity,) = (one for one in summary.summary_list if one.class_name == "EmbeddedGaussian")
    assert affinity.output_size == [2, 64, C // 2]


def test_thop_counts_the_linear_maps(model, x):
    import thop

    count, total = thop.profile(model, (x,), verbose=False)
    assert total == parameters(model)
    # θ, φ, and W_g and W_Z of each sub-block; thop knows no products of two inputs.
    maps = (2 + 2 * 3) * 64 * C * C // 2
    assert count == 2 * (64 * 27 * C + maps + C * 64 * 10)


def test_fvcore_counts_as_many_products_as_torch(model, x):
    from fvcore.nn import FlopCountAnalysis

    count = FlopCountAnalysis(model, x).unsupported_ops_warnings(False)
    stage = model[1]
    with FlopCounterMode(display=False) as counter:
        # fvcore sets hooks on all modules; with one on each W_Z the stage takes the same way.
        for one in stage.maps:
            one.w_z.register_forward_hook(lambda *_: None)
        stage(model[0](x))
    convolution = 2 * 64 * 27 * C
    assert 2 * count.by_module()["1"] == counter.get_total_flops() - 2 * convolution


def test_int8_weights_of_torchao(model, x):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    expected, weights = model(x), model[1].weights()
    quantize_(model, Int8WeightOnlyConfig())
    assert type(model[1].maps[0].w_z.weight) is not nn.Parameter
    # Eight bits: a 127th of the largest weight of a row, in each of a few maps.
    assert (model(x) - expected).abs().max() < 0.03 * expected.abs().max()
    assert (model[1].weights()[0] - weights[0]).abs().max() < 0.03 * weights[0].abs().max()


def test_lora_of_peft(model, x, torchvision):  # peft imports torchvision where it is installed
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(target_modules=["w_z", "w_g", "theta", "phi"], init_lora_weights=False)
    before = model(x)
    adapted = get_peft_model(model, config)
    result, weights = adapted(x), adapted.base_model.model[1].weights()
    assert (result - before).abs().max() > 0.01
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(x), result)
    torch.testing.assert_close(merged[1].weights(), weights)
