"""The fused kernels in Triton's interpreter: float64's values and gradients, and what they refuse."""

import pytest
import torch
from fused_problems import Problem, by, by_hand, errors, poison

from nonloc.ops import (
    Affinity,
    SparseAffinity,
    aggregate,
    choose_backend,
    diffuse,
    dirichlet_energy,
    fused,
    prepare,
    propagate,
)
from nonloc.ops.fused.launch import Launcher, _groups, is_interpreted

pytestmark = pytest.mark.skipif(
    not is_interpreted(), reason="Triton compiles for the GPU here: test_fused_gpu.py"
)

# How many times as far from float64 as the plain computation in the same dtype, or its eps where that is more.
FACTOR = 4

# Rows and columns beyond M are computed, too, and left out.
BEYOND_THE_END = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")


@pytest.fixture
def launches(monkeypatch):
    """What is launched, as (kernel, its constants)."""
    seen = []
    launch = Launcher.launch

    def spy(self, name, kernel, *tensors, **constants):
        seen.append((kernel, constants))
        launch(self, name, kernel, *tensors, **constants)

    monkeypatch.setattr(Launcher, "launch", spy)
    return seen


def check(*problems):
    """As near to float64 as the dtype allows, in value and in all gradients; of several problems the worst."""
    found, plain = (
        [errors(one.solve(way), one.truth(), one.left_cancels) for one in problems]
        for way in (by("fused"), by_hand)
    )
    eps = torch.finfo(problems[0].dtype).eps
    worst = {name: max(one[name] for one in found) for name in found[0]}
    allowed = {name: FACTOR * max(eps, *(one[name] for one in plain)) for name in worst}
    assert {name: error for name, error in worst.items() if error > allowed[name]} == {}


STAGES = {
    "even": {"positions": 64},
    "heat": {"kind": "heat", "positions": 33},
    "mask": {"is_masked": True, "batch": 2, "blocks": 1},
    "heat_mask": {"kind": "heat", "is_masked": True, "positions": 70, "blocks": 1},
    "odd_widths": {"embed": 5, "hidden": 12, "channels": 20, "positions": 33},
    "wide_hidden": {"embed": 8, "hidden": 40, "channels": 16},
    "wide_embed": {"embed": 100, "hidden": 16},
    "full": {"hidden": None, "channels": 24},
    "two_chunks": {"channels": 80},
    "one_left_for_both": {"kind": "heat", "is_shared": True, "size": 0.3},
    "negative_scale": {"scale": -0.5},
    "heat_far_from_zero": {"kind": "heat", "shift": 100.0},
    "keys_far_from_zero": {"right_shift": 30.0},
    "small_logits": {"size": 0.01},
    "original": {"differs": False, "blocks": 3, "positions": 33},
    "original_heat_mask": {"differs": False, "kind": "heat", "is_masked": True, "positions": 70, "batch": 2},
    "original_one": {"differs": False, "blocks": 1, "hidden": None, "positions": 64},
}


@BEYOND_THE_END
@pytest.mark.parametrize("name", STAGES)
def test_a_stage(name):
    check(Problem(**STAGES[name]))


@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 6, 7])
def test_any_number_of_sub_blocks(blocks):
    check(Problem(blocks=blocks, positions=20))


def test_many_sub_blocks_take_several_passes(launches):
    check(Problem(blocks=12, hidden=32, positions=20))
    passes = [sizes["WIDE"] + sizes["REST"] for kernel, sizes in launches if kernel == "key_kernel"]
    assert passes == [8 * 32, 4 * 32]


@BEYOND_THE_END
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_large_logits(kind):
    """Cauchy–Schwarz is more than a hundred bits above them: without a look at every one, all sums would vanish.

    Six problems: in a single one the plain computation may be lucky, on one processor and not on another.
    """
    check(*(Problem(kind, size=100.0, seed=seed) for seed in range(6)))


@BEYOND_THE_END
@pytest.mark.parametrize("differs", [True, False], ids=["diffusive", "original"])
@pytest.mark.parametrize("size", [1e5, 1e6, 1e7])
def test_rows_sum_to_one_where_logits_are_enormous(size, differs):
    """Where positions share a row, it is not one number: the logarithm of its sum, in float32, is off by percents."""
    check(Problem(size=size, copies=3, positions=42, blocks=4, differs=differs))


