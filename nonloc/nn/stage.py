"""The four forms: {Original, Diffusive} × {Block, Stage}."""

# Without `from __future__ import annotations`: the signatures are documentation, and show types instead of strings.
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import nn

from nonloc.nn.affinity import AffinityLike
from nonloc.nn.nonlocal_module import KEYWORDS, SHARING, SUBSAMPLE, NonlocalModule
from nonloc.nn.weight import Device

_Init = TypeVar("_Init", bound=Callable[..., None])


def unknown_keyword(owner: str, known: Iterable[str], keywords: Iterable[str]) -> str | None:
    """Return a message about the first keyword that `owner` does not have; None where it has them all."""
    known = list(known)
    for name in keywords:
        # The diffusive forms refuse "subsample" with a reason of its own.
        if name not in known and name != "subsample":
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"the nearest is {near[0]}; " if near else ""
            return f"{owner} has no keyword {name!r}; {hint}it takes {', '.join(known)}"
    return None


def _explain_unknown_keywords(init: _Init) -> _Init:
    """Make an `__init__` name the nearest keyword and all others, where it gets one that it does not have."""
    owner, known = init.__qualname__.partition(".")[0], list(inspect.signature(init).parameters)[1:]

    @wraps(init)
    def checked(self: NonlocalModule, *args: Any, **keywords: Any) -> None:
        if message := unknown_keyword(owner, known, keywords):
            raise TypeError(message)
        if "subsample" not in known:
            self._check_subsample(keywords.pop("subsample", None))
        init(self, *args, **keywords)

    return cast(_Init, checked)


# fmt: off
class OriginalBlock(NonlocalModule):
    __doc__ = f"""Z = X + W_Z Σ_j ω(X_i, X_j) W_g X_j / 𝒞_i: the nonlocal block of Wang et al.

    channels          C, of the input and the output{KEYWORDS}{SUBSAMPLE}
    >>> from nonloc import OriginalBlock
    >>> x = torch.ones(1, 4, 8, 8)
    >>> torch.equal(OriginalBlock(4, init="zero")(x), x)
    True
    """
    form = "original"

    @_explain_unknown_keywords
    def __init__(
        self, channels: int, *,
        hidden: int | None = None, weight: str = "factored", bias: bool = False,
        affinity: AffinityLike = "embedded_gaussian", embed: int | None = None, shared_embedding: bool | None = None,
        normalize: str | None = None, scaled: bool = False, init: str = "normal", init_std: float = 0.01,
        batch_norm: bool = False, layout: str | None = None, backend: str = "auto", subsample: int | None = None,
        pool_after: bool = False, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, 1,
            hidden=hidden, weight=weight, bias=bias, affinity=affinity, embed=embed, shared_embedding=shared_embedding,
            normalize=normalize, scaled=scaled, init=init, init_std=init_std, batch_norm=batch_norm, layout=layout,
            backend=backend, subsample=subsample, pool_after=pool_after, device=device, dtype=dtype,
        )


class DiffusiveBlock(NonlocalModule):
    __doc__ = f"""Z = X + W_Z Σ_j ω(X_i, X_j) (W_g X_j − W_g X_i) / 𝒞_i: one sub-block of the paper's stage.

    channels          C, of the input and the output{KEYWORDS}
    >>> from nonloc import DiffusiveBlock
    >>> x = torch.ones(1, 4, 8, 8)  # a constant does not diffuse
    >>> torch.allclose(DiffusiveBlock(4, init="torch")(x), x)
    True
    """
    form = "diffusive"

    @_explain_unknown_keywords
    def __init__(
        self, channels: int, *,
        hidden: int | None = None, weight: str = "factored", bias: bool = False,
        affinity: AffinityLike = "embedded_gaussian", embed: int | None = None, shared_embedding: bool | None = None,
        normalize: str | None = None, scaled: bool = False, init: str = "normal", init_std: float = 0.01,
        batch_norm: bool = False, layout: str | None = None, backend: str = "auto",
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, 1,
            hidden=hidden, weight=weight, bias=bias, affinity=affinity, embed=embed, shared_embedding=shared_embedding,
            normalize=normalize, scaled=scaled, init=init, init_std=init_std, batch_norm=batch_norm, layout=layout,
            backend=backend, device=device, dtype=dtype,
        )


