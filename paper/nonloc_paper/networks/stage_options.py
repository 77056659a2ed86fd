"""StageOptions: the keywords of a network's nonlocal stages, as a value that JSON can carry. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from nonloc.nn.choices import (
    AFFINITY_NAMES,
    INITS,
    NORMALIZATIONS,
    WEIGHTS,
    check_choice,
    check_deviation,
    check_flag,
    check_size,
)
from nonloc.numeric import is_whole


@dataclass(frozen=True)
class StageOptions:
    """Keywords of `OriginalStage` and `DiffusiveStage`; None leaves the stage's own default."""

    affinity: str | None = None
    embed: int | None = None
    hidden: int | None = None
    weight: str | None = None
    shared_embedding: bool | None = None
    normalize: str | None = None
    scaled: bool | None = None
    init: str | None = None
    init_std: float | None = None
    batch_norm: bool | None = None
    share_affinity: bool | None = None
    bias: bool | None = None
    subsample: int | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.keywords().items():
            _CHECKS[name](name, value)
            # 1 and 1.0, or numpy's 8 and Python's, are the same option and must have the same hash.
            if name == "init_std":
                object.__setattr__(self, name, float(value))
            elif is_whole(value):
                object.__setattr__(self, name, int(value))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StageOptions:
        """The inverse of `to_dict`; an unknown name is an error that lists the choices."""
        for name in values:
            check_choice("stage option", name, (field.name for field in fields(cls)))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, with None where the stage decides."""
        return asdict(self)

    def shares_affinity(self, form: str) -> bool:
        """Whether sub-blocks of this form have one affinity, by what was set or else as published."""
        return form == "diffusive" if self.share_affinity is None else self.share_affinity

    def keywords(self) -> dict[str, Any]:
        """Only what was set: the keywords to hand to a stage."""
        return {name: value for name, value in self.to_dict().items() if value is not None}


def _one_of(choices: tuple[str, ...]) -> Callable[[str, object], None]:
    return lambda name, value: check_choice(name, value, choices)


def _check_text(name: str, value: object) -> None:
    # Which backends there are is known to the operator, which needs torch; the stage checks the name.
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r} must be the name of a backend")


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "affinity": _one_of(AFFINITY_NAMES),
    "embed": check_size,
    "hidden": check_size,
    "weight": _one_of(WEIGHTS),
    "shared_embedding": check_flag,
    "normalize": _one_of(NORMALIZATIONS),
    "scaled": check_flag,
    "init": _one_of(INITS),
    "init_std": check_deviation,
    "batch_norm": check_flag,
    "share_affinity": check_flag,
    "bias": check_flag,
    "subsample": lambda name, value: check_size(name, value, minimum=2),
    "backend": _check_text,
}
