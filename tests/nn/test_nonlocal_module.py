"""What the modules survive: copies, state dicts, autocast, the meta device, compilation and export."""

import copy

import pytest
import torch

from nonloc.nn.stage import DiffusiveStage, OriginalStage

C, N = 4, 2
STAGES = [OriginalStage, DiffusiveStage]
VARIANTS = [
    {},
    {"weight": "full"},
    {"batch_norm": True, "bias": True},
    {"affinity": "dot"},
    {"affinity": "concat"},
]


def made(kind, seed=0, **keywords):
    torch.manual_seed(seed)
    return kind(C, N, **{"init": "torch"} | keywords).eval()


@pytest.fixture
def x():
    return torch.randn(2, C, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", VARIANTS)
def test_deepcopy(kind, keywords, x):
    stage = made(kind, **keywords)
    twin = copy.deepcopy(stage)
    assert torch.equal(twin(x), stage(x))
    with torch.no_grad():
        twin.maps[0].w_z.weight.zero_()
    assert stage.maps[0].w_z.weight.any()


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", VARIANTS)
@pytest.mark.parametrize("share", [True, False])
def test_state_dict_round_trip(kind, keywords, share, x):
    stage, other = (made(kind, seed, share_affinity=share, **keywords) for seed in (0, 1))
    assert not torch.equal(stage(x), other(x))
    other.load_state_dict(stage.state_dict())
    assert torch.equal(stage(x), other(x))


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", VARIANTS)
def test_autocast_gives_the_input_dtype_and_nearly_its_values(kind, keywords, x):
    stage = made(kind, **keywords)
    expected = stage(x)
    with torch.autocast("cpu", torch.bfloat16):
        result = stage(x)
    assert result.dtype == torch.float32
    # A bfloat16 has 8 bits: a few roundings of 2⁻⁹ of numbers of size 1.
    assert (result - expected).abs().max() < 0.03
    result.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stage.parameters())


@pytest.mark.parametrize("kind", STAGES)
def test_half_precision_module(kind, x):
    stage = made(kind).to(torch.bfloat16)
    assert stage(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("normalize", ["row", "count", "none"])
def test_meta_device(kind, normalize):
    with torch.device("meta"):
        stage = kind(C, N, normalize=normalize)
        assert stage(torch.empty(2, C, 3, 5)).shape == (2, C, 3, 5)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", VARIANTS)
def test_materializing_from_meta_draws_all_that_the_constructor_draws(kind, keywords, x):
    with torch.device("meta"):
        stage = kind(C, N, init="torch", **keywords)
    stage = stage.to_empty(device="cpu").eval()
    for parameter in stage.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    torch.manual_seed(0)
    stage.reset_parameters()
    assert stage(x).isfinite().all()


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("normalize", ["row", "count"])
def test_compiles_as_one_graph(kind, share, normalize, x):
    stage = made(kind, share_affinity=share, normalize=normalize)
    torch._dynamo.reset()
    compiled = torch.compile(stage, fullgraph=True, backend="aot_eager")
    grads = []
    for module in (stage, compiled):
        stage.zero_grad()
        result = module(x)
        result.square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in stage.parameters()])
    torch.testing.assert_close(compiled(x), stage(x))
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", VARIANTS)
def test_compiles_with_the_default_compiler(kind, keywords, x):
    stage = made(kind, **keywords)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(stage, fullgraph=True)(x), stage(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("normalize", ["row", "count"])
def test_exports(kind, normalize, x):
    stage = made(kind, normalize=normalize)
    exported = torch.export.export(stage, (x,)).module()
    torch.testing.assert_close(exported(x), stage(x))


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_exports_for_any_batch(kind, backend, x):
    stage = made(kind, backend=backend)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(stage, (x,), dynamic_shapes=shapes).module()
    larger = torch.cat([x, x + 1, x - 1])
    torch.testing.assert_close(exported(larger), stage(larger))


@pytest.mark.parametrize(
    "options",
    [{}, {"affinity": "concat"}, {"affinity": "heat", "normalize": "symmetric", "backend": "factored"}],
    ids=["attention", "matrix", "blocks"],
)
def test_exports_for_any_size(options):
    """60 × 60 positions are beyond where "auto" changes, and in several blocks, and what was traced is in neither."""
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, init_std=0.3, **options).eval()
    sides = [torch.export.Dim(name, min=2, max=100) for name in ("height", "width")]
    shapes = ({0: torch.export.Dim("batch", min=1, max=64), 2: sides[0], 3: sides[1]},)
    exported = torch.export.export(stage, (torch.randn(2, 4, 4, 6),), dynamic_shapes=shapes).module()
    larger = torch.randn(1, 4, 60, 60)
    torch.testing.assert_close(exported(larger), stage(larger), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", STAGES)
def test_functional_gradients_by_vmap(kind, x):
    """Per-sample gradients, as torch.func users take them."""
    stage = made(kind)
    parameters = dict(stage.named_parameters())

    def loss(parameters, one):
        return torch.func.functional_call(stage, parameters, (one.unsqueeze(0),)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    loss_all = stage(x).square().sum()
    whole = torch.autograd.grad(loss_all, list(parameters.values()))
    torch.testing.assert_close([g.sum(0) for g in each.values()], list(whole), rtol=1e-4, atol=1e-5)
