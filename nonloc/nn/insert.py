"""insert: put a nonlocal module after any submodule of any torch model, or say why that cannot be."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nonloc._checks import check_choice
from nonloc.modes import evaluating
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.options import FORMS
from nonloc.nn.outputs import Output, last_channels, recorded_outputs
from nonloc.nn.probe import Inputs, call
from nonloc.nn.stage import DiffusiveStage, OriginalStage, unknown_keyword

Value = nn.Module | Callable[[int], nn.Module] | Mapping[str, Any]


class After(nn.Module):
    """`base`, then `stage`. It stands in the place of the submodule that is now its `base`.

    So after inserting at "layer1.1" the state dict has "layer1.1.base.…", with what was "layer1.1.…" before,
    and "layer1.1.stage.…". A state dict of the plain model goes to the base; the stage's own entries are then missing,
    so that loading it takes strict=False, or is done before inserting.

    What a model asks of its submodules besides their output, as nn.TransformerEncoder asks its first layer for
    `self_attn`, the base answers; but not for its tensors: who computes with those passes by the stage.
    """

    def __init__(self, base: nn.Module, stage: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.stage = stage

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.stage(self.base(*args, **keywords))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **keywords: Any
    ) -> None:
        # Without this strict=False would pass over the plain model's weights, and leave the base as it began.
        names = self.base.state_dict().keys()
        if _is_of_the_plain_model(state_dict, prefix, names):
            moved = [
                key
                for key in state_dict
                if key.startswith(prefix)
                # What is called after the stage is its own, unless the base has that very name.
                and (not key.startswith(f"{prefix}stage.") or key.removeprefix(prefix) in names)
            ]
            # All are taken out before one is put back: a base may have a child called "base".
            values = [state_dict.pop(key) for key in moved]
            for key, value in zip(moved, values, strict=True):
                state_dict[f"{prefix}base.{key.removeprefix(prefix)}"] = value
        super()._load_from_state_dict(state_dict, prefix, *args, **keywords)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # There is no base yet while a copy is made. Private names are marks of that one module, not of this.
            base = self.__dict__.get("_modules", {}).get("base")
            if base is None or name.startswith("_"):
                raise
        value = getattr(base, name)
        if isinstance(value, Tensor):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: what is computed with that of its base, "
                f"without calling it, would leave out the stage; if you do not mind, take .base.{name}"
            )
        return value


def _is_of_the_plain_model(state_dict: Mapping[str, Any], prefix: str, names: Collection[str]) -> bool:
    """Whether it has the base's entries, called `names`, where they were before the stage was inserted."""
    before = sum(f"{prefix}{name}" in state_dict for name in names)
    after = sum(f"{prefix}base.{name}" in state_dict for name in names)
    if before or after:
        return before > after
    # Where the base has stages itself, the plain model has none of its names.
    return not any(key.startswith(f"{prefix}base.") for key in state_dict)


@dataclass(frozen=True)
class Inserted:
    """What one entry of `insert` did.

    name        the submodule it stands after, as given
    path        where it is now in the model
    channels    C; None for a module that does not say
    num_blocks  its sub-blocks; None for a module that has no such number
    positions   M in the example's forward pass; None without an example
    """

    name: str
    path: str
    channels: int | None
    num_blocks: int | None
    positions: int | None


