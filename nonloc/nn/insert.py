"""insert: put a nonlocal module after any submodule of any torch model."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nonloc._checks import check_choice, check_takes_one, shown
from nonloc.nn.after import After
from nonloc.nn.inspect import Inputs, run_model
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.outputs import Output, last_channels, record_outputs
from nonloc.nn.stage import STAGE_OF_FORM, unknown_keyword

Value = nn.Module | Callable[[int], nn.Module] | Mapping[str, Any]
# Of torch's modules, those that take and put out [positions, batch, C] unless batch_first=True.
_BATCH_SECOND = (
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.Transformer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)


@dataclass(frozen=True)
class Inserted:
    """The result of one entry of `insert`.

    name        the submodule before it, as in `where`
    path        where it is now in the model
    channels    C; None for a module that does not say
    num_blocks  its sub-blocks; None for a module that has no such number
    positions   M in the example's forward pass; None without an example

    >>> from nonloc.nn import DiffusiveBlock, insert
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1))
    >>> [one.path for one in insert(model, {"0": DiffusiveBlock(8)})]
    ['0.stage']
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
    example  an input of the model (a tensor, a tuple of arguments or a dict of keywords). The model runs on it in
             evaluation mode: once before, to read the channels off the submodules' outputs, and once after, to see
             that it still runs. Without it the channels are those of the submodules' last layers, and nothing is
             checked that only shows when a model runs.

    Of a tuple, list or dict that a submodule puts out, the stage follows the first tensor; the others pass by.
    Prefer a block, such as "layer2.1", to a whole nn.Sequential, whose members some code runs without calling it.
    A submodule that the model holds by two names has the stage after calls by the given name alone.
    The stage gets no mask: where a batch is padded, padding takes part. Hooks that a submodule has see its output
    before the stage.
    A stage takes its input as [B, C, *spatial] unless it has layout="positions", [B, *spatial, C], as for tokens.
    The batch comes first: torch's own transformers and recurrent networks need batch_first=True.
    With an example, a stage without a layout is an error where the layers that ran have their channels last, or may
    have: give it a layout.

    Load the weights of the plain model before, or afterwards with strict=False. Make the optimizer afterwards: the
    modules are new parameters. They move to the device and dtype of the submodules they follow. If anything is wrong
    with any entry, a ValueError says what, and nothing is changed. One place takes one stage.

    >>> from nonloc import DiffusiveStage, insert
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> insert(model, {"1": lambda channels: DiffusiveStage(channels, 4)}, example=torch.zeros(1, 3, 6, 6))
    [Inserted(name='1', path='1.stage', channels=8, num_blocks=4, positions=16)]
    """
    if not isinstance(where, Mapping):
        raise ValueError(
            "where says what to put after which submodule, such as "
            '{"layer1.1": lambda channels: DiffusiveStage(channels, 4)}; '
            f"got a {type(where).__name__}"
        )
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            "a scripted model cannot be changed; insert first, and trace it afterwards (torch.jit.trace)"
        )
    if not where:
        raise ValueError("where is empty; give at least one {name of a submodule: nonlocal module}")
    named = dict(model.named_modules(remove_duplicate=False))
    for name in where:
        _check_name(name, named)
    bases = {name: named[name] for name in where}
    if example is None:
        _check_one_name(where, named)
    outputs = {} if example is None else record_outputs(model, bases, example)
    made = {name: _make(name, bases[name], value, outputs.get(name)) for name, value in where.items()}
    # Parents are looked up before any of them is replaced: an entry may lie inside another one.
    parents = {name: model.get_submodule(name.rpartition(".")[0]) for name in made}
    owners: dict[int, str] = {}
    places: dict[tuple[int, str], str] = {}
    for name, stage in made.items():
        for one in (stage, *stage.parameters()):
            if (other := owners.setdefault(id(one), name)) != name:
                raise ValueError(f"{other!r} and {name!r} got one module and would share weights; make two")
        if (other := places.setdefault((id(parents[name]), name.rpartition(".")[2]), name)) != name:
            raise ValueError(
                f"{other!r} and {name!r} are one place, since the model has the module around it twice; name it once"
            )
        _check_batch_first(name, stage, named)
        _check_fits(name, bases[name], stage, outputs.get(name))
    after = {}
    for name, stage in made.items():
        _move_like(stage, bases[name], outputs.get(name))
        after[name] = After(bases[name], stage)
    _put(parents, after)
    if example is not None:
        try:
            _check_runs(model, example, after)
        except BaseException:
            _put(parents, bases)
            raise
    paths = {id(module): path for path, module in model.named_modules()}
    inserted = []
    for name, stage in made.items():
        channels, blocks, layout = (getattr(stage, key, None) for key in ("channels", "num_blocks", "layout"))
        positions = outputs[name].positions(layout) if name in outputs else None
        inserted.append(Inserted(name, paths[id(stage)], channels, blocks, positions))
    return inserted


def _check_name(name: Any, named: Mapping[str, nn.Module]) -> None:
    if not isinstance(name, str):
        raise ValueError(
            f'where names submodules by strings, such as "layer1.1", got {shown(name)}; the names are those of '
            "model.named_modules()"
        )
    if name == "":
        raise ValueError(
            '"" is the model itself, which has no place to stand in; use nn.Sequential(model, stage)'
        )
    if name not in named:
        names = [known for known in named if known]
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.4) or names[:5]
        raise ValueError(f"the model has no submodule {name!r}; the nearest are {', '.join(near) or 'none'}")
    # DenseNet's blocks are a ModuleDict with a forward.
    if type(named[name]).forward is nn.Module.forward:
        kind = type(named[name]).__name__
        raise ValueError(f"{name!r} is a {kind}, which is never called itself; name one of its members")
    if isinstance(named[name], After):
        raise ValueError(
            f"{name!r} has a stage already. For more sub-blocks make that one with a larger num_blocks; for another "
            f"stage after it name '{name}.stage'; to take it out: "
            f"model.set_submodule({name!r}, model.get_submodule('{name}.base'))"
        )


def _check_one_name(names: Collection[str], named: Mapping[str, nn.Module]) -> None:
    """Raise a ValueError where a submodule stands in two places, and only a run shows which of them the model calls."""
    for name in names:
        parent, _, child = name.rpartition(".")
        if type(named[parent]).forward is nn.Sequential.forward:
            continue  # it calls its members by their names
        for other, module in named.items():
            outer, _, inner = other.rpartition(".")
            is_elsewhere = other != name and (named[outer] is not named[parent] or inner != child)
            if module is named[name] and is_elsewhere:
                raise ValueError(
                    f"{name!r} and {other!r} are one module, and only a run shows by which name the model calls it; "
                    "pass example=, a model input"
                )


def _make(name: str, base: nn.Module, value: Value, output: Output | None) -> nn.Module:
    """Return the module that a value of `where` describes."""
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, Mapping):
        keywords = {"num_blocks": 1, **value}
        check_choice(f"{name!r}: form", form := keywords.pop("form", None), STAGE_OF_FORM)
        stage_type = STAGE_OF_FORM[form]
        known = inspect.signature(stage_type).parameters
        if message := unknown_keyword(stage_type.__name__, known, keywords):
            raise ValueError(f"{name!r}: {message}")
        if "channels" not in keywords:
            layout = keywords.get("layout") or "channels_first"
            keywords["channels"] = _find_channels(name, base, output, layout)
        return stage_type(**keywords)
    if not callable(value):
        got = type(value).__name__
        raise ValueError(f"{name!r}: give a module, a factory channels -> module, or a dict; got {got}")
    check_takes_one(
        repr(name),
        value,
        "the channels",
        "give a function that says the rest, such as lambda channels: DiffusiveStage(channels, 4), or a dict such as "
        '{"form": "diffusive", "num_blocks": 4}',
    )
    stage = value(channels := _find_channels(name, base, output, None))
    if isinstance(stage, NonlocalModule) and stage.is_layout_given:
        # The stage's layout decides where its channels are, and the layers do not.
        other = _find_channels(name, base, output, stage.layout)
        stage = stage if other == channels else value(other)
    if not isinstance(stage, nn.Module):
        raise ValueError(f"{name!r}: the factory must return a torch module, got {type(stage).__name__}")
    return stage


def _find_channels(name: str, base: nn.Module, output: Output | None, layout: str | None) -> int:
    channels = last_channels(base) if output is None else output.channels(layout)
    if channels is not None:
        return channels
    if output is not None:
        raise ValueError(f"{name!r} puts out {list(output.shape)}, which has no channels; name another")
    raise ValueError(
        f"the channels after {name!r} are not clear from its layers; pass example=, a model input"
    )


def _check_batch_first(name: str, stage: nn.Module, named: Mapping[str, nn.Module]) -> None:
    """Raise a ValueError if the submodule is one of torch's, or in one, that takes batches second.

    No shape shows it: a stage would take samples for positions.
    """
    if not isinstance(stage, NonlocalModule):
        return
    path = name
    while not isinstance(named[path], _BATCH_SECOND):
        if not path:
            return
        path = path.rpartition(".")[0]
    if not all(getattr(one, "batch_first", True) for one in named[path].modules()):
        raise ValueError(
            f"{name!r} puts out [positions, batch, C], for {repr(path) if path else 'the model'} has "
            "batch_first=False, and a stage would mix the samples; make it with batch_first=True, for inputs "
            "[batch, positions, C]"
        )


def _check_fits(name: str, base: nn.Module, stage: nn.Module, output: Output | None) -> None:
    """Raise a ValueError unless the module takes the submodule's output, as far as both are known."""
    if isinstance(stage, NonlocalModule) and output is not None:
        if not stage.is_layout_given and -1 in output.axes:
            second, last = output.shape[1], output.shape[-1]
            is_certain = second != last and 1 not in output.axes
            raise ValueError(
                f"{name!r} puts out {list(output.shape)}; by the layers that ran its channels "
                f'{"are" if is_certain else "may be"} last; give the stage layout="positions" if the {last} are the '
                f'channels, layout="channels_first" if the {second} are, the second dimension'
            )
        if len(output.shape) < 3:
            raise ValueError(
                f"{name!r} puts out {list(output.shape)}, which has no positions for a stage to join; name a "
                "submodule before the pooling or the head"
            )
        if stage.uses_differences and output.positions(stage.layout) == 1:
            raise ValueError(
                f"{name!r} puts out {list(output.shape)}, one position, where differences are 0 and the stage would "
                "learn nothing; name an earlier submodule, or give an example as large as your inputs"
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


def _put(parents: Mapping[str, nn.Module], modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        setattr(parents[name], name.rpartition(".")[2], module)


def _check_runs(model: nn.Module, example: Inputs, after: Mapping[str, After]) -> None:
    """Raise a ValueError unless the model runs with its stages on the example, and through each of them.

    It may do more with a submodule than call it, or hold it by another name.
    """
    ran: set[str] = set()

    def noting(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **keywords: Any) -> Any:
            ran.add(name)
            return forward(*args, **keywords)

        return noted

    # Not by hooks: torch's own transformer layers run other code where there are any.
    for name, one in after.items():
        one.__dict__["forward"] = noting(name, one.forward)
    try:
        run_model(model, example)
    except Exception as error:
        cause = error.__cause__ or error
        raise ValueError(
            f"the model runs on the example, but no more with a stage after {', '.join(map(repr, after))}, so nothing "
            f"was changed; name another submodule, or another stage ({type(cause).__name__}: {cause})"
        ) from cause
    finally:
        for one in after.values():
            del one.__dict__["forward"]
    if idle := [name for name in after if name not in ran]:
        raise ValueError(
            f"the model reaches {', '.join(map(repr, idle))} by another way than by that name (an alias, or a list "
            "that is no nn.ModuleList), so a stage there would never run, and nothing was changed; name the submodule "
            "as the model calls it"
        )


def _move_like(stage: nn.Module, base: nn.Module, output: Output | None) -> None:
    """Move the module to the submodule's device, dtype and mode; without parameters, to those of its output."""
    stage.train(base.training)
    weight = next((one for one in base.parameters() if one.dtype.is_floating_point), None)
    if weight is None:
        if output is not None:
            stage.to(device=output.device, dtype=output.dtype)
        return
    dtype = weight.dtype
    if output is not None:
        # A submodule may put out wider numbers than its weights. Narrower ones may be autocast's.
        try:
            dtype = torch.promote_types(weight.dtype, output.dtype)
        except RuntimeError:  # torch does not widen eight bits by itself
            dtype = output.dtype
    stage.to(device=weight.device, dtype=dtype)
