"""Documents on disk: they replace their own files, and nobody else's."""

import pytest
from matplotlib.figure import Figure

from nonloc_paper.report.document import (
    Details,
    Document,
    Picture,
    Section,
    as_markdown,
    as_page,
    write_documents,
)


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
    assert found(tmp_path) == [
        "figures/holiday.svg",
        "figures/new.svg",
        "notes.md",
        "page.md",
        "report.html",
    ]


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


def test_details_are_folded_and_their_figures_are_written(tmp_path):
    folded = Details("More & more", ("text", ["an item"], picture("inside")))
    page = Document("page", "A page", (Section("Seen", (folded,)),))
    assert write_documents([page], tmp_path, "All", "about")[1] == tmp_path / "figures" / "inside.svg"
    markdown, html = as_markdown(page), as_page([page], "All", "about")
    assert "<details><summary>More &amp; more</summary>\n\ntext\n\n- an item\n\n![inside]" in markdown
    assert "<details><summary>More &amp; more</summary><p>text</p><ul><li>an item</li></ul><figure>" in html
