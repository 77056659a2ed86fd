"""Launches of the fused kernels: tile sizes, and the arguments of each kernel."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nonloc._torch_compat import has_triton
from nonloc.ops.arithmetic import in_dtype

WIDEST_PRODUCT = 256  # columns of dR and G that one pass takes
CHUNK = 64  # channels of a state that a kernel takes at a time
LARGEST_OFFSET = 2**31  # elements: the kernels count in 32 bits within the sub-blocks of one pass
LOG2_E = math.log2(math.e)


_is_launching: ContextVar[bool] = ContextVar("is_launching", default=True)


@contextmanager
def without_launches() -> Iterator[None]:
    """Allocate everything and launch nothing."""
    token = _is_launching.set(False)
    try:
        yield
    finally:
        _is_launching.reset(token)


def is_launching() -> bool:
    return _is_launching.get()


@cache
def is_interpreted() -> bool:
    """Return whether Triton interprets its kernels on the CPU, for tests; Triton, too, asks once."""
    return has_triton() and os.environ.get("TRITON_INTERPRET") == "1"


_compiled: dict[Any, Any] = {}


def launch_kernel(
    site: tuple[Any, ...], describe: Callable[[], tuple[Any, ...]], arguments: Sequence[Any]
) -> None:
    """Launch a kernel of Triton, on the device that `site` begins with.

    What is compiled is kept: to find out anew that it is, Triton needs longer than the GPU for a small launch.

    site      all that the code and the launch depend on
    describe  returns the kernel, the grid, the constants after the arguments, and Triton's options
    """
    device = site[0]
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch_kernel(site, describe, arguments)
    found = _compiled.get(site)
    if found is not None:
        run, constants = found
        return run(*arguments, *constants)
    kernel, grid, constants, options = describe()
    compiled = kernel[grid](*arguments, **constants, **options)
    if not is_interpreted():
        ordered = [constants[name] for name in kernel.arg_names[len(arguments) :]]
        _compiled[site] = compiled[(*grid, 1)], ordered


def make_site(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The device and the sizes of the first, and of each tensor its dtype and how it lies: Triton compiles anew for
    addresses that are no multiples of 16."""
    kinds = [None if one is None else (one.dtype, one.data_ptr() % 16) for one in (first, *others)]
    return first.device, *first.shape, *kinds


class Tile(NamedTuple):
    """How a kernel is cut: positions held, positions a step, warps, pipeline stages, registers a thread."""

    block: int
    step: int
    warps: int
    stages: int
    registers: int | None = None


# By measurement on an H200, for d and r up to 32 in half precision: 128 positions and 128 registers let four programs
# share a multiprocessor, and then one wave more or less decides.
NARROW = {
    "begin": Tile(256, 0, 4, 1),
    "embed": Tile(128, 0, 4, 1),
    "first": Tile(128, 64, 4, 3, 128),
    "first_mean": Tile(64, 64, 4, 3),
    "next": Tile(128, 64, 4, 3, 128),
    "turn": Tile(64, 0, 4, 1),
    "adjoint": Tile(128, 64, 4, 3, 128),
    "key": Tile(128, 64, 8, 2, 128),
    "finish": Tile(128, 0, 4, 1),
    "query": Tile(128, 64, 8, 3),
}
# One sub-block has less to hold in the gradient of its affinity.
SINGLE = NARROW | {"key": Tile(64, 64, 4, 3, 128), "query": Tile(64, 64, 4, 3, 128)}
# More than four keep two programs of "query" on a multiprocessor only with one step less in flight.
DEEP = NARROW | {"query": Tile(128, 64, 8, 2, 128)}
# Wider features, and float32, need more shared memory and registers for each position.
WIDE = {
    "begin": Tile(64, 0, 4, 1),
    "embed": Tile(64, 0, 8, 1),
    "first": Tile(64, 64, 4, 2),
    "first_mean": Tile(64, 64, 4, 2),
    "next": Tile(64, 64, 4, 2),
    "turn": Tile(64, 0, 4, 1),
    "adjoint": Tile(64, 64, 4, 2),
    "key": Tile(64, 32, 4, 2),
    "finish": Tile(64, 0, 4, 1),
    "query": Tile(64, 32, 4, 2),
}
EXACT = {name: Tile(32, 0 if tile.step == 0 else 32, 4, 1) for name, tile in WIDE.items()}


