"""NetworkSpec: the parsed form of a specification such as "preresnet20/diffusive-5@2". No torch.

    preresnetD[-keras|-basic|-public]/(baseline | original-N@i[,j…] | diffusive-N@i[,j…])
    restorerC/(baseline | original-N@i[,j…] | diffusive-N@i[,j…])

D is the depth: 9n + 2 with bottleneck blocks, 6n + 2 with -basic. Without a suffix the blocks have He's widths, with
-keras those of the Keras example. -public has He's widths in the block of the public PyTorch code: see
`ResidualBlock`. C is the number of channels. N nonlocal blocks follow residual block i, counted from 1 over the whole
network. With several places there are N at each: original-1@2,4,6 is three blocks in three places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nonloc._checks import check_choice, check_whole, shown
from nonloc.nn.options import FORMS

FAMILIES = ("preresnet", "restorer")
# By variant: the layers that one more n adds.
LAYERS_PER_GROUP = {"bottleneck": 9, "keras": 9, "basic": 6, "public": 9}
NUM_GROUPS = 3
RESTORER_BLOCKS = 4

# Beyond these no network is meant, and to build one would take hours. The deepest in the literature have 1,202 layers.
MOST_LAYERS, MOST_CHANNELS, MOST_BLOCKS = 2000, 65536, 1000

_NUMBER = "[1-9][0-9]{0,99}"
_GRAMMAR = re.compile(
    rf"(?P<family>preresnet|restorer)(?P<size>{_NUMBER})(?:-(?P<variant>keras|basic|public))?"
    rf"/(?:baseline|(?P<form>original|diffusive)-(?P<blocks>{_NUMBER})@(?P<places>{_NUMBER}(?:,{_NUMBER})*))"
)


@dataclass(frozen=True)
class NetworkSpec:
    """A network: its family and size, and its nonlocal blocks.

    family      "preresnet" or "restorer"
    size        the depth D of a preresnet, the channels C of a restorer
    variant     "bottleneck" (no suffix), "keras", "basic" or "public"
    form        "original", "diffusive", or None for a baseline
    num_blocks  N at each place; 0 for a baseline
    places      the residual blocks, from 1, that have a nonlocal stage after them

    >>> from nonloc_paper import NetworkSpec
    >>> spec = NetworkSpec.parse("preresnet20/diffusive-5@2")
    >>> spec.form, spec.num_blocks, spec.places, str(spec)
    ('diffusive', 5, (2,), 'preresnet20/diffusive-5@2')
    """

    family: str
    size: int
    variant: str = "bottleneck"
    form: str | None = None
    num_blocks: int = 0
    places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("family", self.family, FAMILIES)
        check_choice("variant", self.variant, LAYERS_PER_GROUP)
        self._check_size()
        if self.form is None:
            if self.num_blocks or self.places:
                raise ValueError(
                    "a baseline has no blocks and no places; give form as well, or leave both out"
                )
            return
        check_choice("form", self.form, FORMS)
        check_whole("the number of blocks, N,", self.num_blocks, most=MOST_BLOCKS)
        self._check_places()

    @classmethod
    def parse(cls, text: str) -> NetworkSpec:
        """Parse a specification; `str` of the result is `text` again."""
        if isinstance(text, str) and text.startswith("own-"):
            raise ValueError(
                f"{shown(text)} is a module of your own, which has no specification; in Python, give it as model= to "
                "fit or trained_network, and call it own-classifier/NAME or own-restorer/NAME"
            )
        match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"{shown(text)} is not a network; write preresnetD[-keras|-basic|-public]/… or restorerC/…, where … is "
                "baseline, original-N@i[,j…] or diffusive-N@i[,j…], such as preresnet20/diffusive-5@2"
            )
        try:
            return cls(
                family=match["family"],
                size=int(match["size"]),
                variant=match["variant"] or "bottleneck",
                form=match["form"],
                num_blocks=int(match["blocks"] or 0),
                places=tuple(int(place) for place in (match["places"] or "").split(",") if place),
            )
        except ValueError as error:
            raise ValueError(f"network={shown(text)}: {error}") from error

    def __str__(self) -> str:
        suffix = "" if self.variant == "bottleneck" else f"-{self.variant}"
        tail = "baseline"
        if self.form is not None:
            tail = f"{self.form}-{self.num_blocks}@{','.join(str(place) for place in self.places)}"
        return f"{self.family}{self.size}{suffix}/{tail}"

    @property
    def baseline(self) -> NetworkSpec:
        """The same network without its nonlocal blocks."""
        return NetworkSpec(self.family, self.size, self.variant)

    @property
    def blocks_per_group(self) -> int:
        """The n of a preresnet: how many residual blocks there are at each resolution."""
        if self.family != "preresnet":
            raise ValueError(f"{self} has no groups; only a preresnet has")
        return (self.size - 2) // LAYERS_PER_GROUP[self.variant]

    @property
    def num_residual_blocks(self) -> int:
        """The number of residual blocks, which are the possible places."""
        return NUM_GROUPS * self.blocks_per_group if self.family == "preresnet" else RESTORER_BLOCKS

    def _check_size(self) -> None:
        if self.family == "restorer":
            if self.variant != "bottleneck":
                raise ValueError(f"a restorer has no variant {self.variant!r}; write restorer{self.size}/…")
            check_whole("the channels of a restorer, C,", self.size, least=2, most=MOST_CHANNELS)
            return
        step = LAYERS_PER_GROUP[self.variant]
        check_whole("the depth of a preresnet, D,", self.size, most=MOST_LAYERS)
        if self.size < step + 2 or (self.size - 2) % step:
            below = max(1, (self.size - 2) // step) * step + 2
            raise ValueError(
                f"a preresnet with {self.variant} blocks has depth {step}n + 2, which {self.size} is not; "
                f"the nearest depths are {below} and {below + step}"
            )

    def _check_places(self) -> None:
        if not isinstance(self.places, tuple) or not self.places:
            raise ValueError("places must be a tuple of at least one residual block, such as (2,)")
        for place in self.places:
            check_whole("place", place)
            if place > self.num_residual_blocks:
                raise ValueError(
                    f"there is no residual block {shown(place)} in {self.baseline}; places go from 1 to "
                    f"{self.num_residual_blocks}"
                )
        check_whole(
            "the number of blocks at all places", self.num_blocks * len(self.places), most=MOST_BLOCKS
        )
        if list(self.places) != sorted(set(self.places)):
            raise ValueError(f"places must increase, each named once; got {shown(self.places)}")
