"""Figures 1 to 4: every seed, and n = 3 where it is recorded."""

import pytest
from made_records import arranged, records

from nonloc.plots import CHANCE
from nonloc_paper.report.figure_page import curve_rows, curves, figure_sections, find_row
from nonloc_paper.suites import SUITES


def test_curve_rows_go_over_epochs_in_colours_of_their_own():
    table = {"baseline": [8.0], "2-block (original)": [8.1, 8.2], "4-block (original)": [None]}
    figure = curves(curve_rows(arranged(records("table1-n3", table))))
    loss, error = figure.axes
    assert loss.get_title(loc="left") == "3 bottlenecks a group"
    ended = [line for line in error.lines if line.get_marker() != "x"]
    assert [line.get_xdata()[-1] for line in ended[:3]] == [164] * 3
    colours = [line.get_color() for line in ended]
    assert colours[0] == CHANCE
    assert colours[1] == colours[2]
    assert len(set(colours)) == 3
    (cross,) = [line for line in error.lines if line.get_marker() == "x"]
    assert cross.get_xdata()[0] == pytest.approx(1234 / 391), "the epoch of step 1234"


def test_n_2_stands_in_until_n_3_has_every_row():
    four = next(row for row in SUITES["figure3"].rows if row.recipe.learning_rate == 0.01)
    one, *_ = SUITES["figure1"].rows
    literal = records("table1-beside", {one.label: [8.0], four.label: [9.0]})
    names = ("1", "2", "3", "4")
    n3 = records("table1-n3", {"baseline": [8.0]} | {f"{n}-block (original)": [7.5] for n in names})
    runs = arranged(literal, n3)
    assert [find_row(runs, row).recipe.network for row in (one, four)] == [
        "preresnet29/original-1@2",
        "preresnet20/original-4@2",
    ]
    assert {title: len(rows) for title, rows in curve_rows(runs).items()} == {
        "3 bottlenecks a group": 5,
        "2 bottlenecks a group": 2,
    }
    slow = records("rate-n3", {"4-block (original), rate 0.01": [9.0], "baseline, rate 0.01": [9.0]})
    runs = arranged(literal, n3, slow)
    assert {title: len(rows) for title, rows in curve_rows(runs).items()} == {"3 bottlenecks a group": 7}


def test_the_caption_tells_the_seeds_that_came_to_their_end():
    runs = records("table1-n3", {"2-block (original)": [8.0, None, 8.1]})
    picture, _ = figure_sections(arranged(runs))[1].contents
    assert picture.caption == "2 original blocks, 3 bottlenecks a group: seeds 0 and 2."
