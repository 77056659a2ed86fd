"""The public names are listed by hand; this is the list once more, so that none comes or goes unnoticed."""

import re
import subprocess
import sys

import pytest

import nonloc

PUBLIC = {
    "__version__", "Affinity", "Diffusion", "DiffusiveBlock", "DiffusiveStage", "OriginalBlock", "OriginalStage",
    "Outcome", "SparseAffinity", "Spectrum", "aggregate", "certify", "cfl_limit", "diffuse", "dirichlet_energy",
    "estimate", "feature_trace", "freeze", "insert", "kernel_matrix", "logit_spread", "logit_spreads", "prepare",
    "propagate", "simulate", "weight_spectrum",
}  # fmt: skip
CHEAP = [
    "nonloc",
    "nonloc.cli",
    "nonloc.outcomes",
    "nonloc.nn.options",
    "nonloc_paper.runs",
    "nonloc_paper.networks.spec",
    "nonloc_paper.training.recipe",
    "nonloc_paper.suites",
]


def test_the_list():
    assert set(nonloc.__all__) == PUBLIC
    assert dir(nonloc) == sorted(PUBLIC - {"__version__"})


def test_help_begins_with_every_name_by_purpose():
    words = set(re.findall(r"\w+", nonloc.__doc__))
    assert PUBLIC - words == {"__version__"}


def test_names_stay_what_they_are_after_their_files_are_imported():
    import nonloc.nn.insert
    import nonloc_paper.networks.build

    assert all(callable(one) for one in (nonloc.insert, nonloc.nn.insert, nonloc_paper.build))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'nonloc' has no attribute 'attention'"):
        _ = nonloc.attention


@pytest.mark.parametrize("name", ["build", "fit", "Recipe"])
def test_a_name_of_the_paper_says_where_it_is(name):
    with pytest.raises(AttributeError, match=f"nonloc_paper.{name}"):
        getattr(nonloc, name)


def test_cheap_modules_do_not_import_torch():
    code = f"import sys, {', '.join(CHEAP)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_stage_on_the_cpu_does_not_import_triton():
    code = (
        "import sys, torch; from nonloc import DiffusiveStage, estimate\n"
        "DiffusiveStage(4, 1)(torch.zeros(1, 4, 3, 3)); sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
