"""The site, which `make docs` builds. Its root is that of the repository: links between documents hold in both."""

import logging
import os
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from reference import format_docstring, format_signature, write_pages

import nonloc

project = "nonloc"
version = release = nonloc.__version__
copyright = "The nonloc developers"
root_doc = "docs/index"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/**.rst",
    "paper/*.md",
    "paper/pages/*.md",
    "paper/experiments/README.md",
    "benchmarks/NOTES.md",
    "benchmarks/results/stage.md",
    "paper/tests/faults/README.md",
]
exclude_patterns = ["docs/_build", "paper/pages/summary.md"]
write_pages(Path(__file__).parent / "api")

smartquotes = False
html_theme = "furo"
html_title = "nonloc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
# Tutorials are run at every build, by the Python that builds, in a scratch folder.
nb_execution_mode = "force"
# A kernel, and its client, that are silent unless they fail.
os.environ["JUPYTER_PATH"] = str(Path(__file__).parent / "_jupyter")
logging.getLogger("traitlets").setLevel(logging.WARNING)
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_in_temp = True

autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
# The site is built without a network, so it does not know where other projects describe their names.
nitpick_ignore_regex = [
    (r"py:.*", r"(collections|matplotlib|numpy|os|pathlib|torch|typing)\..*|Tensor|(dict|tuple)\[\w+"),
    # Ours that are not public: they come and go with public functions.
    (r"py:class", r"nonloc.*\.(_\w+|Costs|Dataset|Endings?|Model|RandomBand|Recorded|Session|SharedData)"),
]


def prepare_source(app, docname, source):
    """The folder of the examples is a page here, the explorer is a page already, and every page needs a title."""
    source[0] = source[0].replace("](examples)", "](docs/api/examples.rst)")
    source[0] = re.sub(r"(\]\([^)\s]*\bexplorer/index\.html\))", r"\1{.external}", source[0])
    if docname == "benchmarks/results/stage":
        source[0] = f"# A stage, computed in every way\n\n{source[0]}"


def copy_explorer(app, error):
    explorer = Path(__file__).parent / "explorer"
    if explorer.exists():
        shutil.copytree(explorer, Path(app.outdir) / "docs" / "explorer", dirs_exist_ok=True)


def setup(app):
    app.connect("autodoc-process-docstring", format_docstring)
    app.connect("autodoc-process-signature", format_signature)
    app.connect("source-read", prepare_source)
    app.connect("build-finished", copy_explorer)
