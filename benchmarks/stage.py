"""A stage on a GPU, forward and backward: by our backends, and by every public way, in one run.

Every way takes q, k [B, M, d], x [B, M, C], W_Z [N, C, r] and W_g [N, r, C], and returns Z^N [B, M, C] for
K = softmax(q kᵀ). A way whose value or gradients are far from float64 is not timed.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from benchmarks.shared import format_range, format_size, markdown, median_and_range, time_calls, time_in_turns
from nonloc.ops import Affinity, propagate

LIMIT = 2**-5  # of ‖value − exact‖ / ‖exact‖, value and every gradient: eight roundings of bfloat16
NAMES = ("value", "q", "k", "x", "W_Z", "W_g")
LARGEST_MATRIX = 2**32  # bytes of K; ways that store it are left out above
EXACT_ENTRIES = 2**27  # of K in float64 that exist at one time: 1 GiB
COMPILING_SECONDS = 150  # in all: what would compile after that is left out
TIMED_MILLISECONDS = 30  # in one repeat

Talk = Callable[[str], None]
Stage = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    """B, M, N, C, d = r, and the dtype of everything."""

    batch: int
    positions: int
    blocks: int
    channels: int = 64
    embed: int = 32
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        dtype = "" if self.dtype == "bfloat16" else f", {self.dtype}"
        return f"{self.channels}, {self.embed}; {self.batch} × {self.positions:,}, {self.blocks}{dtype}"


SHAPES = (
    Shape(128, 1024, 4),
    Shape(128, 1024, 1),
    Shape(16, 3136, 4, 128, 64),
    Shape(64, 197, 4, 384, 64),
    Shape(64, 197, 4, 768, 64),
    Shape(32, 784, 4, 256, 128),
    Shape(32, 784, 1, 256, 128),
    Shape(8, 3136, 2, 256, 128),
    Shape(32, 784, 2, 512, 256),
    Shape(8, 1024, 2, 1024, 512),
    Shape(1, 65_536, 4),
    Shape(128, 1024, 4, dtype="float32"),
    Shape(32, 784, 4, 256, 128, "float32"),
    Shape(32, 784, 2, 512, 256, "float32"),
    Shape(8, 1024, 2, 1024, 512, "float32"),
)


@dataclass(frozen=True)
class Way:
    """One way to compute a stage.

    make        returns the stage
    is_ours     it is one of this library; the others are what the public has
    compiles    its first call takes many seconds
    has_matrix  it stores K [B, M, M]
    is_wide     it computes in float32 whatever it is given, so half precision is not asked of it
    """

    make: Callable[[], Stage]
    is_ours: bool = False
    compiles: bool = False
    has_matrix: bool = False
    is_wide: bool = False


def sub_blocks(apply: Callable[[Tensor], Tensor], x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    for outer, inner in zip(w_z.unbind(), w_g.unbind(), strict=True):
        g = linear(x, inner)
        x = x + linear(apply(g) - g, outer)
    return x


def shape_of(row: dict[str, Any]) -> Shape:
    """The shape of a row of the record."""
    return Shape(*(row[name] for name in Shape._fields))


def ours(backend: str) -> Stage:
    def stage(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
        pairs = list(zip(w_z.unbind(), w_g.unbind(), strict=True))
        return propagate(Affinity(q, k, "gaussian"), x, pairs, backend=backend)

    return stage


def naive(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    kernel = torch.softmax(q @ k.mT, -1)
    return sub_blocks(lambda g: kernel @ g, x, w_z, w_g)


def exact(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    """In float64, a few rows of K at a time, computed again for their gradient."""
    q, k, x, w_z, w_g = (tensor.double() for tensor in (q, k, x, w_z, w_g))
    rows = max(1, EXACT_ENTRIES // (k.shape[0] * k.shape[1]))

    def some_rows(part: Tensor, g: Tensor) -> Tensor:
        return torch.softmax(part @ k.mT, -1) @ g

    def apply(g: Tensor) -> Tensor:
        parts = [checkpoint(some_rows, part, g, use_reentrant=False) for part in q.split(rows, 1)]
        return torch.cat(parts, 1)

    return sub_blocks(apply, x, w_z, w_g)


def by_attention(attention: Callable[..., Tensor], backend: SDPBackend | None = None) -> Stage:
    def stage(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
        query, key = q.unsqueeze(1), k.unsqueeze(1)

        def apply(g: Tensor) -> Tensor:
            if backend is None:
                return attention(query, key, g.unsqueeze(1), scale=1.0).squeeze(1)
            with sdpa_kernel(backend):
                return attention(query, key, g.unsqueeze(1), scale=1.0).squeeze(1)

        return sub_blocks(apply, x, w_z, w_g)

    return stage


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # As one graph: else what torch gives up to compile would be timed without a word.
    return torch.compile(function, dynamic=False, fullgraph=True)


def by_flex() -> Stage:
    from torch.nn.attention.flex_attention import flex_attention

    return by_attention(compiled(flex_attention))


# What compiles comes last, so that it can be left out when time is short.
WAYS = {
    "auto": Way(lambda: ours("auto"), is_ours=True),
    "fused": Way(lambda: ours("fused"), is_ours=True),
    "stored": Way(lambda: ours("stored"), is_ours=True, has_matrix=True),
    "attention": Way(lambda: ours("attention"), is_ours=True),
    "reference": Way(lambda: ours("reference"), is_ours=True, has_matrix=True, is_wide=True),
    "factored": Way(lambda: ours("factored"), is_ours=True, is_wide=True),
    "naive": Way(lambda: naive, has_matrix=True),
    "SDPA flash": Way(lambda: by_attention(scaled_dot_product_attention, SDPBackend.FLASH_ATTENTION)),
    "SDPA cuDNN": Way(lambda: by_attention(scaled_dot_product_attention, SDPBackend.CUDNN_ATTENTION)),
    "SDPA efficient": Way(lambda: by_attention(scaled_dot_product_attention, SDPBackend.EFFICIENT_ATTENTION)),
    "auto, compiled": Way(lambda: compiled(ours("auto")), is_ours=True, compiles=True),
    "FlexAttention": Way(by_flex, compiles=True),
    "naive, compiled": Way(lambda: compiled(naive), compiles=True, has_matrix=True),
}


def measure(options: Namespace, talk: Talk) -> list[dict[str, Any]]:
    compiling: list[float] = []
    return [
        row
        for shape in SHAPES
        for row in measure_shape(
            shape, options.device, repeats=options.repeats, talk=talk, compiling=compiling
        )
    ]


def measure_shape(
    shape: Shape,
    device: torch.device,
    *,
    repeats: int,
    talk: Talk = print,
    compiling: list[float] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each way. Fields that were not measured are None.

    captured, eager  milliseconds of forward and backward, by a replayed CUDA graph and by calls; with their ranges
    captured_ratio   how many times as long as the fastest public way
    eager_ratio      the same among those that compile, or among those that do not
    memory           bytes at the peak above the inputs
    error, error_of  the largest ‖value − float64‖ / ‖float64‖ of value and gradients, and of which
    reason           why there is no time, or no captured one
    """
    compiling = [] if compiling is None else compiling
    torch.compiler.reset()  # of one function torch keeps no more than eight programs
    leaves, cotangent = make_inputs(shape, device)
    truth = gradients(exact, leaves, cotangent.double())
    empty = dict.fromkeys(
        ("captured", "captured_range", "captured_ratio", "eager", "eager_range", "eager_ratio")
    )
    empty |= dict.fromkeys(("memory", "error", "error_of", "reason"))
    rows: list[dict[str, Any]] = []
    jobs: list[tuple[dict[str, Any], str, Callable[[], Any]]] = []
    for name, way in WAYS.items():
        if way.is_wide and shape.dtype != "float32":
            continue
        row: dict[str, Any] = {"way": name, "is_ours": way.is_ours, **shape._asdict()}
        row |= {**empty, "passed": True, "repeats": 0}
        rows.append(row)
        start = time.perf_counter()
        matrix = shape.batch * shape.positions**2 * cotangent.itemsize
        if way.has_matrix and matrix > LARGEST_MATRIX:
            row["reason"] = f"left out: its matrix takes {matrix / 2**30:.0f} GiB"
        elif way.compiles and sum(compiling) > COMPILING_SECONDS:
            row["reason"] = f"left out: {sum(compiling):.0f} s of compiling are enough"
        else:
            try:
                ready = _prepare(row, way.make(), leaves, cotangent, truth, device)
                jobs += [(row, column, work) for column, work in ready.items()]
            except Exception as error:
                # One backend, or another library, may refuse a shape, a dtype or a device. "auto" may not.
                if name == "auto":
                    raise
                row["reason"] = _first_line(error)
        seconds = time.perf_counter() - start
        if way.compiles:
            compiling.append(seconds)
        said = row["reason"] or f"error {row['error']:.1e}"
        talk(f"{name} at {shape}: {said} ({seconds:.0f} s)")
    works = [work for _, _, work in jobs]
    counts = [round(TIMED_MILLISECONDS / time_calls(work, 1, device)) for work in works]
    times = time_in_turns(works, [max(1, min(200, count)) for count in counts], repeats, device)
    for (row, column, _), mine in zip(jobs, times, strict=True):
        row[column], row[f"{column}_range"] = median_and_range(mine)
        row["repeats"] = repeats
    for column in ("captured", "eager"):
        for row in rows:
            public = rivals(rows, row["way"], column)
            if public and row[column] is not None:
                row[f"{column}_ratio"] = row[column] / min(one[column] for one in public)
    return rows


