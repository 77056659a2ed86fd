"""The kernels of one fused stage, each beside its floors: what arithmetic and bytes alone would take.

A floor is a count over a rate. Exponentials: 16 a clock and multiprocessor, at the highest clock. Products: the rate
of a large matrix product, measured in the same run. Bytes: every operand read once and every result written once, at
the rate of a large negation, measured in the same run; what is read again from the cache is not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.table import markdown
from nonloc.ops import Affinity, propagate
from nonloc.ops.fused.launch import Launcher

EXPONENTIALS_A_CLOCK = 16
LAUNCHES = 10  # in one captured graph


@dataclass(frozen=True)
class StageKernel:
    """One kernel: how often a stage launches it, its median and range, and its floors, all in microseconds."""

    name: str
    launches: int
    microseconds: float
    low: float
    high: float
    exponentials: float
    products: float
    bytes: float

    @property
    def ratio(self) -> float:
        """Measured over the largest floor."""
        return self.microseconds / max(self.exponentials, self.products, self.bytes)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Call:
    """A launch of a stage, as it was made."""

    launcher: Launcher
    name: str
    kernel: str
    tensors: tuple[Any, ...]
    constants: dict[str, Any]


def measure(
    batch: int = 128,
    positions: int = 1024,
    channels: int = 64,
    width: int = 32,
    blocks: int = 4,
    repeats: int = 21,
) -> list[StageKernel]:
    """Forward and backward of a gaussian stage in bfloat16 on CUDA, kernel by kernel."""
    if not torch.cuda.is_available():
        raise ValueError(
            "the kernels of the fused stage can be timed on a CUDA device only, and there is none"
        )
    import triton

    device = torch.device("cuda")
    calls = record(batch, positions, channels, width, blocks, device)
    properties = torch.cuda.get_device_properties(device)
    # Triton knows the highest clock in kHz; torch's properties have not always had it.
    clock = 1e3 * triton.runtime.driver.active.utils.get_device_properties(0)["sm_clock_rate"]
    exponential_rate = EXPONENTIALS_A_CLOCK * properties.multi_processor_count * clock
    product_rate, byte_rate = _product_rate(device), _byte_rate(device)
    pairs = batch * positions**2
    found = []
    for name in dict.fromkeys(call.name for call in calls):
        same = [call for call in calls if call.name == name]
        times = time_launches(lambda call=same[0]: launch(call), repeats)  # type: ignore[misc]
        inner = _inner_width(name, width, blocks)
        seen = {t.data_ptr(): t for t in same[0].tensors if isinstance(t, torch.Tensor)}.values()
        found.append(
            StageKernel(
                name=name,
                launches=len(same),
                microseconds=statistics.median(times),
                low=min(times),
                high=max(times),
                exponentials=1e6 * (pairs if inner else 0) / exponential_rate,
                products=1e6 * 2 * pairs * inner / product_rate,
                bytes=1e6 * sum(t.numel() * t.element_size() for t in seen) / byte_rate,
            )
        )
    return found


def table(kernels: list[StageKernel]) -> str:
    cells = [
        [
            k.name,
            str(k.launches),
            f"{k.microseconds:.1f} ({k.low:.1f}–{k.high:.1f})",
            f"{k.exponentials:.1f}",
            f"{k.products:.1f}",
            f"{k.bytes:.1f}",
            f"{k.ratio:.1f}",
        ]
        for k in kernels
    ]
    total = sum(k.launches * k.microseconds for k in kernels)
    headers = ["kernel", "launches", "µs each", "floor: exp", "products", "bytes", "over the largest"]
    return f"{markdown(headers, cells)}\n\nAll launches of the stage: {total:.0f} µs."


def _inner_width(name: str, width: int, blocks: int) -> int:
    """The inner and outer dimensions of a kernel's products over all pairs of positions, added up."""
    return {
        "first_mean": 3 * width,  # with K k, which the affinity's gradient needs
        "next": 2 * width,
        "adjoint": 2 * width,
        "key": (3 + blocks) * width,  # with Kᵀ dR of the first sub-block
        "query": (2 + blocks) * width + 16,  # with a sum that is a product with ones
    }.get(name, 0)


def record(
    batch: int, positions: int, channels: int, width: int, blocks: int, device: torch.device
) -> list[Call]:
    """All launches of a stage, forward and backward, with their tensors."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
        drawn = deviation * torch.randn(*shape, generator=generator)
        return drawn.to(device, torch.bfloat16).requires_grad_()

    q, k = (normal(batch, positions, width, deviation=width**-0.25) for _ in range(2))
    z = normal(batch, positions, channels)
    weights = [
        (normal(channels, width, deviation=0.1), normal(width, channels, deviation=0.1))
        for _ in range(blocks)
    ]
    calls: list[Call] = []
    with _watching(calls):
        result = propagate(Affinity(q, k, "gaussian"), z, weights, backend="fused")
        result.backward(torch.randn_like(result))
    return calls


@contextmanager
def _watching(calls: list[Call]) -> Iterator[None]:
    plain = Launcher.launch

    def watched(self: Launcher, name: str, kernel: str, *tensors: Any, **constants: Any) -> None:
        calls.append(Call(self, name, kernel, tensors, dict(constants)))
        plain(self, name, kernel, *tensors, **constants)

    Launcher.launch = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Launcher.launch = plain  # type: ignore[method-assign]


def launch(call: Call) -> None:
    call.launcher.launch(call.name, call.kernel, *call.tensors, **call.constants)


def time_launches(work: Callable[[], None], repeats: int) -> list[float]:
    """Microseconds of one launch, from replays of a graph of several."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            work()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / LAUNCHES)
    return times


def _product_rate(device: torch.device) -> float:
    """Operations a second of a bfloat16 matrix product of 8192³ on random numbers."""
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / (1e-6 * statistics.median(time_launches(lambda: _drop(a @ b), 5)))


def _byte_rate(device: torch.device) -> float:
    """Bytes a second, read and written, of negating 1 GiB; a copy would be the copy engine's in a graph."""
    a = torch.empty(2**28, device=device, dtype=torch.float32).normal_()
    b = torch.empty_like(a)
    return (
        2 * a.numel() * 4 / (1e-6 * statistics.median(time_launches(lambda: _drop(torch.neg(a, out=b)), 5)))
    )


def _drop(_: object) -> None:
    """A result that is not wanted."""
