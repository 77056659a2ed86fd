"""Stages: the paper's equations, the four combinations of form and sharing, and what every stage answers."""

import copy

import pytest
import torch
from torch import nn

from nonloc.nn.affinity import EmbeddedGaussian, Heat
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage, stages
from nonloc.ops import functional, kernel_matrix, row_blocks, sinkhorn

C, M, N = 6, 5, 3
STAGES = [OriginalStage, DiffusiveStage]
VARIANTS = [
    *((kind, keywords) for kind in STAGES for keywords in (
        {}, {"weight": "full"}, {"batch_norm": True, "bias": True}, {"affinity": "dot"}, {"affinity": "concat"}
    )),
    (DiffusiveStage, {"weight": "stable"}),
]  # fmt: skip
each_variant = pytest.mark.parametrize(("kind", "keywords"), VARIANTS)


@pytest.fixture
def x():
    return torch.randn(2, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, num_blocks=N, seed=0, **keywords):
    torch.manual_seed(seed)
    keywords = {"layout": "positions", "init": "torch"} | keywords
    return kind(C, num_blocks, **keywords).double()


def by_hand(stage, x, shared):
    """The paper's equations, (3) and (8), as loops over positions; ω from the input or from the current state."""
    z = x
    for n, weight in enumerate(stage.maps):
        embedding = stage.embeddings[0 if shared in (True, "embedding") else n]
        source = x if shared in (True, "input") else z
        omega = torch.exp((source @ embedding.theta.weight.T) @ (source @ embedding.phi.weight.T).mT)
        w, before, z = weight.w_z.weight @ weight.w_g.weight, z, z.clone()
        for b in range(len(z)):
            for i in range(M):
                centre = before[b, i] if stage.form == "diffusive" else 0
                total = sum(omega[b, i, j] * (before[b, j] - centre) for j in range(M))
                z[b, i] = before[b, i] + w @ total / omega[b, i].sum()
    return z


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("shared", [True, False, "embedding", "input"])
def test_stage_equals_the_equations(kind, shared, x):
    stage = made(kind, share_affinity=shared)
    assert len(stage.embeddings) == (1 if shared in (True, "embedding") else N)
    expected = by_hand(stage, x, shared)
    torch.testing.assert_close(stage(x), expected)
    torch.testing.assert_close(stage.states(x)[-1], expected)


@pytest.mark.parametrize(
    ("block", "stage"), [(OriginalBlock, OriginalStage), (DiffusiveBlock, DiffusiveStage)]
)
def test_block_is_a_stage_of_one(block, stage, x):
    one = block(C, layout="positions", init="torch").double()
    other = made(stage, 1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("block", [OriginalBlock, DiffusiveBlock])
@pytest.mark.parametrize("weight", ["factored", "full"])
@pytest.mark.parametrize("affinity", ["gaussian", "embedded_gaussian", "dot", "concat", "heat"])
def test_gradients_are_right(block, weight, affinity):
    torch.manual_seed(0)
    module = block(3, layout="positions", init="torch", weight=weight, affinity=affinity, bias=True).double()
    x = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)
    names, values = zip(*module.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *(v.detach().requires_grad_() for v in values)))


@pytest.mark.parametrize("kind", STAGES)
def test_affinities_are_one_object_when_shared_and_follow_the_state_when_not(kind, x):
    first, *others = made(kind, share_affinity=True).affinities(x)
    assert all(affinity is first for affinity in others)
    stage = made(kind, share_affinity=False)
    for affinity, embedding, z in zip(
        stage.affinities(x), stage.embeddings, stage.states(x)[:-1], strict=True
    ):
        torch.testing.assert_close(kernel_matrix(affinity), kernel_matrix(embedding(z)))


@pytest.mark.parametrize("kind", STAGES)
def test_weights_are_the_products_and_differentiable(kind):
    stage = made(kind, hidden=2)
    for w, weight in zip(stage.weights(), stage.maps, strict=True):
        torch.testing.assert_close(w, weight.w_z.weight @ weight.w_g.weight)
        assert torch.linalg.matrix_rank(w) == 2
    stage.weights()[1].sum().backward()
    assert stage.maps[1].w_g.weight.grad.abs().sum() > 0


def test_an_affinity_module_is_used_copied_where_each_needs_its_own_and_not_drawn_again():
    module = Heat(C)
    before = module.theta.weight.detach().clone()
    assert DiffusiveStage(C, 2, affinity=module).embeddings[0] is module
    separate = DiffusiveStage(C, 2, affinity=module, share_affinity=False)
    assert separate.embeddings[1].theta.weight is not module.theta.weight
    assert torch.equal(module.theta.weight, before)