def insert(model: nn.Module, where: Mapping[str, Value], *, example: Inputs | None = None) -> list[Inserted]:
    """Put nonlocal modules after the named submodules of `model`, in place.

    where    {"layer1.1": value}. A value is a module; a factory channels -> module, such as
             `lambda channels: DiffusiveStage(channels, 4)`, or a class that needs the channels alone, such as
             `DiffusiveBlock`; or the keywords of a stage with its form,
             {"form": "diffusive", "num_blocks": 4, "init": "zero"}
    example  an input of the model (a tensor, a tuple of arguments or a dict of keywords). The model runs
             on it in evaluation mode, once before, and the channels are read off the submodules' outputs, and once
             after, to see that it still does. Without it channels are taken from the submodules' last layers, and
             nothing is checked that only shows when a model runs.

    A stage takes its input as [B, C, *spatial] unless it is told layout="positions", [B, *spatial, C], as tokens
    are. With an example, a stage without a layout where the layers that ran have their channels last, or may have,
    is an error that asks for one.

    Weights of the plain model can be loaded before, or with strict=False after it. The modules are new parameters: make
    the optimizer afterwards. They move to the device and dtype of the submodules they follow. If anything is wrong with
    any entry, a ValueError says what, and nothing is changed. One place takes one stage.
    """
    if not isinstance(where, Mapping):
        raise ValueError(
            "where says what to put after which submodule, such as "
            '{"layer1.1": lambda channels: DiffusiveStage(channels, 4)}; '
            f"got a {type(where).__name__}"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("a scripted model cannot be changed; insert first, and script it afterwards")
    if not where:
        raise ValueError("where is empty; give at least one {name of a submodule: nonlocal module}")
    named = dict(model.named_modules(remove_duplicate=False))
    for name in where:
        _check_name(name, named)
    bases = {name: named[name] for name in where}
    outputs = {} if example is None else recorded_outputs(model, bases, example)
    made = {name: _make(name, bases[name], value, outputs.get(name)) for name, value in where.items()}
    _check_distinct(made)
    for name, stage in made.items():
        _check_fits(name, bases[name], stage, outputs.get(name))
    # Parents are looked up before any of them is replaced: an entry may lie inside another one.
    parents = {name: model.get_submodule(name.rpartition(".")[0]) for name in made}
    _check_places(parents)
    after = {
        name: After(bases[name], _like(bases[name], stage, outputs.get(name))) for name, stage in made.items()
    }
    _put(parents, after)
    if example is not None:
        try:
            _check_runs(model, example, after)
        except BaseException:
            _put(parents, bases)
            raise
    paths = {id(module): path for path, module in model.named_modules()}
    return [_describe(name, paths[id(stage)], stage, outputs.get(name)) for name, stage in made.items()]


def _check_name(name: str, named: Mapping[str, nn.Module]) -> None:
    if name == "":
        raise ValueError(
            '"" is the model itself, which has no place to stand in; use nn.Sequential(model, stage)'
        )
    if name not in named:
        names = [known for known in named if known]
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.4) or names[:5]
        raise ValueError(f"the model has no submodule {name!r}; the nearest are {', '.join(near) or 'none'}")
    if isinstance(named[name], (nn.ModuleList, nn.ModuleDict)):
        kind = type(named[name]).__name__
        raise ValueError(f"{name!r} is a {kind}, which is never called itself; name one of its members")
    if isinstance(named[name], After):
        raise ValueError(
            f"{name!r} has a stage already. For more sub-blocks make that one with a larger num_blocks; for another "
            f"stage after it name '{name}.stage'; to take it out: "
            f"model.set_submodule({name!r}, model.get_submodule('{name}.base'))"
        )


def _make(name: str, base: nn.Module, value: Value, output: Output | None) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, Mapping):
        keywords = dict(value)
        check_choice(f"{name!r}: form", form := keywords.pop("form", None), FORMS)
        stage_type = DiffusiveStage if form == "diffusive" else OriginalStage
        known = inspect.signature(stage_type).parameters
        if message := unknown_keyword(stage_type.__name__, known, keywords):
            raise ValueError(f"{name!r}: {message}")
        if "channels" in keywords:
            raise ValueError(f"{name!r}: channels are those of the submodule; drop them from the dict")
        channels = _find_channels(name, base, output, keywords.get("layout") or "channels_first")
        return stage_type(channels, keywords.pop("num_blocks", 1), **keywords)
    if not callable(value):
        got = type(value).__name__
        raise ValueError(f"{name!r}: give a module, a factory channels -> module, or a dict; got {got}")
    _check_factory(name, value)
    stage = value(channels := _find_channels(name, base, output, None))
    if isinstance(stage, NonlocalModule) and stage.is_layout_given:
        # Where its channels are the layout says, whatever the layers do.
        told = _find_channels(name, base, output, stage.layout)
        stage = stage if told == channels else value(told)
    if not isinstance(stage, nn.Module):
        raise ValueError(f"{name!r}: the factory must return a torch module, got {type(stage).__name__}")
    return stage


