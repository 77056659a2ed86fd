"""Layouts agree, masks hide, sub-sampling pools; and what does not fit is refused."""

import pytest
import torch
from torch.nn import functional as F

from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.ops import kernel_matrix

C = 4
STAGES = [OriginalStage, DiffusiveStage]


def made(kind, num_blocks=2, **keywords):
    torch.manual_seed(0)
    return kind(C, num_blocks, **{"init": "torch"} | keywords).double()


def image(*spatial, batch=2):
    return torch.randn(batch, C, *spatial, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("spatial", [(12,), (3, 4), (2, 2, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_channels_may_be_last_behind_several_axes(kind, spatial, masked):
    x = image(*spatial)
    mask = x[:, 0] > -0.5 if masked else None
    expected = made(kind)(x, mask).movedim(1, -1)
    stage = made(kind, layout="positions")
    torch.testing.assert_close(stage(x.movedim(1, -1), mask), expected)
    torch.testing.assert_close(stage.states(x.movedim(1, -1), mask)[-1], expected)


@pytest.mark.parametrize("kind", STAGES)
def test_memory_format_of_the_input_is_kept(kind):
    x = image(3, 5)
    assert made(kind)(x).is_contiguous()
    channels_last = made(kind)(x.contiguous(memory_format=torch.channels_last))
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(channels_last, made(kind)(x))


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_mask_is_the_same_as_not_having_the_padding(kind, shared, bias):
    stage = made(kind, share_affinity=shared, bias=bias)
    x = image(3, 5)
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[:, :, :4] = True
    result = stage(x, mask)
    torch.testing.assert_close(result[..., :4], stage(x[..., :4].contiguous()))
    assert torch.equal(result[..., 4:], x[..., 4:])


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("shared", [True, False])
def test_nan_in_the_padding_reaches_neither_values_nor_gradients(kind, shared):
    stage = made(kind, share_affinity=shared, layout="positions")
    x = image(6).transpose(1, 2).contiguous()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4:] = False
    x[~mask] = torch.nan
    stage(x, mask)[mask].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stage.parameters())
    assert all(state[mask].isfinite().all() for state in stage.states(x, mask))


@pytest.mark.parametrize(("spatial", "stride"), [((9,), 3), ((4, 6), 2), ((5, 5), 2), ((2, 4, 4), (1, 2, 2))])
def test_subsample_pools_what_phi_and_g_see(spatial, stride):
    k = max(stride) if isinstance(stride, tuple) else stride
    block = made(OriginalStage, num_blocks=1, subsample=k)
    x = image(*spatial)
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(spatial)]
    queries, keys = (t.flatten(2).transpose(1, 2) for t in (x, pool(x, stride, stride)))
    theta, phi = block.embeddings[0].theta.weight, block.embeddings[0].phi.weight
    w_z, w_g = block.maps[0].w_z.weight, block.maps[0].w_g.weight
    kernel = ((queries @ theta.T) @ (keys @ phi.T).mT).softmax(-1)
    expected = queries + kernel @ (keys @ w_g.T) @ w_z.T
    torch.testing.assert_close(block(x).flatten(2).transpose(1, 2), expected)


def test_pool_after_pools_what_phi_and_g_put_out():
    block, x = made(OriginalStage, num_blocks=1, subsample=2, pool_after=True), image(5, 6)
    z = x.flatten(2).transpose(1, 2)
    phi, w_g = block.embeddings[0].phi.weight, block.maps[0].w_g.weight

    def pooled(weight):
        return F.max_pool2d(F.conv2d(x, weight[..., None, None]), 2).flatten(2).transpose(1, 2)

    kernel = (z @ block.embeddings[0].theta.weight.T @ pooled(phi).mT).softmax(-1)
    expected = z + kernel @ pooled(w_g) @ block.maps[0].w_z.weight.T
    torch.testing.assert_close(block(x).flatten(2).transpose(1, 2), expected)
    torch.testing.assert_close(kernel_matrix(block.affinity(x)), kernel)


@pytest.mark.parametrize("shared", [True, False])
def test_subsampled_stage_pools_the_current_state(shared):
    stage = made(OriginalStage, subsample=2, share_affinity=shared)
    x = image(4, 4)
    assert stage.affinity(x).right.shape == (2, 4, 2)
    torch.testing.assert_close(stage.states(x)[-1], stage(x))


@pytest.mark.parametrize(
    ("kind", "keywords", "message"),
    [
        (DiffusiveStage, {"subsample": 2, "num_blocks": 2}, "needs z_j − z_i at every position"),
        (DiffusiveBlock, {"subsample": 2}, "needs z_j − z_i at every position"),
        (OriginalBlock, {"pool_after": True}, "pool_after=True needs subsample"),
        (OriginalBlock, {"subsample": 1}, "subsample must be a whole number ≥ 2"),
        (OriginalBlock, {"subsample": 2, "layout": "positions"}, 'use layout="channels_first"'),
    ],
)
def test_subsample_says_what_it_needs(kind, keywords, message):
    with pytest.raises(ValueError, match=message):
        kind(C, **keywords)


def double(*shape):
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("keywords", "x", "mask", "message"),
    [
        ({"layout": "positions"}, double(2, C), None, r"layout='positions' takes \[B, M, C\]"),
        ({"layout": "positions"}, double(2, C, 3, 3), None, 'has 3; use layout="channels_first"'),
        ({}, double(2, 3, C), None, 'read as .B, C, L., has 3; use layout="positions"'),
        ({}, double(C, 3), None, "add a batch dimension"),
        ({}, double(2, 5, 3, 3), None, "the module has 4 channels and its input .* has 5"),
        ({}, double(C, 5, 6), None, r"one sample without a batch is x\[None\]"),
        ({}, double(2, C, 0, 3), None, r"an input \[2, 4, 0, 3\] has no position"),
        ({}, torch.ones(2, C, 3, dtype=torch.int64), None, r"got torch.int64; use x.float\(\)"),
        ({}, torch.ones(2, C, 3, dtype=torch.complex64), None, "got torch.complex64; use x.real"),
        ({}, (double(2, C, 3),), None, "takes a tensor, got tuple"),
        ({}, double(2, C, 3, 4), torch.ones(2, 12).bool(), r"mask must be a bool tensor \[2, 3, 4\]"),
        ({}, double(2, C, 3, 4), torch.ones(2, 3, 4), r"mask must be a bool tensor \[2, 3, 4\]"),
        ({}, double(2, C, 3, 4), [[True]], "got list; use torch.as_tensor"),
        ({"subsample": 2}, double(1, C, 1, 1), None, "subsample=2 leaves no key.*leave it out"),
        ({"subsample": 4}, double(1, C, 3, 8), None, "subsample=4 leaves no key.*use a smaller one"),
        ({"subsample": 2}, double(2, C, 4, 4), torch.ones(2, 4, 4, dtype=torch.bool), "mask and subsample"),
    ],
)
def test_a_wrong_input_is_refused_with_the_fix(keywords, x, mask, message):
    with pytest.raises(ValueError, match=message):
        made(OriginalStage, **keywords)(x, mask)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_tensor_is_refused_with_the_fix():
    x = torch.quantize_per_tensor(torch.ones(2, C, 3), 0.1, 0, torch.quint8)
    with pytest.raises(ValueError, match=r"got torch.quint8; use x.dequantize\(\)"):
        made(DiffusiveStage)(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_with_the_fix():
    """nn.TransformerEncoder makes one of a padded batch, in evaluation."""
    x = torch.nested.nested_tensor([torch.ones(3, C), torch.ones(5, C)], dtype=torch.float64)
    with pytest.raises(ValueError, match="enable_nested_tensor=False"):
        made(DiffusiveStage, layout="positions")(x)
