"""Training on a CUDA device: the first bad step is named, interruption and resumption work."""

import math

import pytest
import torch
from tiny import after_step, before_method, send_sigterm, spoil, timeless_metrics, tiny_data, tiny_recipe

from nonloc_paper.runs import Run
from nonloc_paper.training.fit import STEPS_AHEAD, fit
from nonloc_paper.training.session import Session
from nonloc_paper.training.step import TrainingStep, precision_of
from nonloc_paper.training.tasks import Classification

pytestmark = pytest.mark.gpu


def train(recipe, path, **options):
    data = tiny_data(labels=recipe.task == "classification", train=40)
    return fit(recipe, path, data=data, device="cuda", progress=False, **options)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_the_first_bad_step_is_named_although_the_device_runs_ahead(tmp_path, monkeypatch, captured):
    recipe = tiny_recipe(epochs=2, batch_size=1)
    assert STEPS_AHEAD > 40, "the host must be ahead of the step for the test to mean something"
    before_method(
        monkeypatch, Session, "take_step", lambda session: session.step == 53 and spoil(session, math.nan)
    )
    outcome = train(recipe, tmp_path / "run", throw=False, captured=captured)
    assert (outcome.ending, outcome.epoch, outcome.step) == ("diverged", 2, 53)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"precision": "bfloat16", "channels_last": True},
        {"network": "restorer8/diffusive-2@1", "learning_rate": 0.01},
    ],
    ids=["sgd", "adam", "bfloat16", "restoration"],
)
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, changes, captured):
    recipe, run = tiny_recipe(**changes), Run(tmp_path / "run")
    after_step(monkeypatch, 8, send_sigterm)
    assert train(recipe, run, captured=captured).step == 8
    first_epoch = timeless_metrics(run)
    monkeypatch.undo()
    assert train(recipe, run, captured=captured).ending == "finished"
    assert timeless_metrics(run)[:1] == first_epoch
    assert [line["step"] for line in run.read_metrics()] == [5, 10, 15]
    assert [line["epoch"] for line in run.read_spectra()] == [0, 3]


def test_float32_is_not_tf32():
    """TF32 keeps 10 bits of the mantissa, an error of 1e-3; float32 sums of 576 products err by 1e-6."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
    x = torch.randn(8, 64, 16, 16, device="cuda")
    exact = torch.nn.functional.conv2d(x.double(), layer.weight.double(), padding=1)
    before = torch.backends.cudnn.conv.fp32_precision
    with precision_of(tiny_recipe(), torch.device("cuda")):
        error = (layer(x).double() - exact).abs().max() / exact.abs().max()
    assert error < 1e-5
    assert torch.backends.cudnn.conv.fp32_precision == before


def test_a_step_at_another_rate_is_the_step_at_that_rate():
    """On CUDA the rate is a number on the device, which momentum and weight decay must see."""
    recipe = tiny_recipe(momentum=0.9, weight_decay=0.1, augment=False)
    task = Classification(recipe, tiny_data(), "cuda")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3)).cuda()
    step = TrainingStep(model, task, recipe)
    weight, bias = (parameter.detach().clone() for parameter in model[1].parameters())
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    indices = torch.arange(9, device="cuda")
    for rate in (0.5, 0.25):
        inputs, targets = task.train_batch(indices, torch.Generator("cuda"))
        leaves = [weight.requires_grad_(), bias.requires_grad_()]
        outputs = torch.nn.functional.linear(inputs.flatten(1), *leaves)
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, targets), leaves)
        velocity = [
            0.9 * old + gradient + 0.1 * leaf.detach()
            for old, gradient, leaf in zip(velocity, gradients, leaves, strict=True)
        ]
        weight, bias = (leaf.detach() - rate * each for leaf, each in zip(leaves, velocity, strict=True))
        step(indices, torch.Generator("cuda"), rate)
        torch.testing.assert_close(model[1].weight.detach(), weight)
        torch.testing.assert_close(model[1].bias.detach(), bias)
