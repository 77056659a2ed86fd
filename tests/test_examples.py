"""Every example runs, at small sizes, and prints what its docstring promises."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# By example: words of its output, and smaller settings.
CASES = {
    "denoise": ("one diffusion step", {"SIZE": 16, "RADII": (1,), "BANDWIDTHS": (0.08,)}),
    "drop_in": ("the output changed by", {}),
    "local_stage": ("one pixel depends on", {}),
    "over_smoothing": ("growth ×", {"BLOCKS": 2, "STEPS": 1}),
    "point_cloud": ("mean moved by", {"POINTS": 100, "WALKERS": 100}),
    "which_mean": ("sinkhorn", {}),
    "will_it_fit": ("photograph", {}),
}


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_it_runs(name, capsys):
    words, settings = CASES[name]
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    assert settings.keys() <= main.__globals__.keys()
    main.__globals__.update(settings)
    main()
    assert words in capsys.readouterr().out
