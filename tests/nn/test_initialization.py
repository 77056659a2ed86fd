"""How the maps start: the stated deviations, and the identity under "zero"."""

import math

import pytest
import torch

from nonloc.nn.stage import DiffusiveStage, OriginalStage

C, R = 256, 128
STAGES = [OriginalStage, DiffusiveStage]


def deviations(**keywords):
    """Of W_Z [C, r], W_g [r, C] and θ [r, C]."""
    torch.manual_seed(0)
    stage = DiffusiveStage(C, 1, **keywords)
    maps = (stage.maps[0].w_z, stage.maps[0].w_g, stage.embeddings[0].theta)
    return [float(one.weight.detach().std()) for one in maps]


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, [0.01, 0.01, 0.01]),
        ({"init": "normal", "init_std": 0.3}, [0.3, 0.3, 0.3]),
        ({"init": "kaiming"}, [math.sqrt(2 / C), math.sqrt(2 / R), math.sqrt(2 / R)]),
        ({"init": "fan_in"}, [R**-0.5, C**-0.5, C**-0.5]),
        ({"init": "torch"}, [(3 * R) ** -0.5, (3 * C) ** -0.5, (3 * C) ** -0.5]),
        ({"init": "zero"}, [0.0, (3 * C) ** -0.5, (3 * C) ** -0.5]),
    ],
)
def test_deviations(keywords, expected):
    # 32,768 entries a map: the sample deviation is known to 0.4 %, so 2 % is five of its own deviations.
    assert deviations(**keywords) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", [{}, {"bias": True}, {"batch_norm": True}, {"weight": "full"}])
def test_zero_is_the_identity_in_training_too(kind, keywords):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, 3)
    assert torch.equal(kind(6, 2, init="zero", **keywords)(x), x)


def test_zero_with_normalization_zeroes_gamma_and_not_w_z():
    weight = DiffusiveStage(6, 1, init="zero", batch_norm=True).maps[0]
    assert not weight.norm.weight.any()
    assert weight.w_z.weight.abs().min() > 0


@pytest.mark.parametrize("keywords", [{}, {"batch_norm": True}])
def test_zero_starts_to_learn_at_the_first_step(keywords):
    torch.manual_seed(0)
    stage = OriginalStage(6, 1, init="zero", **keywords)
    stage(torch.randn(2, 6, 3, 3)).square().sum().backward()
    learns = stage.maps[0].w_z.weight if stage.maps[0].norm is None else stage.maps[0].norm.weight
    assert learns.grad.abs().max() > 0


def test_full_weight_takes_the_role_of_w_z():
    torch.manual_seed(0)
    assert not DiffusiveStage(C, 1, weight="full", init="zero").weights()[0].any()
    deviation = float(DiffusiveStage(C, 1, weight="full", init_std=0.2).weights()[0].detach().std())
    assert deviation == pytest.approx(0.2, rel=0.02)


def test_biases_start_at_zero_when_drawn_normally():
    stage = OriginalStage(6, 1, bias=True)
    biases = [parameter for name, parameter in stage.named_parameters() if name.endswith("bias")]
    assert len(biases) == 4
    assert not any(bias.any() for bias in biases)
