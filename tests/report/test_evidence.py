"""Parts of a verdict: what is said beside the numbers."""

from made_kept import kept, records

from nonloc.report.evidence import error_part, spread_part

TWO = {"form": "diffusive", "blocks": 2}, {"form": "original", "blocks": 2}


def part(proposed, original):
    table = {"2-block (proposed)": proposed, "2-block (original)": original}
    return error_part(kept(records("table1", table)), *TWO, -1, {})


def test_divergences_stand_beside_a_difference_that_they_decide():
    found = part([8.0, 8.0, 8.0], [8.5, None, None])
    assert found.n == 3
    assert found.numbers.endswith(" (points of error); 2 original: 2 of 3 diverged")


def test_a_pair_in_which_both_diverged_is_left_out():
    found = part([8.0, None], [8.5, None])
    assert (found.n, found.numbers) == (
        1,
        "−0.50, n = 1 (points of error); 2 proposed: 1 of 2 diverged; 2 original: 1 of 2 diverged; a pair in which "
        "both diverged, left out",
    )


def test_without_divergence_there_is_the_difference_alone():
    assert part([8.0], [8.5]).numbers == "−0.50, n = 1 (points of error)"


def test_divergences_stand_beside_the_range_of_a_form():
    table = {f"{blocks}-block (proposed)": [8.0, 8.0] for blocks in (2, 3, 4)}
    table |= {f"{blocks}-block (original)": [8.5, None] for blocks in (2, 3)} | {
        "4-block (original)": [None, None]
    }
    found = spread_part(kept(records("table1", table)), {})
    assert (found.n, found.numbers) == (
        1,
        "−81.50, n = 1 (points of error); original: 4 of 6 diverged; a seed in which all of a form diverged, left out",
    )
