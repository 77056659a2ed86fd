"""Triton's kernels compiled for an H100 or H200, which needs no GPU, only Triton with its tools for CUDA."""

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A product that reads its first operand from registers, and how many products may be under way after a wait.
FROM_REGISTERS = r"wgmma\.mma_async[^{]*\{[^}]*\}, \{"
PENDING = r"wgmma\.wait_group\.sync\.aligned (\d+)"


def tools():
    triton = find_spec("triton")
    return None if triton is None else Path(triton.origin).parent / "backends/nvidia/bin"


needs_compiler = pytest.mark.skipif(
    tools() is None or not (tools() / "cuobjdump").exists(), reason="needs Triton with its tools for CUDA"
)


def run_script(script, cache, *words):
    """What the script prints, from JSON, in a process in which Triton does not interpret."""
    hidden = {"TRITON_INTERPRET", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests", "paper"))
    done = subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        env=environment | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compile_launch(function, arguments, constants, options):
    """What one launch of a kernel takes; its tensors are as aligned as torch allocates them.

    is_racy  a product may still read registers that the code already fills anew
    """
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}
    signature, fixed, hints = {}, {}, {}
    values = dict(zip(function.arg_names, arguments, strict=False)) | constants
    for place, name in enumerate(function.arg_names):
        value = values[name]
        if name in constants or value is None:
            signature[name], fixed[place,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], hints[place,] = f"*{types[value.dtype]}", [["tt.divisibility", 16]]
        else:
            signature[name] = "i32" if isinstance(value, int) else "fp32"
            if isinstance(value, int) and value % 16 == 0:
                hints[place,] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, fixed, hints)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [tools() / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert usage is not None, report
    code = made.asm["ptx"]
    return {
        "registers": int(usage[1]),
        "spilled": int(usage[2]),
        "shared": made.metadata.shared,
        "threads": 32 * options["num_warps"],
        "is_racy": re.search(FROM_REGISTERS, code) is not None and set(re.findall(PENDING, code)) != {"0"},
    }
