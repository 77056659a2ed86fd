"""The stage's bench: ways that give float64's numbers are timed, all others are not, and it is said why."""

import json
from argparse import Namespace

import pytest
import torch

from benchmarks import stage, stage_cpu
from benchmarks.__main__ import main
from benchmarks.stage import WAYS, Way, exact, naive
from nonloc.ops import Affinity, propagate
from nonloc.ops.fused.launch import is_interpreted

CPU = torch.device("cpu")
SMALL = stage.Shape(1, 40, 2, dtype="float32")


def timings(monkeypatch, ways, shape=SMALL, **keywords):
    monkeypatch.setattr(stage, "WAYS", ways)
    said = []
    rows = stage.measure_shape(shape, CPU, repeats=2, talk=said.append, **keywords)
    assert len(said) == len(rows) == len(ways)
    json.dumps(rows, allow_nan=False)
    return rows


def not_compiled():
    return {name: way for name, way in WAYS.items() if not way.compiles}


@pytest.mark.skipif(not is_interpreted(), reason="no interpreted Triton")
def test_rows_and_table_on_the_cpu(monkeypatch):
    rows = timings(monkeypatch, not_compiled())
    assert [row["way"] for row in rows] == list(not_compiled())
    public = min(row["eager"] for row in rows if row["way"] in ("naive", "SDPA flash"))
    refused = [row for row in rows if row["reason"] is not None]
    for row in rows:
        if row in refused:
            continue
        assert row["passed"]
        assert row["error"] < 1e-4
        assert row["eager_range"][0] <= row["eager"] <= row["eager_range"][1]
        assert row["eager_ratio"] == row["eager"] / public
        assert row["captured_ratio"] is None
    # Attention is for half precision, and a CPU lacks others: rows that say so, and no failure.
    assert [row["way"] for row in refused] == ["attention", "SDPA cuDNN", "SDPA efficient"]
    assert all(row["passed"] and row["eager"] is None for row in refused)
    assert "RuntimeError" in refused[1]["reason"]
    lines = stage.table(rows).splitlines()
    assert f"at worst: eager **{rows[0]['eager_ratio']:.2f}×** (64, 32; 1 × 40, 2, float32)" in lines[0]
    assert len(lines) == 4 + len(rows)
    assert "64, 32; 1 × 40, 2, float32" in lines[4]
    assert refused[1]["reason"][:50] in lines[-1]


def with_fused(way):
    """Something that agrees in the place of ours, and `way` beside it."""
    return {"auto": Way(lambda: naive, is_ours=True), "other": way}


def test_other_numbers_get_no_time(monkeypatch):
    def off(q, k, x, w_z, w_g):
        return naive(q, 1.5 * k, x, w_z, w_g)

    right, wrong = timings(monkeypatch, with_fused(Way(lambda: off)))
    assert right["passed"]
    assert right["eager"] > 0
    assert not wrong["passed"]
    assert wrong["error"] > stage.LIMIT
    assert wrong["eager"] is None
    assert wrong["eager_ratio"] is None
    last = stage.table([right, wrong]).splitlines()[-1]
    assert "not timed: an error above 3e-02" in last
    assert f"{wrong['error']:.1e} ({wrong['error_of']})" in last


@pytest.mark.parametrize("name", ["q", "x", "W_g"])
def test_a_wrong_gradient_is_found(monkeypatch, name):
    """A value that is right and a gradient that is not: only one of them is scaled on its way back."""
    place = stage.NAMES.index(name) - 1

    def off(*inputs):
        inputs = list(inputs)
        inputs[place] = 1.2 * inputs[place] - 0.2 * inputs[place].detach()
        return naive(*inputs)

    _, wrong = timings(monkeypatch, with_fused(Way(lambda: off)))
    assert not wrong["passed"]
    assert wrong["error_of"] == name
    assert wrong["error"] == pytest.approx(0.2, rel=1e-3)


def test_what_is_not_finite_gets_no_time(monkeypatch):
    _, wrong = timings(monkeypatch, with_fused(Way(lambda: lambda *inputs: naive(*inputs) * torch.nan)))
    assert not wrong["passed"]
    assert wrong["error"] is None
    assert "not finite" in stage.table([wrong])


def test_auto_may_not_refuse(monkeypatch):
    def refuse(*inputs):
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        timings(monkeypatch, {"auto": Way(lambda: refuse)})