@BEYOND_THE_END
def test_rows_sum_to_one_in_half_precision_too():
    check(Problem(size=1e6, copies=3, positions=42, blocks=4, dtype=torch.float16))


@BEYOND_THE_END
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_enormous_logits_are_finite(kind, dtype):
    problem = Problem(kind, size=1e4, dtype=dtype)
    found, truth = problem.solve(by("fused")), problem.truth()
    assert all(bool(x.isfinite().all()) for x in found.values())
    assert errors(found, truth)["value"] < {torch.float32: 1e-3, torch.float16: 1e-2}[dtype]


HALVES = {
    "gaussian": {},
    "heat": {"kind": "heat", "is_masked": True},
    "small_logits": {"size": 0.01},
    "heat_far_from_zero": {"kind": "heat", "shift": 30.0},
    "keys_far_from_zero": {"right_shift": 30.0},
    "full_and_odd": {"hidden": None, "channels": 20, "embed": 5, "positions": 33},
}


@BEYOND_THE_END
@pytest.mark.parametrize("name", HALVES)
def test_half_precision(name):
    check(Problem(**HALVES[name], dtype=torch.float16))


def test_half_precision_and_large_logits():
    check(Problem(size=100.0, dtype=torch.float16))


@pytest.mark.parametrize(("dtype", "blocks"), [(torch.float32, 2), (torch.float16, 2), (torch.float16, 20)])
def test_a_row_that_is_one_number_has_no_gradient(dtype, blocks):
    """Where rounding leaves one, it is as large as the keys."""
    problem = Problem(size=1e5, dtype=dtype, blocks=blocks, right_shift=100.0)
    found = problem.solve(by("fused"))
    left, right, z = (x.double().norm() for x in problem.inputs[:3])
    rounding = torch.finfo(dtype).eps * z * problem.cotangent.double().norm() / problem.positions**0.5
    assert float(found["left"].double().norm() / right) < 1e-3 * rounding
    assert float(found["right"].double().norm() / left) < 1e-3 * rounding


@pytest.mark.parametrize("tiles", ["NARROW", "SINGLE", "DEEP", "WIDE"])
def test_the_tiles_of_the_gpu(monkeypatch, tiles):
    """Blocks and steps of different sizes, and positions that neither divides."""
    monkeypatch.setattr(fused, "EXACT", getattr(fused, tiles))
    check(Problem(positions=150, blocks={"SINGLE": 1, "DEEP": 5}.get(tiles, 2)))


def solve(operation, backend, kind, dtype, channels, mask, exact=False, shift=0.0):
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(1, 40, c, generator=generator).to(dtype) for c in (6, 6, channels)]
    drawn[1] += shift
    left, right, z = ((x.double() if exact else x).requires_grad_() for x in drawn)
    out = operation(Affinity(left, right, kind, scale=0.5, mask=mask), z, backend=backend)
    weight = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out, *torch.autograd.grad(out, [left, right, z], weight)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("operation", "kind", "channels", "is_masked"),
    [
        (aggregate, "gaussian", 20, False),
        (aggregate, "heat", 7, True),
        (diffuse, "gaussian", 150, False),
        (diffuse, "heat", 15, True),
        (dirichlet_energy, "gaussian", 5, True),
    ],
)
def test_single_operations(operation, kind, channels, is_masked, dtype):
    mask = torch.rand(1, 40, generator=torch.Generator().manual_seed(1)) > 0.3 if is_masked else None
    truth = solve(operation, "reference", kind, dtype, channels, mask, exact=True)
    found = solve(operation, "fused", kind, dtype, channels, mask)
    assert found[0].dtype == dtype
    eps = torch.finfo(dtype).eps
    for value, wanted in zip(found, truth, strict=True):
        # Signal, K, and the products are rounded once each; the energy subtracts numbers of its own size.
        assert float((value.detach().double() - wanted.detach()).norm() / wanted.norm().detach()) < 12 * eps


