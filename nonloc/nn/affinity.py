"""Affinity modules: x [B, M, C] -> Affinity, with the embeddings θ and φ of Wang et al."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nonloc._checks import check_choice, check_flag, check_positive, check_takes_one, check_whole
from nonloc._torch_compat import is_untouched
from nonloc.nn.options import NORMALIZATIONS
from nonloc.nn.weight import Device, apply_map, check_factory, initialize_map, make_map, plain_matrix
from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.affinity import SYMMETRIC, shape_or_type

Pool = Callable[[Tensor], Tensor]


class PairwiseAffinity(nn.Module):
    """Abstract: left = θ(x) and right = φ(x), as an `Affinity` that defines ω.

    channels   C
    embed      d, the width of θ and φ; C // 2 when None. Kernels without an embedding refuse it.
    shared     one map for both sides: left *is* right, so Ω is symmetric. None is the kernel's own default.
    normalize  "row", "count", "none", "symmetric" or "sinkhorn"; None is the kernel's own default
    scaled     divide the logits by √d
    scale      multiply the logits by this number, instead of `scaled`
    bias       give θ and φ a bias; it has no effect without an embedding
    device, dtype  of θ and φ, as in torch's own modules

    >>> from nonloc.nn import AFFINITIES, PairwiseAffinity
    >>> all(issubclass(one, PairwiseAffinity) for one in AFFINITIES.values())
    True
    >>> [name for name, one in AFFINITIES.items() if one.is_embedded]
    ['embedded_gaussian', 'dot', 'concat', 'heat']
    """

    kind: ClassVar[str]
    default_normalize: ClassVar[str] = "row"
    default_shared: ClassVar[bool] = False
    is_embedded: ClassVar[bool] = True
    fixed_width: ClassVar[int | None] = None
    has_scale: ClassVar[bool] = True

    def __init__(
        self,
        channels: int,
        embed: int | None = None,
        shared: bool | None = None,
        *,
        normalize: str | None = None,
        scaled: bool = False,
        bias: bool = False,
        scale: float | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        channels = check_whole("channels", channels)
        if normalize is not None:
            check_choice("normalize", normalize, NORMALIZATIONS)
        flags = {"scaled": scaled, "bias": bias} | ({} if shared is None else {"shared": shared})
        for name, flag in flags.items():
            check_flag(name, flag)
        if scaled and not self.has_scale:
            raise ValueError(f"scaled=True has no meaning for {type(self).__name__}; leave it False")
        if scale is not None:
            check_positive("scale", scale)
            if scaled:
                raise ValueError(f"scale={scale!r} is in the place of scaled=True; drop one of the two")
            if not self.has_scale:
                raise ValueError(f"scale={scale!r} has no meaning for {type(self).__name__}; leave it None")
        factory = check_factory(device, dtype)
        self.channels = channels
        self.width = self._choose_width(embed)
        self.shared = self.default_shared if shared is None else shared
        self.normalize = normalize or self.default_normalize
        # Set by `freeze`; as in `Affinity`.
        self.sinkhorn_steps: int | None = None
        self.scale = float(scale) if scale is not None else self.width**-0.5 if scaled else 1.0
        self.theta = make_map(channels, self.width, bias, **factory) if self.is_embedded else None
        separate = self.is_embedded and not self.shared
        if separate and self.normalize in SYMMETRIC:
            raise ValueError(
                f"normalize={self.normalize!r} needs a symmetric affinity, and θ and φ are two embeddings here; use "
                f'shared_embedding=True of a stage (shared=True of {type(self).__name__}), or normalize="row"'
            )
        self.phi = make_map(channels, self.width, bias, **factory) if separate else None

    def _choose_width(self, embed: int | None) -> int:
        if embed is None:
            return self.fixed_width or (max(1, self.channels // 2) if self.is_embedded else self.channels)
        if not self.is_embedded:
            raise ValueError(
                f"embed={embed!r}: {type(self).__name__} has no embedding; drop it, or use embedded_gaussian"
            )
        embed = check_whole("embed", embed)
        if self.fixed_width not in (None, embed):
            raise ValueError(
                f"embed={embed!r}: {type(self).__name__} has embed={self.fixed_width} alone; leave it None"
            )
        return embed

    def __call__(self, x: Tensor, keys: Tensor | None = None, *, pool: Pool | None = None) -> Affinity:
        """Return the affinity of x [B, M, C], the positions that receive.

        keys  [B, M', C], the positions that give; None: those of x
        pool  [B, M, d] -> [B, M', d], to be applied after φ
        """
        # Hooks of profilers and of sharding see what `forward` returns, and know tensors only.
        features = super().__call__(x, keys) if pool is None else super().__call__(x, keys, pool=pool)
        if isinstance(features, Affinity):  # from a subclass with a forward of its own
            return features
        left, right = features
        return Affinity(
            left, right, self.kind, self.normalize, self.scale, sinkhorn_steps=self.sinkhorn_steps
        )

    def forward(
        self, x: Tensor, keys: Tensor | None = None, pool: Pool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return left [B, M, d] and right [B, M', d]; they are one tensor where the sides are the same."""
        self._check("x", x)
        if keys is not None:
            self._check("keys", keys)
        theta, phi = self.theta, self.phi
        left = x if theta is None else apply_map(theta, x)
        if keys is None and phi is None:
            right = left
        else:
            source, embedding = x if keys is None else keys, theta if phi is None else phi
            right = source if embedding is None else apply_map(embedding, source)
        return left, right if pool is None else pool(right)

    def matrices(self) -> tuple[Tensor, Tensor] | None:
        """Return θ and φ [d, C] where they are all that there is: exp(scale · θ(x_i)·φ(x_j)), normalised by rows.

        None where the module, θ or φ must be called, as with a bias or a hook.
        """
        if not is_untouched(self, EmbeddedGaussian) or self.normalize != "row":
            return None
        theta, phi = plain_matrix(self.theta), plain_matrix(self.phi)
        return None if theta is None or phi is None else (theta, phi)

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.dim() == 3 and value.shape[-1] == self.channels:
            return
        raise ValueError(f"{name} must be a tensor [B, M, {self.channels}], got {shape_or_type(value)}")

    def reset(self, init: str, std: float) -> None:
        """Draw θ and φ again; see `initialize_map`."""
        for linear in (self.theta, self.phi):
            if linear is not None:
                initialize_map(linear, init, std)

    def extra_repr(self) -> str:
        parts = [f"channels={self.channels}", f"kind={self.kind}", f"normalize={self.normalize}"]
        if self.is_embedded:
            parts += [f"embed={self.width}", "shared" if self.shared else "separate"]
        if self.scale != 1.0:
            parts.append(f"scale={self.scale:.4g}")
        return ", ".join(parts)


class Gaussian(PairwiseAffinity):
    """ω = exp(x_i·x_j).

    >>> from nonloc.nn import Gaussian
    >>> Gaussian(4)(torch.zeros(1, 5, 4))
    Affinity(gaussian, row, B = 1, M = 5, d = 4)
    """

    kind = "gaussian"
    default_shared = True
    is_embedded = False


class EmbeddedGaussian(PairwiseAffinity):
    """ω = exp(θ(x_i)·φ(x_j)): the softmax of Wang et al. when normalised by rows.

    >>> from nonloc.nn import EmbeddedGaussian
    >>> EmbeddedGaussian(4, scaled=True, embed=16)(torch.zeros(1, 5, 4))
    Affinity(gaussian, row, B = 1, M = 5, d = 16, scale = 0.25)
    """

    kind = "gaussian"


class DotProduct(PairwiseAffinity):
    """ω = θ(x_i)·φ(x_j), divided by the number of positions.

    >>> from nonloc.nn import DotProduct
    >>> DotProduct(4)(torch.zeros(1, 5, 4))
    Affinity(dot, count, B = 1, M = 5, d = 2)
    """

    kind = "dot"
    default_normalize = "count"


class Concatenation(PairwiseAffinity):
    """ω = relu(w·[θ(x_i), φ(x_j)]), divided by the number of positions.

    With linear embeddings, w·[θ(x_i), φ(x_j)] = a·x_i + b·x_j exactly, with a = θᵀw₁ and b = φᵀw₂. So the
    parameters are a and b themselves, one map to one number for each side: embeddings of any width are the same.

    >>> from nonloc.nn import Concatenation
    >>> Concatenation(4)(torch.zeros(1, 5, 4))
    Affinity(concat, count, B = 1, M = 5, d = 1)
    """

    kind = "concat"
    default_normalize = "count"
    fixed_width = 1
    has_scale = False


class Heat(PairwiseAffinity):
    """ω = exp(−|θ(x_i) − φ(x_j)|²), at most 1; symmetric with a shared embedding, the default.

    >>> from nonloc.nn import Heat
    >>> affinity = Heat(4)(torch.zeros(1, 5, 4))
    >>> affinity.left is affinity.right
    True
    """

    kind = "heat"
    default_shared = True


class Delta(PairwiseAffinity):
    """ω = 1 if i = j, else 0: the local limit. Original blocks are z + W z, diffusive ones the identity.

    >>> from nonloc import kernel_matrix
    >>> from nonloc.nn import Delta
    >>> kernel_matrix(Delta(4)(torch.zeros(1, 2, 4))).tolist()
    [[[1.0, 0.0], [0.0, 1.0]]]
    """

    kind = "delta"
    default_shared = True
    is_embedded = False
    has_scale = False


AFFINITIES: dict[str, type[PairwiseAffinity]] = {
    "gaussian": Gaussian,
    "embedded_gaussian": EmbeddedGaussian,
    "dot": DotProduct,
    "concat": Concatenation,
    "heat": Heat,
    "delta": Delta,
}

AffinityLike = str | nn.Module | Callable[[int], nn.Module]
AnyAffinity = Affinity | SparseAffinity


def make_affinity(name_or_module: AffinityLike, channels: int, **keywords: Any) -> nn.Module:
    """Return an affinity module for `channels` channels.

    name_or_module  one of AFFINITIES, built with `keywords`; a module x [B, M, C] -> Affinity or SparseAffinity,
                    taken as it is; or a factory channels -> module (a class will do)

    >>> from nonloc.nn import Heat, make_affinity
    >>> make_affinity("dot", 4, normalize="row").normalize
    'row'
    >>> make_affinity(lambda channels: Heat(channels, 8), 4).width
    8
    """
    if isinstance(name_or_module, str):
        check_choice("affinity", name_or_module, AFFINITIES)
        return AFFINITIES[name_or_module](channels, **keywords)
    if useless := sorted(name for name, value in keywords.items() if value not in (None, False)):
        raise ValueError(
            f"{', '.join(useless)} can be set only for an affinity given by name; set it on the module you pass"
        )
    if isinstance(name_or_module, nn.Module):
        module = name_or_module
    elif callable(name_or_module):
        check_takes_one(
            "affinity",
            name_or_module,
            "the channels",
            "give a function such as lambda channels: Heat(channels, 8)",
        )
        try:
            module = name_or_module(channels)
        except Exception as error:
            raise ValueError(
                f"the affinity factory failed for {channels} channels ({type(error).__name__}: {error}); it is given "
                "the channels and returns a module. A function of x belongs in a module's forward: "
                "affinity=MyModule()"
            ) from error
    else:
        raise ValueError(
            f"affinity must be one of {', '.join(AFFINITIES)}, a module, or a factory channels -> module; "
            f"got {type(name_or_module).__name__}"
        )
    if not isinstance(module, nn.Module):
        raise ValueError(f"the affinity factory must return a torch module, got {type(module).__name__}")
    expected = getattr(module, "channels", channels)
    if expected != channels:
        raise ValueError(
            f"the affinity module is made for {expected} channels, the nonlocal module has {channels}"
        )
    return module


def check_affinity(affinity: object, mask: Tensor | None, *, is_subsampled: bool) -> AnyAffinity:
    """Return the result of an affinity module, with the mask of valid positions [B, M] if there is one."""
    if isinstance(affinity, Affinity):
        if mask is None:
            return affinity
        # The module may have masked positions of its own.
        return replace(affinity, mask=mask if affinity.mask is None else mask & affinity.mask)
    if not isinstance(affinity, SparseAffinity):
        raise ValueError(
            f"the affinity module must return an Affinity or a SparseAffinity, got {type(affinity).__name__}; return, "
            'for example, Affinity(left, right, "gaussian"), made of two tensors [B, M, d]'
        )
    if is_subsampled:
        raise ValueError(
            "subsample does not go with an affinity module that returns a SparseAffinity, whose graph joins the "
            "positions themselves; drop subsample"
        )
    if mask is not None:
        raise ValueError(
            "mask does not go with an affinity module that returns a SparseAffinity: one graph serves every sample. "
            "Where all samples lack the same positions, leave those without entries in the graph and drop mask; "
            "otherwise use an affinity module that returns an Affinity, such as Heat"
        )
    return affinity
