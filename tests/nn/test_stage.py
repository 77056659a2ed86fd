"""Stages: the paper's equations, the four combinations of form and sharing, and what every stage answers."""

import re

import pytest
import torch
from equations import diffusive_step, embedded_gaussian, original_step
from torch import nn

from nonloc.nn.affinity import EmbeddedGaussian, Heat
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalStage, stages
from nonloc.ops import diffuse, kernel_matrix, logit_spread

C, M, N = 6, 5, 3
STAGES = [OriginalStage, DiffusiveStage]


@pytest.fixture
def x():
    return torch.randn(2, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, num_blocks=N, **keywords):
    torch.manual_seed(0)
    keywords = {"layout": "positions", "init": "torch"} | keywords
    return kind(C, num_blocks, **keywords).double()


def by_hand(stage, x, shared):
    """The whole stage from the paper's equations; ω from the input or from the current state."""
    z, omega = x, None
    for n, weight in enumerate(stage.maps):
        if omega is None or not shared:
            embedding = stage.embeddings[0 if shared else n]
            omega = embedded_gaussian(z, embedding.theta.weight, embedding.phi.weight)
        w_z, w_g = weight.w_z.weight, weight.w_g.weight
        z = (
            diffusive_step(z, omega, w_z @ w_g)
            if stage.form == "diffusive"
            else original_step(z, omega, w_z, w_g)
        )
    return z


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("shared", [True, False])
def test_stage_equals_the_equations(kind, shared, x):
    stage = made(kind, share_affinity=shared)
    torch.testing.assert_close(stage(x), by_hand(stage, x, shared))


@pytest.mark.parametrize(("kind", "shared"), [(OriginalStage, False), (DiffusiveStage, True)])
def test_sharing_is_as_published_by_default(kind, shared, x):
    stage = made(kind)
    assert stage.shares_affinity is shared
    assert len(stage.embeddings) == (1 if shared else N)


@pytest.mark.parametrize("kind", STAGES)
def test_sub_blocks_have_their_own_weights(kind):
    first, second, third = made(kind).weights()
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_bridge_wn_equal_to_h_times_identity_is_explicit_diffusion(x):
    h = 0.3
    stage = made(DiffusiveStage, weight="full", affinity="heat")
    with torch.no_grad():
        for weight in stage.maps:
            weight.w_z.weight.copy_(h * torch.eye(C))
    affinity, z = stage.affinity(x), x
    for _ in range(N):
        z = z + h * diffuse(affinity, z)
    torch.testing.assert_close(stage(x), z)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("affinity", ["gaussian", "embedded_gaussian", "dot", "concat", "heat"])
def test_constant_input_is_a_fixed_point_of_the_diffusive_stage(affinity, shared):
    x = torch.randn(2, 1, C, dtype=torch.float64).expand(-1, M, -1)
    stage = made(DiffusiveStage, affinity=affinity, share_affinity=shared)
    torch.testing.assert_close(stage(x), x, rtol=0, atol=1e-12)


def test_delta_makes_the_diffusive_stage_the_identity(x):
    assert torch.equal(made(DiffusiveStage, affinity="delta")(x), x)


def test_delta_makes_the_original_stage_a_product_of_residual_maps(x):
    stage, expected = made(OriginalStage, affinity="delta"), x
    for w in stage.weights():
        expected = expected + expected @ w.T
    torch.testing.assert_close(stage(x), expected)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("keywords", [{}, {"batch_norm": True}, {"bias": True}, {"weight": "full"}])
def test_one_call_and_step_by_step_agree(kind, keywords, x):
    stage = made(kind, **keywords).eval()
    torch.testing.assert_close(stage.states(x)[-1], stage(x))


@pytest.mark.parametrize("kind", STAGES)
def test_states_begin_with_the_input_and_follow_each_other(kind, x):
    stage = made(kind)
    states = stage.states(x)
    assert len(states) == N + 1
    assert torch.equal(states[0], x)
    first = made(kind, num_blocks=1)
    first.load_state_dict({k: v for k, v in stage.state_dict().items() if k in first.state_dict()})
    torch.testing.assert_close(states[1], first(x))


