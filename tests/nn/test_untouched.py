"""is_untouched, and the stages that ask it before they compute with weights instead of calling who holds them."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from nonloc._torch_compat import is_untouched
from nonloc.nn.stage import DiffusiveStage, OriginalStage


@pytest.fixture
def x():
    return torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))


def stage_of(kind=DiffusiveStage, **keywords):
    torch.manual_seed(0)
    return kind(6, 2, init_std=0.3, **keywords)


class Doubled(nn.Module):
    """Stands for LoRA and its like: something else in the place of a map."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.weight, self.in_features = base.weight, base.in_features

    def forward(self, x):
        return 2 * self.base(x)


def test_only_a_plain_module_of_this_very_class_is_untouched():
    linear = nn.Linear(2, 2)
    assert is_untouched(linear, nn.Linear)
    assert not is_untouched(linear, nn.Module)
    assert not is_untouched(None, nn.Linear)
    handle = linear.register_full_backward_hook(lambda *_: None)
    assert not is_untouched(linear, nn.Linear)
    handle.remove()
    assert is_untouched(linear, nn.Linear)
    linear.forward = lambda x: x
    assert not is_untouched(linear, nn.Linear)


def test_a_hook_on_all_modules_touches_none():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert is_untouched(nn.Linear(2, 2), nn.Linear)
    finally:
        handle.remove()


def test_weights_with_a_parametrization_may_be_read():
    linear = parametrizations.weight_norm(nn.Linear(2, 2))
    assert not is_untouched(linear, nn.Linear)
    assert is_untouched(linear, nn.Linear, parametrized=True)


@pytest.mark.parametrize("kind", [DiffusiveStage, OriginalStage])
@pytest.mark.parametrize("name", ["w_z", "w_g"])
def test_what_stands_in_the_place_of_a_map_is_called(kind, name, x):
    stage, expected = stage_of(kind), stage_of(kind)
    setattr(stage.maps[0], name, Doubled(getattr(stage.maps[0], name)))
    with torch.no_grad():
        getattr(expected.maps[0], name).weight.mul_(2)
    torch.testing.assert_close(stage(x), expected(x))


def test_a_hook_on_a_map_has_its_say(x):
    stage = stage_of()
    for one in stage.maps:
        one.w_z.register_forward_hook(lambda _, inputs, output: 0 * output)
    torch.testing.assert_close(stage(x), x)


def test_the_older_spectral_norm_is_trained(x):
    stage = stage_of()
    linear = nn.utils.spectral_norm(stage.maps[0].w_z)
    stage(x).sum().backward()
    assert linear.weight_orig.grad.abs().max() > 0


def test_pruned_maps_train_for_more_than_a_step(x):
    stage = stage_of()
    prune.l1_unstructured(stage.maps[1].w_z, "weight", amount=0.5)
    for _ in range(2):
        stage(x).sum().backward()
    grad = stage.maps[1].w_z.weight_orig.grad
    assert bool((grad[stage.maps[1].w_z.weight_mask == 0] == 0).all())
