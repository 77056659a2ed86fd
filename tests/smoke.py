"""Try an installed nonloc alone: import, a stage, a simulation, the command.

python tests/smoke.py          run it outside the checkout, so that the installed package is imported
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import torch

import nonloc
from nonloc.cli import main

package = Path(nonloc.__file__).parent
assert "site-packages" in package.parts, f"{package} is the checkout and not an installation"
assert importlib.util.find_spec("nonloc_paper") is None, "nonloc-paper is installed, too"

# A stage, forward and backward, in both layouts.
x = torch.randn(2, 8, 6, 6, requires_grad=True)
stage = nonloc.DiffusiveStage(8, 3)
y = stage(x)
assert y.shape == x.shape
y.square().sum().backward()
assert x.grad is not None
assert bool(x.grad.isfinite().all())
assert nonloc.OriginalBlock(8, layout="positions")(torch.randn(2, 36, 8)).shape == (2, 36, 8)

# A diffusion conserves the mean, where the kernel is doubly stochastic.
points = torch.rand(1, 20, 2, dtype=torch.float64)
start = torch.randn(1, 20, 1, dtype=torch.float64)
process = nonloc.Diffusion(nonloc.Affinity(points, points, "heat", "sinkhorn"))
final = nonloc.simulate(process, start, num_steps=50, step_size=0.5).final
assert torch.allclose(final.mean(), start.mean())
assert final.std() < start.std()

# The command. Pictures and graphs need extras: then the error names them.
help_text = subprocess.run(
    [Path(sys.executable).parent / "nonloc", "--help"], capture_output=True, text=True, check=True
).stdout
assert "simulate" in help_text
code = main(["simulate", "diffusion", "--output", "smoke", "--quiet"])
needed = [
    name for name in ("matplotlib", "PIL", "scipy", "sklearn") if importlib.util.find_spec(name) is None
]
assert code == 0 or needed, f"`nonloc simulate diffusion` ended with {code}"
print(
    f"nonloc {nonloc.__version__} works; `nonloc simulate diffusion` ended with {code}, without {needed or 'nothing'}"
)
