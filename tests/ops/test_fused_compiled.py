"""The fused kernels compile for an H200 without spilling registers. The compiler needs no GPU."""

from pathlib import Path

import pytest

from compiled import needs_compiler, run_script

pytestmark = needs_compiler
SCRIPT = Path(__file__).parent / "compile_fused.py"
# Of one multiprocessor of an H100 or H200; a program takes 1 KiB of shared memory besides its own.
REGISTERS, SHARED, LARGEST_SHARED = 65_536, 233_472, 232_448


def programs(kernel):
    """How many a multiprocessor holds at once."""
    registers = -(-kernel["registers"] // 8) * 8 * kernel["threads"]
    return min(REGISTERS // registers, SHARED // (kernel["shared"] + 1024))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 4, 5])
def test_the_papers_stage_keeps_a_multiprocessor_busy(tmp_path, blocks):
    kernels = run_script(SCRIPT, tmp_path, "bfloat16", 32, 64, blocks)
    assert {"first_mean", "query", "key"} <= kernels.keys()
    assert {name: kernel["spilled"] for name, kernel in kernels.items() if kernel["spilled"] > 64} == {}
    assert {name: programs(kernel) for name, kernel in kernels.items() if programs(kernel) < 2} == {}
    assert [name for name, kernel in kernels.items() if kernel["is_racy"]] == []


@pytest.mark.slow
def test_float32_does_not_spill(tmp_path):
    kernels = run_script(SCRIPT, tmp_path, "float32", 32, 64, 2)
    assert {name: kernel["spilled"] for name, kernel in kernels.items() if kernel["spilled"] > 64} == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_widest_stage_fits(tmp_path, dtype):
    kernels = run_script(SCRIPT, tmp_path, dtype, 128, 512, 2)
    assert {
        name: kernel["shared"] for name, kernel in kernels.items() if kernel["shared"] > LARGEST_SHARED
    } == {}
    assert {name: programs(kernel) for name, kernel in kernels.items() if programs(kernel) < 1} == {}
    assert [name for name, kernel in kernels.items() if kernel["is_racy"]] == []
    # A compiler that gives up leaves few registers and everything in memory.
    assert {name: kernel["registers"] for name, kernel in kernels.items() if kernel["registers"] < 40} == {}
