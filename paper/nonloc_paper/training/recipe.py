"""Recipe: everything that decides a run, as one frozen value. Never imports torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from nonloc._checks import MOST_WHOLE, check_choice, check_flag, check_whole, is_number, is_whole, shown
from nonloc.nn.options import StageOptions
from nonloc.outcomes import CorruptDataError
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.runs import Run

LARGEST = (2 - 2**-23) * 2.0**127  # of float32
LARGEST_SEED = 2**128 - 1  # a seed is hashed, so that one of secrets.randbits(128) can be used
OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("step", "onecycle", "constant")
PRECISIONS = ("float32", "bfloat16")
TASK_OF_FAMILY = {
    "preresnet": "classification",
    "restorer": "restoration",
    "own-classifier": "classification",
    "own-restorer": "restoration",
}
# A module that `fit` is given, by a name; `fit` adds its fingerprint.
_OWN = re.compile(r"(own-classifier|own-restorer)/[\w.+-]+(@[0-9a-f]{12})?")


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Recipe:
    """What to train, on what, and how. The defaults are the paper's recipe for CIFAR-10.

    The metadata of each field has its "help" text.

    >>> from nonloc_paper import Recipe
    >>> recipe = Recipe(network="preresnet20/diffusive-5@2", seed=1)
    >>> Recipe.from_dict(recipe.to_dict()) == recipe, recipe.with_(epochs=10).differences(recipe)
    (True, ['epochs is 10, was 164'])
    """

    network: str = _option(
        "preresnet20/baseline",
        'the network\'s spec, such as "preresnet20/diffusive-5@2": 5 diffusive blocks after residual block 2; '
        "`nonloc_paper.build` explains the grammar. In Python also own-classifier/NAME or own-restorer/NAME: see `fit`",
    )
    data: str = _option("cifar10", "the data set's name")
    stage: StageOptions = field(
        default_factory=StageOptions, metadata={"help": "the options of every nonlocal stage in the network"}
    )
    epochs: int = _option(164, "how many; metrics are measured after each")
    steps_per_epoch: int | None = _option(
        None,
        "None: one pass over the training images. A number: that many batches of the epoch's own permutation, "
        "so that an epoch is simply the interval between two evaluations",
    )
    batch_size: int = _option(128, "images a step")
    optimizer: Literal["sgd", "adam"] = _option("sgd", '"sgd" or "adam"')
    learning_rate: float = _option(
        0.1, 'the rate of the first step ("step", "constant") or the highest one ("onecycle")'
    )
    schedule: Literal["step", "onecycle", "constant"] = _option(
        "step", '"step": times `gamma` once each of `milestones` epochs is done; "onecycle"; "constant"'
    )
    milestones: tuple[int, ...] = _option((81, 122), "epochs, increasing")
    gamma: float = _option(0.1, "the factor at a milestone")
    momentum: float = _option(0.9, "of sgd")
    nesterov: bool = _option(False, "of sgd")
    weight_decay: float = _option(1e-4, "on all parameters")
    augment: bool = _option(True, "pad-4 crop and flip of the training images, an own draw for each image")
    pixel_scale: float | Literal["std"] = _option(
        64.0,
        "classification: what pixels (0 to 255, less the per-pixel mean) are divided by; a number, or "
        '"std" for their deviation over the training images',
    )
    noise: float = _option(0.4, "restoration: the deviation of the noise, for images in [−1, 1]")
    precision: Literal["float32", "bfloat16"] = _option("float32", '"float32", or "bfloat16" for autocast')
    channels_last: bool = _option(False, "the memory layout of images and convolutions")
    spectrum_epochs: tuple[int, ...] = _option(
        (), "after which epochs to record the spectra of the stages, besides the start and the end"
    )
    seed: int = _option(0, "of the initial weights, the order, the augmentation and the training noise")
    train_images: int | None = _option(None, "use only the first so many training images")
    test_images: int | None = _option(None, "use only the first so many test images")

    def __post_init__(self) -> None:
        if not isinstance(self.network, str):
            raise ValueError(
                f'network must be a spec such as "preresnet20/baseline", got {shown(self.network)}'
            )
        if not self.is_own_network:
            NetworkSpec.parse(self.network)
        if not isinstance(self.data, str) or not re.fullmatch(r"[\w.+-]+", self.data):
            raise ValueError(f'data must be the name of a data set such as "cifar10", got {shown(self.data)}')
        if not isinstance(self.stage, StageOptions):
            raise ValueError(
                f"stage must be such as StageOptions(hidden=8), or {{hidden: 8}} in a file, got {shown(self.stage)}"
            )
        for name in ("epochs", "batch_size"):
            self._check_whole(name, least=1)
        for name in ("steps_per_epoch", "train_images", "test_images"):
            self._check_whole(name, least=1, optional=True)
        self._check_whole("seed", least=0, most=LARGEST_SEED)
        for name, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            check_choice(name, getattr(self, name), choices)
        for name in ("learning_rate", "gamma", "noise"):
            self._check_number(name, positive=True)
        for name in ("momentum", "weight_decay"):
            self._check_number(name, positive=False)
        if self.pixel_scale != "std":
            self._check_number("pixel_scale", positive=True, alternative=' or "std"')
        for name in ("nesterov", "augment", "channels_last"):
            check_flag(name, getattr(self, name))
        if self.momentum >= 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum}; 0.9 is usual")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError('nesterov=True needs optimizer="sgd" and momentum > 0; set nesterov=False')
        self._check_epochs("milestones", least=1)
        self._check_epochs("spectrum_epochs", least=0)
        last = math.log(self.learning_rate) + len(self.milestones) * math.log(self.gamma)
        if self.schedule == "step" and last > math.log(LARGEST):
            raise ValueError(
                f"gamma={self.gamma:g} at {len(self.milestones)} milestones takes the rate beyond what float32 can "
                "hold; take a smaller one"
            )

    @property
    def task(self) -> str:
        """The task, decided by the network's family: "classification" or "restoration"."""
        own = _OWN.fullmatch(self.network)
        return TASK_OF_FAMILY[own[1] if own else NetworkSpec.parse(self.network).family]

    @property
    def is_own_network(self) -> bool:
        """Whether the network is a module that `fit` is given, own-classifier/NAME or own-restorer/NAME."""
        return _OWN.fullmatch(self.network) is not None

    @property
    def form(self) -> str | None:
        """The form of its nonlocal stages; None without any, and for a module that `fit` is given."""
        return None if self.is_own_network else NetworkSpec.parse(self.network).form

    @property
    def sha256(self) -> str:
        """The hash of the fields that differ from the defaults, so that a new field changes no old hash."""
        content = {key: value for key, value in self.to_dict().items() if value != _DEFAULTS[key]}
        if "stage" in content:
            content["stage"] = {
                key: value for key, value in content["stage"].items() if value != _DEFAULTS["stage"][key]
            }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A readable folder name, with eight digits of the hash, which different recipes do not share."""
        return f"{self.data}-{self.network.replace('/', '-')}-seed{self.seed}-{self.sha256[:8]}"

    def with_(self, **changes: Any) -> Recipe:
        """Return the recipe with some fields changed; `stage` may be a dict of the options to change."""
        _check_keys(changes, Recipe, "recipe")
        if isinstance(changes.get("stage"), Mapping):
            _check_keys(changes["stage"], StageOptions, "stage")
            changes["stage"] = replace(self.stage, **changes["stage"])
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, lists for tuples; `from_dict` is the inverse."""
        values = asdict(self).items()
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Return a recipe from plain values; missing fields have their defaults, unknown ones are an error."""
        return cls().with_(**values)

    @classmethod
    def of(cls, run: Run) -> Recipe:
        """Return the recipe of an existing run; CorruptDataError if it cannot be understood or is not the result's."""
        values = run.read_recipe()
        try:
            recipe = cls.from_dict(values)
        except ValueError as error:
            raise CorruptDataError(f"{run.recipe_path} is no recipe of this version: {error}") from error
        # Older results do not say it.
        if run.is_finished and run.read_result().get("recipe_sha256", recipe.sha256) != recipe.sha256:
            raise CorruptDataError(
                f"{run.recipe_path} is damaged: {run.result_path} was made with another recipe; bring it back"
            )
        return recipe

    def differences(self, other: Recipe) -> list[str]:
        """Return the fields that differ, as sentences such as "seed is 1, was 0"."""
        return [
            f"{name} is {shown(now)}, was {shown(was)}" for name, (now, was) in self.differing(other).items()
        ]

    def differing(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ, each with its value here and its value there."""
        now, was = _flat(self.to_dict()), _flat(other.to_dict())
        return {name: (now[name], was[name]) for name in now if now[name] != was[name]}

    def _check_whole(self, name: str, *, least: int, most: int = MOST_WHOLE, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if optional and (not is_whole(value) or value < least):
            raise ValueError(f"{name} must be a whole number ≥ {least} or None, got {shown(value)}")
        object.__setattr__(self, name, check_whole(name, value, least, most))

    def _check_number(self, name: str, *, positive: bool, alternative: str = "") -> None:
        value = getattr(self, name)
        if not is_number(value) or not 0 <= value <= LARGEST or (positive and value == 0):
            bound = "> 0" if positive else "≥ 0"
            raise ValueError(
                f"{name} must be a finite number {bound}{alternative} that float32 can hold, got {shown(value)}"
            )
        # 1 and 1.0, or 0.0 and -0.0, are the same recipe and must have the same hash.
        object.__setattr__(self, name, float(value) + 0.0)

    def _check_epochs(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{name} must be a list of epochs such as [81, 122], got {shown(value)}")
        for epoch in value:
            if not is_whole(epoch) or epoch < least:
                raise ValueError(
                    f"{name} must hold whole numbers ≥ {least}, got {shown(epoch)} in {shown(list(value))}"
                )
            check_whole(name, epoch, least)
        if list(value) != sorted(set(value)):
            raise ValueError(
                f"{name} must increase, got {shown(list(value))}; use {shown(sorted(set(value)))}"
            )
        object.__setattr__(self, name, tuple(map(int, value)))


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    stage = {f"stage.{key}": value for key, value in values["stage"].items()}
    return {**{key: value for key, value in values.items() if key != "stage"}, **stage}


def _check_keys(values: Mapping[str, Any], owner: type, title: str) -> None:
    known = [entry.name for entry in fields(owner)]
    for key in values:
        if key not in known:
            raise ValueError(f"{shown(key)} is not a field of the {title}; the fields are {', '.join(known)}")


_DEFAULTS = Recipe().to_dict()
