"""What is at work around a computation: torch.func, forward mode, tracing."""

import pytest
import torch
from torch.autograd import forward_ad

from nonloc.ops.transforms import is_by_the_book

X = torch.tensor([1.0, 2.0])


def seen_by(around):
    """What `is_by_the_book` says inside `around`, a function of functions."""
    answers = []

    def function(x):
        answers.append(is_by_the_book())
        return x.square().sum()

    around(function)
    return answers


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (lambda function: function(X), False),
        (lambda function: torch.autograd.grad(function(x := X.clone().requires_grad_()), x), False),
        (lambda function: torch.func.grad(function)(X), True),
        (lambda function: torch.vmap(function)(X[:, None]), True),
        (lambda function: torch.func.jvp(function, (X,), (X,)), True),
    ],
    ids=["plain", "autograd", "grad", "vmap", "jvp"],
)
def test_only_transforms_ask_for_what_torch_can_follow(around, expected):
    assert seen_by(around) == [expected]


def test_dual_numbers_do_too():
    with forward_ad.dual_level():
        assert is_by_the_book()
    assert not is_by_the_book()
