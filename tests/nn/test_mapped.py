"""An input whose dtype a module does not take: told in words, and taken wherever torch takes it."""

import pytest
import torch
from torch import nn

from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.nn.weight import apply_map

X = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [OriginalStage, DiffusiveStage])
@pytest.mark.parametrize(
    "keywords", [{}, {"affinity": "gaussian", "bias": True}], ids=["embedding", "weight"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_another_dtype_is_told_with_the_ways_out(kind, keywords, dtype):
    stage = kind(4, 2, **keywords)
    with pytest.raises(ValueError, match=rf"weights in torch.float32 and its input is {dtype}") as caught:
        stage(X.to(dtype))
    assert f"use module.to({dtype}) or x.to(torch.float32)" in str(caught.value)
    assert ("autocast" in str(caught.value)) == (dtype == torch.float16)
    assert stage(X.to(dtype).to(torch.float32)).dtype == torch.float32
    assert stage.to(dtype)(X.to(dtype)).dtype == dtype


def test_under_autocast_half_precision_is_taken():
    with torch.autocast("cpu", torch.bfloat16):
        assert DiffusiveStage(4, 2)(X.half()).dtype == torch.float16


def test_without_a_map_before_the_operator_dtypes_may_differ():
    """`propagate` computes a mixture in the widest."""
    assert DiffusiveStage(4, 2, affinity="gaussian")(X.double()).dtype == torch.float64


def test_other_errors_are_those_of_torch():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        apply_map(nn.Linear(3, 3).double(), torch.ones(2, 4).double())