@BEYOND_THE_END
@pytest.mark.parametrize("channels", [20, 150])
def test_keys_far_from_zero_in_a_product(channels):
    """What rounding leaves of the row sums is as large as the keys."""
    truth = solve(aggregate, "reference", "gaussian", torch.float16, channels, None, exact=True, shift=30.0)
    found = solve(aggregate, "fused", "gaussian", torch.float16, channels, None, shift=30.0)
    eps = torch.finfo(torch.float16).eps
    assert float((found[1].double() - truth[1]).norm() / truth[1].norm()) < 2 * eps


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_every_number_is_written(monkeypatch, is_deterministic):
    problem = Problem("heat", blocks=3, hidden=128, positions=33, is_masked=True)
    with deterministic(is_deterministic):
        clean = problem.solve(by("fused"))
        made = poison(monkeypatch)
        found = problem.solve(by("fused"))
    assert len(made) > 8
    for name, value in clean.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("operation", [aggregate, diffuse])
def test_every_number_of_a_product_is_written(monkeypatch, operation):
    clean = solve(operation, "fused", "gaussian", torch.float32, 20, None)
    made = poison(monkeypatch)
    found = solve(operation, "fused", "gaussian", torch.float32, 20, None)
    assert len(made) > 5
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("where", ["left", "right", "z"])
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_nan_reaches_the_output(kind, where):
    left, right, z = (torch.randn(2, 40, 16) for _ in range(3))
    {"left": left, "right": right, "z": z}[where][0, 35, 2] = torch.nan
    pairs = [(torch.randn(16, 16), torch.randn(16, 16)) for _ in range(2)]
    out = propagate(Affinity(left, right, kind), z, pairs, backend="fused")
    reference = propagate(Affinity(left, right, kind), z, pairs, backend="reference")
    assert bool(out[0, 35].isnan().any())
    assert torch.equal(out[0].isnan().any(-1), reference[0].isnan().any(-1))
    assert bool(out[1].isfinite().all())


def test_nan_in_the_padding_reaches_nobody():
    left, right, z = (torch.randn(1, 40, 16) for _ in range(3))
    mask = torch.ones(1, 40, dtype=torch.bool)
    mask[0, 7:20] = False
    for x in (left, right, z):
        x[0, 7:20] = torch.nan
    out = propagate(Affinity(left, right, "heat", mask=mask), z, torch.randn(2, 16, 16), backend="fused")
    assert torch.equal(out.isnan().all(-1), ~mask)
    assert torch.equal(out.isnan().any(-1), ~mask)


class deterministic:
    def __init__(self, is_wanted):
        self.is_wanted = is_wanted

    def __enter__(self):
        torch.use_deterministic_algorithms(self.is_wanted)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


def test_the_deterministic_option(launches):
    """Nothing is added up by atomic operations then; that the bits are the same is seen on a GPU."""
    problem = Problem()
    with deterministic(True):
        first, second = (problem.solve(by("fused")) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    slots = {sizes["SLOTS"] for kernel, sizes in launches if kernel == "adjoint_kernel"}
    assert slots == {0}
    launches.clear()
    usual = problem.solve(by("fused"))
    assert {sizes["SLOTS"] for kernel, sizes in launches if kernel == "adjoint_kernel"} != {0}
    for name, value in usual.items():
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-5)


def features(dtype=torch.float32, positions=8, width=4):
    return torch.randn(1, positions, width).to(dtype)


