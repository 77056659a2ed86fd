"""The fused kernels on a GPU: against float64 on fresh numbers, poisoned memory, captured, in a stage, compiled."""

import copy
import secrets

import pytest
import torch
from fused_problems import Problem, by, by_hand, errors, poison

from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.ops import Affinity, choose_backend, propagate
from nonloc.ops.fused.launch import Launcher
from problems import capture

pytestmark = pytest.mark.gpu

# How many times as far from float64 as the plain computation in the same dtype, which rounds in the same places, or
# as a quarter of eps where that is more. float32 is three tf32 products, which leave a few more bits.
FACTOR = {torch.bfloat16: 4, torch.float16: 4, torch.float32: 20}
BF16 = torch.bfloat16


@pytest.fixture
def launches(monkeypatch):
    seen = []
    launch = Launcher.launch

    def spy(self, name, kernel, *tensors, **constants):
        seen.append(kernel)
        launch(self, name, kernel, *tensors, **constants)

    monkeypatch.setattr(Launcher, "launch", spy)
    return seen


def problem(**keywords):
    """The paper's stage on eight images, on numbers that nobody has seen."""
    usual = {"batch": 8, "positions": 1024, "channels": 64, "embed": 32, "hidden": 32, "blocks": 4}
    return Problem(**(usual | {"dtype": BF16} | keywords), device="cuda", seed=secrets.randbits(31))


def check(one, solve=None, way="fused"):
    """As near to float64 as the dtype allows, in value and in all gradients."""
    backend = "reference" if one.positions <= 4096 else "factored"
    truth = one.solve(by(backend), torch.float64)
    actual = errors(one.solve(by(way)) if solve is None else solve, truth, one.left_cancels)
    plain = errors(one.solve(by_hand), truth, one.left_cancels)
    allowed = FACTOR[one.dtype]
    quarter = torch.finfo(one.dtype).eps / 4
    wrong = {n: (e, plain[n]) for n, e in actual.items() if e > allowed * max(plain[n], quarter)}
    assert wrong == {}, f"seed {one.seed}"