def choose_tiles(query: Tensor, hidden: int, blocks: int) -> dict[str, Tile]:
    """The tiles of a stage by the width of its features, its hidden channels and the number of its sub-blocks."""
    if query.dtype == torch.float32 or is_interpreted():
        return EXACT
    if max(query.shape[-1], hidden) > 32:
        return WIDE
    return SINGLE if blocks == 1 else NARROW if blocks <= 4 else DEEP


class Settings(NamedTuple):
    """Settings that all launches of one stage share.

    scale          of the logits q_i·k_j
    differs        R = K G − G, the diffusive form, or R = K G, the original one
    deterministic  no atomic sums, whose order changes from run to run
    has_gradient   q, k or b have one
    dtype          of the features; None where they are given
    """

    scale: float
    differs: bool
    deterministic: bool
    has_gradient: bool = False
    dtype: torch.dtype | None = None


class Adjoint(NamedTuple):
    """The arguments of one sub-block backward, without q, k, b, LSE and RATIO.

    dr                  dR, the gradient of R, times RATIO
    r, dz, w_g, dz_out  R; the gradient of the sub-block's output; W_g; output: the gradient of its input
    dg                  output: dG; None where dw is not None
    z, dw               the sub-block's input; [slots, 2, C · H] to add the gradients of W_g and W_Z to

    Without dz there is only R, and dG is the only output.
    """

    dr: Tensor
    r: Tensor | None = None
    dz: Tensor | None = None
    w_g: Tensor | None = None
    dz_out: Tensor | None = None
    dg: Tensor | None = None
    z: Tensor | None = None
    dw: Tensor | None = None

    @property
    def slots(self) -> int:
        return 0 if self.dw is None else self.dw.shape[0]


class Turn(NamedTuple):
    """Where backward begins: the stage's gradient, W_Z and R of the last sub-block; without W_Z there is only R."""

    dz: Tensor
    w_z: Tensor | None
    r: Tensor


class Before(NamedTuple):
    """The previous sub-block: its W_Z, R and G; outputs: its dR, and δ, to which it adds its part."""

    w_z: Tensor
    r: Tensor
    g: Tensor
    dr: Tensor
    delta: Tensor


Embedding = tuple[Tensor, Tensor] | None
"""θ and φ [d, C], where q and k are computed from the state."""


