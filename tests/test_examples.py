"""Every example runs, at small sizes, prints what its docstring promises, and saves a picture."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"
# By example: words of its output, and smaller settings.
CASES = {
    "denoise": ("one diffusion step", {"SIZE": 16, "RADII": (1,), "BANDWIDTHS": (0.08,)}),
    "local_stage": ("one pixel depends on", {}),
    "over_smoothing": ("growth ×", {"BLOCKS": 2, "STEPS": 1}),
    "point_cloud": ("mean moved by", {"POINTS": 100, "WALKERS": 100}),
    "which_mean": ("sinkhorn", {}),
    "will_it_fit": ("photograph", {}),
}


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_it_runs(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, settings = CASES[name]
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    assert settings.keys() <= main.__globals__.keys()
    main.__globals__.update(settings)
    main()
    output = capsys.readouterr().out
    assert words in output
    assert f"{name}.png" in output
    with Image.open(tmp_path / f"{name}.png") as image:
        assert len(image.convert("L").getcolors()) > 10