WIDEST = {"batch": 2, "positions": 300, "channels": 512, "embed": 128, "hidden": 128, "blocks": 2}
STAGES = {
    "paper": {},
    "one_block": {"blocks": 1},
    "heat_mask_odd": {"kind": "heat", "is_masked": True, "batch": 3, "positions": 1021, "blocks": 3},
    "odd_widths": {"batch": 2, "positions": 777, "channels": 150, "embed": 24, "hidden": 20, "blocks": 7},
    "widest": WIDEST,
    "full_weights": {"hidden": None, "batch": 2, "positions": 512, "blocks": 12},
    "original": {"differs": False, "blocks": 3},
    "keys_far_from_zero": {"right_shift": 30.0},
    "keys_far_from_zero_in_two_passes": {"right_shift": 30.0, "blocks": 12},
    "original_mask_odd": {"differs": False, "is_masked": True, "batch": 3, "positions": 1021, "blocks": 1},
    "many_positions": {"batch": 1, "positions": 8192, "blocks": 2},
    "half": {"dtype": torch.float16},
    "single": {"dtype": torch.float32, "batch": 2},
    "single_widest": {**WIDEST, "dtype": torch.float32, "batch": 1},
    "single_heat_odd": {"dtype": torch.float32, "kind": "heat", "batch": 2, "positions": 333, "shift": 10.0},
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("backend", ["fused", "stored"])
def test_cuda_stage_against_float64(name, backend):
    check(problem(**STAGES[name]), way=backend)


@pytest.mark.parametrize("backend", ["stored", "attention"])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("differs", [True, False])
def test_cuda_wide_features(backend, dtype, differs):
    wide = {"batch": 3, "positions": 333, "channels": 300, "embed": 256, "hidden": 256, "blocks": 2}
    check(problem(**wide, dtype=dtype, differs=differs), way=backend)


@pytest.mark.parametrize("backend", ["fused", "stored", "attention"])
def test_cuda_a_state_in_float32(backend):
    """As under autocast: the change is rounded, the state is not."""
    one = problem(batch=2)
    left, right, z, outer, inner = one.inputs
    exact = [x.double() for x in one.inputs]

    def change(left, right, z, outer, inner, backend):
        pairs = list(zip(outer, inner, strict=True))
        return propagate(Affinity(left, right, "gaussian"), z, pairs, backend=backend) - z

    truth = change(*exact, "reference")
    actual = change(left, right, z.float(), outer, inner, backend)
    assert actual.dtype == torch.float32
    assert float((actual - truth).norm() / truth.norm()) < 4 * torch.finfo(BF16).eps, f"seed {one.seed}"


@pytest.mark.parametrize("dtype", list(FACTOR))
def test_cuda_large_logits(dtype):
    check(problem(dtype=dtype, size=100.0, batch=2))


@pytest.mark.parametrize(("dtype", "size", "grid"), [(BF16, 1e6, 128.0), (torch.float32, 1e5, 32.0)])
def test_cuda_rows_sum_to_one_where_logits_are_enormous(dtype, size, grid):
    """Without the grid, the last bits of logits of 10^5 decide between features that are nearly as good."""
    check(problem(dtype=dtype, size=size, copies=3, batch=2, grid=grid))


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_cuda_copies_of_one_feature_give_their_receiver_no_gradient(dtype):
    """A δ that is rounded to the dtype would leave a quarter of its eps."""
    one = problem(dtype=dtype, size=1e5, copies=3, batch=2)
    actual = errors(one.solve(by("fused")), one.solve(by("reference"), torch.float64), one.left_cancels)
    assert actual["left"] < torch.finfo(dtype).eps / 16, f"seed {one.seed}"


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_cuda_every_number_is_written(monkeypatch, is_deterministic):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    one = problem(positions=1000, batch=2)
    with pytest.MonkeyPatch.context() as patch:
        torch.use_deterministic_algorithms(is_deterministic)
        made = poison(patch)
        try:
            actual = one.solve(by("fused"))
        finally:
            torch.use_deterministic_algorithms(False)
    assert len(made) > 8
    check(one, solve=actual)


def test_cuda_deterministic_gradients_are_the_same_bits(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    one = problem(batch=32)
    torch.use_deterministic_algorithms(True)
    try:
        first = one.solve(by("fused"))
        others = [one.solve(by("fused")) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in others:
        assert [name for name in first if not torch.equal(first[name], other[name])] == []
    check(one, solve=first)


def test_cuda_nan_reaches_the_output():
    left, right, z = (torch.randn(2, 1024, 32, device="cuda").to(BF16) for _ in range(3))
    right[0, 700, 3] = torch.nan
    weights = torch.randn(2, 32, 32, device="cuda")
    out = propagate(Affinity(left, right, "gaussian"), z, weights, backend="fused")
    assert bool(out[0].isnan().all())
    assert bool(out[1].isfinite().all())


@pytest.mark.parametrize("positions", [1024, 1000])
def test_cuda_a_captured_stage_follows_its_inputs(positions):
    one = problem(positions=positions)
    leaves = [x.clone().requires_grad_() for x in one.inputs]
    cotangent = one.cotangent.clone()

    def work():
        left, right, z, outer, inner = leaves
        pairs = list(zip(outer, inner, strict=True))
        out = propagate(Affinity(left, right, "gaussian"), z, pairs, backend="fused")
        return [out.detach(), *torch.autograd.grad(out, leaves, cotangent)]

    graph, replayed = capture(work)
    fresh = problem(positions=positions)
    with torch.no_grad():
        for leaf, x in zip(leaves, fresh.inputs, strict=True):
            leaf.copy_(x)
        cotangent.copy_(fresh.cotangent)
    graph.replay()
    names = ("value", "left", "right", "z", "W_Z", "W_g")
    actual = dict(zip(names, replayed, strict=True))
    eager = fresh.solve(by("fused"))
    for name in ("value", "left", "right", "z"):
        assert torch.equal(actual[name], eager[name]), name
    # The sums of the weights' gradients are in no fixed order, but in float32.
    for name in ("W_Z", "W_g"):
        torch.testing.assert_close(actual[name], eager[name], rtol=2e-2, atol=2e-2)
    check(fresh, solve=actual)


def test_cuda_offsets_beyond_32_bits():
    """Eight sub-blocks of ten million positions: their G is one array of 2.7 billion numbers."""
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs a GPU with 60 GiB")
    one = problem(batch=40_960, positions=256, channels=16, embed=16, blocks=8)
    whole = one.solve(by("fused"))
    last = copy.copy(one)
    last.inputs = [x[-8:] if x.shape[0] == one.batch else x for x in one.inputs]
    last.cotangent = one.cotangent[-8:]
    part = last.solve(by("fused"))
    del one
    for name in ("value", "z"):
        assert torch.equal(whole[name][-8:], part[name]), name
    # The gradient of the affinity is made in two passes of 6 and 2 sub-blocks, and of the part in one of 8: other
    # roundings of the same, a few of bfloat16.
    for name in ("left", "right"):
        actual, other = whole[name][-8:].float(), part[name].float()
        assert float((actual - other).norm() / other.norm()) < 4 * torch.finfo(BF16).eps, name


def test_cuda_auto():
    def chosen(dtype, kind="gaussian", normalize="row", z_dtype=None):
        x = torch.randn(2, 64, 16, device="cuda", dtype=dtype)
        return choose_backend(Affinity(x, x, kind, normalize), x if z_dtype is None else x.to(z_dtype))

    assert chosen(BF16) == chosen(torch.float16) == chosen(BF16, "heat") == "fused"
    assert chosen(torch.float32) == chosen(BF16, normalize="count") == "reference"
    assert chosen(BF16, z_dtype=torch.float32) == "fused"
    assert chosen(BF16, "dot") == "factored"


def made(backend, kind=DiffusiveStage, channels=64, **keywords):
    torch.manual_seed(0)
    return kind(channels, 4, init="torch", backend=backend, **keywords).cuda()


def solve_stage(stage, x, cotangent):
    leaf = x.clone().requires_grad_()
    gradients = torch.autograd.grad(out := stage(leaf), [leaf, *stage.parameters()], cotangent.to(out.dtype))
    names = ["x", *(name.removeprefix("_orig_mod.") for name, _ in stage.named_parameters())]
    return {"value": out.detach(), **dict(zip(names, gradients, strict=True))}


def farther_than(expected, actual, size, dtype=BF16):
    """What of `actual` is 6 times as far from float64 under autocast as of the stage `expected`."""
    x, cotangent = (torch.randn(*size, device="cuda").to(BF16).to(dtype) for _ in range(2))
    exact = copy.deepcopy(expected).double()
    exact.backend = "reference"
    truth = solve_stage(exact, x.double(), cotangent.double())
    with torch.autocast("cuda", BF16):
        plain, other = (errors(solve_stage(stage, x, cotangent), truth) for stage in (expected, actual))
    quarter = torch.finfo(BF16).eps / 4
    return {name: (e, plain[name]) for name, e in other.items() if e > 6 * max(plain[name], quarter)}


def test_cuda_a_stage_under_autocast(launches):
    """As near to float64 as the reference under the same autocast; W is rounded to bfloat16 as linear maps are."""
    assert farther_than(made("reference"), made("auto"), (8, 64, 32, 32)) == {}
    assert launches.count("forward_kernel") == 4
    # The first sub-block has its adjoint in the pass over the keys.
    assert launches.count("adjoint_kernel") == 3
    assert launches.count("key_kernel") == 1


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "keywords"), [(OriginalStage, {}), (DiffusiveStage, {"share_affinity": False})]
)
@pytest.mark.parametrize(("channels", "height"), [(64, 32), (64, 31), (128, 31)])
def test_cuda_own_affinities_with_their_embeddings_inside(launches, kind, keywords, dtype, channels, height):
    stages = [made(backend, kind, channels, **keywords) for backend in ("reference", "auto")]
    assert farther_than(*stages, (8, channels, 32, height), dtype) == {}
    backward = ["query_kernel", "key_kernel"]
    if channels > 64:  # features wider than 32
        backward = ["turn_kernel", *backward, "finish_kernel"]
    assert launches == ["begin_kernel", "forward_kernel"] * 4 + backward * 4


@pytest.mark.parametrize("backend", ["auto", "fused", "stored", "attention"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_cuda_a_compiled_stage(backend, mode):
    """In the second mode calls after the first are replayed CUDA graphs."""
    torch._dynamo.reset()
    stage = made(backend)
    compiled = torch.compile(stage, mode=mode)
    for _ in range(3):
        assert farther_than(stage, compiled, (2, 64, 16, 16)) == {}
