"""precision_of: what torch would decide for itself, and for the rest of the process."""

import pytest
import torch
from tiny import tiny_recipe

from nonloc_paper.training import precision
from nonloc_paper.training.step import autocast_of, precision_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("recipe_precision", "has_bfloat16", "inside"),
    [("bfloat16", False, False), ("bfloat16", True, True), ("float32", False, True)],
)
def test_without_bfloat16_a_cpu_does_without_one_dnn(monkeypatch, recipe_precision, has_bfloat16, inside):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: has_bfloat16)
    with precision_of(tiny_recipe(precision=recipe_precision), CPU):
        assert torch.backends.mkldnn.enabled is inside
    assert torch.backends.mkldnn.enabled


def test_a_product_in_bfloat16_leaves_the_process_as_it_was():
    recipe = tiny_recipe(precision="bfloat16")
    with precision_of(recipe, CPU), autocast_of(recipe, CPU):
        torch.nn.functional.linear(torch.randn(512, 64), torch.randn(64, 64))
    assert torch.backends.mkldnn.enabled
