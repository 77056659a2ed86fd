"""After: a submodule and the stage behind it, in the submodule's place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from nonloc.nn.outputs import first_tensor, with_first


class After(nn.Module):
    """`base`, then `stage`. It stands in the place of the submodule that is now its `base`.

    Of a tuple, list or dict that the base puts out, the stage follows the first tensor; the others pass by.

    After inserting at "layer1.1" the state dict has "layer1.1.base.…", with the entries that were "layer1.1.…" before,
    and "layer1.1.stage.…". A state dict of the plain model goes to the base. It lacks the stage's own entries, so load
    it with strict=False, or before inserting.

    A model may read other attributes of its submodules: nn.TransformerEncoder reads `self_attn` of its first layer.
    The base answers, except for its tensors: computing with those would skip the stage. What is written to an attribute
    of the base reaches the base. Of an nn.Sequential the stage is the last member: code that calls one after another,
    as gradient checkpointing does, computes the same.

    >>> from nonloc.nn import After, DiffusiveBlock
    >>> After(torch.nn.Conv2d(3, 8, 1), DiffusiveBlock(8))(torch.zeros(1, 3, 6, 6)).shape
    torch.Size([1, 8, 6, 6])
    """

    def __init__(self, base: nn.Module, stage: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.stage = stage

    def forward(self, *args: Any, **keywords: Any) -> Any:
        output = self.base(*args, **keywords)
        return with_first(output, self.stage(first_tensor(output)))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **keywords: Any
    ) -> None:
        # Without this strict=False would ignore the plain model's weights, and the base would keep its initial ones.
        names = self.base.state_dict().keys()
        if _is_of_the_plain_model(state_dict, prefix, names):
            moved = [
                key
                for key in state_dict
                if key.startswith(prefix)
                # An entry "stage.…" is the stage's own, unless the base has that very name.
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
            # There is no base yet while a copy is made. Private names belong to one module alone.
            base = self.__dict__.get("_modules", {}).get("base")
            if base is None or name.startswith("_"):
                raise
        value = getattr(base, name)
        if isinstance(value, Tensor):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: computing with that of its base, "
                f"without calling it, would leave out the stage; if you do not mind, take .base.{name}"
            )
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        base = self._base_with(name)
        super().__setattr__(name, value) if base is None else setattr(base, name, value)

    def __delattr__(self, name: str) -> None:
        base = self._base_with(name)
        super().__delattr__(name) if base is None else delattr(base, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members())

    def __len__(self) -> int:
        return len(self._members())

    def __getitem__(self, index: Any) -> Any:
        return self._members()[index]

    def __bool__(self) -> bool:
        return True  # without it Python would ask for the length

    def _members(self) -> Any:
        """Return the base; with the stage as one more member, where a loop that calls them all would leave it out."""
        base = self.base._members() if isinstance(self.base, After) else self.base
        return nn.Sequential(*base, self.stage) if isinstance(base, nn.Sequential) else base

    def _base_with(self, name: str) -> nn.Module | None:
        """Return the base if this is an attribute of it, a tensor or not, and none of the wrapper's own."""
        if name in ("base", "stage", "training") or name.startswith("_") or hasattr(type(self), name):
            return None
        if any(name in own for own in (self.__dict__, self._modules, self._parameters, self._buffers)):
            return None
        base = self.base
        while isinstance(base, After):
            base = base.base
        return base if hasattr(base, name) else None


def _is_of_the_plain_model(state_dict: Mapping[str, Any], prefix: str, names: Collection[str]) -> bool:
    """Return whether it has the base's entries, called `names`, where they were before the stage was inserted."""
    before = sum(f"{prefix}{name}" in state_dict for name in names)
    after = sum(f"{prefix}base.{name}" in state_dict for name in names)
    if before or after:
        return before > after
    # Where the base has stages itself, the plain model has none of its names.
    return not any(key.startswith(f"{prefix}base.") for key in state_dict)