def _check_factory(name: str, factory: Callable[[int], nn.Module]) -> None:
    """That the channels are all it needs."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables do not tell
        return
    try:
        signature.bind(1)
    except TypeError as error:
        called = getattr(factory, "__name__", type(factory).__name__)
        raise ValueError(
            f"{name!r}: {called} cannot be made from the channels alone ({error}); give a function that says the "
            "rest, such as lambda channels: DiffusiveStage(channels, 4), or a dict such as "
            '{"form": "diffusive", "num_blocks": 4}'
        ) from error


def _find_channels(name: str, base: nn.Module, output: Output | None, layout: str | None) -> int:
    channels = last_channels(base) if output is None else output.channels(layout)
    if channels is not None:
        return channels
    if output is not None:
        raise ValueError(f"{name!r} puts out {list(output.shape)}, which has no channels; name another")
    raise ValueError(
        f"the channels after {name!r} cannot be told from its layers; pass example=, a model input"
    )


def _check_distinct(made: Mapping[str, nn.Module]) -> None:
    seen: dict[int, str] = {}
    for name, stage in made.items():
        other = seen.setdefault(id(stage), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} got one module and would share its weights; make two")


def _check_places(parents: Mapping[str, nn.Module]) -> None:
    """That no two names mean one place, as they do below a module that a model has twice."""
    seen: dict[tuple[int, str], str] = {}
    for name, parent in parents.items():
        other = seen.setdefault((id(parent), name.rpartition(".")[2]), name)
        if other != name:
            raise ValueError(
                f"{other!r} and {name!r} are one place, since the model has the module around it twice; name it once"
            )


def _check_fits(name: str, base: nn.Module, stage: nn.Module, output: Output | None) -> None:
    """That the module takes the submodule's output, as far as both are known."""
    if isinstance(stage, NonlocalModule) and output is not None:
        if not stage.is_layout_given:
            _check_told(name, output)
        if len(output.shape) < 3:
            raise ValueError(
                f"{name!r} puts out {list(output.shape)}, which has no positions for a stage to join; name a "
                "submodule before the pooling or the head"
            )
    channels, layout = getattr(stage, "channels", None), getattr(stage, "layout", None)
    expected = last_channels(base) if output is None else output.channels(layout)
    if isinstance(channels, int) and expected is not None and channels != expected:
        source = "by its last layer; pass example= to measure it"
        hint = ""
        if output is not None:
            source = f"in {list(output.shape)}"
            other = "channels_first" if layout == "positions" else "positions"
            hint = f'; with layout="{other}" it would be {output.channels(other)}' if layout else ""
        raise ValueError(
            f"the module for {name!r} has {channels} channels, {name!r} puts out {expected} ({source}){hint}"
        )
    if isinstance(stage, NonlocalModule) and output is not None:
        try:
            stage.check_shape(output.shape)
        except ValueError as error:
            raise ValueError(f"{name!r} puts out what its stage does not take: {error}") from error


def _check_told(name: str, output: Output) -> None:
    """That a stage without a layout follows no output whose channels are last, or may be."""
    if -1 not in output.axes:
        return
    shape, second, last = list(output.shape), output.shape[1], output.shape[-1]
    if second == last or 1 in output.axes:
        channels = f"{last} channels" if second == last else f"channels, {second} or {last},"
        raise ValueError(
            f"{name!r} puts out {shape}, and its {channels} may be second or last; give the stage "
            'layout="positions" if they are last, layout="channels_first" if they are second'
        )
    raise ValueError(
        f"{name!r} puts out {shape}, with its {last} channels last by the layers that ran; give the stage "
        f'layout="positions" (or layout="channels_first", if the {second} are the channels)'
    )


def _put(parents: Mapping[str, nn.Module], modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        setattr(parents[name], name.rpartition(".")[2], module)


def _check_runs(model: nn.Module, example: Inputs, after: Mapping[str, After]) -> None:
    """That the model, which ran on the example before, runs with its stages, and through each of them: it may do more
    with a submodule than call it, or hold it by another name."""
    ran: set[str] = set()
    # Not by hooks: torch's own transformer layers go another way where there are any.
    for name, one in after.items():
        one.__dict__["forward"] = _noting(ran, name, one.forward)
    try:
        with evaluating(model):
            call(model, example)
    except Exception as error:
        raise ValueError(
            f"the model runs on the example, but no more with a stage after {', '.join(map(repr, after))}, so nothing "
            f"was changed; name another submodule, or another stage ({type(error).__name__}: {error})"
        ) from error
    finally:
        for one in after.values():
            del one.__dict__["forward"]
    if idle := [name for name in after if name not in ran]:
        raise ValueError(
            f"the model reaches {', '.join(map(repr, idle))} by another way than by that name (an alias, or a list "
            "that is no nn.ModuleList), so a stage there would never run, and nothing was changed; name the submodule "
            "as the model calls it"
        )


def _noting(ran: set[str], name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **keywords: Any) -> Any:
        ran.add(name)
        return forward(*args, **keywords)

    return noted


def _like(base: nn.Module, stage: nn.Module, output: Output | None) -> nn.Module:
    """The module on the submodule's device, in its dtype and its mode; of one without parameters, on those of its
    output, where that was seen."""
    stage.train(base.training)
    for tensor in base.parameters():
        if tensor.dtype.is_floating_point:
            # One that puts out wider numbers than its weights are has a reason. Narrower ones may be autocast's.
            dtype = tensor.dtype if output is None else _wider(tensor.dtype, output.dtype)
            return stage.to(device=tensor.device, dtype=dtype)
    if output is not None and output.dtype.is_floating_point:
        return stage.to(device=output.device, dtype=output.dtype)
    return stage


def _wider(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    try:
        return torch.promote_types(one, other)
    except RuntimeError:  # eight bits are never widened by themselves
        return other


def _describe(name: str, path: str, stage: nn.Module, output: Output | None) -> Inserted:
    return Inserted(
        name,
        path,
        getattr(stage, "channels", None),
        getattr(stage, "num_blocks", None),
        None if output is None else output.positions(getattr(stage, "layout", None)),
    )
