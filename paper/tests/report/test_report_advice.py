"""The sentences of the summary: their numbers are counted, and what is not recorded is not told."""

from made_records import arranged, deep_originals, map_lines, records

from nonloc_paper.report.advice import advice
from nonloc_paper.report.map.cells import TrainabilityMap, group_cells

EMPTY = TrainabilityMap((), ())


def told(*lists, trained=EMPTY):
    """Return the sentences by their first words."""
    return {text.split("**")[1]: text for text in advice(arranged(*lists), trained)}


def test_nothing_is_told_of_nothing():
    assert told() == {}


def test_runs_are_counted_by_start_and_place_over_all_backbones():
    places = "3 blocks in different places"
    found = told(
        records("table1", {"4-block (original)": [8.0, None], f"{places} (proposed)": [None, 8.0]}),
        records("table1-n3", {"4-block (original)": [8.0]}),
        records("table1-fragile", {"4-block (original)": [None]}),
        records("table1-beside", {f"{places} (original), logits / √d": [8.0]}),
    )
    assert "1 of 3 runs diverged from start 0.01, 1 of 1 from start 0.07." in found["Start small."]
    assert (
        "0.01, 1 of 2 proposed runs diverged, with divided logits 0 of 1 original."
        in found["Different places"]
    )
    assert "Divide the logits by √d." not in found, "the map has none"


def test_forms_are_compared_with_the_baseline_seed_by_seed():
    labels = [f"{n}-block ({form})" for form in ("original", "proposed") for n in (2, 3, 4)]
    table = {label: [7.5, 7.75] if "original" in label else [7.75] for label in labels}
    text = told(records("table1-n3", {"baseline": [8.0, 8.25]} | table))["Accuracy, 3 bottlenecks a group"]
    assert (
        "original blocks −0.50 [−0.50, −0.50], n = 2; proposed blocks with one affinity −0.25, n = 1." in text
    )
    assert text.endswith("Proposed with one affinity less original: +0.25, n = 1.")


def test_the_map_is_counted_by_what_was_changed():
    ten, scaled, shared = (
        group_cells(map_lines(f"ten_epochs{name}", breaks))
        for name, breaks in (
            ("", deep_originals),
            ("_scaled", lambda *_: False),
            ("_shared", lambda *_: False),
        )
    )
    found = told(trained=TrainabilityMap((), ten, {"ten_epochs_scaled": scaled, "ten_epochs_shared": shared}))
    assert (
        "Of such runs 0 of 54 diverged within ten epochs from larger starts."
        in found["Divide the logits by √d."]
    )
    lost = sum(len(cell.diverged) for cell in ten if cell.form == "original")
    assert 0 < lost < 27
    assert (
        f"{lost} of 27 original runs diverge with own affinities, 0 with one."
        in (found["Or share the affinity."])
    )
    assert "diverged in 0 of 18 runs" in found["Sharing is no guarantee."]