def test_an_affinity_factory_is_called_for_each():
    stage = DiffusiveStage(C, 2, affinity=lambda channels: Heat(channels, embed=2), share_affinity=False)
    first, second = (embedding.theta.weight for embedding in stage.embeddings)
    assert len(first) == len(second) == 2
    assert not torch.equal(first, second)


def test_keywords_reach_the_affinity():
    options = {"embed": 4, "shared_embedding": True, "normalize": "symmetric", "scaled": True, "bias": True}
    embedding = DiffusiveStage(C, 2, **options).embeddings[0]
    assert (embedding.width, embedding.shared, embedding.normalize) == (4, True, "symmetric")
    assert embedding.scale == 0.5
    assert embedding.theta.bias is not None


def test_stages_are_found_by_name_outermost_only():
    inner = DiffusiveBlock(C)
    outer = DiffusiveStage(C, 1, affinity=nn.Sequential(inner, EmbeddedGaussian(C)))
    model = nn.Sequential(nn.Conv2d(3, C, 1), outer, nn.Sequential(OriginalStage(C, 2)))
    expected = [("1", DiffusiveStage), ("2.0", OriginalStage)]
    assert [(name, type(module)) for name, module in stages(model)] == expected
    assert list(stages(inner)) == [("", inner)]


@pytest.mark.parametrize(("weight", "name"), [("factored", "w_z"), ("stable", "v")])
def test_repr_says_the_options_even_with_another_module_in_the_place_of_a_map(weight, name):
    stage = DiffusiveStage(64, 4, init_std=0.05, weight=weight)
    setattr(stage.maps[0], name, nn.Sequential(nn.Linear(C // 2, C)))
    text = f"channels=64, num_blocks=4, weight={weight}, hidden=32, one affinity, init=normal(0.05)"
    assert text in repr(stage)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"weight": "lean"}, "weight='lean' is unknown; choose one of factored, full, stable"),
        ({"init": "xavier"}, "init"),
        ({"init_std": 0.0}, "init_std"),
        ({"layout": "nhwc"}, "layout"),
        ({"backend": "fast"}, "backend='fast' is unknown; choose one of auto, reference"),
        ({"affinity": "rbf"}, "affinity='rbf' is unknown; choose one of gaussian"),
        ({"hidden": 0}, "hidden"),
        ({"hidden": 3, "weight": "full"}, 'hidden=3 has no meaning with weight="full"'),
        *(({name: "no"}, name) for name in ("bias", "scaled", "batch_norm", "share_affinity")),
    ],
)
@pytest.mark.parametrize("kind", STAGES)
def test_wrong_keywords_are_refused(kind, keywords, message):
    with pytest.raises(ValueError, match=message):
        kind(C, 2, **keywords)


@pytest.mark.parametrize(("channels", "num_blocks"), [(0, 2), (2.0, 2), (4, 0), (4, True)])
def test_wrong_sizes_are_refused(channels, num_blocks):
    with pytest.raises(ValueError, match="must be a whole number ≥ 1"):
        DiffusiveStage(channels, num_blocks)


@pytest.mark.parametrize("kind", STAGES)
def test_where_rows_are_alike_sums_enlarge_the_mean_and_differences_the_rest(kind, x):
    """Without logits all rows are equal: one mode has λ = 0, the mean, and all others have λ = 1."""
    w = 0.5
    block = made(kind, 1, weight="full")
    with torch.no_grad():
        block.maps[0].w_z.weight.copy_(w * torch.eye(C))
        block.embeddings[0].theta.weight.zero_()
    mean = x.mean(1, keepdim=True)
    expected = (1 + w) * mean + (x - mean) if kind is OriginalStage else mean + (1 - w) * (x - mean)
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


# What the modules survive: copies, state dicts, autocast, the meta device, compilation and export.


@pytest.fixture
def image():
    return torch.randn(2, C, 3, 5, generator=torch.Generator().manual_seed(0))


def evaluated(kind, seed=0, **keywords):
    return made(kind, 2, seed, **{"layout": None} | keywords).float().eval()


@each_variant
def test_deepcopy_and_state_dict(kind, keywords, image):
    stage, other = (evaluated(kind, seed, **keywords) for seed in (0, 1))
    assert torch.equal(copy.deepcopy(stage)(image), stage(image))
    assert not torch.equal(stage(image), other(image))
    other.load_state_dict(stage.state_dict())
    assert torch.equal(stage(image), other(image))


