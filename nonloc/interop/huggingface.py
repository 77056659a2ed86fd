"""Hugging Face transformers: stages that `save_pretrained` saves with a model, and that come back with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nonloc.nn.insert import Inserted
from nonloc.nn.insert import insert as insert_stages
from nonloc.nn.inspect import Inputs

# The entry of the model's configuration.
ENTRY = "nonloc_stages"


def insert(
    model: nn.Module, where: Mapping[str, Mapping[str, Any]], *, example: Inputs | None = None
) -> list[Inserted]:
    """Insert stages as `nonloc.insert` does, and note them in the model's configuration.

    where  as in `nonloc.insert`, with a dict for each stage that JSON can hold, such as
           {"form": "diffusive", "num_blocks": 4, "layout": "positions"}

    `model.save_pretrained` then saves all that `from_pretrained` of this module needs.

    >>> from transformers import SwinConfig, SwinForImageClassification
    >>> from nonloc.interop import huggingface
    >>> model = SwinForImageClassification(SwinConfig(embed_dim=12, depths=[1], num_heads=[2]))
    >>> stage = {"form": "diffusive", "num_blocks": 2, "layout": "positions"}
    >>> inserted = huggingface.insert(model, {"swin.encoder.layers.0": stage})
    >>> model.config.nonloc_stages["swin.encoder.layers.0"]["num_blocks"]
    2
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "save_pretrained"):
        raise ValueError(
            f"model must be one of transformers' models, with a configuration, got {type(model).__name__}; "
            "use nonloc.insert"
        )
    # Anything but a dict is refused by `nonloc.insert`.
    for name, options in where.items() if isinstance(where, Mapping) else ():
        if not isinstance(options, Mapping):
            raise ValueError(
                f"{name!r}: a configuration holds the keywords of a stage, not a {type(options).__name__}; give a "
                'dict such as {"form": "diffusive", "num_blocks": 4}'
            )
    inserted = insert_stages(model, where, example=example)
    noted = dict(getattr(config, ENTRY, None) or {})
    for one in inserted:
        noted[one.name] = {**where[one.name], "channels": one.channels}
    setattr(config, ENTRY, noted)
    return inserted


def from_pretrained(kind: type[Any], path: Any, **keywords: Any) -> Any:
    """Return kind.from_pretrained(path, …) with the stages that were inserted before it was saved.

    kind  a class of transformers that is itself a model, such as SwinForImageClassification; not an Auto class

    >>> from transformers import SwinConfig, SwinForImageClassification
    >>> from nonloc.interop import huggingface
    >>> model = SwinForImageClassification(SwinConfig(embed_dim=12, depths=[1], num_heads=[2]))
    >>> stage = {"form": "diffusive", "num_blocks": 2, "layout": "positions"}
    >>> inserted = huggingface.insert(model, {"swin.encoder.layers.0": stage})
    >>> model.save_pretrained("with-a-stage")
    >>> loaded = huggingface.from_pretrained(SwinForImageClassification, "with-a-stage")
    >>> loaded.state_dict().keys() == model.state_dict().keys()
    True
    """

    def initialize(self: Any, config: Any, *args: Any, **options: Any) -> None:
        kind.__init__(self, config, *args, **options)
        stages = dict(getattr(config, ENTRY, None) or {})
        while stages:
            # Names of later calls may lead through the stages of earlier ones.
            names = dict(self.named_modules(remove_duplicate=False))
            known = {name: stages.pop(name) for name in list(stages) if name in names}
            insert_stages(self, known or stages)

    # The weights are loaded right after __init__, so the stages must be made in it.
    with_stages = type(kind.__name__, (kind,), {"__init__": initialize, "__module__": kind.__module__})
    loaded = with_stages.from_pretrained(path, **keywords)  # type: ignore[attr-defined]
    # With output_loading_info=True it is a pair.
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    model.__class__ = kind
    return loaded
