"""insert reads an output's layout off the layers that ran, and asks where they cannot tell or tell otherwise."""

import copy

import pytest
import torch
from torch import nn

from nonloc.nn.insert import insert
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, stages

WIDTH, TOKENS = 8, 17


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout()

    def forward(self, x):
        return x + self.drop(self.mix(self.norm(x)))


class Tokens(nn.Module):
    """A small vision transformer: 16 patches and one more token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.blocks(tokens)[:, 0])


class Rearranged(nn.Module):
    """A convolution, then patches [B, M, C]: its output has other dimensions than its layer's."""

    def __init__(self, channels):
        super().__init__()
        self.convolution = nn.Conv2d(3, channels, 2, 2)

    def forward(self, x):
        return self.convolution(x).flatten(2).mT


class LastThenFirst(nn.Module):
    """As in ConvNeXt: convolved, mixed with the channels last, and put back."""

    def __init__(self, channels):
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, channels)

    def forward(self, x):
        return x + self.mix(self.norm(self.spatial(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Swapped(nn.Module):
    def forward(self, x):
        return x.mT


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("blocks.1", {"form": "diffusive", "num_blocks": 2}),
        ("blocks.0.mix.2", lambda channels: DiffusiveStage(channels, 2)),
        ("blocks.0.norm", DiffusiveBlock),
        ("blocks.0.drop", DiffusiveStage(WIDTH, 2)),
    ],
)
def test_tokens_ask_for_a_layout(value, where):
    model = Tokens()
    message = rf"'{where}' puts out \[2, 17, 8\].*are last.*layout=\"positions\" if the 8"
    with pytest.raises(ValueError, match=message):
        insert(model, {where: value}, example=random(2, 3, 8, 8))
    assert not list(stages(model))


@pytest.mark.parametrize(
    "value",
    [
        {"form": "diffusive", "layout": "positions"},
        lambda channels: DiffusiveStage(channels, 1, layout="positions"),
        DiffusiveBlock(WIDTH, layout="positions"),
    ],
)
def test_tokens_with_a_layout_diffuse_between_tokens(value):
    (done,) = insert(Tokens(), {"blocks.1": value}, example=random(2, 3, 8, 8))
    assert (done.channels, done.positions) == (WIDTH, TOKENS)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Linear(3, 6)), random(2, 6, 3)),
        (nn.Sequential(nn.LayerNorm(6)), random(2, 6, 6)),
        (nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)), random(2, 6, 6)),
        (nn.Sequential(nn.Embedding(5, 6)), torch.tensor([[0, 1, 2, 3, 4, 0]])),
        (nn.Sequential(nn.Linear(3, 6)), random(2, 6, 4, 3)),
        (nn.Sequential(Rearranged(16)), random(2, 3, 8, 8)),
        (nn.Sequential(LastThenFirst(6)), random(2, 6, 6, 6)),
        (nn.Sequential(nn.Linear(3, 6), Swapped()), random(2, 6, 3)),
    ],
    ids=["linear", "norm", "encoder", "embedding", "nhwc", "patches", "back and forth", "swapped"],
)
def test_output_whose_channels_may_be_second_or_last_asks_for_a_layout(model, x):
    where = str(len(model) - 1)
    with pytest.raises(ValueError, match=r"may be last.*layout=\"positions\".*layout=\"channels_first\""):
        insert(model, {where: {"form": "diffusive"}}, example=x)
    assert not list(stages(model))
    for layout in ("positions", "channels_first"):
        other = copy.deepcopy(model)
        insert(other, {where: {"form": "diffusive", "layout": layout}}, example=x)
        assert other(x).shape == model(x).shape


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.ReLU()), random(2, 3, 6, 6)),
        (nn.Sequential(nn.Conv2d(3, 6, 1), nn.GroupNorm(2, 6)), random(2, 3, 6, 6)),
        (nn.Sequential(nn.Conv2d(3, 6, 1), nn.MaxPool2d(2)), random(2, 3, 12, 12)),
        (nn.Sequential(nn.Conv1d(3, 6, 1)), random(2, 3, 6)),
        (nn.Sequential(nn.Conv2d(3, 6, 1), LastThenFirst(6)), random(2, 3, 4, 6)),
        (nn.Sequential(nn.Identity()), random(2, 6, 4)),
    ],
    ids=["batch norm", "group norm", "pooled", "one dimension", "back and forth", "no layer"],
)
def test_channels_that_are_second_need_no_layout(model, x):
    (done,) = insert(model, {str(len(model) - 1): OriginalBlock}, example=x)
    assert done.channels == 6
    assert model(x).shape[1] == 6


