"""read_kept: the kept runs of Table 1 and its blocks, found by their recipes and not by their folders' names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from nonloc.nn.options import StageOptions
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.records import RowRecord, RunRecord, own_rows, read_run, told_apart
from nonloc_paper.runs import find_runs, read_json
from nonloc_paper.suites import SUITES, Suite
from nonloc_paper.training.recipe import Recipe

TABLE, PROTOCOL = "table1", "protocol"
GUESSING = 90.0  # % error on ten classes without looking: what a diverged run is good for
OTHER = "Other runs"
# A Setting's `other` where logits are divided by √d, and nothing else differs.
DIVIDED = ("stage.scaled is True",)

# What changes how a run is computed and not what it is a run of.
_MEANS = ("precision", "channels_last", "spectrum_epochs")


@dataclass(frozen=True)
class Setting:
    """What sets one row apart from the others, whatever its label.

    start   how the four maps of the stage begin: a deviation such as "0.01", or the name of an initialisation
    shared  whether all sub-blocks of a stage have one affinity
    other   every further difference from the protocol of Table 1, such as "stage.scaled is True"
    """

    backbone: str
    form: str | None = None
    blocks: int = 0
    places: tuple[int, ...] = ()
    start: str = ""
    rate: float = 0.1
    weight: str = ""
    shared: bool | None = None
    other: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """The rows of Table 1 and its blocks, with their runs; those of no suite come last.

    protocol  the setting of Table 1's baseline, whose start and backbone are the default protocol's
    start     the start of Table 1's stages
    tried     the rows of the runs that settled the protocol; a baseline may be a row of Table 1 too
    twice     runs of which a first one is in its row already, as when a folder was copied: shown, and never counted
    steps     the rows of `python -m benchmarks forms`
    """

    rows: tuple[RowRecord, ...]
    protocol: Setting
    start: str
    tried: tuple[RowRecord, ...] = ()
    twice: tuple[RowRecord, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()

    @property
    def recorded(self) -> list[RowRecord]:
        """The rows that have runs."""
        return [row for row in self.rows if row.started]

    def find(self, **what: Any) -> RowRecord | None:
        """The row of this setting, at the default protocol but for what is named; None where there is no run of it."""
        wanted = self.wanted(**what)
        # A baseline on another backbone is among the runs that settled the protocol.
        known = (*self.rows, *self.tried)
        return next((row for row in known if row.started and setting(row.recipe) == wanted), None)

    def wanted(self, **what: Any) -> Setting:
        """The default protocol with these changes: "form" and "blocks" alone mean as in the paper, after block 2."""
        if what.get("form") is None:
            return replace(self.protocol, backbone=what.get("backbone", self.protocol.backbone))
        own: dict[str, Any] = {
            "places": (2,),
            "start": self.start,
            "weight": "factored",
            "shared": what["form"] == "diffusive",
        }
        return replace(self.protocol, **(own | what))

    def named(self, row: RowRecord) -> str:
        """Its label, with the start of its stages where it is not the default one; blocks of the table share labels."""
        start = setting(row.recipe).start
        told = not start or start == self.start or start in row.label
        return row.label if told else f"{row.label}, start {start}"

    @property
    def starts(self) -> list[str]:
        """The starts that the runs have besides the default one."""
        known = {setting(row.recipe) for row in self.rows if row.started}
        return sorted({one.start for one in known if one.form and not one.other} - {self.start})

    @property
    def backbones(self) -> list[str]:
        """The backbones that the runs have besides the default one."""
        known = {setting(row.recipe) for row in self.rows if row.started}
        return sorted(
            {one.backbone for one in known if one.form and not one.other} - {self.protocol.backbone}
        )


def read_kept(folder: str | os.PathLike[str]) -> Kept:
    """All runs on Table 1's data below `folder`, in the rows of the suites that make it up."""
    records = [read_run(run) for run in find_runs(Path(folder))]
    kept = arrange([record for record in records if record.recipe.data == _protocol().data])
    return replace(kept, steps=tuple(read_json(Path(folder) / "bench" / "forms.json").get("rows", ())))


def arrange(records: Sequence[RunRecord]) -> Kept:
    """The records in the rows of their suites."""
    found, twice = told_apart(records, lambda record: (setting(record.recipe), record.recipe.seed))
    left = dict(found)
    rows: list[RowRecord] = []
    known: set[Setting] = set()
    for suite in table_suites():
        for row in suite.rows:
            what = setting(row.recipe)
            if what in known:
                continue
            known.add(what)
            least = row.seeds or suite.seeds
            seeds = sorted({*range(least), *(seed for one, seed in left if one == what)})
            runs = tuple(left.pop((what, seed), None) for seed in seeds)
            group = f"{suite.title}. {row.group}".rstrip(". ")
            rows.append(RowRecord(row.label, row.recipe, runs, row.published, row.note, group))
    tried = {setting(row.recipe) for row in SUITES[PROTOCOL].rows}
    apart: dict[Setting, list[RunRecord]] = {}
    for (what, _), one in left.items():
        if what not in tried:
            apart.setdefault(what, []).append(one)
    rows.extend(
        RowRecord(_label(what), runs[0].recipe, tuple(runs), group=OTHER) for what, runs in apart.items()
    )
    protocol = setting(_protocol())
    stage = next(row.recipe for row in SUITES[TABLE].rows if NetworkSpec.parse(row.recipe.network).form)
    return Kept(
        tuple(rows),
        protocol,
        setting(stage).start,
        _protocol_rows(found),
        tuple(own_rows(twice, "Runs that are kept twice")),
    )


