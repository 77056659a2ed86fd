"""The options of a nonlocal stage: their names, choices, checks and help texts. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nonloc._checks import check_choice, check_flag, check_positive, check_whole, is_whole, shown

FORMS = ("original", "diffusive")
AFFINITY_NAMES = ("gaussian", "embedded_gaussian", "dot", "concat", "heat", "delta")
NORMALIZATIONS = ("row", "count", "none", "symmetric", "sinkhorn")
WEIGHTS = ("factored", "full", "stable")
INITS = ("normal", "zero", "kaiming", "torch", "fan_in")
LAYOUTS = ("channels_first", "positions")
SHARES = ("embedding", "input")  # what sub-blocks may share of an affinity, besides all of it or nothing
MOST_BLOCKS = 10_000  # far more than any stage has; each is a module, and making them takes seconds


def _check_name(argument: str, value: object) -> None:
    # Only the operator, which needs torch, knows the backends; the stage checks the name.
    if not isinstance(value, str) or not value:
        raise ValueError(f"{argument}={value!r} must be the name of a backend")


def check_sharing(name: str, value: object) -> None:
    """ValueError unless `value` is True, False or one of SHARES."""
    if not isinstance(value, bool) and value not in SHARES:
        raise ValueError(f"{name} must be True, False, {' or '.join(map(repr, SHARES))}, got {shown(value)}")


def _option(help: str, check: Callable[[str, object], object]) -> Any:
    return field(default=None, metadata={"help": help, "check": check})


def _choice(help: str, choices: tuple[str, ...], separator: str = ", ") -> Any:
    def check(name: str, value: object) -> None:
        check_choice(name, value, choices)

    return _option(help + separator.join(choices), check)


@dataclass(frozen=True)
class StageOptions:
    """Options of `OriginalStage` and `DiffusiveStage` that JSON can hold; None is the stage's own default.

    The metadata of each field has its "help" text and its "check".

    >>> from nonloc_paper import StageOptions
    >>> StageOptions(scaled=True).keywords()
    {'scaled': True}
    """

    affinity: str | None = _choice("the kernel ω: ", AFFINITY_NAMES)
    embed: int | None = _option("width of the embeddings θ and φ", check_whole)
    hidden: int | None = _option("rank of W = W_Z W_g", check_whole)
    weight: str | None = _choice("W as ", WEIGHTS, " or ")
    shared_embedding: bool | None = _option(
        "one embedding for both sides, which makes ω symmetric", check_flag
    )
    normalize: str | None = _choice("how ω is normalised: ", NORMALIZATIONS)
    scaled: bool | None = _option("divide the logits by √d", check_flag)
    init: str | None = _choice("how the stage's maps start: ", INITS)
    init_std: float | None = _option("the deviation of init=normal", check_positive)
    batch_norm: bool | None = _option("batch normalisation after W_Z", check_flag)
    share_affinity: bool | str | None = _option(
        "one ω for all sub-blocks, from the stage's input; embedding: one θ and φ, for every state; "
        "input: own θ and φ, all for the stage's input",
        check_sharing,
    )
    bias: bool | None = _option("give the maps a bias", check_flag)
    subsample: int | None = _option(
        "original form: max-pool the keys by this stride", lambda name, value: check_whole(name, value, 2)
    )
    backend: str | None = _option("which implementation of the operator; auto chooses", _check_name)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                continue
            one.metadata["check"](one.name, value)
            # 1 and 1.0, or numpy's 8 and Python's, are the same option and must have the same hash.
            if one.name == "init_std":
                object.__setattr__(self, one.name, float(value))
            elif is_whole(value):
                object.__setattr__(self, one.name, int(value))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StageOptions:
        """Return the options of a dict; an unknown name is an error that lists the choices."""
        for name in values:
            check_choice("stage option", name, (one.name for one in fields(cls)))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return every option by name, with None where the stage decides."""
        return asdict(self)

    def keywords(self) -> dict[str, Any]:
        """Return the options that are set, as keywords of a stage."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def shares_affinity(self, form: str) -> bool:
        """Return whether the sub-blocks of this form share one affinity; by default as published."""
        return form == "diffusive" if self.share_affinity is None else self.share_affinity is True