@each_variant
def test_autocast_gives_the_input_dtype_and_nearly_its_values(kind, keywords, image):
    stage = evaluated(kind, **keywords)
    expected = stage(image)
    with torch.autocast("cpu", torch.bfloat16):
        result = stage(image)
    assert result.dtype == torch.float32
    # A bfloat16 has 8 bits: a few roundings of 2⁻⁹ of numbers of size 1.
    assert (result - expected).abs().max() < 0.03
    result.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stage.parameters())


@pytest.mark.parametrize("kind", STAGES)
def test_fx_traces_a_model_and_calls_its_stages(kind, image):
    model = nn.Sequential(nn.Conv2d(C, C, 1), evaluated(kind), nn.ReLU()).eval()
    traced = torch.fx.symbolic_trace(model)
    assert [(node.op, node.target) for node in traced.graph.nodes][1:-1] == [
        ("call_module", "0"), ("call_module", "1"), ("call_module", "2")
    ]  # fmt: skip
    assert torch.equal(traced(image), model(image))


def test_fx_hands_a_mask_on(image):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.stage = evaluated(DiffusiveStage)

        def forward(self, x, mask):
            return self.stage(x, mask=mask)

    model, mask = Masked(), image[:, 0] > 0
    assert torch.equal(torch.fx.symbolic_trace(model)(image, mask), model(image, mask))


def test_fx_cannot_begin_at_a_stage():
    with pytest.raises(ValueError, match="trace a model that has it as a submodule"):
        torch.fx.symbolic_trace(evaluated(DiffusiveStage))


@each_variant
def test_device_and_dtype_are_those_of_every_parameter(kind, keywords):
    stage = kind(C, N, dtype=torch.float64, **keywords | {"batch_norm": "weight" not in keywords})
    assert {one.dtype for one in stage.state_dict().values()} <= {torch.float64, torch.int64}
    assert stage(torch.ones(1, C, 3, 5, dtype=torch.float64)).dtype == torch.float64
    stage = kind(C, N, device="meta", **keywords)
    assert all(one.is_meta for one in stage.state_dict().values())
    assert stage(torch.empty(2, C, 3, 5, device="meta")).shape == (2, C, 3, 5)


def test_an_affinity_module_moves_to_the_dtype_of_its_stage():
    stage = DiffusiveStage(C, N, affinity=Heat(C), dtype=torch.float64)
    assert stage.embeddings[0].theta.weight.dtype == torch.float64
    stage = DiffusiveStage(C, N, affinity=Heat(C, dtype=torch.float64))
    assert stage.embeddings[0].theta.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": torch.int8}, "dtype must be a floating dtype of torch, .* got torch.int8"),
        ({"dtype": "float32"}, "dtype must be a floating dtype"),
        ({"device": "gpu"}, "device='gpu' cannot be used here"),
    ],
)
def test_a_device_or_dtype_that_is_none_is_refused(wrong, message):
    for make in (DiffusiveBlock, Heat):
        with pytest.raises(ValueError, match=message):
            make(C, **wrong)


@each_variant
def test_materializing_from_meta_draws_all_that_the_constructor_draws(kind, keywords, image):
    with torch.device("meta"):
        stage = kind(C, N, init="torch", **keywords)
    stage = stage.to_empty(device="cpu").eval()
    for parameter in stage.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    stage.reset_parameters()
    assert stage(image).isfinite().all()


@pytest.mark.parametrize("init", ["normal", "zero"])
def test_materializing_a_model_children_first_draws_as_init_says(init):
    with torch.device("meta"):
        model = torch.nn.Sequential(DiffusiveStage(256, 1, init=init))
    model.to_empty(device="cpu").apply(lambda one: getattr(one, "reset_parameters", lambda: None)())
    # As in test_weight: 32,768 entries.
    expected = 0.01 if init == "normal" else 0
    assert float(model[0].maps[0].w_z.weight.detach().std()) == pytest.approx(expected, rel=0.02)


def test_one_compiled_program_serves_every_size():
    """With dynamic=True numbers of the module, such as the scale, are open as well as sizes."""
    torch.compiler.reset()
    stage = DiffusiveStage(4, 2, scaled=True, init="torch")
    compiled = torch.compile(stage, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 4, 3, 5), (3, 4, 7, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), stage(x))


def gradients(module, x):
    return torch.autograd.grad(module(x).square().sum(), list(module.parameters()))


