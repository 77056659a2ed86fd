"""Gaussian and heat kernels with row normalisation on a GPU: three backends, for whole stages and products.

"fused" never stores K. A stage allows more than attention libraries can use:

- K is the same in every sub-block, so its row sums are computed once, in the first one;
- the update z + (K g − g) W_Zᵀ and the next g = z W_gᵀ are in the launch that computes K g;
- backward, a sub-block needs only Kᵀ dR. The gradient of the affinity is one pass for all sub-blocks, because
  Σ_n dR_n G_nᵀ is one product with inner dimension N·r, and δ_i = Σ_n dR_n,i · (K G_n)_i comes from stored numbers.

Rounding in δ would give the rows of the logits' gradient K (dK − δ) a sum, which must be 0. That error is as large as
the keys, and larger than the gradient where rows of K are nearly one number (`docs/performance.md`). The pass over the
rows removes it.

"stored" has K for some samples at a time (stored.py), and is faster where features are wide. "attention" is that of the
vendor (attention.py), for gaussian kernels without a mask. All three are for Triton's GPUs.

Half precision uses tensor cores with float32 logits, sums and accumulators; between sub-blocks the state has the
input's dtype, which may be float32 where the features are narrower. float32 is three tf32 products, as exact as
float32, unless torch's setting allows tf32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nonloc._torch_compat import TRITON_SINCE, has_triton, is_forward_mode, is_transformed
from nonloc.ops.affinity import Affinity, valid_positions, zero_masked
from nonloc.ops.arithmetic import LOG_ZERO, in_dtype
from nonloc.ops.fused import attention
from nonloc.ops.fused.launch import CHUNK, Settings, is_interpreted, is_launching
from nonloc.ops.fused.operators import Computation, fused_product, fused_stage, stored_product, stored_stage
from nonloc.ops.fused.passes import SMALLEST
from nonloc.ops.fused.stored import WIDEST_ROW
from nonloc.ops.normalize import Operator
from nonloc.ops.sparse import SparseAffinity

WIDEST_FEATURES = 128  # d of the features and r of the hidden channels
WIDEST_STATE = 512  # C
LARGEST_BATCH = 65_535  # what a launch takes in its second direction


BACKENDS = ("fused", "stored", "attention")
STAGES: dict[str, Computation] = {"fused": fused_stage, "stored": stored_stage}
PRODUCTS: dict[str, Computation] = {"fused": fused_product, "stored": stored_product}


def prepare(affinity: Affinity, dtype: torch.dtype, backend: str = "fused") -> Operator:
    """K prepared, where nothing is lacking; products are in the features' dtype with float32 sums."""
    sums = valid_positions(affinity).unsqueeze(-1).to(dtype)
    if backend == "attention":
        return Operator(lambda z: sums * attention.product(affinity, z).to(dtype), sums)
    return Operator(lambda z: sums * _product(affinity, z, backend).to(dtype), sums)


def propagate(
    affinity: Affinity,
    z: Tensor,
    pairs: Sequence[tuple[Tensor, Tensor | None]],
    differences: bool,
    backend: str,
) -> Tensor:
    """A whole stage; masked features are zeros already, masked positions come back as they are.

    differences  False: K in the place of K − 1
    """
    if backend == "attention":
        return attention.propagate(affinity, z, pairs, differences)
    mask, state = affinity.mask, zero_masked(z, affinity.mask)
    w_z, w_g = stack_weights(pairs)
    if backend == "stored":
        dtype = affinity.left.dtype
        rest = (state.contiguous(), in_dtype(w_z, dtype), in_dtype(w_g, dtype))
    else:
        channels, hidden = padded_channels(z.shape[-1]), padded_width(w_z.shape[-1])
        rest = (_widened(state, channels), _widened(w_z, hidden, channels), _widened(w_g, channels, hidden))
    settings = _settings(affinity, differences)
    result = STAGES[backend](*_logits(affinity, backend), *rest, settings=settings)
    if result.shape != z.shape:
        result = result[..., : z.shape[-1]]
    return result if mask is None else torch.where(mask.unsqueeze(-1), result, z)


