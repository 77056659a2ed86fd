"""The public names are listed by hand; this is the list once more, so that none comes or goes unnoticed."""

import subprocess
import sys

import pytest

import nonloc

PUBLIC = {
    "__version__",
    "Affinity",
    "Diffusion",
    "DiffusiveBlock",
    "DiffusiveStage",
    "OriginalBlock",
    "OriginalStage",
    "Outcome",
    "Recipe",
    "Run",
    "SparseAffinity",
    "Spectrum",
    "aggregate",
    "build",
    "certify",
    "cfl_limit",
    "diffuse",
    "dirichlet_energy",
    "estimate",
    "feature_trace",
    "fit",
    "insert",
    "kernel_matrix",
    "logit_spread",
    "logit_spreads",
    "propagate",
    "simulate",
    "weight_spectrum",
}


def test_the_list():
    assert set(nonloc.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_name_is_there_and_documented(name):
    value = getattr(nonloc, name)
    assert value.__doc__, f"{name} needs a docstring"
    assert callable(value)


def test_names_stay_what_they_are_after_everything_is_imported():
    import nonloc.nn.insert
    import nonloc_paper.networks
    import nonloc_paper.training.loop

    for name in ("insert", "build", "fit"):
        assert callable(getattr(nonloc, name))
    assert callable(nonloc_paper.networks.build)
    assert callable(nonloc.nn.insert)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'attention'"):
        _ = nonloc.attention


@pytest.mark.parametrize(
    "module",
    [
        "nonloc",
        "nonloc_paper.runs",
        "nonloc.outcomes",
        "nonloc_paper.networks.spec",
        "nonloc_paper.training.recipe",
        "nonloc_paper.suites",
        "nonloc.cli",
    ],
)
def test_cheap_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
