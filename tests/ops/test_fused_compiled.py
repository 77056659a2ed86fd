"""The fused kernels compile for an H200 without spilling registers. The compiler needs no GPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "compile_fused.py"
ROOT = SCRIPT.parent.parent.parent
# Of one multiprocessor of an H100 or H200; a program takes 1 KiB of shared memory besides its own.
REGISTERS, SHARED, LARGEST_SHARED = 65_536, 233_472, 232_448


def has_compiler():
    triton = find_spec("triton")
    return triton is not None and (Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump").exists()


pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs Triton with its tools for CUDA")


def compiled(tmp_path, *words):
    hidden = {"TRITON_INTERPRET", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def programs(kernel):
    """How many a multiprocessor holds at once."""
    registers = -(-kernel["registers"] // 8) * 8 * kernel["threads"]
    return min(REGISTERS // registers, SHARED // (kernel["shared"] + 1024))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 4, 5])
def test_the_papers_stage_keeps_a_multiprocessor_busy(tmp_path, blocks):
    kernels = compiled(tmp_path, "bfloat16", 32, 64, blocks)
    assert {"first_mean", "query", "key"} <= kernels.keys()
    assert {name: kernel["spilled"] for name, kernel in kernels.items() if kernel["spilled"] > 64} == {}
    assert {name: programs(kernel) for name, kernel in kernels.items() if programs(kernel) < 2} == {}


@pytest.mark.slow
def test_float32_does_not_spill(tmp_path):
    kernels = compiled(tmp_path, "float32", 32, 64, 2)
    assert {name: kernel["spilled"] for name, kernel in kernels.items() if kernel["spilled"] > 64} == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_widest_stage_fits(tmp_path, dtype):
    kernels = compiled(tmp_path, dtype, 128, 512, 2)
    assert {
        name: kernel["shared"] for name, kernel in kernels.items() if kernel["shared"] > LARGEST_SHARED
    } == {}
    assert {name: programs(kernel) for name, kernel in kernels.items() if programs(kernel) < 1} == {}
    # A compiler that gives up leaves few registers and everything in memory.
    assert {name: kernel["registers"] for name, kernel in kernels.items() if kernel["registers"] < 40} == {}
