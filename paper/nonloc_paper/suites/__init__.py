"""The paper, and the demo, as data: each table row and figure panel -> Recipe and the published number. No torch.

"Nonlocal Neural Networks, Nonlocal Diffusion and Nonlocal Modeling", Tao, Sun, Du and Liu, 2018. The protocol is the
one nearest the text. What the text leaves open is decided once, in stated.py, and every decision is named in a note.

What runs the map and keeps records (map_running.py, keeping.py, recheck.py) is imported by whoever needs it.
"""

from nonloc_paper.suites.catalog import SUITES, arranged_suite, find_suite
from nonloc_paper.suites.rows import Panel, Row, Suite
from nonloc_paper.suites.stated import SPECTRUM_EPOCHS

__all__ = ["SPECTRUM_EPOCHS", "SUITES", "Panel", "Row", "Suite", "arranged_suite", "find_suite"]
