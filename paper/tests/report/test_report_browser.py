"""Reports in a real browser, on a wide screen and on a phone. `make test-page` runs these; none of them skips."""

from pathlib import Path

import pytest

from nonloc.cli import main
from nonloc_paper.report.claims import CLAIMS
from nonloc_paper.report.reproduction import BADGES, write_reproduction

pytestmark = [pytest.mark.page, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "paper" / "results"
SCREENSHOTS = ROOT / "build" / "report"
WIDE, PHONE = 1280, 390
NAMES = ("demo", "paper")


@pytest.fixture(scope="session")
def addresses(tmp_path_factory):
    """The page of a demo that has hardly been trained, and the page of all records."""
    demo, paper = (tmp_path_factory.mktemp(name) for name in NAMES)
    short = ["epochs=1", "steps_per_epoch=2", "train_images=32", "test_images=8"]
    options = ["--seeds", "1", "--rows", "1", "3", "7", "--quiet", "--kept", str(RECORDS)]
    assert main(["reproduce", "demo", "--output", str(demo), *options, "--set", *short]) == 0
    write_reproduction(RECORDS, paper)
    return {
        name: (folder / "report.html").as_uri() for name, folder in zip(NAMES, (demo, paper), strict=True)
    }


@pytest.fixture
def visit(open_page, addresses):
    return lambda name, width=PHONE, **options: open_page(addresses[name], width, **options)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_the_screen(visit, name, width, scheme):
    page = visit(name, width, color_scheme=scheme)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if width == PHONE:
        ends = page.locator("main :is(th, td, p, li, figcaption, svg, img, summary)").evaluate_all(
            "all => all.filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right)"
        )
        assert max(ends) <= width


def test_a_phone_shows_the_number_before_the_name(visit):
    wide, phone = (visit("demo", width).locator("#part-2 ~ div .results").first for width in (WIDE, PHONE))
    cells = "rows => rows.map((row) => [row.cells[2].textContent, row.cells[0].textContent])"
    lines = wide.locator("tbody tr:not(.group)").evaluate_all(cells)
    before = "all => all.map((one) => [getComputedStyle(one, '::before').content, one.textContent])"
    shown = phone.locator("tbody th[scope=row]").evaluate_all(before)
    assert shown == [[f'"{score}"', name] for score, name in lines]
    number, name = phone.locator("thead th:visible").all()[::-1]
    assert (number.inner_text(), name.inner_text()) == ("median PSNR (dB)", "network")
    assert number.bounding_box()["x"] < name.bounding_box()["x"]
    assert phone.locator("td.key:visible").count() == 0
    assert wide.locator("td.key:visible").count() == len(lines)


def test_a_phone_shows_every_verdict(visit):
    table = visit("paper").locator(".prose:has(th:text-is('verdict'))").first
    verdicts = table.locator("tbody th[scope=row]").evaluate_all(
        "all => all.filter((one) => one.checkVisibility()).map((one) => getComputedStyle(one, '::before').content)"
    )
    assert len(verdicts) == table.locator("tbody tr:not(.group)").count() > len(CLAIMS)
    assert all(text[1] in BADGES.values() for text in verdicts)


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_the_contents_stay_and_lead_to_every_part(visit, name, width):
    page = visit(name, width)
    contents = page.get_by_role("navigation", name="Contents")
    links = contents.get_by_role("link")
    assert links.count() >= 7
    for link in links.all():
        link.click()
        heading = page.locator(link.get_attribute("href")).bounding_box()
        bar = contents.bounding_box()
        assert abs(bar["y"]) < 1
        assert heading["y"] >= (bar["height"] - 1 if width == PHONE else 0)
        assert heading["y"] + heading["height"] <= 900


def test_details_are_folded_and_unfold(visit):
    page = visit("demo")
    assert page.locator("details[open]").count() == 0
    table = page.locator("details:has-text('Their table') table")
    assert not table.is_visible()
    page.get_by_text("Their table").click()
    assert table.is_visible()


def test_a_tap_enlarges_a_figure_and_not_the_page(visit):
    page = visit("demo")
    figure = page.locator("figure .scroll:has(svg)").first
    svg = figure.locator("svg").first
    before = svg.bounding_box()["width"]
    figure.click()
    assert svg.bounding_box()["width"] > 2 * before
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    page.get_by_role("heading").first.click()
    assert svg.bounding_box()["width"] == before