def rivals(rows: Sequence[dict[str, Any]], way: str, column: str) -> list[dict[str, Any]]:
    """Return those of the rows of a shape that are public, were timed, and are called as `way` is."""
    return [
        row
        for row in rows
        if not row["is_ours"] and row[column] is not None
        # A graph is replayed in the same way, whatever made it.
        if column == "captured" or WAYS[row["way"]].compiles == WAYS[way].compiles
    ]


def _prepare(
    row: dict[str, Any],
    stage: Stage,
    leaves: Sequence[Tensor],
    cotangent: Tensor,
    truth: Sequence[Tensor],
    device: torch.device,
) -> dict[str, Callable[[], Any]]:
    """Fill in error and memory; return what is to be timed, by column: nothing where the numbers are wrong."""

    def work() -> list[Tensor]:
        return gradients(stage, leaves, cotangent)

    if not _is_right(row, work(), truth):
        return {}
    if device.type != "cuda":
        return {"eager": work}
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    row["memory"] = torch.cuda.max_memory_allocated(device) - before
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            results = work()
    except RuntimeError as error:
        row["reason"] = f"not captured: {_first_line(error)}"
        return {"eager": work}
    graph.replay()
    return {"eager": work, "captured": graph.replay} if _is_right(row, results, truth) else {}


