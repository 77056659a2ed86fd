"""The page: whole, self-contained, and honest about what is not there."""

import re

import pytest
from html_balance import assert_balanced
from made import RESTORER, make_run
from made_records import arranged, during, records, weight, write

from nonloc_paper.report.page import write_page
from nonloc_paper.report.records import collect
from nonloc_paper.runs import append_line
from nonloc_paper.suites import SUITES
from nonloc_paper.suites.rows import write_plan
from nonloc_paper.training.recipe import Recipe


@pytest.mark.parametrize(
    ("network", "stage"),
    [("restorer8/diffusive-1@2", "trunk.stages.2"), ("own-restorer/net@0123456789ab", "stage")],
)
def test_a_page_of_runs_that_were_only_trained(tmp_path, network, stage):
    make_run(tmp_path / "a", Recipe(network=network, data="motifs", epochs=1), 21.25)
    stages = [during({"name": stage, "weights": [weight(0.3)]})]
    for epoch in (0, 1):
        append_line(tmp_path / "a" / "spectra.jsonl", {"epoch": epoch, "stages": stages})
    path = write_page(collect(tmp_path))
    page = path.read_text()
    assert path == tmp_path / "report.html"
    assert "21.25" in page
    assert ">Training</h2>" in page
    assert "prefers-color-scheme: dark" in page
    for absent in ("Restored images", "Affinity maps", "Spectra", "The features"):
        assert absent not in page
    assert_balanced(page)


def test_spectra_are_shown_of_a_run_that_was_not_observed(tmp_path):
    write(tmp_path, records("table1-beside", {"1 original block": [8.5]}))
    for path in tmp_path.rglob("observations.json"):
        path.unlink()
    page = write_page(collect(tmp_path)).read_text()
    assert ">Spectra of the learned weights</h2>" in page


def test_spectra_are_shown_of_each_network_after_training_and_after_the_chosen_epochs(tmp_path):
    write(tmp_path, records("table1-beside", {"1 original block": [8.5]}))
    write_plan(tmp_path, {"name": "figure2", "rows": [], "changes": {}, "seeds": 1})
    page = write_page(collect(tmp_path)).read_text()
    shown = page[page.index(">Spectra of the learned weights</h2>") :]
    captions = re.findall("<figcaption>(.*?)</figcaption>", shown)[:2]
    assert captions[0] == "1 original block."
    assert captions[1].startswith("1 original block: the same spectrum while training.")
    assert re.findall(">(block 1|epoch [0-9]+)</text>", shown) == [
        "block 1",
        "epoch 36",
        "epoch 82",
        "epoch 125",
    ]


def test_a_planned_suite_without_any_run_says_so(tmp_path):
    write_plan(
        tmp_path,
        {"name": "table1", "rows": ["1", "5-block"], "changes": {}, "seeds": 2, "command": "nonloc x"},
    )
    page = write_page(collect(tmp_path)).read_text()
    assert page.count("missing, missing") == 2
    assert "Not all runs are there: 4 not begun." in page
    assert ">8.19<" in page, "the published number stands beside it"
    assert "<pre>nonloc x</pre>" in page
    assert all(note.split(":")[0] in page for note in SUITES["table1"].notes)


def test_classification_and_restoration_in_one_folder_get_a_table_each(tmp_path):
    make_run(tmp_path / "a", RESTORER, 21.25)
    make_run(tmp_path / "b", Recipe(network="preresnet20/baseline", data="cifar10"), 8.5)
    page = write_page(collect(tmp_path)).read_text()
    assert page.count(">Results</h2>") == 2
    assert "median PSNR (dB)" in page
    assert "median error (%)" in page


def test_the_folder_is_named_even_by_a_relative_path(tmp_path, monkeypatch):
    make_run(tmp_path / "mine" / "a", RESTORER, 21.25)
    monkeypatch.chdir(tmp_path / "mine")
    assert "<h1>Runs in mine</h1>" in write_page(collect(".")).read_text()


def test_recorded_results_are_on_the_page_of_a_folder(tmp_path):
    make_run(tmp_path / "a", RESTORER, 21.25)
    recorded = arranged(records("table1", {"baseline": [8.61]}))
    page = write_page(collect(tmp_path), tmp_path / "deep" / "page.html", recorded).read_text()
    assert page.index("21.25") < page.index("recorded runs on CIFAR-10</h2>") < page.index(">8.61<")
    assert "recorded runs" not in write_page(collect(tmp_path), None, arranged()).read_text()
