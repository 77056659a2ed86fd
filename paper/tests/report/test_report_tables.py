"""The table: every number where it belongs, and nothing left out."""

import pytest
from made import RESTORER, make_row, make_run

from nonloc_paper.report.records import Collection, RowRecord
from nonloc_paper.report.tables import Table, format_score, results_table


def table_of(folder, *rows, score="psnr"):
    return results_table(Collection(folder, rows), score)


def cells(table, label):
    return dict(zip(table.header, next(line for line in table.lines if line[0] == label), strict=True))


@pytest.mark.parametrize(
    ("value", "expected"), [(8.745, "8.75"), (8.045, "8.05"), (13.605, "13.61"), (8.744, "8.74"), (None, "–")]
)
def test_a_half_is_rounded_up_whatever_its_binary_form(value, expected):
    assert format_score(value) == expected


def test_median_range_and_every_seed(tmp_path):
    values = cells(table_of(tmp_path, make_row(tmp_path, "a", [24.0, 22.0, 22.5])), "a")
    assert values["seeds"] == "3"
    assert values["median PSNR (dB)"] == "22.50"
    assert values["range (dB)"] == "22.00 to 24.00"
    assert values["every seed (dB)"] == "24.00, 22.00, 22.50"
    assert (values["parameters"], values["seconds a run"]) == ("1,234", "5")


def test_what_diverged_is_unfinished_or_missing_is_named(tmp_path):
    runs = (
        make_run(tmp_path / "0", RESTORER, 20.0),
        make_run(tmp_path / "1", RESTORER.with_(seed=1), diverged_at=17),
        make_run(tmp_path / "2", RESTORER.with_(seed=2)),
        None,
    )
    values = cells(table_of(tmp_path, RowRecord("a", RESTORER, runs)), "a")
    assert values["every seed (dB)"] == "20.00, diverged at step 17, unfinished, missing"
    assert (values["seeds"], values["median PSNR (dB)"]) == ("1", "20.00")


def test_published_numbers_have_a_column_only_where_there_are_any(tmp_path):
    network = "preresnet20/baseline"
    with_number = make_row(tmp_path, "a", [8.5], network=network, published=8.19)
    without = make_row(tmp_path, "b", [8.0], network=network)
    table = table_of(tmp_path, with_number, without, score="error")
    assert cells(table, "a")["published (%)"] == "8.19"
    assert cells(table, "b")["published (%)"] == "–"
    assert "published (%)" not in table_of(tmp_path, without, score="error").header


def test_text_is_aligned_and_grouped(tmp_path):
    rows = (
        make_row(tmp_path, "short", [20.0], group="G"),
        make_row(tmp_path, "rather long", [21.5], group="H"),
    )
    lines = table_of(tmp_path, *rows).as_text().splitlines()
    assert [lines[2], lines[4]] == ["G", "H"]
    assert lines[3].startswith("short      ")
    assert lines[3].index("20.00") == lines[5].index("21.50")
    assert len(lines[3]) == len(lines[5]) == len(lines[0])


def test_html_has_the_same_cells_and_escapes_them(tmp_path):
    table = table_of(tmp_path, make_row(tmp_path, "a & b", [20.0]))
    html = table.as_html()
    assert '<th scope="row" data-key="20.00">a &amp; b</th>' in html
    assert '<td class="key" data-label="median PSNR (dB)">20.00</td>' in html
    assert '<td class="empty" data-label="range (dB)">–</td>' in html
    assert html.count("<td") == len(table.header) - 1


def test_a_cell_of_markdown_is_one_line_of_text():
    table = Table(("a", "b"), [("<b>x</b>|\ny", "< 0")])
    assert table.as_markdown().splitlines()[-1] == r"| &lt;b>x&lt;/b>\| y | < 0 |"
