"""An audit of `weight="stable"`: 64 sub-blocks with saturated weights, on inputs chosen to grow if anything can.

Growth is ‖Z^N‖ / ‖Z⁰‖ in the kernel's own norm ‖z‖² = Σ_i π_i |z_i|². The control is the same stage with a W just above
the exact limit 2/λ_max; it must fail the same test.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import markdown
from nonloc.nn.stage import DiffusiveStage
from nonloc.ops import Affinity, kernel_matrix, propagate, self_adjoint_weights
from nonloc.ops.bounds import wide
from nonloc.processes.jump.process import JumpProcess

BLOCKS, POSITIONS, CHANNELS = 64, 24, 6
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
# V of every size: nearly nothing, moderate, and so large that every eigenvalue of W is w to rounding.
SIZES = (1e-3, 1.0, 1e4)


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return audit(max(1, options.cases // 10))


def audit(inputs: int) -> list[dict[str, Any]]:
    """One dict for each dtype and embedding: the largest growth over constant, top-mode and random inputs."""
    return [
        _audit(dtype, shared, inputs) for dtype in (torch.float64, torch.float32) for shared in (True, False)
    ]


def _audit(dtype: torch.dtype, shared: bool, inputs: int) -> dict[str, Any]:
    torch.manual_seed(0)
    worst = {"constant": 0.0, "top mode": 0.0, "random": 0.0, "control": 0.0}
    for size in SIZES:
        stage = DiffusiveStage(
            CHANNELS, BLOCKS, weight="stable", shared_embedding=shared, init_std=size, layout="positions"
        ).to(dtype)
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                if "embeddings" in name:
                    parameter.normal_()
            affinity = stage.affinity(torch.randn(1, POSITIONS, CHANNELS, dtype=dtype))
            weights = stage.weights()
            law = _law(affinity)
            top, limit = _top_mode(affinity)
            samples = {
                "constant": torch.randn(1, 1, CHANNELS, dtype=dtype).expand(1, POSITIONS, -1),
                "top mode": top.to(dtype).view(1, -1, 1) * torch.linalg.eigh(weights[0]).eigenvectors[:, -1],
            }
            for name, z in samples.items():
                worst[name] = max(worst[name], _growth(affinity, law, z, weights))
            for z in torch.randn(-(-inputs // len(SIZES)), 1, POSITIONS, CHANNELS, dtype=dtype):
                worst["random"] = max(worst["random"], _growth(affinity, law, z, weights))
            above = [(1 + 1e-3) * limit * torch.eye(CHANNELS, dtype=dtype)] * BLOCKS
            worst["control"] = max(worst["control"], _growth(affinity, law, samples["top mode"], above))
    allowed = 1 + LIMITS[dtype]
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "embedding": "shared" if shared else "separate",
        "blocks": BLOCKS,
        "inputs": inputs,
        **worst,
        "allowed": allowed,
        "passed": max(worst[name] for name in ("constant", "top mode", "random"))
        <= allowed
        < worst["control"],
    }


def _law(affinity: Affinity) -> Tensor:
    """π [M] in float64: of detailed balance, or stationary where the two embeddings differ."""
    exact = wide(affinity)
    law = self_adjoint_weights(exact)
    return (JumpProcess(exact).stationary_law() if law is None else law)[0]


def _top_mode(affinity: Affinity) -> tuple[Tensor, float]:
    """The mode [M] of L that is the first to grow as W = w becomes larger, and the w at which it does.

    A step multiplies the mode of the eigenvalue λ by 1 − wλ, of modulus 1 at w = 2 Re λ / |λ|².
    """
    kernel = kernel_matrix(affinity)[0].double()
    values, vectors = torch.linalg.eig(torch.diag(kernel.sum(-1)) - kernel)
    limits = torch.where(values.abs() > 1e-9, 2 * values.real / values.abs().square(), torch.inf)
    first = int(limits.argmin())
    return vectors[:, first].real, float(limits[first])


def _growth(affinity: Affinity, law: Tensor, z: Tensor, weights: Sequence[Tensor]) -> float:
    def size(state: Tensor) -> float:
        return float((law.unsqueeze(-1) * state[0].double().square()).sum().sqrt())

    return size(propagate(affinity, z, list(weights))) / size(z)


def table(rows: Sequence[dict[str, Any]]) -> str:
    names = ("constant", "top mode", "random", "control")
    cells = [
        [
            f"{row['dtype']}, {row['embedding']}",
            *(f"{row[name] - 1:+.1e}" for name in (*names, "allowed")),
            "yes" if row["passed"] else "NO",
        ]
        for row in rows
    ]
    return markdown([f"growth − 1 over {rows[0]['blocks']} sub-blocks", *names, "allowed", "passed"], cells)