@pytest.mark.parametrize("kind", STAGES)
def test_affinities_are_one_object_when_shared_and_follow_the_state_when_not(kind, x):
    one = made(kind, share_affinity=True).affinities(x)
    assert all(affinity is one[0] for affinity in one)
    stage = made(kind, share_affinity=False)
    each, states = stage.affinities(x), stage.states(x)
    for n, affinity in enumerate(each):
        torch.testing.assert_close(kernel_matrix(affinity), kernel_matrix(stage.embeddings[n](states[n])))


@pytest.mark.parametrize("kind", STAGES)
def test_affinity_is_that_of_the_first_sub_block(kind, x):
    stage = made(kind)
    torch.testing.assert_close(kernel_matrix(stage.affinity(x)), kernel_matrix(stage.embeddings[0](x)))


@pytest.mark.parametrize("kind", STAGES)
def test_weights_are_the_products_and_differentiable(kind):
    stage = made(kind)
    for w, weight in zip(stage.weights(), stage.maps, strict=True):
        torch.testing.assert_close(w, weight.w_z.weight @ weight.w_g.weight)
    stage.weights()[1].sum().backward()
    assert stage.maps[1].w_g.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", STAGES)
def test_rank_of_the_factored_weight_is_half_the_channels(kind):
    assert all(torch.linalg.matrix_rank(w) == C // 2 for w in made(kind).weights())
    assert all(torch.linalg.matrix_rank(w) == 2 for w in made(kind, hidden=2).weights())
    assert all(torch.linalg.matrix_rank(w) == C for w in made(kind, weight="full").weights())


def test_affinity_given_as_a_module_is_used_and_copied_where_each_needs_its_own():
    module = Heat(C)
    shared = DiffusiveStage(C, 2, affinity=module)
    assert shared.embeddings[0] is module
    separate = DiffusiveStage(C, 2, affinity=module, share_affinity=False)
    assert separate.embeddings[0] is module
    assert separate.embeddings[1].theta.weight is not module.theta.weight


def test_affinity_given_as_a_module_keeps_its_initialization():
    module = EmbeddedGaussian(C)
    before = module.theta.weight.detach().clone()
    DiffusiveStage(C, 2, affinity=module, init="normal")
    assert torch.equal(module.theta.weight, before)


def test_affinity_given_as_a_factory_is_called_for_each():
    stage = DiffusiveStage(C, 2, affinity=lambda channels: Heat(channels, embed=2), share_affinity=False)
    assert [embedding.width for embedding in stage.embeddings] == [2, 2]
    assert not torch.equal(stage.embeddings[0].theta.weight, stage.embeddings[1].theta.weight)


def test_keywords_reach_the_affinity():
    stage = DiffusiveStage(
        C, 2, embed=4, shared_embedding=True, normalize="symmetric", scaled=True, bias=True
    )
    embedding = stage.embeddings[0]
    assert (embedding.width, embedding.shared, embedding.normalize, embedding.scale) == (
        4,
        True,
        "symmetric",
        0.5,
    )
    assert embedding.theta.bias is not None


def test_heat_is_shared_unless_told_otherwise():
    assert DiffusiveStage(C, 1, affinity="heat").embeddings[0].shared
    assert not DiffusiveStage(C, 1, affinity="heat", shared_embedding=False).embeddings[0].shared


@pytest.mark.parametrize("normalize", ["symmetric", "sinkhorn"])
def test_symmetric_normalizations_conserve_the_mean_of_the_diffusive_stage(normalize, x):
    stage = made(DiffusiveStage, shared_embedding=True, normalize=normalize)
    torch.testing.assert_close(stage(x).mean(1), x.mean(1), rtol=0, atol=1e-12)


def test_stages_are_found_by_name_outermost_only():
    inner = DiffusiveBlock(C)
    outer = DiffusiveStage(C, 1, affinity=nn.Sequential(inner, EmbeddedGaussian(C)))
    model = nn.Sequential(nn.Conv2d(3, C, 1), outer, nn.Sequential(OriginalStage(C, 2)))
    assert [(name, type(module)) for name, module in stages(model)] == [
        ("1", DiffusiveStage),
        ("2.0", OriginalStage),
    ]
    assert list(stages(inner)) == [("", inner)]


@pytest.mark.parametrize("weight", ["factored", "stable"])
def test_repr_knows_the_rank_when_something_else_is_in_the_place_of_a_map(weight):
    stage = DiffusiveStage(C, 1, weight=weight)
    setattr(stage.maps[0], "v" if weight == "stable" else "w_z", nn.Sequential(nn.Linear(C // 2, C)))
    assert f"weight={weight}, hidden={C // 2}" in repr(stage)


def test_repr_tells_the_story():
    text = repr(DiffusiveStage(64, 4, init_std=0.05))
    assert (
        "channels=64, num_blocks=4, weight=factored, hidden=32, one affinity for all, init=normal(0.05)"
        in text
    )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"weight": "lean"}, "weight='lean' is unknown; choose one of factored, full, stable"),
        ({"init": "xavier"}, "init='xavier' is unknown; choose one of normal, zero, kaiming, torch, fan_in"),
        ({"init_std": 0.0}, "init_std must be a finite number > 0"),
        ({"layout": "nhwc"}, "layout='nhwc' is unknown; choose one of channels_first, positions"),
        ({"backend": "fast"}, "backend='fast' is unknown; choose one of auto, reference"),
        ({"affinity": "rbf"}, "affinity='rbf' is unknown; choose one of gaussian"),
        ({"hidden": 0}, "hidden must be a whole number ≥ 1"),
        ({"hidden": 3, "weight": "full"}, 'hidden=3 has no meaning with weight="full"'),
    ],
)
@pytest.mark.parametrize("kind", STAGES)
def test_wrong_keywords_are_refused(kind, keywords, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(C, 2, **keywords)


@pytest.mark.parametrize(("channels", "num_blocks"), [(0, 2), (2.0, 2), (4, 0), (4, True)])
def test_wrong_sizes_are_refused(channels, num_blocks):
    with pytest.raises(ValueError, match="must be a whole number ≥ 1"):
        DiffusiveStage(channels, num_blocks)


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "recomputed"])
def test_logits_of_recomputed_kernels_grow_with_the_square_of_the_features(shares):
    """Positions far apart listen to themselves, so an original block with W = wI takes z to (1 + w) z."""
    w, x = 0.5, 10 * torch.eye(C, dtype=torch.float64)[None]
    stage = made(OriginalStage, 4, affinity="gaussian", weight="full", share_affinity=shares)
    with torch.no_grad():
        for weight in stage.maps:
            weight.w_z.weight.copy_(w * torch.eye(C))
    spreads = [logit_spread(affinity).max().item() for affinity in stage.affinities(x)]
    growth = 1.0 if shares else (1 + w) ** 2
    assert spreads == pytest.approx([100 * growth**n for n in range(4)], rel=1e-9)


@pytest.mark.parametrize("kind", STAGES)
def test_where_rows_are_alike_sums_enlarge_the_mean_and_differences_the_rest(kind, x):
    """Without logits every position listens to all alike: one mode has λ = 0, the mean, and all others have λ = 1."""
    w = 0.5
    block = made(kind, 1, weight="full")
    with torch.no_grad():
        block.maps[0].w_z.weight.copy_(w * torch.eye(C))
        block.embeddings[0].theta.weight.zero_()
    mean, found = x.mean(1, keepdim=True), block(x)
    rest = x - mean
    expected = (1 + w) * mean + rest if kind is OriginalStage else mean + (1 - w) * rest
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bias", "scaled", "batch_norm", "share_affinity"])
def test_a_word_is_no_flag(name):
    with pytest.raises(ValueError, match=f"{name} must be True or False"):
        DiffusiveStage(4, 2, **{name: "no"})
