"""The overall line: run k of n, where stderr is no terminal."""

from nonloc_paper.commands.overall import Overall
from nonloc_paper.training.recipe import Recipe


def test_one_line_a_run(capsys):
    with Overall("demo", 3, shown=True) as overall:
        overall.tell(0, Recipe())
        overall.tell(1, Recipe(seed=4))
        overall.reach(3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "demo, run 1 of 3: preresnet20/baseline, seed 0 (0 s so far)",
        "demo, run 2 of 3: preresnet20/baseline, seed 4 (0 s so far)",
    ]


def test_nothing_when_quiet(capsys):
    with Overall("demo", 3, shown=False) as overall:
        overall.tell(0, Recipe())
    assert capsys.readouterr() == ("", "")