def _is_right(row: dict[str, Any], values: Sequence[Tensor], truth: Sequence[Tensor]) -> bool:
    errors = relative_errors(values, truth)
    worst = max(errors, key=lambda name: errors[name])
    row |= {"error": errors[worst] if math.isfinite(errors[worst]) else None, "error_of": worst}
    if errors[worst] <= LIMIT:
        return True
    row |= {"reason": f"not timed: an error above {LIMIT:.0e}", "passed": False}
    return False


def make_inputs(shape: Shape, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Return [q, k, x, W_Z, W_g] and a cotangent; the logits have a deviation of about 3."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int, deviation: float = 1.0) -> Tensor:
        return deviation * torch.randn(size, generator=generator, device=device)

    batch, positions, blocks, channels, embed, _ = shape
    dtype = getattr(torch, shape.dtype)
    x = normal(batch, positions, channels)
    q, k = (x @ normal(channels, embed, deviation=channels**-0.5) for _ in range(2))
    w_z = normal(blocks, channels, embed, deviation=0.5 * embed**-0.5)
    w_g = normal(blocks, embed, channels, deviation=channels**-0.5)
    size = 3 * embed**-0.5
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (size * q, k, x, w_z, w_g)]
    return leaves, normal(batch, positions, channels).to(dtype)


def gradients(stage: Stage, leaves: Sequence[Tensor], cotangent: Tensor) -> list[Tensor]:
    """Return the value and the gradients to all leaves."""
    value = stage(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]


def relative_errors(values: Sequence[Tensor], truth: Sequence[Tensor]) -> dict[str, float]:
    """Return ‖value − truth‖ / ‖truth‖ of each; infinite where it is not finite."""
    result = {}
    for name, value, wanted in zip(NAMES, values, truth, strict=True):
        error = float((value.double() - wanted.double()).norm() / wanted.double().norm())
        result[name] = error if math.isfinite(error) else math.inf
    return result


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The timings; where there are none, why. Above them the worst ratio of "auto" to the fastest public way."""
    cells = []
    for row in rows:
        reason = row["reason"] or "–"
        reason = reason if len(reason) <= 60 else f"{reason[:59]}…"
        size = "not finite" if row["error"] is None else f"{row['error']:.1e}"
        cells.append(
            [
                str(shape_of(row)),
                row["way"],
                reason if row["captured"] is None else format_range(row["captured"], row["captured_range"]),
                "–" if row["eager"] is None else format_range(row["eager"], row["eager_range"]),
                *(
                    "–" if row[name] is None else f"{row[name]:.2f}×"
                    for name in ("captured_ratio", "eager_ratio")
                ),
                format_size(row["memory"]),
                "–" if row["error_of"] is None else f"{size} ({row['error_of']})",
            ]
        )
    headers = [
        "C, d; B × M, N",
        "way",
        "captured, ms",
        "eager, ms",
        "captured, of the best public",
        "eager, of it",
    ]
    return f"{worst(rows)}\n\n{markdown([*headers, 'memory', 'error'], cells)}"


def worst(rows: Sequence[dict[str, Any]]) -> str:
    """The largest ratio of "auto" to the fastest public way, for each way of calling."""
    said = []
    for way, column, name in (
        ("auto", "captured", "captured"),
        ("auto", "eager", "eager"),
        ("auto, compiled", "captured", "compiled and captured"),
        ("auto, compiled", "eager", "compiled"),
    ):
        mine = [row for row in rows if row["way"] == way and row[f"{column}_ratio"] is not None]
        if mine:
            most = max(mine, key=lambda row: row[f"{column}_ratio"])
            said.append(f"{name} **{most[f'{column}_ratio']:.2f}×** ({shape_of(most)})")
    return (
        f"auto against the fastest public way, at worst: {'; '.join(said)}." if said else "Nothing was timed."
    )
