"""Specifications: parsed strictly, and refused in words. That text and value agree is a property of recipes."""

import pytest

from nonloc_paper.networks.spec import NetworkSpec


def test_fields():
    assert NetworkSpec.parse("preresnet56-keras/original-3@2,4") == NetworkSpec(
        family="preresnet", size=56, variant="keras", form="original", num_blocks=3, places=(2, 4)
    )


@pytest.mark.parametrize(
    ("text", "per_group", "blocks"),
    [
        ("preresnet20/baseline", 2, 6),
        ("preresnet20-basic/diffusive-5@2", 3, 9),
        ("preresnet56-keras/baseline", 6, 18),
        ("restorer16/baseline", None, 4),
    ],
)
def test_depth_gives_the_number_of_blocks(text, per_group, blocks):
    spec = NetworkSpec.parse(text)
    assert spec.num_residual_blocks == blocks
    assert str(spec.baseline) == text.split("/")[0] + "/baseline"
    if per_group is not None:
        assert spec.blocks_per_group == per_group
    else:
        with pytest.raises(ValueError, match="no groups"):
            _ = spec.blocks_per_group


@pytest.mark.parametrize(
    "text",
    [
        "",
        "preresnet20",
        "preresnet/baseline",
        "preresnet20/baseline-1@2",
        "preresnet20/proposed-5@2",
        "preresnet20/diffusive-5",
        "preresnet20/diffusive@2",
        "preresnet20/diffusive-0@2",
        "preresnet20/diffusive-05@2",
        "preresnet20/diffusive-5@0",
        "preresnet020/baseline",
        "preresnet20/diffusive-5@2,",
        "preresnet20/diffusive-5@2, 4",
        "PreResNet20/baseline",
        "preresnet20/baseline\n",
        "preresnet20/diffusive-5@٢",
        "resnet20/baseline",
        None,
        20,
    ],
)
def test_text_outside_the_grammar_is_refused(text):
    with pytest.raises(ValueError, match="is not a network; write preresnetD"):
        NetworkSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preresnet21/baseline", "depth 9n .* 20 and 29"),
        ("preresnet5/baseline", "11 and 20"),
        ("preresnet21-basic/baseline", "depth 6n .* 20 and 26"),
        ("preresnet20/diffusive-5@7", "residual block 7 .* 1 to 6"),
        ("restorer16/diffusive-5@5", "1 to 4"),
        ("preresnet20/original-1@4,2", "places"),
        ("preresnet20/original-1@2,2", "places"),
        ("restorer16-keras/baseline", "variant 'keras'"),
        ("restorer1/baseline", "channels of a restorer"),
        (f"preresnet{9 * 10**20 + 2}/baseline", "the depth of a preresnet, D, must be at most 2,000"),
        ("restorer8/diffusive-501@1,2", "the number of blocks at all places must be at most 1,000, got 1002"),
        ("restorer65537/baseline", "the channels of a restorer, C, must be at most 65,536"),
        (f"restorer8/diffusive-{10**20}@2", r"the number of blocks, N, must be at most 1,000"),
        (f"restorer8/diffusive-1@{'9' * 5000}", "is not a network"),
    ],
    ids=lambda text: text[:40],
)
def test_networks_that_do_not_exist_are_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        NetworkSpec.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": "resnet"}, "family='resnet' .* preresnet, restorer"),
        ({"variant": "he"}, "variant='he' .* bottleneck, keras, basic, public"),
        ({"num_blocks": 2}, "baseline has no blocks"),
        ({"form": "original", "num_blocks": 2}, "places must be a tuple"),
        ({"form": "original", "places": (2,)}, "the number of blocks, N, must be"),
    ],
)
def test_values_are_checked_too(fields, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec(**{"family": "preresnet", "size": 20} | fields)
