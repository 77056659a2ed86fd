"""The picture of the rows beside Table 1."""

from made_kept import kept, records

from nonloc_paper.report.beside_figure import beside_figure

TABLE = records("table1", {"baseline": [9.0], "5-block (proposed)": [8.6, 8.8]})


def texts(figure):
    (axes,) = figure.axes
    return [text.get_text() for text in axes.texts]


def test_there_is_none_without_rows_beside_the_table():
    assert beside_figure(kept()) is None
    assert beside_figure(kept(TABLE)) is None


def test_a_row_stands_with_the_row_of_the_table_that_it_is_compared_with():
    found = kept(TABLE, records("table1-beside", {"5-block (proposed), recomputed affinity": [8.1, 8.3]}))
    figure = beside_figure(found)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "proposed, shared",
        "proposed, recomputed",
    ]
    assert texts(figure) == ["5 blocks: which form, which affinity"]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[8.6, 8.8], [8.1, 8.3]]


def test_runs_that_diverged_are_counted_and_not_drawn():
    label = "4-block (stable), deviation 0.07"
    numbers = {
        label: [None, 8.5],
        f"{label}, logits / √d": [None],
        "4-block (stable), deviation 0.01": [8, 8],
    }
    figure = beside_figure(kept(records("table1-stable", numbers)))
    assert texts(figure) == [
        "stable W, start 0.01",
        "stable W, start 0.07",
        "✕ 1/2",
        "stable W, start 0.07, logits / √d",
        "✕ 1/1, 1 to run",
    ]
    assert figure.axes[0].get_xlim()[1] < 10