REFUSED = {
    "kind": (lambda: Affinity(features(), features(), "dot"), features, '"gaussian" or "heat".*not \'dot\''),
    "normalize": (lambda: Affinity(features(), features(), "heat", "count"), features, 'normalize="row"'),
    "measure": (lambda: Affinity(*[features()] * 2, "heat", measure=torch.ones(8)), features, "a measure"),
    "float64": (
        lambda: Affinity(*[features(torch.float64)] * 2, "heat"),
        lambda: features(torch.float64),
        "one dtype of float32, float16 and bfloat16, not float64",
    ),
    "mixed_features": (
        lambda: Affinity(features(torch.float16), features(), "heat"),
        features,
        "not float16 and float32",
    ),
    "mixed_signal": (
        lambda: Affinity(*[features(torch.bfloat16)] * 2, "heat"),
        features,
        "not bfloat16 and float32",
    ),
    "width": (
        lambda: Affinity(*[features(width=129)] * 2, "heat"),
        lambda: features(width=129),
        "d ≤ 128, not 129",
    ),
    "sparse": (lambda: SparseAffinity(torch.eye(8).to_sparse_csr()), features, "not a SparseAffinity"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    affinity, z, message = REFUSED[name]
    z = z()
    for operation in (aggregate, diffuse, lambda a, z, **k: propagate(a, z, [torch.eye(z.shape[-1])], **k)):
        with pytest.raises(ValueError, match=f'backend="fused" needs .*{message}.*backend="auto"'):
            operation(affinity(), z, backend="fused")


def test_fewer_givers_are_refused():
    affinity = Affinity(features(), features(positions=4), "gaussian")
    with pytest.raises(ValueError, match="as many givers as receivers, not 4 and 8"):
        aggregate(affinity, features(positions=4), backend="fused")


def test_too_large_a_batch_is_refused():
    left = torch.zeros(65_536, 1, 1)
    assert "at most 65,535, not 65,536" in fused.lacks(Affinity(left, left, "gaussian"))


def test_without_a_gpu_and_without_the_interpreter(monkeypatch):
    monkeypatch.setattr(fused, "is_available", lambda device: False)
    with pytest.raises(
        ValueError, match="a CUDA device of compute capability 8 or more, and Triton, not cpu"
    ):
        diffuse(Affinity(features(), features(), "gaussian"), features(), backend="fused")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_auto_does_not_come_here_on_the_cpu(dtype, launches):
    affinity, z = Affinity(features(dtype), features(dtype), "gaussian"), features(dtype)
    assert choose_backend(affinity, z) == "reference"
    propagate(affinity, z, [torch.eye(4, dtype=dtype)])
    prepare(affinity, torch.float32).apply(z.float())
    assert launches == []


def test_a_second_derivative_is_an_error():
    problem = Problem()
    left, right, z, outer, inner = (x.clone().requires_grad_() for x in problem.inputs)
    for out in (
        propagate(
            Affinity(left, right, "gaussian"), z, list(zip(outer, inner, strict=True)), backend="fused"
        ),
        diffuse(Affinity(left, right, "gaussian"), z, backend="fused"),
    ):
        with pytest.raises(ValueError, match='no second derivative.*backend="reference"'):
            torch.autograd.grad(out.sum(), z, create_graph=True)


def test_the_output_may_be_overwritten_and_holds_nothing_else():
    problem = Problem()

    def stage(affinity, z, pairs, differs):
        out = propagate(affinity, z, pairs, backend="fused")
        assert out.untyped_storage().nbytes() == out.nbytes
        return out.mul_(2)

    found, truth = problem.solve(stage), problem.truth()
    for name, value in truth.items():
        torch.testing.assert_close(found[name].double(), 2 * value, rtol=1e-4, atol=1e-5)


def test_without_gradients_nothing_is_kept(launches):
    left, right, z = (torch.randn(1, 40, 16, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        propagate(Affinity(left, right, "gaussian"), z, 0.1 * torch.randn(3, 16, 16), backend="fused")
    saves = [sizes["SAVES"] for kernel, sizes in launches if kernel == "forward_kernel"]
    assert saves == [False] * 3


def test_the_affinitys_gradient_is_computed_only_where_it_is_asked_for(launches):
    problem = Problem()
    left, right, z, outer, inner = problem.inputs
    z = z.clone().requires_grad_()
    affinity = Affinity(left, right, "gaussian")
    stage = propagate(affinity, z, list(zip(outer, inner, strict=True)), backend="fused")
    (gradient,) = torch.autograd.grad(stage, z, problem.cotangent)
    torch.testing.assert_close(gradient.double(), problem.truth()["z"], rtol=1e-4, atol=1e-5)
    diffuse(affinity, z, backend="fused").sum().backward()
    assert {"key_kernel", "query_kernel"}.isdisjoint(kernel for kernel, _ in launches)


WEIGHTS = {
    "none": lambda w: [],
    "different_ranks": lambda w: [(w(20, 4), w(4, 20)), (w(20, 9), w(9, 20))],
    "full_and_factored": lambda w: [w(20, 20), (w(20, 4), w(4, 20))],
    "too_wide_for_one_launch": lambda w: [(w(20, 130), w(130, 20))],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_make_one_stage(name):
    """They go through K z, a sub-block at a time."""
    torch.manual_seed(0)
    left, right, z = (torch.randn(1, 33, c) for c in (6, 6, 20))
    pairs = WEIGHTS[name](lambda *shape: 0.2 * torch.randn(shape))
    found, wanted = (
        propagate(Affinity(left, right, "gaussian"), z, pairs, backend=backend)
        for backend in ("fused", "reference")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_more_channels_than_one_launch_takes():
    torch.manual_seed(0)
    left, right, z = (torch.randn(1, 33, c) for c in (6, 6, 520))
    pairs = [(torch.randn(520, 8) / 8, torch.randn(8, 520) / 23)]
    found, wanted = (
        propagate(Affinity(left, right, "gaussian"), z, pairs, backend=backend)
        for backend in ("fused", "reference")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "positions"), [(0, 5), (2, 1)])
def test_no_sample_and_one_position(batch, positions):
    left, right, z = (torch.randn(batch, positions, 4, requires_grad=True) for _ in range(3))
    out = propagate(Affinity(left, right, "gaussian"), z, torch.randn(2, 4, 4), backend="fused")
    torch.testing.assert_close(out, z)
    out.sum().backward()
    torch.testing.assert_close(z.grad, torch.ones_like(z))
    torch.testing.assert_close(left.grad, torch.zeros_like(z))


def test_strides_do_not_matter():
    """Images come channels first: their positions are the last dimension in memory."""
    problem = Problem()
    clean = problem.solve(by("fused"))
    problem.inputs = [x.mT.contiguous().mT for x in problem.inputs]
    problem.cotangent = problem.cotangent.mT.contiguous().mT
    found = problem.solve(by("fused"))
    for name, value in clean.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_autocast_changes_nothing(is_deterministic):
    problem = Problem()
    with deterministic(is_deterministic):
        clean = problem.solve(by("fused"))
        with torch.autocast("cpu", torch.bfloat16):
            found = problem.solve(by("fused"))
    for name, value in clean.items():
        assert torch.equal(found[name], value), name


@pytest.mark.filterwarnings("ignore:.*lru_cache")
def test_torch_compile_leaves_it_to_itself(launches):
    torch._dynamo.reset()
    left, z = torch.randn(1, 40, 16), torch.randn(1, 40, 16)

    def stage(left, z):
        return 2 * diffuse(Affinity(left, left, "gaussian"), z + 1, backend="fused")

    wanted = stage(left, z)
    before = len(launches)
    torch.testing.assert_close(torch.compile(stage, backend="eager")(left, z), wanted)
    assert len(launches) == 2 * before


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_tf32_is_used_only_where_it_is_allowed(monkeypatch, precision, launches):
    seen = []
    launcher = Launcher.__init__

    def spy(self, *args):
        launcher(self, *args)
        seen.append(self.precision)

    monkeypatch.setattr(Launcher, "__init__", spy)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        diffuse(Affinity(features(), features(), "gaussian"), features(), backend="fused")
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert seen == ["tf32" if precision == "tf32" else "tf32x3"]


@pytest.mark.parametrize(
    ("blocks", "hidden", "stride", "expected"),
    [
        (4, 32, 100, [(0, 4)]),
        (7, 32, 100, [(0, 6), (6, 1)]),
        (12, 32, 100, [(0, 8), (8, 4)]),
        (3, 128, 100, [(0, 2), (2, 1)]),
        (4, 32, 2**30, [(0, 2), (2, 2)]),  # offsets within one pass stay within 32 bits
        (2, 32, 2**33, [(0, 1), (1, 1)]),
    ],
)
def test_the_passes_over_sub_blocks(blocks, hidden, stride, expected):
    assert _groups(blocks, hidden, stride) == expected