@pytest.mark.parametrize(("layout", "channels"), [(None, None), ("channels_first", 2), ("positions", 8)])
def test_a_width_that_happens_to_be_the_channels_of_a_layer_is_not_taken_for_them(layout, channels):
    """[1, 8, 4, 4] becomes [1, 2, 8, 8]: the channels are 2, and only a layout can say so."""
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.PixelShuffle(2)), random(1, 3, 4, 4)
    where = {"1": lambda channels: DiffusiveStage(channels, 1, layout=layout)}
    if layout is None:
        with pytest.raises(ValueError, match="its channels may be last.*if the 8 .*if the 2 are"):
            insert(model, where, example=x)
    else:
        (done,) = insert(model, where, example=x)
        assert (done.channels, done.positions) == (channels, 128 // channels)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("channels_first", r'has 5 channels, .* puts out 17 .*; with layout="positions" it would be 8'),
        ("positions", r'puts out 8 .*; with layout="channels_first" it would be 17'),
    ],
)
def test_mismatch_names_the_other_layout(layout, message):
    with pytest.raises(ValueError, match=message):
        insert(Tokens(), {"blocks.1": DiffusiveStage(5, 1, layout=layout)}, example=random(2, 3, 8, 8))


LAYER = nn.TransformerEncoderLayer(6, 2, 8)
STACK = nn.TransformerEncoder(LAYER, 2, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("model", "where", "second"),
    [
        (LAYER, "self_attn", "'self_attn'"),
        (LAYER, "dropout2", "the model"),
        (nn.Sequential(STACK), "0", "'0'"),
        (nn.Sequential(STACK), "0.layers.1.linear2", "'0.layers.1'"),
        (nn.Sequential(nn.LSTM(6, 6)), "0", "'0'"),
    ],
)
def test_a_stage_that_would_mix_samples_is_refused_where_the_batch_is_second(model, where, second):
    message = (
        rf"'{where}' puts out \[positions, batch, C\], for {second} has batch_first=False.*batch_first=True"
    )
    with pytest.raises(ValueError, match=message):
        insert(model, {where: DiffusiveBlock(6, layout="positions")}, example=random(5, 2, 6))
    assert not list(stages(model))


class Counted(nn.Module):
    def forward(self, x):
        return x.argmax(1)


CONV, X = nn.Conv2d(3, 6, 1), random(2, 3)


@pytest.mark.parametrize(
    ("base", "value", "x", "message"),
    [
        (nn.Linear(3, 6), {"form": "diffusive"}, X, r"puts out \[2, 6\], which has no positions"),
        (nn.Flatten(0), {"form": "original"}, X, r"puts out \[6\], which has no channels"),
        (nn.Flatten(0), OriginalBlock(6), X, r"puts out \[6\], which has no positions"),
        (CONV, {"form": "diffusive"}, random(2, 3, 1, 1), r"puts out \[2, 6, 1, 1\], one position"),
        (
            nn.Identity(),
            OriginalBlock,
            random(2, 6, 1, 2, 2, 2),
            r"takes \[B, C, L\].*got \[2, 6, 1, 2, 2, 2\]",
        ),
        (CONV, {"form": "original", "subsample": 4}, random(2, 3, 3, 8), "leaves no key"),
        (Counted(), OriginalBlock, random(2, 3, 4, 4), "puts out torch.int64"),
        (CONV, DiffusiveStage, None, "DiffusiveStage cannot be called with the channels alone.*num_bl"),
        (CONV, {"form": "original", "blocks": 2}, None, "'0': OriginalStage has no keyword 'blocks'"),
        (CONV, {"form": "original", "channels": 4}, None, "has 4 channels, '0' puts out 6"),
    ],
)
def test_what_would_fail_later_is_refused_before_anything_is_changed(base, value, x, message):
    model = nn.Sequential(base, nn.Identity())
    with pytest.raises(ValueError, match=message):
        insert(model, {"1": nn.Identity(), "0": value}, example=x)
    assert [type(one) for one in model] == [type(base), nn.Identity]
    assert not base._forward_hooks
