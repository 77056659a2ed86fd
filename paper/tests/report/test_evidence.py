"""Parts of a verdict: what decides them, and what is said beside the numbers."""

from made_kept import kept, records

from nonloc_paper.report.evidence import (
    damping_part,
    early_loss,
    error_part,
    last_loss,
    ratio_part,
    spread_part,
)

TWO = {"form": "diffusive", "blocks": 2}, {"form": "original", "blocks": 2}
ONE, THREE, FOUR = ({"form": "original", "blocks": blocks} for blocks in (1, 3, 4))
AROUND_1 = (0.99, 1.01, 0.99, 1.01, 1.0)


def part(proposed, original):
    table = {"2-block (proposed)": proposed, "2-block (original)": original}
    return error_part(kept(records("table1", table)), *TWO, -1, {})


def row(suite, label, name, values):
    """Runs of one row, a seed for each of the values of what `record` calls `name`."""
    return [
        records(suite, {label: [8.0] * len(values)}, **{name: value})[seed]
        for seed, value in enumerate(values)
    ]


def larger_part(ratios, least):
    """Of last losses that have these ratios."""
    four = row("table1", "4-block (original)", "loss", ratios)
    three = row("table1", "3-block (original)", "loss", [1.0] * len(ratios))
    return ratio_part(kept(four, three), FOUR, THREE, 1, {}, last_loss, least)


def test_losses_within_a_factor_of_1_02_are_level_and_not_larger():
    assert larger_part(AROUND_1, least=1.0).holds is False


def test_losses_around_twice_as_large_leave_open_whether_they_are_more_than_that():
    assert larger_part((1.99, 2.01, 1.99, 2.01, 2.0), least=2.0).holds is None


def test_norms_within_a_factor_of_1_02_are_level_and_not_damped():
    found = kept(row("table1-beside", "1 original block", "norm", AROUND_1))
    assert damping_part(found, ONE, {}).holds is False


def test_the_early_loss_is_the_mean_up_to_the_first_milestone():
    (run,) = records("table1-beside", {"1 original block": [8.0]})
    assert run.recipe.milestones[0] == 81
    losses = {80: 1.0, 81: 3.0, 82: 100.0}
    run.metrics[:] = [{"epoch": epoch, "train_loss": loss} for epoch, loss in losses.items()]
    assert early_loss(run) == 2.0


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
