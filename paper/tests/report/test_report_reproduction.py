"""nonloc report on records: the same pages twice, whole from whole records, and honest about partial ones."""

import json
import re
from pathlib import Path

import pytest
from html_balance import assert_balanced
from made_records import certified, deep_originals, map_lines, never, records, stability, write, write_map

from nonloc.cli import main
from nonloc_paper.report.document import Document, Section, as_markdown
from nonloc_paper.report.figure_page import figure_sections
from nonloc_paper.report.reproduction import (
    BEGIN,
    END,
    has_records,
    make_documents,
    spent_table,
    with_summary,
    write_reproduction,
)
from nonloc_paper.report.table1_runs import read_table1_runs
from nonloc_paper.runs import Run
from nonloc_paper.suites.archive import note_spent

PAPER = Path(__file__).parents[2]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Records of the rows that the figures need, of one rate of the map, and of the ten epochs of one start."""
    folder = tmp_path_factory.mktemp("kept") / "results"
    table = {
        "2-block (original)": [8.0, 8.1],
        "3-block (original)": [8.2],
        "4-block (proposed)": [7.9, 8.0, None],
    }
    write(folder, records("table1", table))
    beside = {"1 original block": [8.1, 8.3], "4 original blocks, rate 0.01": [9.0]}
    write(folder, records("table1-beside", beside))
    one, ten = (map_lines(part, deep_originals) for part in ("one_epoch", "ten_epochs"))
    write_map(folder, "one_epoch", [line for line in one if (line["rate"], line["init"]) == (0.1, "torch")])
    write_map(folder, "ten_epochs", [line for line in ten if line["init"] == "torch"])
    write_map(folder, "ten_epochs_scaled", map_lines("ten_epochs_scaled", never))
    return folder


@pytest.fixture(scope="module")
def made(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return folder, write_reproduction(results, folder)


def test_the_same_records_give_the_same_bytes(results, made, tmp_path):
    write_reproduction(results, tmp_path)
    once, twice = files(made[0]), files(tmp_path)
    assert once.keys() == twice.keys()
    assert [name for name in once if once[name] != twice[name]] == []


def test_every_document_and_figure_is_there(made):
    names = set(files(made[0]))
    titles = ("summary", "verdicts", "matching", "table1", "figures", "map", "protocol")
    documents = {f"{name}.md" for name in titles}
    drawn = ["features", "map-rate-0.1", "map-before", "map-logits"]
    drawn += [f"figure{number}" for number in ("1", "2", "3a", "3b", "4")]
    data = {"figures-features", "figures-spectra", "map-cells"}
    files_of = {f"figures/{name}.svg" for name in drawn} | {f"data/{name}.csv" for name in data}
    files_of |= {f"figures/{name}.pdf" for name in drawn if name.startswith("figure")}
    assert names == documents | {"report.html"} | files_of
    assert {str(path.relative_to(made[0])) for path in made[1].files} == names


def test_the_documents_refer_to_figures_that_exist(made):
    folder, _ = made
    for path in folder.glob("*.md"):
        for address in re.findall(r"\]\(([^)]+)\)", path.read_text()):
            assert (folder / address).is_file() or address.startswith("../protocol.md#"), address


def test_the_page_needs_nothing_else_and_is_well_formed(made):
    page = (made[0] / "report.html").read_text()
    assert not re.search(r"https?://|<script|<link|<img", page)
    assert_balanced(page)
    assert page.count("<svg ") == 9
    assert "diverged at step 1234" in page


def test_what_is_missing_is_said(made):
    folder, _ = made
    table = (folder / "table1.md").read_text()
    assert "| baseline | 5 of 5 |" in table
    map_text = (folder / "map.md").read_text()
    assert "| 20 of 540 |" in map_text
    cells = (folder / "data" / "map-cells.csv").read_text()
    assert "\n10,logits divided by √d,0.1," in cells
    assert "the heat kernel" not in cells
    assert "; n = 1 |" in (folder / "verdicts.md").read_text()


def test_the_time_of_the_commands_is_added_up(tmp_path):
    write(tmp_path, records("table1", {"baseline": [8.0, 8.1, None], "2-block (original)": [8.0]}))
    Run(tmp_path / "table1" / "baseline" / "0").result_path.unlink()
    for seconds in (600.0, 60.0):
        note_spent(tmp_path / "map", seconds=seconds, device="GPU", runs=2)
    # The records say how many runs there are, whatever the commands noted.
    note_spent(tmp_path / "table1", seconds=1200.0, device="GPU", runs=1)
    note_spent(tmp_path / "table2-n9", seconds=90.0)
    assert tuple(spent_table(tmp_path).lines) == (
        ("map", "11", "4", "2.75", "GPU"),
        ("table1", "20", "3", "6.67", "GPU"),
        ("table2-n9", "2", "0", "", "unknown"),
        ("in all", "32", "7", "", ""),
    )


def test_the_pages_say_what_the_records_say():
    documents, verdicts = make_documents(PAPER / "results")
    words = [verdict.word for _, verdict in verdicts]
    counts = [words.count(word) for word in ("reproduced", "not reproduced", "depends on", "undecided")]
    assert counts == [8, 0, 3, 9], "with 2 bottlenecks a group"
    for document in documents:
        assert (PAPER / "pages" / f"{document.name}.md").read_text() == as_markdown(document)
        for name, content in document.files().items():
            if name.endswith(".csv"):
                assert (PAPER / "pages" / name).read_text() == content.as_csv()
    readme = (PAPER / "README.md").read_text()
    assert with_summary(readme, documents[0], "pages") == readme


def test_a_readme_with_marks_beside_the_pages_gets_the_summary(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    write(results, records("table1", {"baseline": [8.0], "2-block (proposed)": [8.0]}))
    readme.write_text(f"# Ours\n\n{BEGIN}old\n{END}\n\nMore.\n")
    assert readme in write_reproduction(results, tmp_path / "pages").files
    text = readme.read_text()
    assert text.startswith(f"# Ours\n\n{BEGIN}\nThe hypothesis is **")
    assert text.endswith(f"\n{END}\n\nMore.\n")
    assert "![forest](pages/figures/forest.svg)" in text
    assert "old" not in text
    assert with_summary(text, make_documents(results)[0][0], "pages") == text, "nothing would change"


def test_a_readme_without_both_marks_is_left_alone():
    summary = Document(
        "summary",
        "S",
        (Section("", ("see [it](figures/a.svg), [this](map.md#a) and [that](https://b.example)",)),),
    )
    for text in ("# Ours\n", f"# Ours\n{BEGIN}", f"# Ours\n{END}"):
        assert with_summary(text, summary, "pages") == text
    made = with_summary(f"{BEGIN}{END}", summary, "pages")
    assert (
        made
        == f"{BEGIN}\nsee [it](pages/figures/a.svg), [this](pages/map.md#a) and [that](https://b.example)\n\n{END}"
    )


def test_nothing_of_this_machine_is_in_it(results, made):
    for name, content in files(made[0]).items():
        assert str(results).encode() not in content, name


def test_figures_of_rows_without_runs_are_named(tmp_path):
    write(tmp_path, records("table1", {"2-block (original)": [8.0]}))
    sections = figure_sections(read_table1_runs(tmp_path))
    contents = {section.title[:8]: section.contents for section in sections}
    assert "Not recorded yet: 1 original block, 3 original blocks." in contents["Figure 1"]
    assert list(filter(None, contents["Figure 2"])) == ["Not recorded yet: 1 original block."]
    assert "Not recorded yet: 4 proposed blocks." in contents["Figure 4"]


def test_every_w_has_its_trace_and_energies(made):
    lines = (made[0] / "data" / "figures-spectra.csv").read_text().splitlines()
    assert '"2 original blocks, 2 bottlenecks a group",0,1,-0.751,0.05,0.95,95,30,70,1' in lines
    text = (made[0] / "data" / "figures-features.csv").read_text()
    assert (
        '"4-block (proposed), 2 bottlenecks a group, start 0.01",1,trunk.stages.2,0.5,0.5,-52,+2,0.5,' in text
    )


def test_the_command_tells_kept_records_from_runs(tmp_path, capsys):
    write(tmp_path / "results", records("table1", {"baseline": [8.0, 8.2]}))
    assert has_records(tmp_path / "results")
    assert not has_records(tmp_path / "results" / "table1")
    for work in ("map/one/runs", "table1/runs/a-run"):
        (tmp_path / "work" / work).mkdir(parents=True)
        (tmp_path / "work" / work / "recipe.json").write_text("{}")
    assert not has_records(tmp_path / "work"), "where `nonloc map` and `nonloc reproduce` work"
    assert main(["report", str(tmp_path / "results"), "--output", str(tmp_path / "out"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {line["claim"]: line["verdict"] for line in result["verdicts"]}["better"] == "undecided at n = 0"
    assert str(tmp_path / "out" / "report.html") in result["files"]


def test_pages_do_not_go_among_the_records(tmp_path, capsys):
    folder = tmp_path / "results"
    write(folder, records("table1", {"baseline": [8.0]}))
    for output in (folder, folder / "table1"):
        assert main(["report", str(folder), "--output", str(output)]) == 2
        assert "is in the records" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["table1"]


def test_without_arguments_the_records_are_those_that_the_variable_names(tmp_path, monkeypatch, capsys):
    write(tmp_path / "results", records("table1", {"baseline": [8.0]}))
    monkeypatch.setenv("NONLOC_RESULTS", str(tmp_path / "results"))
    assert main(["report", "--output", str(tmp_path / "pages")]) == 0
    assert (tmp_path / "pages" / "verdicts.md").is_file()
    assert "2 bottlenecks a group, 20 sentences: 0 reproduced" in capsys.readouterr().out


def test_the_page_of_the_demo_shows_the_recorded_runs_and_the_terminal_its_own(results, tmp_path, capsys):
    words = ["reproduce", "demo", "--output", str(tmp_path / "demo"), "--budget", "0s", "--quiet"]
    assert main([*words, "--kept", str(results)]) == 0
    page = (tmp_path / "demo" / "report.html").read_text()
    assert re.search(r"recorded runs on CIFAR-10.*2-block \(original\).*7\.83", page, re.DOTALL)
    assert "2-block" not in capsys.readouterr().out
    assert main([*words, "--kept", "null"]) == 0
    assert "recorded runs on CIFAR-10" not in (tmp_path / "demo" / "report.html").read_text()


def test_kept_certificates_are_told_with_their_limits(tmp_path):
    folder = tmp_path / "results"
    write(folder, records("table1", {"4-block (proposed)": [7.9], "2-block (original)": [8.0]}))
    (text,) = figure_sections(read_table1_runs(folder))[-1].contents
    assert "nonloc stability RUN --keep" in text

    def keep(row, **stage):
        value = stability([certified(2, verdict="unstable", **stage)])
        (folder / "table1" / row / "0" / "stability.json").write_text(json.dumps(value))

    blocks = [
        {"verdict": "unstable", "growth": 1.1, "largest": 0.7, "lowest": -0.2, "limit": 1.8},
        *[{"verdict": "unstable", "growth": 1.2, "largest": 0.9, "lowest": 0.1, "limit": 1.75}] * 3,
    ]
    keep("4-block-proposed", form="diffusive", growth=1.5, blocks=blocks)
    lost = {"verdict": "not decided", "growth": None, "largest": 2.0, "lowest": -0.2, "limit": None}
    keep("2-block-original", form="original", growth=None, blocks=[lost] * 2)
    _, short, data = figure_sections(read_table1_runs(folder))[-1].contents
    assert {line[:2] for line in short.lines} == {("original", "1 of 1"), ("proposed", "1 of 1")}
    lines = data.table.as_text().splitlines()
    cells = ["unstable", "1.500", "1.200", "0.90", "−0.20", "1.75"]
    assert any(line.split()[-6:] == cells for line in lines)
    assert any(line.endswith("–") and "not finite" in line for line in lines)
