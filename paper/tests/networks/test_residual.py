"""Residual blocks and the trunk, against the same thing written out."""

import pytest
import torch
from torch import nn

from nonloc_paper.networks.residual import Trunk, basic, bottleneck, initialize_convolutions


@pytest.fixture
def x():
    return torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


def chain(block, active):
    y = block.convolutions[0](active)
    for norm, convolution in zip(block.norms[1:], block.convolutions[1:], strict=True):
        y = convolution(torch.relu(norm(y)))
    return y


@pytest.mark.parametrize("block", [bottleneck(4, 3, 4), basic(4, 4)])
def test_shortcut_of_an_unchanged_shape_is_the_input_untouched(block, x):
    block.eval()
    active = torch.relu(block.norms[0](x))
    torch.testing.assert_close(block(x), x + chain(block, active))


@pytest.mark.parametrize("block", [bottleneck(4, 3, 8, stride=2), basic(4, 8, stride=2), bottleneck(4, 3, 8)])
def test_shortcut_of_a_changed_shape_shares_the_first_activation(block, x):
    block.eval()
    nn.init.normal_(block.norms[0].bias)
    active = torch.relu(block.norms[0](x))
    torch.testing.assert_close(block(x), block.shortcut(active) + chain(block, active))
    assert isinstance(block.shortcut, nn.Conv2d)


def test_shapes_and_kernels():
    block = bottleneck(4, 3, 8, stride=2)
    assert [tuple(c.weight.shape) for c in block.convolutions] == [(3, 4, 1, 1), (3, 3, 3, 3), (8, 3, 1, 1)]
    assert [c.stride[0] for c in block.convolutions] == [2, 1, 1]
    assert [tuple(c.weight.shape) for c in basic(4, 8).convolutions] == [(8, 4, 3, 3), (8, 8, 3, 3)]


class Notes(nn.Module):
    """Adds its label to what it is given."""

    def __init__(self, label, out_channels=None):
        super().__init__()
        self.label, self.out_channels = label, out_channels

    def forward(self, labels):
        return [*labels, self.label]


def test_trunk_runs_stages_after_their_blocks_with_their_channels():
    blocks = [Notes("first", 4), Notes("second", 5), Notes("third", 6)]
    trunk = Trunk(blocks, {3: Notes, 1: Notes})
    assert trunk([]) == ["first", 4, "second", "third", 6]


def test_trunk_is_its_blocks_in_a_row(x):
    blocks = [bottleneck(4, 3, 4), bottleneck(4, 3, 8, stride=2), basic(8, 8)]
    expected = x
    for block in blocks:
        expected = block(expected)
    assert torch.equal(Trunk(blocks, {})(x), expected)


def test_a_block_that_is_watched_has_its_output(x):
    trunk = Trunk([bottleneck(4, 3, 4), basic(4, 4), basic(4, 4)], {}).eval()
    seen = []
    trunk.blocks[1].register_forward_hook(lambda block, inputs, output: seen.extend([*inputs, output]))
    trunk(x)
    first = trunk.blocks[0](x)
    assert torch.equal(seen[0], first)
    assert torch.equal(seen[1], trunk.blocks[1](first))


@pytest.mark.parametrize("place", [0, 3])
def test_trunk_refuses_a_place_that_is_not_there(place):
    with pytest.raises(ValueError, match="residual blocks go from 1 to 2"):
        Trunk([basic(4, 4), basic(4, 4)], {place: Notes})


def test_convolutions_start_with_hes_deviation():
    torch.manual_seed(0)
    convolution = nn.Conv2d(64, 128, 3, bias=False)
    initialize_convolutions(convolution)
    # 73,728 entries: the sample deviation is known to 0.26 %, so 1.5 % is nearly six of its own deviations.
    assert float(convolution.weight.detach().std()) == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.015)


def test_a_backward_hook_on_a_block_sees_its_gradient(x):
    trunk = Trunk([bottleneck(4, 2, 4), bottleneck(4, 2, 4)], {})
    seen = []
    trunk.blocks[0].register_full_backward_hook(lambda _, inputs, outputs: seen.append(outputs[0].shape))
    trunk(x.requires_grad_()).sum().backward()
    assert seen == [x.shape]