@pytest.mark.parametrize(
    ("kind", "share", "keywords"),
    [
        (OriginalStage, False, {}),
        (DiffusiveStage, True, {"weight": "stable"}),
        pytest.param(OriginalStage, True, {"normalize": "count"}, marks=pytest.mark.slow),
        pytest.param(DiffusiveStage, True, {}, marks=pytest.mark.slow),
        pytest.param(DiffusiveStage, False, {"normalize": "count"}, marks=pytest.mark.slow),
    ],
)
def test_compiles_as_one_graph_and_once(kind, share, keywords, image):
    stage = evaluated(kind, share_affinity=share, **keywords)
    torch._dynamo.reset()
    compiled = torch.compile(stage, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, image), gradients(stage, image))
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(compiled(image), stage(image))


def test_a_compiled_sinkhorn_stage_learns_at_any_size(monkeypatch):
    """Where the matrix is large, eager calls do without it; a compiled program has no such derivative."""
    monkeypatch.setitem(functional.REFERENCE_ENTRIES, "sinkhorn", 100)
    # A program of six steps; the Newton steps do the rest.
    monkeypatch.setattr(sinkhorn, "UNSEEN_STEPS", 6)
    stage = DiffusiveStage(C, 1, affinity="heat", normalize="sinkhorn", init="torch")
    x = torch.rand(1, C, 4, 4)
    torch._dynamo.reset()
    compiled = torch.compile(stage, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, x), gradients(stage, x))


@pytest.mark.parametrize(
    ("keywords", "use"),
    [
        ({"affinity": "delta"}, 'affinity="embedded_gaussian"'),
        ({"affinity": "heat", "normalize": "sinkhorn"}, 'normalize="row"'),
    ],
)
def test_sub_sampled_keys_need_a_kernel_between_two_sets(keywords, use):
    with pytest.raises(ValueError, match=f"subsample=2 does not go with .*; use {use}$"):
        OriginalStage(C, 1, subsample=2, **keywords)


@pytest.mark.slow
@each_variant
def test_compiles_with_the_default_compiler(kind, keywords, image):
    stage = evaluated(kind, **keywords)
    torch._dynamo.reset()
    compiled = torch.compile(stage, fullgraph=True)
    torch.testing.assert_close(compiled(image), stage(image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "strict",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(torch.__version__ < (2, 8), reason="sizes pass for numbers there")
        ),
    ],
    ids=["default", "strict"],
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DiffusiveStage, {}),
        (OriginalStage, {"normalize": "count", "init_std": 0.01}),
        pytest.param(OriginalStage, {"subsample": 2}, marks=pytest.mark.slow),
        pytest.param(DiffusiveStage, {"weight": "stable"}, marks=pytest.mark.slow),
        pytest.param(
            DiffusiveStage,
            {"affinity": "heat", "normalize": "symmetric", "backend": "factored"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["attention", "original", "pooled", "stable", "blocks"],
)
def test_exports_for_any_size(kind, options, strict):
    """60 × 60 positions are beyond where "auto" changes, and in several blocks; the traced input is in neither.

    Torch asks that an open side is never 1, pooled ones included.
    """
    torch.manual_seed(0)
    stage = kind(4, 2, **{"init_std": 0.3} | options).eval()
    least = 2 * options.get("subsample", 1)
    sides = [torch.export.Dim(name, min=least, max=100) for name in ("height", "width")]
    shapes = ({0: torch.export.Dim("batch", min=1, max=64), 2: sides[0], 3: sides[1]},)
    example = (torch.randn(2, 4, 4, 6),)
    exported = torch.export.export(stage, example, dynamic_shapes=shapes, strict=strict).module()
    larger = torch.randn(1, 4, 60, 60)
    torch.testing.assert_close(exported(larger), stage(larger), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", ["auto", "factored"])  # with the matrix, and without
@pytest.mark.parametrize("normalize", ["row", "symmetric", "sinkhorn"])
def test_jit_trace(normalize, backend, monkeypatch):
    """Another input than the recorded one takes other steps."""
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", 1000)
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, affinity="heat", normalize=normalize, init_std=0.3, backend=backend)
    example, other = torch.randn(2, 1, 4, 8, 8)
    program = torch.jit.trace(stage, example)
    torch.testing.assert_close(program(3 * other), stage(3 * other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", STAGES)
def test_functional_gradients_by_vmap(kind, image):
    """Per-sample gradients with torch.func."""
    stage = evaluated(kind)
    parameters = dict(stage.named_parameters())

    def loss(parameters, one):
        return torch.func.functional_call(stage, parameters, (one.unsqueeze(0),)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, image)
    whole = torch.autograd.grad(stage(image).square().sum(), list(parameters.values()))
    torch.testing.assert_close([g.sum(0) for g in each.values()], list(whole), rtol=1e-4, atol=1e-5)
