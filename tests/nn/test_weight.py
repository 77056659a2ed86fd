"""The linear maps of a stage: how they start, biases, normalisation, dtypes, and what replaces them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from nonloc._torch_compat import is_untouched
from nonloc.nn.stage import DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.nn.weight import WeightMap, apply_map
from nonloc.ops import BACKENDS, aggregate, diffuse, reference

C, M = 6, 7
STAGES = [OriginalStage, DiffusiveStage]


@pytest.fixture
def x():
    return torch.randn(3, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind=DiffusiveStage, num_blocks=2, **keywords):
    torch.manual_seed(0)
    return kind(C, num_blocks, **{"layout": "positions", "init_std": 0.3} | keywords).double()


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, [0.01, 0.01, 0.01]),
        ({"init": "normal", "init_std": 0.3}, [0.3, 0.3, 0.3]),
        ({"init": "kaiming"}, [math.sqrt(2 / 256), math.sqrt(2 / 128), math.sqrt(2 / 128)]),
        ({"init": "fan_in"}, [128**-0.5, 256**-0.5, 256**-0.5]),
        ({"init": "torch"}, [(3 * 128) ** -0.5, (3 * 256) ** -0.5, (3 * 256) ** -0.5]),
        ({"init": "zero"}, [0.0, (3 * 256) ** -0.5, (3 * 256) ** -0.5]),
    ],
)
def test_deviations_of_w_z_w_g_and_theta(keywords, expected):
    torch.manual_seed(0)
    stage = DiffusiveStage(256, 1, **keywords)
    maps = (stage.maps[0].w_z, stage.maps[0].w_g, stage.embeddings[0].theta)
    # 32,768 entries a map: the sample deviation is known to 0.4 %, so 2 % is five of its own deviations.
    assert [float(one.weight.detach().std()) for one in maps] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", [{}, {"bias": True}, {"batch_norm": True}, {"weight": "full"}])
def test_zero_is_the_identity_in_training_too_and_learns_at_the_first_step(kind, keywords, x):
    stage = made(kind, init="zero", **keywords)
    result = stage(x)
    assert torch.equal(result, x)
    result.square().sum().backward()
    weight = stage.maps[0]
    assert (weight.w_z if weight.norm is None else weight.norm).weight.grad.abs().max() > 0
    assert weight.norm is None or weight.w_z.weight.abs().min() > 0


def test_bias_of_w_g_exists_only_where_it_can_matter_and_starts_at_zero():
    original, diffusive = (made(kind, bias=True).maps[0] for kind in STAGES)
    assert diffusive.w_g.bias is None
    assert not any(one.bias.any() for one in (original.w_g, original.w_z, diffusive.w_z))


def test_biases_shift_the_original_block_as_written(x):
    torch.manual_seed(0)
    block = OriginalBlock(C, bias=True, affinity="gaussian", init="torch", layout="positions").double()
    weight = block.maps[0]
    kernel = (x @ x.mT).softmax(-1)
    change = kernel @ (x @ weight.w_g.weight.T + weight.w_g.bias) @ weight.w_z.weight.T + weight.w_z.bias
    torch.testing.assert_close(block(x), x + change)


@pytest.mark.parametrize("weight", ["factored", "full"])
@pytest.mark.parametrize(("kind", "operate"), [(OriginalStage, aggregate), (DiffusiveStage, diffuse)])
def test_weights_have_the_normalization_folded_in(kind, operate, weight, x):
    stage = made(kind, init="torch", batch_norm=True, weight=weight)
    for one in stage.maps:
        nn.init.normal_(one.norm.weight)
        nn.init.normal_(one.norm.bias)
    for _ in range(3):
        stage(x)
    stage.eval()
    z = x
    for w, one, affinity in zip(stage.weights(), stage.maps, stage.affinities(x), strict=True):
        norm = one.norm
        shift = norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
        z = z + operate(affinity, z) @ w.T + shift
    torch.testing.assert_close(stage(x), z)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(C, affine=False), nn.Identity()], ids=str)
def test_a_normalisation_without_weights_is_folded_in(norm, x):
    one = WeightMap(C, batch_norm=True).double()
    one.norm = norm.double()
    one.outer(one.inner(x))
    one.eval()
    shift = one.outer(one.inner(torch.zeros_like(x)))
    torch.testing.assert_close(one.outer(one.inner(x)), x @ one.matrix().T + shift)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(C, track_running_stats=False), nn.LayerNorm(C)], ids=str)
def test_a_normalisation_by_the_input_leaves_no_fixed_weights(norm):
    stage = made(batch_norm=True)
    stage.maps[1].norm = norm
    with pytest.raises(
        ValueError, match=f"its {type(norm).__name__} has no running statistics.*use nn.BatchNorm1d"
    ):
        stage.weights()


def test_batch_statistics_are_those_of_the_change_over_batch_and_valid_positions(x):
    one = WeightMap(C, batch_norm=True).double()
    one.norm.eps = 1e-14
    change = one.outer(one.inner(x))
    torch.testing.assert_close(change.mean((0, 1)), torch.zeros(C, dtype=x.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(change.var((0, 1), unbiased=False), torch.ones(C, dtype=x.dtype))
    stage = made(num_blocks=1, batch_norm=True)
    mask = torch.ones(3, M, dtype=torch.bool)
    mask[:, 5:] = False
    torch.testing.assert_close(stage(x, mask)[:, :5], stage(x[:, :5]))


def normed(count=5, norm=nn.BatchNorm1d, **keywords):
    """A sub-block with a normalisation, what its W_Z gets, and a mask with `count` valid positions."""
    torch.manual_seed(0)
    one = WeightMap(C, hidden=C, batch_norm=True)
    one.norm = norm(C, **keywords)
    for parameter in one.norm.parameters():
        nn.init.uniform_(parameter)
    mask = torch.zeros(3 * M, dtype=torch.bool)
    mask[torch.randperm(3 * M)[:count]] = True
    return one, 1 + torch.randn(3, M, C), mask.view(3, M)


def compiled(function, fullgraph=True, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=fullgraph, backend=backend)


def test_without_running_statistics_evaluation_takes_those_of_valid_positions():
    one, change, mask = normed(track_running_stats=False)
    expected = one.outer(change, mask)
    assert torch.equal(one.eval().outer(change, mask), expected)


@pytest.mark.parametrize(
    "keywords", [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}], ids=str
)
def test_a_compiled_normalisation_of_valid_positions_is_one_graph(keywords):
    results = []
    for prepared in (lambda call: call, compiled):
        one, change, mask = normed(**keywords)
        call = prepared(one.double().outer)
        outputs = [call(change.double(), mask), call(change.double(), ~mask)]
        torch.cat(outputs).sin().sum().backward()
        gradients = [parameter.grad for parameter in (*one.w_z.parameters(), *one.norm.parameters())]
        results.append((outputs, gradients, one.norm.state_dict()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_compiled_normalisation_of_valid_positions_takes_half_precision(dtype):
    results = []
    for prepared in (lambda call: call, compiled):
        one, change, mask = normed()
        with torch.autocast("cpu", dtype):
            results.append((prepared(one.outer)(change, mask), one.norm.state_dict()))
    assert results[1][0].dtype == dtype
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.skipif(torch.__version__ < (2, 7), reason="it cannot trace dataclasses.replace")
def test_a_compiled_stage_trains_with_a_mask_and_a_normalisation(x):
    mask = torch.arange(M) < torch.tensor([[3], [0], [M]])
    results = []
    for prepared in (lambda stage: stage, compiled):
        stage = made(batch_norm=True, init="torch")
        out = prepared(stage)(x, mask)
        out.square().sum().backward()
        results.append((out, [parameter.grad for parameter in stage.parameters()], stage.state_dict()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_valid_positions_leave_the_running_statistics_of_a_compiled_map_alone(count):
    one, change, mask = normed(count)
    out = compiled(one.outer)(change, mask)
    out.sum().backward()
    assert torch.equal(out[mask], one.norm.bias.expand(count, C))
    assert not out[~mask].any()
    assert torch.equal(one.norm.running_mean, torch.zeros(C))
    assert torch.equal(one.norm.running_var, torch.ones(C))
    assert one.norm.bias.grad.tolist() == [count] * C
    assert not one.norm.weight.grad.any()


def test_one_valid_position_is_refused_in_training():
    one, change, mask = normed(count=1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        one.outer(change, mask)


class TwiceTheNorm(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("norm", [nn.SyncBatchNorm, TwiceTheNorm])
def test_a_compiled_map_calls_a_module_in_the_place_of_its_normalisation(norm):
    results = []
    for prepared in (lambda call: call, lambda call: compiled(call, fullgraph=False, backend="eager")):
        one, change, mask = normed(norm=norm)
        results.append((prepared(one.outer)(change, mask), one.norm.state_dict()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", [{}, {"affinity": "gaussian", "bias": True}])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_input_of_another_dtype_is_refused_with_the_fix(kind, keywords, dtype, x):
    stage = made(kind, **keywords).float()
    with pytest.raises(ValueError, match=rf"torch.float32 and its input is {dtype}; use") as error:
        stage(x.to(dtype))
    assert ("autocast" in str(error.value)) == (dtype == torch.float16)
    assert stage.to(dtype)(x.to(dtype)).dtype == dtype


def test_dtypes_that_torch_accepts_are_accepted(x):
    with torch.autocast("cpu", torch.bfloat16):
        assert made().float()(x.half()).dtype == torch.float16
    # No map before the operator: `propagate` computes in the widest dtype.
    assert made(affinity="gaussian").float()(x).dtype == torch.float64


def test_other_errors_are_those_of_torch():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        apply_map(nn.Linear(3, 3).double(), torch.ones(2, 4).double())


class Doubled(nn.Module):
    """Another module in the place of a map, as LoRA puts one there. It has nothing else of nn.Linear."""

    def __init__(self, base):
        super().__init__()
        self.base = base

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
    # A hook on all modules touches none.
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert is_untouched(linear, nn.Linear)
    finally:
        handle.remove()
    linear.forward = lambda x: x
    assert not is_untouched(linear, nn.Linear)
    normed = parametrizations.weight_norm(nn.Linear(2, 2))
    assert not is_untouched(normed, nn.Linear)
    assert is_untouched(normed, nn.Linear, parametrized=True)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("name", ["w_z", "w_g"])
@pytest.mark.parametrize("way", ["module", "hook"])
def test_a_module_in_the_place_of_a_map_or_a_hook_on_it_is_called(kind, name, way, x):
    stage, expected = made(kind), made(kind)
    if way == "module":
        setattr(stage.maps[0], name, Doubled(getattr(stage.maps[0], name)))
    else:
        getattr(stage.maps[0], name).register_forward_hook(lambda _, inputs, output: 2 * output)
    with torch.no_grad():
        getattr(expected.maps[0], name).weight.mul_(2)
    torch.testing.assert_close(stage(x), expected(x))
    if way == "module":
        torch.testing.assert_close(stage.weights()[0], expected.weights()[0])


def test_an_error_of_a_module_in_the_place_of_a_map_is_torchs_own(x):
    stage = made()
    stage.maps[0].w_g = Doubled(stage.maps[0].w_g)
    with pytest.raises(RuntimeError, match="same dtype"):
        stage.maps[0].inner(torch.ones(1, 2, C, dtype=torch.float16))


def test_a_module_in_the_place_of_v_counts(x):
    stage, expected = made(weight="stable"), made(weight="stable")
    stage.maps[0].v = Doubled(stage.maps[0].v)
    with torch.no_grad():
        expected.maps[0].v.weight.mul_(2)
    torch.testing.assert_close(stage(x), expected(x))


class LinearOnly(torch.Tensor):
    """A weight that F.linear takes, and that cannot be transposed or multiplied, as int8 weights."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            return F.linear(args[0], args[1].as_subclass(torch.Tensor), *args[2:])
        refused = (
            torch.Tensor.matmul,
            torch.Tensor.__matmul__,
            torch.Tensor.transpose,
            torch.Tensor.mT.__get__,
        )
        if function in refused:
            raise NotImplementedError(f"{function} of a LinearOnly")
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("weight", ["factored", "full"])
def test_a_weight_of_another_class_is_used_by_calling_its_map(kind, weight, x):
    stage, expected = made(kind, weight=weight), made(kind, weight=weight)
    for one in (*stage.maps.children(), *stage.embeddings.children()):
        for linear in one.children():
            linear.weight = nn.Parameter(linear.weight.detach().as_subclass(LinearOnly), requires_grad=False)
    assert stage.maps[0].factors() is None
    torch.testing.assert_close(stage(x), expected(x))
    torch.testing.assert_close(stage.weights(), expected.weights())


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("way", ["bias", "batch norm", "hook"])
def test_a_shared_kernel_is_computed_once_whatever_is_done_to_the_maps(kind, way, x, monkeypatch):
    keywords = {"bias": way == "bias", "batch_norm": way == "batch norm", "share_affinity": True}
    stage = made(kind, backend="reference", **keywords)
    if way == "hook":
        stage.maps[1].w_z.register_forward_hook(lambda _, inputs, output: output)
    counted = []
    monkeypatch.setitem(BACKENDS, "reference", lambda *args: counted.append(1) or reference.prepare(*args))
    stage(x)
    assert len(counted) == 1


def test_pruned_maps_train_for_more_than_a_step(x):
    stage = made()
    prune.l1_unstructured(stage.maps[1].w_z, "weight", amount=0.5)
    for _ in range(2):
        stage(x).sum().backward()
    grad = stage.maps[1].w_z.weight_orig.grad
    assert bool((grad[stage.maps[1].w_z.weight_mask == 0] == 0).all())
