"""build: the specification decides what stands where, the options what it is made of."""

import pytest
import torch

from nonloc.nn.stage import DiffusiveStage, OriginalStage, stages
from nonloc_paper.networks.build import build
from nonloc_paper.networks.spec import NetworkSpec


@pytest.mark.parametrize(
    ("spec", "places", "kind", "num_blocks"),
    [
        ("preresnet20/baseline", [], None, None),
        ("preresnet20/diffusive-5@2", [2], DiffusiveStage, 5),
        ("preresnet20/original-1@2,4,6", [2, 4, 6], OriginalStage, 1),
        ("restorer16/original-3@1,2", [1, 2], OriginalStage, 3),
    ],
)
def test_stages_stand_where_the_specification_says(spec, places, kind, num_blocks):
    built = dict(stages(build(spec)))
    assert list(built) == [f"trunk.stages.{place}" for place in places]
    assert all(type(stage) is kind and stage.num_blocks == num_blocks for stage in built.values())


def test_value_and_text_build_the_same():
    text = "preresnet11/diffusive-2@1"
    torch.manual_seed(0)
    first = build(text)
    torch.manual_seed(0)
    second = build(NetworkSpec.parse(text))
    torch.testing.assert_close(first.state_dict(), second.state_dict())


def test_options_reach_every_stage_and_none_is_the_default():
    model = build("preresnet11/original-2@1,2", weight="full", init="zero", share_affinity=True, embed=None)
    for _, stage in stages(model):
        assert (stage.weight, stage.init, stage.shares_affinity) == ("full", "zero", True)
        assert stage.embeddings[0].width == stage.channels // 2


def test_an_unknown_option_is_refused_also_where_there_is_no_stage():
    with pytest.raises(ValueError, match="stage option='widht' is unknown"):
        build("preresnet20/baseline", widht=3)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("restorer65536/baseline", {}),
        ("restorer16384/diffusive-1000@2", {}),
        ("restorer8/original-2@2", {"embed": 10**12}),
        ("restorer8/diffusive-2@2", {"hidden": 10**15}),
    ],
    ids=["channels", "blocks", "embed", "hidden"],
)
def test_what_memory_cannot_hold_is_refused_before_it_is_made(spec, options):
    with pytest.raises(ValueError, match="GiB of memory, and this machine has"):
        build(spec, **options)