class OriginalStage(NonlocalModule):
    __doc__ = f"""Original blocks in a row, Eq. (3): Z^{{n+1}} = Z^n + W_Z Σ_j ω(Z_i^n, Z_j^n) W_g Z_j^n / 𝒞_i(Z^n).

    channels          C, of the input and the output
    num_blocks        N, the number of blocks
    share_affinity    False: each block computes ω from the current state, with its own embedding, as published.
                      True: one ω, computed from the stage's input.
                      Such stages still train from larger initial maps.{SHARING}{KEYWORDS}{SUBSAMPLE}
    >>> from nonloc import OriginalStage
    >>> stage = OriginalStage(4, num_blocks=3, subsample=2)
    >>> stage(torch.zeros(1, 4, 8, 8)).shape
    torch.Size([1, 4, 8, 8])
    >>> len(stage.weights()), stage.weights()[0].shape
    (3, torch.Size([4, 4]))
    """
    form = "original"

    @_explain_unknown_keywords
    def __init__(
        self, channels: int, num_blocks: int, *, share_affinity: bool | str = False,
        hidden: int | None = None, weight: str = "factored", bias: bool = False,
        affinity: AffinityLike = "embedded_gaussian", embed: int | None = None, shared_embedding: bool | None = None,
        normalize: str | None = None, scaled: bool = False, init: str = "normal", init_std: float = 0.01,
        batch_norm: bool = False, layout: str | None = None, backend: str = "auto", subsample: int | None = None,
        pool_after: bool = False, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, num_blocks, share_affinity,
            hidden=hidden, weight=weight, bias=bias, affinity=affinity, embed=embed, shared_embedding=shared_embedding,
            normalize=normalize, scaled=scaled, init=init, init_std=init_std, batch_norm=batch_norm, layout=layout,
            backend=backend, subsample=subsample, pool_after=pool_after, device=device, dtype=dtype,
        )


class DiffusiveStage(NonlocalModule):
    __doc__ = f"""The paper's stage, Eq. (8): Z^{{n+1}} = Z^n + W^n Σ_j ω(X_i, X_j) (Z_j^n − Z_i^n) / 𝒞_i(X), Z^0 = X.

    channels          C, of the input and the output
    num_blocks        N, the number of sub-blocks
    share_affinity    True: one ω, computed from the stage's input X, as published.
                      False: each sub-block computes ω from the current state, with its own embedding;
                      the stage that diverged most often in the map (paper/pages/map.md).{SHARING}{KEYWORDS}
    >>> from nonloc import DiffusiveStage
    >>> stage = DiffusiveStage(4, num_blocks=3, scaled=True)
    >>> stage(torch.zeros(1, 4, 8, 8)).shape
    torch.Size([1, 4, 8, 8])
    >>> stage.affinity(torch.zeros(1, 4, 8, 8))
    Affinity(gaussian, row, B = 1, M = 64, d = 2, scale = 0.707107)
    """
    form = "diffusive"

    @_explain_unknown_keywords
    def __init__(
        self, channels: int, num_blocks: int, *, share_affinity: bool | str = True,
        hidden: int | None = None, weight: str = "factored", bias: bool = False,
        affinity: AffinityLike = "embedded_gaussian", embed: int | None = None, shared_embedding: bool | None = None,
        normalize: str | None = None, scaled: bool = False, init: str = "normal", init_std: float = 0.01,
        batch_norm: bool = False, layout: str | None = None, backend: str = "auto",
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, num_blocks, share_affinity,
            hidden=hidden, weight=weight, bias=bias, affinity=affinity, embed=embed, shared_embedding=shared_embedding,
            normalize=normalize, scaled=scaled, init=init, init_std=init_std, batch_norm=batch_norm, layout=layout,
            backend=backend, device=device, dtype=dtype,
        )


# fmt: on
STAGE_OF_FORM: dict[str, type[NonlocalModule]] = {"original": OriginalStage, "diffusive": DiffusiveStage}


def stages(model: "nn.Module") -> "Iterator[tuple[str, NonlocalModule]]":
    """Yield (name, module) of the outermost nonlocal modules of a model, in its order; the model itself is "".

    >>> from nonloc.nn import DiffusiveBlock, stages
    >>> model = torch.nn.Sequential(torch.nn.Identity(), DiffusiveBlock(4))
    >>> [name for name, _ in stages(model)]
    ['1']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}")
    if isinstance(model, NonlocalModule):
        yield "", model
        return
    outer: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, NonlocalModule) and not name.startswith(tuple(f"{one}." for one in outer)):
            outer.append(name)
            yield name, module