def _label(what: Setting) -> str:
    """A row of no suite in words: all that sets it apart from the protocol of Table 1."""
    if what.form is None:
        stage = "baseline"
    else:
        places = ", ".join(str(place) for place in what.places)
        shared = "" if what.shared == (what.form == "diffusive") else f", shared affinity: {what.shared}"
        stage = f"{what.blocks} {what.form} after {places}, start {what.start}, weight {what.weight}{shared}"
    return "; ".join((f"{what.backbone}, {stage}, rate {what.rate:g}", *what.other))


def _protocol_rows(known: Mapping[tuple[Setting, int], RunRecord]) -> tuple[RowRecord, ...]:
    suite = SUITES[PROTOCOL]
    rows = []
    for row in suite.rows:
        what = setting(row.recipe)
        found = {seed: run for (one, seed), run in known.items() if one == what}
        seeds = sorted({*range(row.seeds or suite.seeds), *found})
        runs = tuple(found.get(seed) for seed in seeds)
        rows.append(RowRecord(row.label, row.recipe, runs, row.published, row.note, row.group))
    return tuple(rows)


def table_suites() -> list[Suite]:
    """Table 1 and the blocks beside it: the suites called "table1" and "table1-…"."""
    return [suite for name, suite in SUITES.items() if name.split("-")[0] == TABLE]


@lru_cache(maxsize=4096)
def setting(recipe: Recipe) -> Setting:
    """What a recipe is a run of."""
    reference = _protocol()
    spec = NetworkSpec.parse(recipe.network)
    stage = reference.stage if spec.form is None else replace(recipe.stage, **_stage_of(reference))
    plain = recipe.with_(
        seed=0,
        network=reference.network,
        learning_rate=reference.learning_rate,
        stage=stage,
        **{name: getattr(reference, name) for name in _MEANS},
    )
    other = tuple(text.partition(", was")[0] for text in plain.differences(reference))
    backbone = str(spec.baseline).partition("/")[0]
    if spec.form is None:
        return Setting(backbone, rate=recipe.learning_rate, other=other)
    # One block alone has one affinity, however it is asked for.
    asked = StageOptions() if spec.num_blocks == 1 else recipe.stage
    return Setting(
        backbone,
        spec.form,
        spec.num_blocks,
        spec.places,
        start_of(recipe),
        recipe.learning_rate,
        recipe.stage.weight or "factored",
        asked.shares_affinity(spec.form),
        other,
    )


def start_of(recipe: Recipe) -> str:
    """How the maps of a recipe's stage begin, in a word or a number."""
    options = recipe.stage
    name = (
        f"{options.init_std:g}"
        if options.init == "normal" and options.init_std
        else options.init or "default"
    )
    return f"{name}, BN" if options.batch_norm else name


def errors(row: RowRecord | None) -> dict[int, float]:
    """The error in % of each seed of a row; a diverged run has that of guessing."""
    ended = [] if row is None else row.started
    scores = {run.recipe.seed: GUESSING if run.ending == "diverged" else run.score for run in ended}
    return {seed: score for seed, score in scores.items() if score is not None}


def lost(row: RowRecord | None) -> set[int]:
    """The seeds of a row that diverged."""
    return set() if row is None else {run.recipe.seed for run in row.diverged}


def differences(one: RowRecord | None, other: RowRecord | None) -> dict[int, float]:
    """one − other in points of error, seed by seed; two runs that both diverged compare nothing."""
    ours, theirs = errors(one), errors(other)
    common = (ours.keys() & theirs.keys()) - (lost(one) & lost(other))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(common)}


def median_run(row: RowRecord) -> RunRecord | None:
    """The run whose score is the row's median (the lower one of two), else the first that is not diverged."""
    ended = sorted(
        (run for run in row.started if run.score is not None), key=lambda run: (run.score, run.recipe.seed)
    )
    if ended:
        return ended[(len(ended) - 1) // 2]
    return next((run for run in row.started if run.ending != "diverged"), None)


def _protocol() -> Recipe:
    return SUITES[TABLE].rows[0].recipe


def _stage_of(reference: Recipe) -> dict[str, Any]:
    names = ("init", "init_std", "batch_norm", "weight", "share_affinity", "backend")
    return {name: getattr(reference.stage, name) for name in names}