def not_made():
    raise AssertionError("it should have been left out")


def test_a_large_matrix_is_left_out(monkeypatch):
    monkeypatch.setattr(stage, "LARGEST_MATRIX", 100)
    _, left_out = timings(monkeypatch, with_fused(Way(not_made, has_matrix=True)))
    assert left_out["reason"].startswith("left out: its matrix takes")
    assert left_out["passed"]


def test_compiling_has_a_limit(monkeypatch):
    _, left_out = timings(monkeypatch, with_fused(Way(not_made, compiles=True)), compiling=[1000.0])
    assert left_out["reason"] == "left out: 1000 s of compiling are enough"
    seconds = []
    timings(monkeypatch, with_fused(Way(lambda: naive, compiles=True)), compiling=seconds)
    assert sum(seconds) > 0


def test_every_shape_is_compiled_anew(monkeypatch):
    def compiles():
        return torch.compile(naive, backend="eager", dynamic=False, fullgraph=True)

    with torch._dynamo.config.patch(cache_size_limit=1):
        for positions in (8, 9):
            shape = SMALL._replace(positions=positions)
            _, row = timings(monkeypatch, with_fused(Way(compiles, compiles=True)), shape)
            assert row["reason"] is None


def test_half_precision_is_not_asked_of_what_computes_in_float32(monkeypatch):
    monkeypatch.setattr(stage, "WAYS", with_fused(Way(not_made, is_wide=True)))
    rows = stage.measure_shape(SMALL._replace(dtype="bfloat16"), CPU, repeats=1, talk=print)
    assert [row["way"] for row in rows] == ["auto"]


def test_the_exact_stage_is_the_reference_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(stage, "EXACT_ENTRIES", 2 * 40 * 7)
    leaves, cotangent = stage.make_inputs(stage.Shape(2, 40, 3, dtype="float32"), CPU)
    actual = stage.gradients(exact, leaves, cotangent.double())

    def reference(q, k, x, w_z, w_g):
        q, k, x, w_z, w_g = (t.double() for t in (q, k, x, w_z, w_g))
        return propagate(Affinity(q, k, "gaussian"), x, list(zip(w_z, w_g, strict=True)), backend="reference")

    expected = stage.gradients(reference, leaves, cotangent.double())
    # The gradients are rounded to float32.
    assert max(stage.relative_errors(actual, expected).values()) < 1e-6


@pytest.mark.slow
def test_the_cpus_rows_table_and_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stage_cpu, "POSITIONS", (1500,))
    monkeypatch.setattr(stage_cpu, "CHECKED", 128)
    assert main(["stage", "--device", "cpu", "--repeats", "2", "--output", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "stage_cpu.json").read_text())
    assert record["command"] == "python -m benchmarks stage --device cpu"
    rows = record["rows"]
    assert [(row["positions"], row["way"]) for row in rows] == [(1500, "naive"), (1500, "factored")]
    assert all(row["error"] < 1e-5 and row["range"][0] <= row["milliseconds"] for row in rows)
    matrix, factored = rows
    assert matrix["peak_bytes"] > 2 * 4 * 1500**2
    assert factored["peak_bytes"] < matrix["peak_bytes"] / 2
    assert (tmp_path / "stage_cpu.md").read_text() in capsys.readouterr().out


def test_on_the_cpu_other_numbers_get_no_time(monkeypatch):
    monkeypatch.setattr(
        stage_cpu, "worst_error", lambda backend: float("inf") if backend == "factored" else 1e-7
    )
    rows = stage_cpu.measure(Namespace(repeats=1), print)
    assert [(row["way"], row["passed"], row["milliseconds"]) for row in rows] == [
        ("naive", True, None),
        ("factored", False, None),
    ]
    assert "not finite" in stage_cpu.table(rows)


@pytest.mark.gpu
def test_cuda_captured_and_eager(monkeypatch):
    monkeypatch.setattr(stage, "WAYS", not_compiled())
    rows = stage.measure_shape(stage.Shape(8, 512, 2), torch.device("cuda"), repeats=2)
    best = min(row["captured"] for row in stage.rivals(rows, "auto", "captured"))
    for row in rows:
        if row["way"] != "SDPA cuDNN" or row["reason"] is None:
            assert row["passed"]
            assert row["captured_range"][0] <= row["captured"] <= row["captured_range"][1]
            assert row["captured_ratio"] == row["captured"] / best
            assert row["memory"] > 0