def stack_weights(pairs: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """W_Z [N, C, r] and W_g [N, r, C]; without an inner factor W_g is the identity."""
    if len(pairs) == 1 and pairs[0][1] is not None:
        outer, inner = pairs[0]
        return outer.unsqueeze(0), inner.unsqueeze(0)
    w_z = torch.stack([outer for outer, _ in pairs])
    inners = [inner for _, inner in pairs if inner is not None]
    if inners:
        return w_z, torch.stack(inners)
    identity = torch.eye(w_z.shape[-1], dtype=w_z.dtype, device=w_z.device)
    return w_z, identity.expand(len(pairs), -1, -1)


def takes_weights(z: Tensor, pairs: Sequence[tuple[Tensor, Tensor | None]], backend: str) -> bool:
    """Return whether the state and all weights fit into one computation, where the backend lacks nothing."""
    ranks = {(outer.shape[-1], inner is None) for outer, inner in pairs}
    if backend != "attention" and len(ranks) != 1:
        return False
    return all(takes_widths(z.shape[-1], rank, backend) for rank, _ in ranks)


def takes_widths(channels: int, hidden: int, backend: str) -> bool:
    """Return whether one computation takes a state and hidden channels of these widths; else it is in pieces."""
    if backend == "attention":
        return hidden <= attention.WIDEST
    return backend == "stored" or (channels <= WIDEST_STATE and hidden <= WIDEST_FEATURES)


def check(affinity: Affinity | SparseAffinity, z: Tensor | None = None, backend: str = "fused") -> None:
    """ValueError, with the reason, where these kernels do not apply."""
    lacking = lacks(affinity, z, backend)
    if lacking is not None:
        raise ValueError(f'backend="{backend}" needs {lacking}; use backend="auto"')


def lacks(affinity: Affinity | SparseAffinity, z: Tensor | None = None, backend: str = "fused") -> str | None:
    """What the backend needs and the arguments do not have, in words; None where it applies."""
    if isinstance(affinity, SparseAffinity):
        return "an Affinity, not a SparseAffinity"
    if is_transformed() or is_forward_mode():
        return "tensors of their own, not those of torch.func (vmap, grad, jvp) or of forward mode"
    if not affinity.has_logits or affinity.normalize != "row":
        return f'kind "gaussian" or "heat" with normalize="row", not {affinity.kind!r} with {affinity.normalize!r}'
    if affinity.measure is not None:
        return "an affinity without a measure"
    (batch, positions, width), givers = affinity.left.shape, affinity.right.shape[1]
    if givers != positions:
        return f"as many givers as receivers, not {givers} and {positions}"
    if batch > LARGEST_BATCH:
        return f"a batch of at most {LARGEST_BATCH:,}, not {batch:,}"
    if backend == "attention" and (affinity.kind != "gaussian" or affinity.mask is not None):
        return 'kind "gaussian" without a mask'
    widest = {"fused": WIDEST_FEATURES, "attention": attention.WIDEST}.get(backend)
    if widest is not None and width > widest:
        return f"features of d ≤ {widest}, not {width}"
    if backend == "stored" and positions > WIDEST_ROW:
        return f"at most {WIDEST_ROW:,} positions, not {positions:,}"
    dtype, other = affinity.left.dtype, affinity.right.dtype
    state = dtype if z is None or z.dtype == torch.float32 else z.dtype
    if not dtype == other == state or dtype not in (torch.float32, torch.float16, torch.bfloat16):
        names = " and ".join(sorted({str(one).removeprefix("torch.") for one in (dtype, other, state)}))
        return f"features in one dtype of float32, float16 and bfloat16, and z in that or in float32, not {names}"
    if backend == "attention" and dtype == torch.float32:
        return "features in float16 or bfloat16, not float32"
    # Inside a traced program nothing can be asked about the machine; the operator says it when it runs.
    if not torch.compiler.is_compiling() and is_launching() and not is_available(affinity.left.device):
        device = f"a CUDA device of compute capability 8 or more, and Triton, not {affinity.left.device}"
        return f"torch {TRITON_SINCE[0]}.{TRITON_SINCE[1]} or newer, {device}"
    return None


@cache
def is_available(device: torch.device) -> bool:
    if not has_triton():
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and is_interpreted()


def _product(affinity: Affinity, z: Tensor, backend: str) -> Tensor:
    """K z [B, M, C] in float32, for any C."""
    query, key, bias = _logits(affinity, backend)
    settings, compute = _settings(affinity, False), PRODUCTS[backend]
    if backend == "stored":
        return compute(query, key, bias, z.to(query.dtype), settings=settings)
    pieces = [
        compute(query, key, bias, _padded(piece.to(query.dtype)), settings=settings)[..., : piece.shape[-1]]
        for piece in z.split(min(z.shape[-1], WIDEST_FEATURES), -1)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def _logits(affinity: Affinity, backend: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """q, k and b with Ω_ij ∝ exp(scale · q_i·k_j + b_j): a row's own factor cancels in its sum."""
    left, right, bias = affinity.left, affinity.right, None
    if affinity.kind == "heat":
        left, right = _centred(affinity)
        bias = -affinity.scale * right.float().square().sum(-1)
    if affinity.mask is not None:
        bias = torch.where(affinity.mask, 0.0 if bias is None else bias, LOG_ZERO)
    if backend == "stored":
        return left.contiguous(), right.contiguous(), bias
    return _padded(left), _padded(right), bias


def _centred(affinity: Affinity) -> tuple[Tensor, Tensor]:
    """Features around zero, so that |l − r|² is not the difference of large numbers; it does not see a shift.

    In half precision only where the shift rounds nothing, which is where it is needed: numbers within a factor of two
    of each other have an exact difference.
    """
    left, right = affinity.left, affinity.right
    with torch.no_grad():
        valid = valid_positions(affinity).unsqueeze(-1)
        total = torch.where(valid, right, 0).sum(1, keepdim=True, dtype=torch.float32)
        centre = (total / valid.sum(1, keepdim=True).clamp(min=1)).to(right.dtype)
        if right.dtype != torch.float32:
            low, high = centre.abs() / 2, centre.abs() * 2
            is_exact = torch.ones_like(centre, dtype=torch.bool)
            for x in (left, right):
                size = x * centre.sign()
                within = ((size >= low) & (size <= high)) | ~valid
                is_exact &= within.all(1, keepdim=True)
            centre = torch.where(is_exact, centre, 0)
    return left - centre, right - centre


def _settings(affinity: Affinity, differs: bool) -> Settings:
    scale = affinity.scale * (2 if affinity.kind == "heat" else 1)
    return Settings(float(scale), differs, torch.are_deterministic_algorithms_enabled())


def _padded(x: Tensor) -> Tensor:
    return _widened(x, padded_width(x.shape[-1]))


def _widened(x: Tensor, width: int, rows: int | None = None) -> Tensor:
    """Zeros on the right up to a width, and below up to so many rows."""
    extra = [0, width - x.shape[-1]]
    if rows is not None:
        extra += [0, rows - x.shape[-2]]
    return (pad(x, extra) if any(extra) else x).contiguous()


def padded_width(width: int) -> int:
    """Of features and hidden channels: a power of two."""
    return max(SMALLEST, 1 << (width - 1).bit_length())


def padded_channels(channels: int) -> int:
    """Of a state: a power of two, or some chunks."""
    return padded_width(channels) if channels <= CHUNK else -(-channels // CHUNK) * CHUNK
