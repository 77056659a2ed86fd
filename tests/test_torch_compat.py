"""What is at work around a computation: torch.func, forward mode, tracing."""

import pytest
import torch
from torch.autograd import forward_ad

from nonloc._torch_compat import needs_plain_torch

X = torch.tensor([1.0, 2.0])


def seen_by(around):
    """What `needs_plain_torch` says inside `around`, a function of functions."""
    answers = []

    def function(x):
        answers.append(needs_plain_torch())
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
        assert needs_plain_torch()
    assert not needs_plain_torch()
