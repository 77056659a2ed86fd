"""feature_trace, logit_spreads and stage_inputs against numbers computed by hand."""

import json
import math
import threading

import pytest
import torch
from torch import nn

from nonloc.nn.inspect import feature_trace, logit_spreads, stage_inputs
from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.ops import kernel_matrix

C = 4


def made(kind=DiffusiveStage, num_blocks=2, **keywords):
    torch.manual_seed(0)
    return kind(C, num_blocks, **{"init": "torch"} | keywords)


@pytest.fixture
def x():
    return torch.randn(3, C, 2, 5, generator=torch.Generator().manual_seed(0))


def by_hand(kernel, z):
    """z [B, M, C] in float64."""
    differences = (z.unsqueeze(2) - z.unsqueeze(1)).square().sum(-1)
    return {
        "norm": math.sqrt(sum(float(one.norm()) ** 2 for one in z) / len(z)),
        "mean": float(z.mean()),
        "variance": float(z.var(1, unbiased=False).mean()),
        "energy": float((0.5 * kernel * differences).sum((1, 2)).mean()),
    }


@pytest.mark.parametrize("kind", [OriginalStage, DiffusiveStage])
@pytest.mark.parametrize("shared", [True, False])
def test_numbers_are_those_of_the_states(kind, shared, x):
    stage = made(kind, share_affinity=shared)
    (trace,) = feature_trace(stage, x)
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    states = [state.detach().flatten(2).transpose(1, 2).double() for state in stage.states(x)]
    for n, affinity in enumerate(stage.affinities(x)):
        kernel = kernel_matrix(affinity).detach().double()
        block = trace["blocks"][n]
        assert block["block"] == n + 1
        assert block["before"] == pytest.approx(by_hand(kernel, states[n]), rel=1e-5)
        assert block["after"] == pytest.approx(by_hand(kernel, states[n + 1]), rel=1e-5)
        # The linear part and the variance of what is added make up the change of the variance.
        rest = by_hand(kernel, states[n + 1] - states[n])["variance"] / block["before"]["variance"]
        ratio = block["after"]["variance"] / block["before"]["variance"]
        assert ratio == pytest.approx(1 + block["linear"] + rest, rel=1e-6)
        assert rest > 0.001, "else the linear part alone would do"


@pytest.mark.parametrize("kind", [OriginalStage, DiffusiveStage])
@pytest.mark.parametrize("normalize", ["row", "count"])
def test_the_quotient_is_that_of_w_on_what_the_kernel_brings(kind, normalize, x):
    stage = made(kind, bias=False, normalize=normalize).eval()
    mask = torch.ones(3, 2, 5, dtype=torch.bool)
    mask[:, :, 3:] = False
    x[:, :, :, 3:] = math.nan  # whatever is in the padding does not count
    (trace,) = feature_trace(stage, (x, mask))
    states = [state.detach().flatten(2).transpose(1, 2).double() for state in stage.states(x, mask)]
    keep = mask.flatten(1)
    for n, affinity in enumerate(stage.affinities(x, mask)):
        z = torch.where(keep.unsqueeze(-1), states[n], 0)
        kernel = kernel_matrix(affinity).detach().double()
        brought = kernel @ z
        if kind is DiffusiveStage:
            brought = brought - kernel.sum(-1, keepdim=True) * z
        brought = brought[keep]
        weight = stage.weights()[n].detach().double()
        along = float((brought * (brought @ weight.T)).sum() / brought.square().sum())
        assert trace["blocks"][n]["quotient"] == pytest.approx(along, rel=1e-4)


def test_stages_are_seen_where_they_stand_in_the_model(x):
    model = nn.Sequential(made(), nn.BatchNorm2d(C), made(OriginalStage, 1))
    first, second = feature_trace(model, (x,))
    assert (first["name"], first["form"], first["num_blocks"]) == ("0", "diffusive", 2)
    assert (second["name"], second["form"], second["channels"]) == ("2", "original", C)
    model.eval()
    reached = model[1](model[0](x)).detach()
    assert second["blocks"][0]["before"]["mean"] == pytest.approx(float(reached.mean()), rel=1e-5, abs=1e-7)


def test_model_is_left_as_it_was(x):
    model = nn.Sequential(nn.BatchNorm2d(C), made(batch_norm=True))
    model.train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    feature_trace(model, x)
    assert model[1].maps[0].norm.training
    assert not model[0].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_stage_inputs_are_what_the_affinities_are_made_of(x):
    """With the mask that the stage was called with, by position or by name."""
    mask = torch.ones(3, 2, 5, dtype=torch.bool)
    mask[:, :, 3:] = False

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = made(), made(), made()

        def forward(self, x):
            return self.third(self.second(self.first(x, mask), mask=mask))

    inputs = stage_inputs(Masked(), x)
    assert [name for name, *_ in inputs] == ["first", "second", "third"]
    assert all(torch.equal(own_mask, mask) for *_, own_mask in inputs[:2])
    assert inputs[2][-1] is None
    for _, stage, features, own_mask in inputs:
        valid = slice(None) if own_mask is None else own_mask.flatten(1)[0]
        whole = stage.affinities(features, mask=own_mask)
        small = stage.affinities(features.flatten(2)[:, :, valid])
        for affinity, expected in zip(whole, small, strict=True):
            kernel = kernel_matrix(affinity)[:, valid][:, :, valid]
            torch.testing.assert_close(kernel, kernel_matrix(expected))


