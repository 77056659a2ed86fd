"""The public functions of the operator: aggregate, diffuse, propagate, kernel_matrix, dirichlet_energy, adjoint.

Every function takes an `Affinity` or a `SparseAffinity` and z [B, M, C], and returns z's dtype. Half precision is
computed with float32 logits and sums. Mixed dtypes are computed in the widest of them. Where one affinity serves many
calls, `prepare` does once what each of them would begin with: aggregate, diffuse, propagate and dirichlet_energy take
what it returns in the affinity's place.

Derivatives, by backend; "no" is a ValueError that names another way:

    backend                   backward   double backward   forward mode   vmap, vmap(grad)
    reference                 yes        yes               yes            yes
    factored                  yes        yes               yes            yes
    factored, "sinkhorn"      yes        yes               no             of the values; no grad
    fused, stored, attention  yes        no                no             no
    factored, SparseAffinity  yes        yes               no             no

Backward is torch.autograd's. torch.func.grad behaves as the last column; forward mode is torch.func.jvp, jacfwd or dual
numbers. Under them "factored" stores the blocks of gaussian and heat: M × M numbers. Under vmap the values of an
affinity are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nonloc._checks import check_choice, check_flag
from nonloc._torch_compat import is_exporting, is_open_size, needs_derivative, needs_plain_torch
from nonloc.ops import exponential, factored, fused, reference, sparse
from nonloc.ops.affinity import (
    Affinity,
    check_batched,
    check_dtype,
    position_weights,
    without_masked,
    zero_masked,
)
from nonloc.ops.arithmetic import full_precision
from nonloc.ops.fused import choice
from nonloc.ops.normalize import Operator, check_kernel_values, sides
from nonloc.ops.sinkhorn import Matvec
from nonloc.ops.sparse import SparseAffinity

Weights = Sequence[Tensor | tuple[Tensor, Tensor]] | Tensor

# A backend prepares an affinity: (affinity, compute dtype) -> Operator. A new backend needs only an entry here.
BACKENDS: dict[str, Callable[[Affinity, torch.dtype], Operator]] = {
    "reference": reference.prepare,
    "factored": factored.prepare,
    "fused": fused.prepare,
    "stored": partial(fused.prepare, backend="stored"),
    "attention": partial(fused.prepare, backend="attention"),
}

# Up to this many kernel entries (B · M · M') the matrix is faster than the detour around it, by measurement on a CPU
# (`python -m benchmarks backends`).
REFERENCE_ENTRIES = {"row": 2**21, "count": 2**22, "none": 2**22, "symmetric": 2**22, "sinkhorn": 2**20}
CONCAT_ENTRIES = 2**19  # suffix sums pay earlier


@dataclass(frozen=True)
class Prepared:
    """K of an affinity, ready to be applied many times; the kernel is computed and normalised once.

    affinity    what it was made from
    operator    products and row sums, in the compute dtype
    dtype       the compute dtype
    is_sharded  whether the other positions are in other processes
    backend     as in `prepare`; what is copied or unpickled is prepared again

    >>> from nonloc import Affinity, prepare
    >>> same = torch.zeros(1, 2, 1)
    >>> kernel = prepare(Affinity(same, same, "heat", normalize="none"))
    >>> kernel.sums.flatten().tolist(), kernel.dtype
    ([2.0, 2.0], torch.float32)
    """

    affinity: Affinity | SparseAffinity
    operator: Operator
    dtype: torch.dtype
    is_sharded: bool = False
    backend: str = "auto"

    def __reduce__(self) -> tuple[Callable[..., Prepared], tuple[Any, ...]]:
        # The operator is made of local functions, which cannot be pickled.
        if self.is_sharded:
            raise ValueError(
                "a sharded kernel can be neither copied nor pickled; call prepare_sharded(affinity) in every process"
            )
        return partial(prepare, backend=self.backend), (self.affinity, self.dtype)

    @property
    def apply(self) -> Callable[[Tensor], Tensor]:
        """z [B, M', C] in `dtype`, with zeros at masked positions -> K z [B, M, C]."""
        return self.operator.apply

    @property
    def sums(self) -> Tensor:
        """The row sums Σ_j K_ij [B, M, 1]."""
        return self.operator.sums


AnyKernel = Affinity | SparseAffinity | Prepared


def aggregate(affinity: AnyKernel, z: Tensor, *, backend: str = "auto") -> Tensor:
    """(K z)_i = Σ_j K_ij z_j [B, M, C]: the original operation. z is [B, M', C] with sub-sampled givers.

    >>> from nonloc import Affinity, aggregate
    >>> same = torch.zeros(1, 2, 1)  # two positions alike: every weight is 1/2
    >>> aggregate(Affinity(same, same, "heat"), torch.tensor([[[0.0], [1.0]]])).flatten().tolist()
    [0.5, 0.5]
    """
    source = _source(affinity)
    check_signal(source, z, positions=source.right.shape[1] if isinstance(source, Affinity) else None)
    with full_precision(z):
        operator, signal = _prepare(affinity, z, backend)
        return operator.apply(signal).to(z.dtype)


def diffuse(affinity: AnyKernel, z: Tensor, *, backend: str = "auto") -> Tensor:
    """Σ_j K_ij (z_j − z_i) = (K z)_i − (Σ_j K_ij) z_i [B, M, C]: the proposed operation, ℒʰ z.

    >>> from nonloc import Affinity, diffuse
    >>> same = torch.zeros(1, 2, 1)  # two positions alike: every weight is 1/2
    >>> diffuse(Affinity(same, same, "heat"), torch.tensor([[[0.0], [1.0]]])).flatten().tolist()
    [0.5, -0.5]
    """
    _check_square(affinity, z, "diffuse")
    with full_precision(z):
        operator, signal = _prepare(affinity, z, backend)
        return (operator.apply(signal) - operator.sums * signal).to(z.dtype)


def propagate(
    affinity: AnyKernel, z: Tensor, weights: Weights, *, differences: bool = True, backend: str = "auto"
) -> Tensor:
    """z ← z + diffuse(affinity, z) W_nᵀ for each W_n in turn: a whole stage, Eq. (8) of the paper.

    weights      N items or a tensor [N, C, C]; an item is W [C, C], or a pair (W_Z [C, r], W_g [r, C]) that stands
                 for W_Z W_g and is never multiplied out: the kernel then works on r channels instead of C
    differences  False: z ← z + aggregate(affinity, z) W_nᵀ, the original form

    >>> from nonloc import Affinity, propagate
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> weights = torch.full((2, 1, 1), 0.5)  # two sub-blocks with W = 1/2
    >>> propagate(Affinity(same, same, "heat"), z, weights).flatten().tolist()
    [0.375, 0.625]
    """
    mask = _check_square(affinity, z, "propagate").mask
    check_flag("differences", differences)
    pairs = _weight_pairs(weights, z)
    with full_precision(z):
        if isinstance(affinity, Affinity):
            is_chosen = backend == "auto"
            if is_chosen:
                widest = max([0, *(outer.shape[-1] for outer, _ in pairs)])
                backend = choose_backend(affinity, z, hidden=widest, blocks=len(pairs))
            # As one computation, where the backend has one; the choice has asked already what it lacks.
            is_whole = backend in fused.BACKENDS and fused.takes_weights(z, pairs, backend)
            if is_whole and (is_chosen or fused.lacks(affinity, z, backend) is None):
                return fused.propagate(without_masked(affinity), z, pairs, differences, backend)
        operator, state = _prepare(affinity, z, backend)
        for outer, inner in pairs:
            hidden = state if inner is None else state @ inner.to(state.dtype).transpose(-2, -1)
            change = operator.apply(hidden)
            if differences:
                change = change - operator.sums * hidden
            state = state + change @ outer.to(state.dtype).transpose(-2, -1)
        result = state.to(z.dtype)
        return result if mask is None else torch.where(mask.unsqueeze(-1), result, z)


def kernel_matrix(affinity: Affinity | SparseAffinity) -> Tensor:
    """The dense normalised kernel K [B, M, M'], in the affinity's dtype (B = 1 for a sparse one). For small M.

    >>> from nonloc import Affinity, kernel_matrix
    >>> x = torch.eye(2)[None]
    >>> kernel_matrix(Affinity(x, x, "dot", normalize="count")).tolist()
    [[[0.5, 0.0], [0.0, 0.5]]]
    """
    check_kind(affinity)
    if isinstance(affinity, SparseAffinity):
        sparse.check_values(affinity)
        affinity = affinity.as_dense()
    dtype = compute_dtype(affinity)
    with full_precision(affinity.left):
        affinity = without_masked(affinity)
        check_kernel_values(affinity, dtype)
        kernel = reference.matrix(affinity, dtype)
    return kernel.to(torch.promote_types(affinity.left.dtype, affinity.right.dtype))


def dirichlet_energy(affinity: AnyKernel, z: Tensor, *, backend: str = "auto") -> Tensor:
    """½ Σ_ij K_ij |z_i − z_j|² of each sample [B]: the roughness of z, as the kernel weighs it.

    >>> from nonloc import Affinity, dirichlet_energy
    >>> same = torch.zeros(1, 2, 1)
    >>> dirichlet_energy(Affinity(same, same, "heat"), torch.tensor([[[0.0], [1.0]]])).item()
    0.5
    """
    _check_square(affinity, z, "dirichlet_energy")
    if isinstance(affinity, Prepared) and affinity.is_sharded:
        raise ValueError(
            "dirichlet_energy needs all positions in one process; give it an affinity of them all"
        )
    with full_precision(z):
        operator, signal = _prepare(affinity, z, backend)
        return energy(operator, signal).to(z.dtype)


def energy(operator: Operator, z: Tensor) -> Tensor:
    """½ Σ_ij K_ij |z_i − z_j|² of each sample [B], for z [B, M, C] in the compute dtype."""
    # A constant has no energy; without the mean, less cancels. Only positions that receive something count in it.
    receives = (operator.sums != 0).to(z.dtype)
    z = z - (receives * z).sum(1, keepdim=True) / receives.sum(1, keepdim=True).clamp(min=1)
    squares = z.square().sum(-1, keepdim=True)
    cross = (z * operator.apply(z)).sum(-1, keepdim=True)
    terms = operator.apply(squares) + operator.sums * squares - 2 * cross
    return 0.5 * terms.sum((1, 2))


def prepare(
    affinity: Affinity | SparseAffinity, dtype: torch.dtype | None = None, *, backend: str = "auto"
) -> Prepared:
    """K prepared once for many products: what `aggregate` and `diffuse` do before each product.

    dtype  to compute in; None is the affinity's own, and at least float32

    >>> from nonloc import Affinity, diffuse, prepare
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> kernel = prepare(Affinity(same, same, "heat"))
    >>> [diffuse(kernel, factor * z).flatten().tolist() for factor in (1, 2)]
    [[0.5, -0.5], [1.0, -1.0]]
    """
    check_kind(affinity)
    dtype = compute_dtype(affinity) if dtype is None else dtype
    check_dtype(dtype)
    chosen = backend
    if backend == "auto":
        chosen = choose_backend(affinity)
        # A wider dtype than that of the features asks for more precision than these kernels have.
        if chosen in fused.BACKENDS and dtype != compute_dtype(affinity):
            chosen = "factored"
    elif backend in fused.BACKENDS:
        fused.check(affinity, backend=backend)
    with full_precision(_numbers(affinity)[0]):
        return Prepared(affinity, _operator(affinity, dtype, chosen), dtype, backend=backend)


def _operator(affinity: Affinity | SparseAffinity, dtype: torch.dtype, backend: str) -> Operator:
    """K by a backend that is chosen; one of `fused.BACKENDS` lacks nothing."""
    check_choice("backend", backend, ("auto", *BACKENDS))
    if isinstance(affinity, SparseAffinity):
        sparse.check_transforms(backend)
        if backend == "factored":
            return sparse.prepare(affinity, dtype)
        affinity = affinity.as_dense()
    affinity = without_masked(affinity)
    check_kernel_values(affinity, dtype)
    return BACKENDS[backend](affinity, dtype)


def apply_adjoint(affinity: Affinity | SparseAffinity, p: Tensor) -> Tensor:
    """Kᵀ p [B, M', C] for p [B, M, C]: how laws move when K_ij is the probability of i → j.

    >>> from nonloc.ops import SparseAffinity, apply_adjoint
    >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to_sparse_csr()
    >>> apply_adjoint(SparseAffinity(path), torch.tensor([[[0.0], [1.0], [0.0]]])).flatten().tolist()
    [0.5, 0.0, 0.5]
    """
    check_kind(affinity)
    check_signal(affinity, p, "p")
    dtype = compute_dtype(affinity, p)
    with full_precision(p):
        return adjoint(affinity, dtype)(zero_masked(p, affinity.mask).to(dtype)).to(p.dtype)


def adjoint(affinity: Affinity | SparseAffinity, dtype: torch.dtype | None = None) -> Matvec:
    """p -> Kᵀ p, prepared once for many products; p in `dtype` (the affinity's own when left out).

    Kᵀ = diag(b) Ωᵀ diag(a), and Ωᵀ is Ω with left and right exchanged: memory stays linear in M.

    >>> from nonloc.ops import SparseAffinity, adjoint
    >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to_sparse_csr()
    >>> move = adjoint(SparseAffinity(path))  # a walker in the middle goes either way
    >>> move(torch.tensor([[[0.0], [1.0], [0.0]]])).flatten().tolist()
    [0.5, 0.0, 0.5]
    """
    check_kind(affinity)
    dtype = compute_dtype(affinity) if dtype is None else dtype
    check_dtype(dtype)
    if isinstance(affinity, SparseAffinity):
        sparse.check_values(affinity)
        forward = backward = sparse.product(affinity.matrix, dtype)
        if not sparse.is_symmetric(affinity):
            backward = sparse.product(sparse.transposed(affinity.matrix), dtype)
        a, b, _ = sides(forward, sparse.weights(affinity, dtype), affinity)
        return lambda p: b * backward(a * p)
    affinity = without_masked(affinity)
    check_kernel_values(affinity, dtype)
    if affinity.kind == "delta":
        return lambda p: aggregate(affinity, p)
    if affinity.has_logits:
        return exponential.adjoint(affinity, dtype)
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    forward, backward = factored.product(affinity, left, right), factored.product(affinity, right, left)
    a, b, _ = sides(forward, position_weights(affinity, dtype).unsqueeze(-1), affinity)
    if affinity.mask is None:
        return lambda p: b * backward(a * p)
    keep = affinity.mask.unsqueeze(-1)
    return lambda p: b * backward(a * (keep * p))


def choose_backend(
    affinity: Affinity | SparseAffinity,
    z: Tensor | None = None,
    *,
    hidden: int | None = None,
    blocks: int = 1,
) -> str:
    """The backend that "auto" takes.

    On a GPU, in half precision and for wide features, by measurements (`fused.choice`); elsewhere the matrix while it
    is small, and "factored" above.

    hidden  r, the channels that the kernel works on; those of z, or else d, when left out
    blocks  N, the sub-blocks that share the affinity

    >>> from nonloc.ops import Affinity, choose_backend
    >>> x = torch.zeros(1, 16, 4)
    >>> choose_backend(Affinity(x, x, "heat"))
    'reference'
    """
    check_kind(affinity)
    if isinstance(affinity, SparseAffinity) or affinity.kind in ("dot", "delta"):
        return "factored"
    if hidden is None:
        hidden = affinity.left.shape[-1] if z is None else z.shape[-1]
    chosen = choice.choose(affinity, z, hidden, blocks)
    if chosen is not None:
        return chosen
    sides = (affinity.left, affinity.right)
    if affinity.normalize == "sinkhorn" and needs_plain_torch() and any(map(needs_derivative, sides)):
        return "reference"  # without the matrix it has no such derivative
    entries = affinity.positions * affinity.right.shape[1]
    if is_open_size(entries):
        is_attention = affinity.has_logits and affinity.normalize == "row"
        return "factored" if is_attention else "reference"
    # An exported program may serve any batch: its choice must not depend on the one it was traced with.
    if not is_exporting():
        entries = entries * affinity.batch
    limit = CONCAT_ENTRIES if affinity.kind == "concat" else REFERENCE_ENTRIES[affinity.normalize]
    return "reference" if entries <= limit else "factored"


def _prepare(affinity: AnyKernel, z: Tensor, backend: str) -> tuple[Operator, Tensor]:
    """K, and z in its dtype with zeros at masked positions."""
    if isinstance(affinity, Prepared):
        _check_prepared(affinity, z, backend)
        return affinity.operator, zero_masked(z, affinity.affinity.mask).to(affinity.dtype)
    if backend == "auto":
        backend = choose_backend(affinity, z)
    elif backend in fused.BACKENDS:
        fused.check(affinity, z, backend)
    dtype = compute_dtype(affinity, z)
    return _operator(affinity, dtype, backend), zero_masked(z, affinity.mask).to(dtype)


def _check_prepared(prepared: Prepared, z: Tensor, backend: str) -> None:
    if backend != "auto":
        raise ValueError(
            f"backend={backend!r} comes too late: the affinity is prepared; use prepare(…, backend={backend!r})"
        )
    if torch.promote_types(z.dtype, prepared.dtype) != prepared.dtype:
        raise ValueError(
            f"z is {z.dtype} and the affinity is prepared in {prepared.dtype}; use prepare(affinity, {z.dtype})"
        )


def _source(affinity: AnyKernel) -> Affinity | SparseAffinity:
    """The affinity that a prepared one was made from, or itself; a ValueError for anything else."""
    if isinstance(affinity, Prepared):
        return affinity.affinity
    check_kind(affinity)
    return affinity


def _numbers(affinity: Affinity | SparseAffinity) -> tuple[Tensor, ...]:
    """The tensors that decide the dtype and the device."""
    return (affinity.matrix,) if isinstance(affinity, SparseAffinity) else (affinity.left, affinity.right)


def compute_dtype(affinity: Affinity | SparseAffinity, *others: Tensor) -> torch.dtype:
    """The widest dtype among them, and at least float32."""
    dtype = torch.float32
    for tensor in (*_numbers(affinity), *others):
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def check_kind(affinity: Any, name: str = "affinity") -> None:
    """ValueError unless it is an Affinity or a SparseAffinity."""
    if not isinstance(affinity, (Affinity, SparseAffinity)):
        raise ValueError(
            f"{name} must be an Affinity or a SparseAffinity, got {type(affinity).__name__}; "
            'for example Affinity(x, x, "heat") with x = points[None] for points [M, d]; that of a stage is '
            "stage.affinity(x)"
        )


def _check_square(affinity: AnyKernel, z: Tensor, name: str) -> Affinity | SparseAffinity:
    """Return the affinity; a ValueError unless it has as many givers as receivers, and z fits it."""
    source = _source(affinity)
    if isinstance(source, Affinity) and not source.is_square:
        raise ValueError(
            f"{name} needs z_j − z_i, so left and right must have the same positions; got "
            f"{source.positions} and {source.right.shape[1]}. Sub-sampled givers work with aggregate alone"
        )
    check_signal(source, z)
    return source


def check_signal(
    affinity: Affinity | SparseAffinity, z: Tensor, name: str = "z", positions: int | None = None
) -> None:
    """ValueError unless z is a signal [B, M, C] on the affinity's device and positions, or on so many."""
    check_batched(name, z, "C")
    if isinstance(affinity, SparseAffinity):
        batch, own, device = z.shape[0], affinity.positions, affinity.matrix.device
    else:
        (batch, own, _), device = affinity.left.shape, affinity.left.device
    positions = own if positions is None else positions
    if z.shape[0] != batch or z.shape[1] != positions:
        raise ValueError(
            f"{name} {list(z.shape)} must have the affinity's batch and positions, [{batch}, {positions}, C]; several "
            "signals on the same positions are channels"
        )
    if z.device != device:
        raise ValueError(f"{name} is on {z.device}, the affinity on {device}; move both to one device")


def check_weight(name: str, w: Tensor, device: torch.device) -> None:
    """ValueError unless W, or a factor of it, is made of real numbers on this device."""
    if not w.dtype.is_floating_point:
        fix = ".real" if w.dtype.is_complex else ".double()"
        raise ValueError(f"{name} must be floating point and real, got {w.dtype}; use {fix}")
    if w.device != device:
        raise ValueError(f"{name} is on {w.device}, the signal on {device}; move both to one device")


def _weight_pairs(weights: Weights, z: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """Each item as (outer, inner): W = outer, or W = outer inner."""
    channels, device = z.shape[-1], z.device
    is_one = not isinstance(weights, Iterable) or (isinstance(weights, Tensor) and weights.dim() < 3)
    items = [weights] if is_one else list(weights)
    is_wrong = is_one
    for item in items:
        if isinstance(item, (tuple, list)):
            is_wrong |= len(item) != 2 or not (isinstance(item[0], Tensor) and isinstance(item[1], Tensor))
        else:
            is_wrong |= not isinstance(item, Tensor)
    if is_wrong:
        raise ValueError(
            f"weights must hold a matrix or a pair for each sub-block; one W [{channels}, {channels}] goes in as [W], "
            f"a number w as [w * torch.eye({channels})]"
        )
    pairs: list[tuple[Tensor, Tensor | None]] = []
    for n, item in enumerate(items):
        outer, inner = item if isinstance(item, (tuple, list)) else (item, None)
        if inner is None:
            fits = outer.shape == (channels, channels)
        else:
            fits = inner.shape[1:] == (channels,) and outer.shape == inner.shape[::-1]
        if not fits:
            got = list(outer.shape) if inner is None else f"({list(outer.shape)}, {list(inner.shape)})"
            raise ValueError(
                f"weights[{n}] is {got}; with C = {channels} channels an item is W [{channels}, {channels}], or a "
                f"pair (W_Z [{channels}, r], W_g [r, {channels}])"
            )
        for factor in (outer,) if inner is None else (outer, inner):
            # z is checked already; what is like it needs no more questions.
            if factor.dtype != z.dtype or factor.device != device:
                check_weight(f"weights[{n}]", factor, device)
        pairs.append((outer, inner))
    return pairs
