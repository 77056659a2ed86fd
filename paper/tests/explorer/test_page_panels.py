"""The panels of records in a real browser: training, the map, the tables."""

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.page, pytest.mark.timeout(600)]

PAPER = Path(__file__).parents[2]
RESULTS = PAPER / "results"
PANELS = ("training", "map", "tables")


def short(value):
    """A number in three digits, with a minus sign, as the page writes it."""
    return f"{float(f'{value:.3g}'):g}".replace("-", "−")


def test_the_epoch_moves_by_keyboard_and_shows_the_recorded_spectra(visit):
    page = visit("training")
    said = page.get_by_role("status").filter(has_text="energy of sym(W)")
    row, seed = re.match(r"(.*), seed (\d+), after epoch 164: ", said.inner_text()).groups()
    assert row == "2-block (original)"
    lines = (RESULTS / "table1" / "2-block-original" / seed / "spectra.jsonl").read_text().splitlines()
    page.get_by_role("slider").focus()
    for line in map(json.loads, reversed(lines)):
        assert f", after epoch {line['epoch']}: " in said.inner_text()
        drawings = page.locator(".spectra svg")
        weights = line["stages"][0]["weights"]
        assert drawings.count() == len(weights)
        for place, weight in enumerate(weights):
            label = drawings.nth(place).get_attribute("aria-label")
            assert f"largest eigenvalue {short(weight['eigenvalues'][0])};" in label
            assert drawings.nth(place).locator("rect").count() == 32
            assert drawings.nth(place).locator("polygon").count() == 1
        page.keyboard.press("ArrowLeft")


def test_every_run_of_every_row_can_be_shown(visit):
    page = visit("training")
    shown = page.evaluate(
        """() => {
            const [suites, rows, runs] = document.querySelectorAll("#panel-training select");
            const said = document.querySelector("#panel-training [role=status]");
            const texts = [];
            const choose = (select, place) => {
                select.selectedIndex = place;
                select.dispatchEvent(new Event("change"));
            };
            for (let suite = 0; suite < suites.options.length; suite++) {
                choose(suites, suite);
                for (let row = 0; row < rows.options.length; row++) {
                    choose(rows, row);
                    for (let run = 0; run < runs.options.length; run++) {
                        choose(runs, run);
                        texts.push(said.textContent);
                    }
                }
            }
            return texts;
        }"""
    )
    recorded = [path for path in RESULTS.rglob("spectra.jsonl") if path.read_text()]
    assert len(shown) == len(set(shown)) == len(recorded)


def test_a_cell_shows_its_runs_by_keyboard_and_by_pointer(visit):
    page = visit("map")
    title, cells = page.locator(".details h2"), page.locator(".map button")
    lines = [json.loads(line) for line in (RESULTS / "map" / "one_epoch.jsonl").read_text().splitlines()]
    assert cells.count() == len({line["cell"] for line in lines if line["rate"] == 0.1})
    page.locator(".map [aria-current]").focus()
    page.keyboard.press("ArrowRight")
    assert title.inner_text() == "4 × original, start normal 0.1, rate 0.1"
    steps = {
        line["seed"]: line["step"] for line in lines if line["cell"] == "rate 0.1, normal 0.1, original 4"
    }
    texts = page.locator(".details tbody tr").all_inner_texts()
    assert [f"diverged at step {step}" in text for step, text in zip(steps.values(), texts, strict=True)] == [
        True
    ] * 2
    cells.first.hover()
    assert title.inner_text() == "1 × original, start normal 0.01, rate 0.1"
    page.locator("h1").hover()
    assert title.inner_text() == "4 × original, start normal 0.1, rate 0.1"


def test_the_forest_is_filtered_and_the_tables_are_those_of_the_readme(visit):
    page = visit("tables")
    lines = page.locator(".forest tr[data-form]")
    every = lines.count()
    page.get_by_role("combobox", name="Form", exact=True).select_option("original")
    page.get_by_role("combobox", name="Affinity", exact=True).select_option("own")
    assert set(
        lines.evaluate_all("rows => rows.map(row => [row.dataset.form, row.dataset.affinity].join())")
    ) == {"original,own"}
    assert page.get_by_text(f"{lines.count()} of {every} differences.").is_visible()
    assert page.locator(".forest .published").count() > 0
    readme = (PAPER / "README.md").read_text()
    cells = "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    for table in page.locator("details table").all():
        for line in table.evaluate(cells):
            assert (f"| {' | '.join(line)} |" if len(line) > 1 else f"| *{line[0]}* |") in readme


def test_the_data_is_small(folder):
    sizes = [(folder / "data" / f"{name}.js").stat().st_size for name in PANELS]
    assert sum(sizes) <= 2_000_000