def test_what_a_model_does_in_place_afterwards_changes_nothing(x):
    class Branched(nn.Module):
        def __init__(self, inplace):
            super().__init__()
            self.stage, self.relu = made(), nn.ReLU(inplace=inplace)

        def forward(self, x):
            x = 3 * x
            y = self.stage(x)
            return self.relu(x) + y

    (spread,) = logit_spreads(Branched(False), x).values()
    assert logit_spreads(Branched(True), x) == {"stage": spread}
    assert feature_trace(Branched(True), x) == feature_trace(Branched(False), x)


def test_autocast_in_the_code_of_a_model_is_on(x):
    """The features that reach the stage are in half precision, and its weights are not."""

    class Cast(nn.Sequential):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    plain = nn.Sequential(nn.Conv2d(C, C, 1), made())
    (spread,), (expected,) = logit_spreads(Cast(*plain), x)["1"], logit_spreads(plain, x)["1"]
    assert spread == pytest.approx(expected, rel=0.05)
    assert len(feature_trace(Cast(*plain), x)) == 1


def test_a_model_that_was_compiled_and_has_run_is_seen(x):
    model = nn.Sequential(nn.Conv2d(C, C, 1), made()).eval()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(x)
    assert logit_spreads(compiled, x) == {"_orig_mod.1": logit_spreads(model, x)["1"]}


def test_float64_is_kept():
    """Around 1e8 float32 has no digits left for a variance of 1."""
    x = torch.randn(2, C, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (trace,) = feature_trace(made().double(), x + 1e8)
    expected = float(x.var(2, unbiased=False).mean())
    assert trace["blocks"][0]["before"]["variance"] == pytest.approx(expected, rel=1e-6)


def on_a_line(**keywords):
    """A stage on one channel, whose sub-blocks add half of what the kernel brings."""
    stage = OriginalStage(1, 3, affinity="gaussian", weight="full", layout="positions", **keywords)
    with torch.no_grad():
        for weight in stage.maps:
            weight.w_z.weight.fill_(0.5)
    return stage


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (True, [18.0]),  # 3 · (3 − −3)
        (False, [18.0, 40.5, 91.125]),  # times 1.5² a sub-block
    ],
)
def test_logits_of_every_kernel_of_a_stage(shared, expected):
    """Two points at ±3: e^18 lies between the two entries of a row, so each sees itself alone and grows by half."""
    points = torch.tensor([[[3.0], [-3.0]]])
    spreads = logit_spreads(on_a_line(share_affinity=shared), points)
    assert spreads == {"": pytest.approx(expected, rel=1e-6)}


def test_spreads_have_the_names_of_the_stages_whose_kernels_have_logits():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.far = on_a_line(share_affinity=True)
            self.none = OriginalStage(1, 2, affinity="dot", init="zero", layout="positions")
            self.near = on_a_line(share_affinity=True)

        def forward(self, x, mask):
            self.far(x)
            self.none(x)
            return self.near(self.near(x / 3, mask) * 0 + x, mask)

    mask = torch.tensor([[True, True, False]])
    points = torch.tensor([[[3.0], [-3.0], [30.0]]])
    spreads = logit_spreads(Several(), (points, mask))
    # The point that is masked away does not count; a stage that is called twice has the kernels of both calls.
    assert spreads == {"far": [30 * 33.0], "near": [2.0, 18.0]}


def test_where_a_number_has_no_meaning_it_is_none(x):
    constant = torch.randn(2, C, 1, 1, generator=torch.Generator().manual_seed(0)).expand(2, C, 16, 16)
    ((block,),) = (one["blocks"] for one in feature_trace(made(num_blocks=1), constant))
    assert (block["quotient"], block["linear"]) == (None, None)
    ((block,),) = (one["blocks"] for one in feature_trace(made(OriginalStage, 1, subsample=2), x))
    assert (block["before"]["energy"], block["quotient"]) == (None, None)


def test_a_model_that_runs_no_stage_is_refused(x):
    with pytest.raises(ValueError, match="no nonlocal module"):
        feature_trace(nn.Conv2d(C, C, 1), x)
    model = nn.Sequential(nn.Identity())
    model[0].stage = made()
    with pytest.raises(ValueError, match=r"none of its nonlocal modules did \(0\.stage\)"):
        stage_inputs(model, x)


@pytest.mark.parametrize("look", [feature_trace, logit_spreads, stage_inputs])
def test_an_empty_batch_has_nothing_to_measure(look, x):
    with pytest.raises(ValueError, match=r"^1 got an empty batch \(B = 0\); give at least one sample"):
        look(nn.Sequential(nn.Identity(), made()), x[:0])


def test_what_another_thread_runs_is_not_seen():
    stage, x = made(), torch.rand(1, C, 3, 3)

    class Busy(nn.Module):
        def forward(self, x):
            other = threading.Thread(target=stage, args=(2 * x,))
            other.start()
            other.join()
            return x

    [(_, _, seen, _)] = stage_inputs(nn.Sequential(Busy(), stage), x)
    assert torch.equal(seen, x)


def test_looking_at_a_distributed_model_waits_for_no_other_process(monkeypatch):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            raise AssertionError("this would wait")

    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Wrapper)
    assert list(logit_spreads(Wrapper(made()), torch.rand(1, C, 3, 3))) == ["module"]
