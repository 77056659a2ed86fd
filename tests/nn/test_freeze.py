"""freeze: the same numbers, from constants."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from nonloc import Affinity, kernel_matrix, propagate
from nonloc.nn.freeze import freeze
from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.nn.weight import WeightMap

C = 6


@pytest.fixture
def x():
    return torch.randn(2, C, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind=DiffusiveStage, **keywords):
    torch.manual_seed(0)
    return kind(C, 2, init_std=0.3, dtype=torch.float64, **keywords)


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (DiffusiveStage, {}),
        (DiffusiveStage, {"weight": "stable"}),
        (DiffusiveStage, {"affinity": "heat", "normalize": "sinkhorn", "weight": "stable"}),
        (DiffusiveStage, {"bias": True, "batch_norm": True}),
        (OriginalStage, {"batch_norm": True, "weight": "full"}),
    ],
)
def test_the_output_stays(kind, keywords, x):
    stage = made(kind, **keywords)
    stage(x)  # running statistics
    expected = stage.eval()(x)
    frozen = freeze(nn.Sequential(stage.train()))
    torch.testing.assert_close(frozen(x), expected)
    torch.testing.assert_close(frozen[0].weights(), stage.weights())
    assert stage.training
    assert not any(one.requires_grad for one in frozen.parameters())
    assert not any(module.training for module in frozen.modules())
    assert not any(isinstance(module, nn.BatchNorm1d) for module in frozen.modules())
    assert all(isinstance(one, WeightMap) for one in frozen[0].maps)


@pytest.mark.parametrize("keywords", [{"affine": False}, {"track_running_stats": False}], ids=str)
def test_a_normalisation_that_cannot_be_fused_stays(keywords, x):
    stage = made(batch_norm=True).eval()
    for one in stage.maps:
        one.norm = nn.BatchNorm1d(C, dtype=torch.float64, **keywords).eval()
    torch.testing.assert_close(freeze(stage)(x), stage(x))


def test_parametrized_weights_become_plain(x):
    stage = made()
    parametrizations.weight_norm(stage.maps[0].w_z)
    frozen = freeze(stage)
    torch.testing.assert_close(frozen(x), stage(x))
    assert type(frozen.maps[0].w_z) is nn.Linear
    assert "maps.0.w_z.weight" in frozen.state_dict()


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "change", [partial(prune.l1_unstructured, name="weight", amount=1), weight_norm, spectral_norm]
)
def test_a_weight_computed_in_training_is_refused_with_a_fix_that_works(change, x):
    model = nn.Sequential(nn.Conv2d(C, C, 1).double(), made())
    change(model[0])
    model(x)
    with pytest.raises(ValueError, match=r"once in evaluation mode under torch.no_grad\(\)"):
        freeze(model)
    with torch.no_grad():
        expected = model.eval()(x)
    torch.testing.assert_close(freeze(model)(x), expected)


@pytest.mark.parametrize("kind", ["gaussian", "heat", "concat", "dot"])
@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_steps_of_sinkhorn_are_counted_and_differentiated(kind, backend):
    generator = torch.Generator().manual_seed(0)
    left = torch.rand(2, 7, 1 if kind == "concat" else 3, generator=generator, dtype=torch.float64) + 0.1
    left.requires_grad_()

    def kernel(steps):
        affinity = Affinity(left, left, kind, "sinkhorn", sinkhorn_steps=steps)
        identity = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
        # With W = I and z = I the original form gives I + K.
        return propagate(affinity, identity, identity[:1], differences=False, backend=backend) - identity

    # Two steps by hand, the best for a Jacobian with eigenvalues between 1 and 2, from u = (Ω1)^(−½).
    omega = kernel_matrix(Affinity(left, left, kind, "none"))
    u = before = omega.sum(-1).rsqrt()
    for _ in range(2):
        rows = u * (omega @ u.unsqueeze(-1)).squeeze(-1)
        momentum = ((2**0.5 - 1) / (2**0.5 + 1)) ** 2
        u, before = u * rows ** (-4 / (1 + 2**0.5) ** 2) * (u / before) ** momentum, u
    expected = u.unsqueeze(-1) * omega * u.unsqueeze(1)
    torch.testing.assert_close(kernel(2), expected)
    gradients = [torch.autograd.grad(one.square().sum(), left)[0] for one in (kernel(2), expected)]
    torch.testing.assert_close(*gradients)
    # Many steps are the converged scaling, and its derivative.
    torch.testing.assert_close(kernel(40), kernel(None))
    gradients = [torch.autograd.grad(one.square().sum(), left)[0] for one in (kernel(40), kernel(None))]
    torch.testing.assert_close(*gradients)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="model must be a torch module, got str"):
        freeze("stage")
    with pytest.raises(ValueError, match="sinkhorn_steps must be a whole number"):
        freeze(made(), sinkhorn_steps=0)
