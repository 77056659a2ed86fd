"""Specifications: parsed strictly, printed back identically, without torch."""

import subprocess
import sys

import pytest

from nonloc_paper.networks.spec import NetworkSpec

VALID = [
    "preresnet20/baseline",
    "preresnet20/diffusive-5@2",
    "preresnet20/original-1@2,4,6",
    "preresnet56-keras/original-4@18",
    "preresnet29-public/diffusive-5@2",
    "preresnet20-basic/diffusive-2@9",
    "preresnet11/diffusive-1@1",
    "restorer16/baseline",
    "restorer16/diffusive-4@2",
    "restorer2/original-12@1,2,3,4",
]


@pytest.mark.parametrize("text", VALID)
def test_parsed_and_printed_back(text):
    assert str(NetworkSpec.parse(text)) == text
    assert NetworkSpec.parse(str(NetworkSpec.parse(text))) == NetworkSpec.parse(text)


def test_fields():
    assert NetworkSpec.parse("preresnet56-keras/original-3@2,4") == NetworkSpec(
        family="preresnet", size=56, variant="keras", form="original", num_blocks=3, places=(2, 4)
    )


@pytest.mark.parametrize(
    ("text", "per_group", "blocks"),
    [
        ("preresnet20/baseline", 2, 6),
        ("preresnet20-basic/baseline", 3, 9),
        ("preresnet56-keras/baseline", 6, 18),
    ],
)
def test_depth_gives_the_number_of_blocks(text, per_group, blocks):
    spec = NetworkSpec.parse(text)
    assert (spec.blocks_per_group, spec.num_residual_blocks) == (per_group, blocks)


def test_restorer_has_four_residual_blocks_and_no_groups():
    spec = NetworkSpec.parse("restorer16/baseline")
    assert spec.num_residual_blocks == 4
    with pytest.raises(ValueError, match="no groups"):
        _ = spec.blocks_per_group


def test_baseline_of_a_network():
    assert str(NetworkSpec.parse("preresnet20-basic/diffusive-5@2").baseline) == "preresnet20-basic/baseline"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "preresnet20",
        "preresnet20/",
        "preresnet/baseline",
        "preresnet20/baseline-1@2",
        "preresnet20/proposed-5@2",
        "preresnet20/diffusive-5",
        "preresnet20/diffusive@2",
        "preresnet20/diffusive-0@2",
        "preresnet20/diffusive-05@2",
        "preresnet20/diffusive-5@02",
        "preresnet20/diffusive-5@0",
        "preresnet020/baseline",
        "preresnet20/diffusive-5@2,",
        "preresnet20/diffusive-5@2, 4",
        "preresnet20/diffusive--5@2",
        "PreResNet20/baseline",
        " preresnet20/baseline",
        "preresnet20/baseline\n",
        "preresnet20/diffusive-5@٢",
        "resnet20/baseline",
        None,
        20,
    ],
)
def test_what_is_not_in_the_grammar_is_refused(text):
    with pytest.raises(ValueError, match="is not a network; write preresnetD"):
        NetworkSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preresnet21/baseline", "depth 9n \\+ 2, which 21 is not; the nearest depths are 20 and 29"),
        ("preresnet5/baseline", "the nearest depths are 11 and 20"),
        ("preresnet21-basic/baseline", "depth 6n \\+ 2, which 21 is not; the nearest depths are 20 and 26"),
        ("preresnet20/diffusive-5@7", "no residual block 7 in preresnet20/baseline; places go from 1 to 6"),
        ("restorer16/diffusive-5@5", "places go from 1 to 4"),
        ("preresnet20/original-1@4,2", "places must increase, each named once; got 4,2"),
        ("preresnet20/original-1@2,2", "places must increase, each named once; got 2,2"),
        ("restorer16-keras/baseline", "a restorer has no variant 'keras'; write restorer16/"),
        ("restorer1/baseline", "C must be a whole number ≥ 2"),
    ],
)
def test_what_cannot_be_built_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec.parse(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": "resnet", "size": 20}, "family='resnet' is unknown; choose one of preresnet, restorer"),
        (
            {"family": "preresnet", "size": 20, "variant": "he"},
            "choose one of bottleneck, keras, basic, public",
        ),
        ({"family": "preresnet", "size": 20, "num_blocks": 2}, "a baseline has no blocks"),
        ({"family": "preresnet", "size": 20, "form": "original", "num_blocks": 2}, "places must be a tuple"),
        ({"family": "preresnet", "size": 20, "form": "original", "places": (2,)}, "num_blocks must"),
    ],
)
def test_values_are_checked_however_they_are_made(fields, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec(**fields)


def test_specifications_do_not_import_torch():
    code = "import sys, nonloc_paper.networks.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
