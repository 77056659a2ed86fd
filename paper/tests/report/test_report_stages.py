"""Tables of what trained stages do: a line for each stage, and the last look at runs that diverged."""

import json
from dataclasses import replace

from made_records import arranged, certified, records, stability, write

from nonloc_paper.report.table1_runs import read_table1_runs
from nonloc_paper.report.trained_stages import action_table, factors_table, growth_table, lost_table


def test_a_network_with_several_stages_has_a_line_for_each(tmp_path):
    label = "3 blocks in different places (original)"
    write(tmp_path, records("table1", {label: [8.0]}))
    block = {"verdict": "unstable", "growth": 1.1, "largest": 0.7, "lowest": 0.1, "limit": None}
    stages = [
        certified(place, form="original", verdict="unstable", growth=1.1, blocks=[block])
        for place in (2, 4, 6)
    ]
    folder = tmp_path / "table1" / "3-blocks-in-different-places-original" / "0"
    (folder / "stability.json").write_text(json.dumps(stability(stages)))
    lines = growth_table(read_table1_runs(tmp_path).rows).lines
    assert [line[2] for line in lines] == [f"trunk.stages.{place}" for place in (2, 4, 6)]


def test_the_energy_is_what_each_sub_block_does_under_its_own_kernel():
    """Between the two the kernel changes, and with it what the same features weigh."""
    (run,) = records("table1", {"2-block (original)": [8.0]})
    (stage,) = run.observations["features"]
    energies = [(100.0, 90.0), (9.0, 4.5)]
    blocks = [
        block | {"before": block["before"] | {"energy": before}, "after": block["after"] | {"energy": after}}
        for block, (before, after) in zip(stage["blocks"], energies, strict=True)
    ]
    run = replace(run, observations=run.observations | {"features": [stage | {"blocks": blocks}]})
    table = factors_table(arranged([run]).rows)
    (line,) = table.lines
    assert line[table.header.index("Dirichlet energy ×")] == "0.45"


def test_a_stable_stage_is_named_once_by_its_start_and_has_no_minus_zero(tmp_path):
    label = "4-block (stable), deviation 0.07"
    (run,) = records("table1-stable", {label: [8.0]})
    block = {"growth": 1.0, "largest": 0.8, "lowest": -3e-9, "limit": 1.5}
    stage = {"name": "trunk.stages.2", "verdict": "stable", "growth": 1.0, "blocks": [block]}
    (line,) = growth_table(arranged([replace(run, stability={"images": 2, "stages": [stage]})]).rows).lines
    assert line[:5] == (f"{label}, 2 bottlenecks a group", "0", "trunk.stages.2", "2", "stable")
    assert line[5:] == ("1.000", "1.000", "0.80", "0.00", "1.50")


def test_of_runs_that_diverged_the_last_look_at_their_kernels_is_told():
    (run,) = records("table1", {"4-block (original)": [None]})
    assert not lost_table(arranged([run]).rows)
    seen = [{"spread": 0.004321, "apart": 0.5, "logit_spread": 1234.5}, {"spread": 0.75, "apart": 0.25}]
    run = replace(run, observations={"step": 1173, "epoch": 3, "affinity": seen})
    lines = lost_table(arranged([run]).rows).lines
    who = ("4-block (original), 2 bottlenecks a group, start 0.01", "0", "1234", "1173", "–")
    assert lines == [(*who, "0.0043", "0.50", "1234"), (*who, "0.75", "0.25", "–")]


def test_a_run_that_diverged_before_it_was_saved_is_told_beside_the_others():
    saved, lost = records("table1", {"4-block (original)": [None, None]})
    seen = {"step": 391, "affinity": [{"spread": 0.5, "apart": 0.25}]}
    rows = arranged([replace(saved, observations=seen), replace(lost, observations={"step": None})]).rows
    lines = lost_table(rows).lines
    assert [line[3:] for line in lines] == [("391", "–", "0.50", "0.25", "–"), ("–",) * 5]


def test_the_backbones_are_told_apart():
    found = arranged(
        records("table1", {"4-block (proposed)": [8.0]}),
        records("table1-n3", {"4-block (proposed)": [7.5], "4-block (proposed), own affinities": [7.25]}),
    )
    names = [line[0] for line in factors_table(found.rows).lines]
    assert len(set(names)) == 3
    assert [line[0] for line in action_table(found).lines] == [
        "3 bottlenecks a group",
        "proposed, own affinities, 4 blocks",
        "proposed, one affinity, 4 blocks",
        "2 bottlenecks a group",
        "proposed, one affinity, 4 blocks",
    ]


def test_what_w_does_to_features_is_counted_by_form_and_sub_block():
    table = {"2-block (original)": [8.0], "3-block (proposed)": [8.0, 8.1, None], "4-block (proposed)": [8.0]}
    found = arranged(
        records("table1", table),
        # None of these: another start, other places, no look at the features.
        records("table1-fragile", {"2-block (proposed)": [8.0]}),
        records("table1", {"3 blocks in different places (proposed)": [8.0]}),
        [replace(one, observations={}) for one in records("table1", {"2-block (proposed)": [8.0]})],
    )
    title, original, (name, *numbers) = action_table(found).lines
    assert title == ("2 bottlenecks a group",)
    assert original == (
        "original, 2 blocks",
        "95 to 95 %",
        "0 of 1",
        "1 of 1",
        "−54 % to −54 %",
        "+4 % to +4 %",
    )
    assert name == "proposed, one affinity, 3 and 4 blocks"
    assert numbers == ["5 to 5 %", "0 of 3", "4 of 7", "−53 % to −52 %", "+2 % to +3 %"]
    assert not action_table(arranged(records("table1", {"baseline": [8.0]})))
