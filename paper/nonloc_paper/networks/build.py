"""build: make a network from its specification."""

from __future__ import annotations

from typing import Any

from torch import nn

from nonloc._checks import check_memory
from nonloc.nn.options import StageOptions
from nonloc.nn.stage import STAGE_OF_FORM
from nonloc_paper.networks.preresnet import PreResNet
from nonloc_paper.networks.restorer import Restorer
from nonloc_paper.networks.spec import NetworkSpec

BYTES = 12  # of a parameter in training: itself, its gradient and its momentum, in float32
WEIGHTS_OF_RESTORER = 13  # times C²: four blocks of 1 × 1, 3 × 3 and 1 × 1 on C/2 channels


def build(spec: str | NetworkSpec, num_classes: int = 10, **stage_options: Any) -> nn.Module:
    """Build the network that `spec` names, such as "preresnet20/diffusive-5@2", in plain torch.

    spec           preresnetD[-keras|-basic|-public]/(baseline | original-N@i[,j…] | diffusive-N@i[,j…]), or
                   restorerC/… and the same. D is the depth: 9n + 2 with bottlenecks, 6n + 2 with -basic. C is the
                   number of channels. N nonlocal blocks follow residual block i, counted from 1; with several places
                   there are N at each. `nonloc_paper.networks.spec` says what the suffixes mean
    num_classes    of a preresnet; a restorer ignores it
    stage_options  the fields of `StageOptions`, for all stages; None is the stage's default. They are checked for a
                   baseline too, which does not use them

    >>> from nonloc_paper import build
    >>> build("preresnet20/diffusive-5@2", scaled=True)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    if not isinstance(spec, NetworkSpec):
        spec = NetworkSpec.parse(spec)
    options = StageOptions.from_dict(stage_options)
    keywords = options.keywords()

    def make_stage(channels: int) -> nn.Module:
        hidden, embed = keywords.get("hidden", channels // 2), keywords.get("embed", 0)
        form = spec.form or ""
        affinities = 1 if options.shares_affinity(form) else spec.num_blocks
        needed = len(spec.places) * channels * (spec.num_blocks * hidden + affinities * embed) * BYTES
        check_memory(f"{spec} with hidden={hidden}, embed={embed or None}", needed, "use smaller ones")
        return STAGE_OF_FORM[form](channels, spec.num_blocks, **keywords)

    wanted = dict.fromkeys(spec.places, make_stage)
    if spec.family == "restorer":
        needed = WEIGHTS_OF_RESTORER * spec.size**2 * BYTES
        check_memory(f"a restorer of {spec.size} channels", needed, "use fewer")
        return Restorer(spec.size, stages=wanted)
    return PreResNet(spec.blocks_per_group, variant=spec.variant, num_classes=num_classes, stages=wanted)
