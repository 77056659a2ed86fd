"""nonloc explore: whose networks it shows. What it writes is in the tests of the explorer."""

import pytest

from nonloc.cli import main
from nonloc_paper.suites.rows import write_plan

PLAN = {"name": "demo", "rows": [], "changes": {}, "seeds": None, "command": "nonloc x", "seconds": 0.0}


@pytest.mark.parametrize(
    ("made_by_us", "words", "shown"),
    [(True, [], "demo"), (False, [], None), (True, ["--demo", "elsewhere"], "elsewhere")],
)
def test_the_demo_here_is_shown_unless_another_is_named(tmp_path, monkeypatch, made_by_us, words, shown):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    if made_by_us:
        write_plan(tmp_path / "demo", PLAN)
    asked = []

    def write(out, records, *, demo):
        asked.append(demo)
        return []

    monkeypatch.setattr("nonloc_paper.explorer.build.write_explorer", write)
    assert main(["explore", *words]) == 0
    assert asked == [shown]