class Launcher:
    """Launch the kernels for one set of q, k, b."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        hidden: int,
        channels: int,
        blocks: int,
        s: Settings,
        *others: Tensor | None,
    ) -> None:
        """others: all further tensors that come from outside."""
        self.batch, self.positions, self.depth = query.shape
        self.q, self.k = query, key
        self.bias = None if bias is None else (bias * LOG2_E).contiguous()
        self.hidden, self.channels = hidden, channels
        self.tiles = choose_tiles(query, hidden, blocks)
        self.scale = s.scale * LOG2_E
        self.factor = s.scale
        self.differs = s.differs
        self.precision = "tf32"
        if query.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
            self.precision = "tf32x3"
        self.chunk = min(channels, CHUNK)
        if is_launching():
            self.site = *make_site(query, key, bias, *others), hidden, channels, blocks, self.precision
        # Small kernels inside large ones cost registers. With wider features, fewer programs would then run at a time.
        self.merges = query.dtype != torch.float32 and max(self.depth, hidden) <= 32

    def launch(self, name: str, kernel: str, *tensors: Any, **constants: Any) -> None:
        """Which tensors are None is known from the name and the constants."""
        if not is_launching():
            return

        def describe() -> tuple[Any, ...]:
            # Triton is needed only for a launch.
            from nonloc.ops.fused import kernels

            tile, m = self.tiles[name], self.positions
            options: dict[str, Any] = {"num_warps": tile.warps, "num_stages": tile.stages}
            if tile.registers is not None and not is_interpreted():
                options["maxnreg"] = tile.registers
            if tile.step:
                constants["STEP"] = tile.step
            constants["BLOCK"] = tile.block
            constants["EVEN"] = m % tile.block == 0 and (tile.step == 0 or m % tile.step == 0)
            constants["PRECISION"] = self.precision
            return getattr(kernels, kernel), (-(-m // tile.block), self.batch), constants, options

        launch_kernel((*self.site, name, *constants.values()), describe, tensors)

    def begin(
        self, x: Tensor | None, w_g: Tensor | None, g: Tensor | None, norms: Tensor | None, embedding: Embedding = None
    ) -> None:  # fmt: skip
        """With an embedding, q and k are outputs."""
        self.launch(
            "begin" if embedding is None else "embed", "begin_kernel",
            x, w_g, *(embedding or (None, None)), self.q, self.k, g, norms, self.positions,
            D=self.depth, H=self.hidden, C=self.channels, CHUNK=self.chunk,
            NORMS=norms is not None, PROJECTS=g is not None, EMBEDS=embedding is not None,
        )  # fmt: skip

    def make_norms(self, embedding: Embedding = None) -> Tensor | None:
        """An empty tensor for the largest |k|² of every block; None with a bias, where it is not used."""
        if self.bias is not None:
            return None
        blocks = -(-self.positions // self.tiles["begin" if embedding is None else "embed"].block)
        return torch.empty(self.batch, blocks, device=self.q.device, dtype=torch.float32)

    def forward(
        self, lse: Sequence[Tensor], norms: Tensor | None, is_first: bool, mean: Tensor | None, g: Tensor,
        r: Tensor | None, z: Tensor | None = None, w_z: Tensor | None = None, w_g: Tensor | None = None,
        z_out: Tensor | None = None, g_out: Tensor | None = None,
    ) -> None:  # fmt: skip
        """One sub-block. lse: LSE and RATIO [B, M]; mean: output K k, of the first sub-block only."""
        blocks = 1 if norms is None else norms.shape[1]
        name = "next" if not is_first else "first" if mean is None else "first_mean"
        self.launch(
            name, "forward_kernel", self.q, self.k, self.bias, norms, *lse, mean, g, z, w_z, w_g, z_out, g_out, r,
            self.positions, self.scale, blocks,
            D=self.depth, H=self.hidden, C=self.channels, CHUNK=self.chunk,
            NORM_BLOCKS=1 << (blocks - 1).bit_length(), FIRST=is_first, MEANS=mean is not None,
            UPDATES=z is not None, DIFFERS=self.differs, HAS_NEXT=g_out is not None, SAVES=r is not None,
            HAS_BIAS=self.bias is not None,
        )  # fmt: skip

    def turn(
        self, lse: Sequence[Tensor], turn: Turn, dr: Tensor, delta: Tensor, g: Tensor, may_wait: bool
    ) -> Turn | None:
        """Find dR and δ of the last sub-block; or, if it may wait, return it for `affinity_gradient` to do so."""
        if may_wait and self.merges:
            return turn
        self.launch(
            "turn", "turn_kernel", *turn, g, lse[1], dr, delta, self.positions,
            H=self.hidden, C=self.channels, CHUNK=self.chunk, UPDATES=turn.w_z is not None, DIFFERS=self.differs,
        )  # fmt: skip
        return None

    def adjoint(self, lse: Sequence[Tensor], a: Adjoint, before: Before | None = None) -> None:
        self.launch(
            "adjoint", "adjoint_kernel",
            self.q, self.k, self.bias, *lse, *a, *(before or (None,) * 5), self.positions, self.scale,
            D=self.depth, H=self.hidden, C=self.channels, CHUNK=self.chunk,
            SLOTS=a.slots, UPDATES=a.dz is not None, DIFFERS=self.differs,
            HAS_PREVIOUS=before is not None, HAS_BIAS=self.bias is not None,
        )  # fmt: skip

    def affinity_gradient(
        self, lse: Sequence[Tensor], mean: Tensor, delta: Tensor, dr: Sequence[Tensor], g: Sequence[Tensor],
        step: Adjoint, turn: Turn | None, embedding: Embedding = None, de: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        """dq, dk, db from dR and G [B, M, H], a few sub-blocks at a time; and all outputs of `step`, the first one.

        dr, g          of all sub-blocks, one after another in memory
        turn           of the only sub-block: dR and δ are outputs
        embedding, de  θ and φ, and [slots, 2, C · H] to add their gradients to; dk is then only scratch
        """
        stride = g[0].numel()
        groups = _groups(len(g), self.hidden, stride)
        dtype = torch.float32 if len(groups) > 1 else self.q.dtype
        dk = torch.empty_like(self.k, dtype=dtype)
        dq = torch.empty_like(self.q, dtype=dtype)
        db = None if self.bias is None else torch.empty_like(delta)
        left = None if len(groups) == 1 else torch.empty_like(delta)
        has_bias = self.bias is not None
        updates = step.dz is not None
        merged = step if updates and len(groups) == 1 and self.merges else None
        dg = torch.empty_like(dr[0]) if step.dg is None and merged is None else step.dg
        rest: Sequence[Any] = (None,) * 10
        if merged is not None:
            _, r, dz, w_g, dz_out, _, z, dw = merged
            rest = (r, dz, w_g, dz_out, z, dw, dq, *(embedding or (None, None)), de)
        # The rows first, all of them: they make δ exact, which the columns need.
        for start, count in groups:
            self.launch(
                "query", "query_kernel",
                self.q, self.k, self.bias, *lse, mean, delta, left, dr[start], g[start], dq, *(turn or (None,) * 3),
                self.positions, stride, self.scale, self.factor,
                **self._widths(count), ADDS=start > 0, LAST=start == groups[-1][0],
                ONES=self.q.dtype != torch.float32, TURNS=turn is not None,
                UPDATES=turn is not None and turn.w_z is not None, DIFFERS=self.differs, HAS_BIAS=has_bias,
            )  # fmt: skip
        for start, count in groups:
            self.launch(
                "key", "key_kernel",
                self.q, self.k, self.bias, *lse, delta, dr[start], g[start], dk, db, dg, *rest,
                self.positions, stride, self.scale, self.factor,
                **self._widths(count), SLOTS=0 if merged is None else merged.slots,
                ADDS=start > 0, TRANSPOSES=start == 0, FINISHES=merged is not None,
                EMBEDS=merged is not None and embedding is not None, DIFFERS=self.differs, HAS_BIAS=has_bias,
            )  # fmt: skip
        dq, dk = in_dtype(dq, self.q.dtype), in_dtype(dk, self.k.dtype)
        if updates and merged is None:
            embedded = (None,) * 5 if embedding is None else (dq, dk, *embedding, de)
            self.launch(
                "finish", "finish_kernel",
                dg, step.r, step.dz, step.w_g, step.dz_out, step.z, step.dw, *embedded, self.positions,
                D=self.depth, H=self.hidden, C=self.channels, CHUNK=self.chunk,
                SLOTS=step.slots, EMBEDS=embedding is not None,
            )  # fmt: skip
        return dq, dk, db

    def _widths(self, count: int) -> dict[str, int]:
        """Of a pass over `count` sub-blocks, one or two powers of two."""
        wide = 1 << (count.bit_length() - 1)
        return {
            "D": self.depth,
            "H": self.hidden,
            "C": self.channels,
            "CHUNK": self.chunk,
            "WIDE": wide * self.hidden,
            "REST": (count - wide) * self.hidden,
        }


def _groups(blocks: int, hidden: int, stride: int) -> Sequence[tuple[int, int]]:
    """(first sub-block, how many) of each pass: as many as fit that are one or two powers of two.

    stride  elements of one sub-block's G
    """
    most = max(1, min(WIDEST_PRODUCT // hidden, LARGEST_OFFSET // max(1, stride)))
    groups, start = [], 0
    while start < blocks:
        count = min(most, blocks - start)
        while count.bit_count() > 2:
            count -= 1
        groups.append((start, count))
        start += count
    return groups
