"""Documents on disk: they replace their own files, and nobody else's."""

import pytest
from matplotlib.figure import Figure

from nonloc_paper.report.document import (
    Data,
    Details,
    Document,
    Picture,
    Section,
    as_markdown,
    as_page,
    write_documents,
)
from nonloc_paper.report.tables import Table


def picture(name):
    figure = Figure(figsize=(1, 1))
    figure.subplots()
    return Picture(name, figure, "what it shows")


def write(folder, *names):
    page = Document("page", "A page", (Section("Seen", tuple(picture(name) for name in names)),))
    return write_documents([page], folder, "All of it", "about it")


def found(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_figures_that_a_document_has_no_more_are_taken_away(tmp_path):
    write(tmp_path, "old", "new")
    (tmp_path / "figures" / "holiday.svg").write_text("mine")
    (tmp_path / "notes.md").write_text("mine")
    write(tmp_path, "new")
    assert found(tmp_path) == ["figures/holiday.svg", "figures/new.svg", "notes.md", "page.md", "report.html"]


@pytest.mark.parametrize("name", ["page.md", "report.html", "figures/new.svg"])
def test_what_somebody_else_wrote_is_not_overwritten(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("my own notes")
    with pytest.raises(ValueError, match=f"{name} is not of this report, and would be overwritten"):
        write(tmp_path, "new")
    assert found(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "my own notes"


def test_what_was_interrupted_is_written_again(tmp_path, monkeypatch):
    def interrupted(figure):
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr("nonloc_paper.report.document.svg", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, "new")
    write(tmp_path, "new")
    assert found(tmp_path) == ["figures/new.svg", "page.md", "report.html"]


def test_a_page_that_only_mentions_our_title_is_somebody_elses(tmp_path):
    (tmp_path / "page.md").write_text("# Notes\n\n## A page\n")
    with pytest.raises(ValueError, match=r"page\.md is not of this report"):
        write(tmp_path, "new")


def test_details_are_folded():
    folded = Details("More & more", ("text", ["an item"]))
    page = Document("page", "A page", (Section("Seen", (folded,)), Section("Empty", ("", Table(("a",), ())))))
    markdown, html = as_markdown(page), as_page([page], "All", "about")
    assert "<details><summary>More &amp; more</summary>\n\ntext\n\n- an item\n\n</details>" in markdown
    assert "<details><summary>More &amp; more</summary><p>text</p><ul><li>an item</li></ul></details>" in html
    assert "Empty" not in markdown + html


def test_a_long_table_is_a_file_in_markdown_and_folded_in_html(tmp_path):
    long = Data("all", "Every run", Table(("run", "error"), [("a, b", "−0.50"), ("c", "–")]))
    page = Document("page", "A page", (Section("Seen", (long,)),))
    assert tmp_path / "data" / "all.csv" in write_documents([page], tmp_path, "All", "about")
    assert (tmp_path / "data" / "all.csv").read_text() == 'run,error\n"a, b",-0.50\nc,\n'
    assert "[Every run](data/all.csv) (CSV, 2 lines)." in (tmp_path / "page.md").read_text()
    assert "<details><summary>Every run</summary>" in (tmp_path / "report.html").read_text()
    write_documents([Document("page", "A page")], tmp_path, "All", "about")
    assert not (tmp_path / "data" / "all.csv").exists()
