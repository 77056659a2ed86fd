"""What "auto" takes on a GPU follows the record of measurements, and no shape between the measured ones is a cliff."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks.stage import Shape, shape_of
from nonloc import Affinity, estimate
from nonloc._torch_compat import FakeTensorMode
from nonloc.nn import DiffusiveStage
from nonloc.ops import BACKENDS, choose_backend, fused
from nonloc.ops.fused.launch import without_launches

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "stage.json"
SLOWER = 1.05
MORE_PRODUCTS = 2.1  # than the matrix, where K is not stored but computed anew


def recorded():
    """Return the captured times of our backends, by shape."""
    times = {}
    for row in json.loads(RECORD.read_text())["rows"]:
        if row["way"] in BACKENDS and row["captured"] is not None:
            times.setdefault(shape_of(row), {})[row["way"]] = row["captured"]
    return times


def taken(shape):
    """Return what "auto" takes for such a stage, and whether that computes it as a whole."""
    with FakeTensorMode(), without_launches():
        dtype = getattr(torch, shape.dtype)
        q, k = (
            torch.empty(shape.batch, shape.positions, shape.embed, dtype=dtype, device="cuda") for _ in "qk"
        )
        z, w = q.new_empty(*q.shape[:2], shape.channels), q.new_empty(shape.channels, shape.embed)
        chosen = choose_backend(Affinity(q, k, "gaussian"), z, hidden=shape.embed, blocks=shape.blocks)
        is_whole = chosen in fused.BACKENDS and fused.takes_weights(z, [(w, w.t())] * shape.blocks, chosen)
        return chosen, is_whole


@pytest.mark.parametrize(("shape", "times"), recorded().items(), ids=map(str, recorded()))
def test_auto_takes_the_fastest_of_the_record(shape, times):
    chosen, is_whole = taken(shape)
    assert is_whole or shape.dtype == "float32"
    assert times[chosen] <= SLOWER * min(times.values())


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(32, 784, 2, 512, 256, "float32"), "reference"),
        (Shape(32, 3136, 2, 512, 256, "float32"), "factored"),  # 1.2 GiB of matrix
        (Shape(32, 784, 2, 256, 128, "float32"), "factored"),
        (Shape(32, 784, 2, 512, 256, "float64"), "factored"),
    ],
    ids=str,
)
def test_single_precision_takes_the_matrix_of_wide_features_while_it_is_small(shape, expected):
    assert taken(shape)[0] == expected


def test_a_stage_in_half_precision_is_one_computation():
    """But for features beyond every attention at more positions than a program holds."""
    sizes = product((1, 64), (64, 784, 16_384, 65_536), (1, 2, 4), (64, 512, 768, 2048))
    cells = [Shape(*one, width) for one in sizes for width in (8, 48, 64, 128, 200, 256, 512)]
    beyond = [cell for cell in cells if cell.positions > 16_384 and cell.embed > 256]
    assert [cell for cell in cells if not taken(cell)[1]] == beyond


def test_no_stage_expects_many_more_products_than_the_matrix():
    """But for the padding of "fused", which widens 40 and 48 to 64."""

    def ratio(cell):
        channels, width, side, blocks, dtype = cell
        with torch.device("meta"):
            stage = DiffusiveStage(channels, blocks, embed=width, hidden=width)
        costs = estimate(stage, shape=(32, channels, side, side), dtype=dtype)
        ours, matrix = costs[costs.auto_on_cuda], costs["reference"]
        padding = fused.padded_width(width) / width if costs.auto_on_cuda == "fused" else 1
        products = ours.forward_macs + ours.backward_macs
        return products / (matrix.forward_macs + matrix.backward_macs) / padding

    cells = product(
        (64, 768), (32, 40, 48, 96, 256, 512), (8, 28, 64), (1, 4, 8), (torch.bfloat16, torch.float32)
    )
    ratios = {cell: ratio(cell) for cell in cells}
    worst = max(ratios, key=lambda cell: ratios[cell])
    assert ratios[worst] <= MORE_PRODUCTS, worst
