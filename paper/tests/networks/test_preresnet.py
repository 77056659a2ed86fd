"""PreResNet: the parameter counts that the networks are held to, and the shapes at every place."""

import pytest
import torch
from torch import nn

from nonloc.nn.stage import stages
from nonloc_paper.networks.build import build, count_parameters
from nonloc_paper.networks.preresnet import PreResNet


@pytest.mark.parametrize(
    ("spec", "num_classes", "parameters"),
    [
        ("preresnet20-basic/baseline", 10, 272_282),
        ("preresnet20/baseline", 10, 219_482),
        ("preresnet29/baseline", 10, 312_218),
        ("preresnet56-basic/baseline", 100, 861_428),
        ("preresnet56/baseline", 100, 613_556),
        ("preresnet83/baseline", 100, 891_764),
        ("preresnet29-public/baseline", 10, 312_218),
        ("preresnet83-public/baseline", 100, 891_764),
        ("preresnet20-keras/baseline", 10, 568_410),
        ("preresnet56-keras/baseline", 100, 1_680_820),
    ],
)
def test_parameter_counts(spec, num_classes, parameters):
    assert count_parameters(build(spec, num_classes)) == parameters


@pytest.mark.parametrize(
    ("variant", "n"), [("bottleneck", 2), ("keras", 2), ("basic", 3), ("bottleneck", 6), ("basic", 9)]
)
def test_depth_counts_the_layers_on_the_path(variant, n):
    """The convolutions that are not shortcuts, and the head."""
    model = PreResNet(n, variant=variant)
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in name
    ]
    assert len(layers) == model.depth


@pytest.mark.parametrize(
    ("variant", "channels"),
    [("bottleneck", [64, 128, 256]), ("keras", [64, 128, 256]), ("basic", [16, 32, 64])],
)
def test_features_at_every_place(variant, channels):
    seen = []

    class Watch(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.channels = channels

        def forward(self, x):
            seen.append((self.channels, tuple(x.shape[1:])))
            return x

    model = PreResNet(2, variant=variant, stages=dict.fromkeys(range(1, 7), Watch))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    sizes = [32, 32, 16, 16, 8, 8]
    assert seen == [(c := channels[k // 2], (c, sizes[k], sizes[k])) for k in range(6)]


def test_keras_layout_has_the_widths_of_the_example():
    widths = [block.convolutions[0].out_channels for block in PreResNet(2, variant="keras").trunk.blocks]
    assert widths == [16, 16, 64, 64, 128, 128]


def test_other_sizes_of_images():
    assert PreResNet(1)(torch.zeros(2, 3, 20, 12)).shape == (2, 10)


def test_paper_site_has_64_channels_and_1024_positions():
    model = build("preresnet20/diffusive-5@2")
    ((name, stage),) = stages(model)
    assert name == "trunk.stages.2"
    assert (stage.channels, stage.maps[0].rank, stage.num_blocks) == (64, 32, 5)
    x = torch.zeros(1, 3, 32, 32)
    features = model.trunk.blocks[1](model.trunk.blocks[0](model.stem(x)))
    assert stage.affinity(features).positions == 1024


def test_backbone_has_the_same_names_with_and_without_stages():
    plain, nonlocal_ = build("preresnet20/baseline"), build("preresnet20/diffusive-2@2,4")
    missing, unexpected = nonlocal_.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert missing
    assert all(name.startswith("trunk.stages.") for name in missing)


def test_convolutions_have_no_bias_and_the_head_has_one():
    model = PreResNet(1)
    assert all(module.bias is None for module in model.modules() if isinstance(module, nn.Conv2d))
    assert model.head.bias is not None


@pytest.mark.parametrize("keywords", [{"num_classes": 0}, {"variant": "wide"}, {"blocks_per_group": 0}])
def test_wrong_arguments_are_refused(keywords):
    with pytest.raises(ValueError, match="must be a whole number|is unknown"):
        PreResNet(**{"blocks_per_group": 1} | keywords)


def test_place_out_of_range_is_refused():
    with pytest.raises(ValueError, match="residual blocks go from 1 to 3"):
        PreResNet(1, stages={4: lambda channels: nn.Identity()})


def test_the_public_layout_strides_in_the_3x3_and_shortcuts_x_itself():
    torch.manual_seed(0)
    block = PreResNet(1, variant="public").trunk.blocks[1].eval()
    assert [convolution.stride for convolution in block.convolutions] == [(1, 1), (2, 2), (1, 1)]
    x = torch.randn(2, 64, 8, 8)
    first, second, third = block.convolutions
    y = first(torch.relu(block.norms[0](x)))
    y = third(torch.relu(block.norms[2](second(torch.relu(block.norms[1](y))))))
    torch.testing.assert_close(block(x), y + block.shortcut(x))
