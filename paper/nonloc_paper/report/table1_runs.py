"""read_table1_runs: the recorded runs of Table 1 and its extra rows, found by recipe and not by folder name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from nonloc.nn.options import StageOptions
from nonloc_paper.file_schemas import FORMS
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.records import RowRecord, RunRecord, own_rows, read_run, separate_copies
from nonloc_paper.runs import find_runs, read_json
from nonloc_paper.schema import check
from nonloc_paper.suites import SUITES, Suite
from nonloc_paper.suites.matching_tables import MATCHING, TABLE1_N3
from nonloc_paper.suites.tables import NAMES
from nonloc_paper.training.recipe import Recipe

TABLE = "table1"
# Stages of Table 1: the form, and whether all blocks have one affinity.
Kind = tuple[str, bool]
ORIGINAL, OWN, ONE = ("original", False), ("diffusive", False), ("diffusive", True)
KINDS = {"original": ORIGINAL, "proposed, own affinities": OWN, "proposed, one affinity": ONE}
AFFINITIES = {False: "own affinities", True: "one affinity"}  # by the second part of a kind
OTHER = "Other runs"
REFERENCE = SUITES[TABLE].rows[0].recipe  # Table 1's baseline
CONFIRMING = range(1, 5)  # seeds of TABLE1_N3; seed 0 had been seen when the rules were written
# A Setting's `other` where logits are divided by √d, and nothing else differs.
DIVIDED = ("stage.scaled is True",)

# Fields that change how a run is computed, and not what it is a run of.
_MEANS = ("precision", "channels_last", "spectrum_epochs")
_OF_STAGE = ("init", "init_std", "batch_norm", "weight", "share_affinity", "backend")


@dataclass(frozen=True)
class Setting:
    """What distinguishes a row from the others, whatever its label.

    start   how the four maps of the stage begin: a deviation such as "0.01", or the name of an initialisation
    shared  whether all sub-blocks of a stage have one affinity; "embedding" or "input" where they share just that
    other   every further difference from the protocol of Table 1, such as "stage.scaled is True"
    """

    backbone: str
    form: str | None = None
    blocks: int = 0
    places: tuple[int, ...] = ()
    start: str = ""
    rate: float = 0.1
    weight: str = ""
    shared: bool | str | None = None
    other: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table1Runs:
    """The rows of Table 1 and its extra suites, with their runs; runs of no suite come last.

    suites   the rows of the suites outside Table 1, by name: protocol, backbones and those on other backbones; a row
             may be one of Table 1 too
    copies   runs that are in their row already, as when a folder was copied: shown, and never counted
    planned  suites without any run yet
    steps    the rows of `python -m benchmarks forms`
    """

    rows: tuple[RowRecord, ...]
    suites: Mapping[str, tuple[RowRecord, ...]] = field(default_factory=dict)
    copies: tuple[RowRecord, ...] = ()
    planned: tuple[Suite, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()

    @property
    def recorded(self) -> list[RowRecord]:
        """The rows that have runs."""
        return [row for row in self.rows if row.started]

    @cached_property
    def everything(self) -> list[RowRecord]:
        """The rows of Table 1 and of all other suites, each once."""
        rows = [*self.rows, *(row for some in self.suites.values() for row in some)]
        return list({setting(row.recipe): row for row in reversed(rows)}.values())[::-1]

    def find(self, kind: Kind | None = None, **what: Any) -> RowRecord | None:
        """Return the row of this setting, at the default protocol but for what is named; None without a run."""
        return self._recorded(wanted_setting(kind, **what))

    def rows_of(self, suite: Suite) -> dict[str, RowRecord | None]:
        """Return the recorded rows of a suite by their labels, wherever their runs are kept; None without a run."""
        return {row.label: self._recorded(setting(row.recipe)) for row in suite.rows}

    def _recorded(self, wanted: Setting) -> RowRecord | None:
        return next((row for row in self.everything if row.started and setting(row.recipe) == wanted), None)

    @property
    def settings(self) -> list[Setting]:
        """Of the recorded rows with blocks, but for those that have a further difference in `other`."""
        known = [setting(row.recipe) for row in self.recorded]
        return [one for one in known if one.form and not one.other]


def read_table1_runs(folder: str | os.PathLike[str]) -> Table1Runs:
    """Read all runs below `folder` into the rows of the suites that make up Table 1."""
    runs = arrange([read_run(run) for run in find_runs(Path(folder))])
    path = Path(folder) / "bench" / "forms.json"
    steps = read_json(path)
    if os.path.lexists(path):
        check(steps, FORMS, path)
    return replace(runs, steps=tuple(steps.get("rows", ())))


def arrange(records: Sequence[RunRecord]) -> Table1Runs:
    """Put the records into the rows of their suites; of other data than Table 1's, baselines alone count."""
    first, copies = separate_copies(records, lambda record: (setting(record.recipe), record.recipe.seed))
    found: dict[Setting, dict[int, RunRecord]] = {}
    for (what, seed), record in first.items():
        found.setdefault(what, {})[seed] = record
    # Their baselines may be rows of other suites, too, which are then no runs of those.
    outside = {name: _suite_rows(SUITES[name], found) for name in ("protocol", "backbones")}
    elsewhere = {setting(row.recipe) for some in outside.values() for row in some}
    rows: list[RowRecord] = []
    planned = []
    known: set[Setting] = set()
    for suite in SUITES.values():
        is_table = suite.name.split("-")[0] == TABLE
        if not is_table and suite not in MATCHING:
            continue
        some = [row for row in _suite_rows(suite, found) if setting(row.recipe) not in known]
        # Planned in the order in which they were to be trained.
        some = sorted(some, key=row_order) if suite in MATCHING else some
        has_own = any(row.started for row in some if setting(row.recipe) not in elsewhere)
        if suite.name != TABLE and not has_own:
            planned.append(suite)
            continue
        known |= {setting(row.recipe) for row in some}
        if is_table:
            rows += [replace(row, group=f"{suite.title}. {row.group}".rstrip(". ")) for row in some]
        else:
            outside[suite.name] = tuple(some)
    for what, some_runs in found.items():
        runs = tuple(some_runs.values())
        if what not in known | elsewhere and runs[0].recipe.data == REFERENCE.data:
            rows.append(RowRecord(_label(what), runs[0].recipe, runs, group=OTHER))
    copies = [one for one in copies if one.recipe.data == REFERENCE.data]
    rows_of_copies = tuple(own_rows(copies, "Runs that are kept twice"))
    return Table1Runs(tuple(rows), outside, rows_of_copies, tuple(planned))


def _suite_rows(suite: Suite, known: Mapping[Setting, Mapping[int, RunRecord]]) -> tuple[RowRecord, ...]:
    """The rows of a suite with their runs: of the planned seeds, and of all others that are recorded."""
    rows = []
    for row in suite.rows:
        found = known.get(setting(row.recipe), {})
        seeds = sorted({*range(row.seeds or suite.seeds), *found})
        runs = tuple(found.get(seed) for seed in seeds)
        rows.append(RowRecord(row.label, row.recipe, runs, row.published, row.note, row.group))
    return tuple(rows)


def _label(what: Setting) -> str:
    """A row of no suite in words: how it differs from the protocol of Table 1."""
    stage = "baseline"
    if what.form is not None:
        places = ", ".join(str(place) for place in what.places)
        shared = "" if what.shared == (what.form == "diffusive") else f", share_affinity {what.shared}"
        stage = f"{what.blocks} {what.form} after {places}, start {what.start}, weight {what.weight}{shared}"
    return "; ".join((f"{what.backbone}, {stage}, rate {what.rate:g}", *what.other))


def start_of(recipe: Recipe) -> str:
    """Return how the maps of a recipe's stage begin, in a word or a number."""
    options = recipe.stage
    is_normal = options.init == "normal" and options.init_std
    name = f"{options.init_std:g}" if is_normal else options.init or "default"
    return f"{name}, BN" if options.batch_norm else name


@lru_cache(maxsize=4096)
def setting(recipe: Recipe) -> Setting:
    """Return what a recipe is a run of."""
    spec = NetworkSpec.parse(recipe.network)
    same = {name: getattr(REFERENCE.stage, name) for name in _OF_STAGE}
    plain = recipe.with_(
        seed=0,
        network=REFERENCE.network,
        learning_rate=REFERENCE.learning_rate,
        stage=REFERENCE.stage if spec.form is None else replace(recipe.stage, **same),
        **{name: getattr(REFERENCE, name) for name in _MEANS},
    )
    other = tuple(text.partition(", was")[0] for text in plain.differences(REFERENCE))
    backbone = str(spec.baseline).partition("/")[0]
    if spec.form is None:
        return Setting(backbone, rate=recipe.learning_rate, other=other)
    # One block alone has one affinity, however it is asked for.
    asked = StageOptions() if spec.num_blocks == 1 else recipe.stage
    part = asked.share_affinity if isinstance(asked.share_affinity, str) else None
    return Setting(
        backbone,
        spec.form,
        spec.num_blocks,
        spec.places,
        start_of(recipe),
        recipe.learning_rate,
        recipe.stage.weight or "factored",
        part or asked.shares_affinity(spec.form),
        other,
    )


PROTOCOL = setting(REFERENCE)  # the default
START = next(setting(row.recipe) for row in SUITES[TABLE].rows if setting(row.recipe).form).start


def wanted_setting(kind: Kind | None = None, **what: Any) -> Setting:
    """Return the default protocol with these changes; "form" and "blocks" alone mean as in the paper.

    kind  "form" and "shared" together
    """
    if kind is not None:
        what["form"], what["shared"] = kind
    if what.get("form") is None:
        same = {name: what[name] for name in ("backbone", "rate", "other") if name in what}
        return replace(PROTOCOL, **same)
    is_diffusive = what["form"] == "diffusive"
    own = {"places": (2,), "start": START, "weight": "factored", "shared": is_diffusive}
    # A block alone has one affinity, whatever is asked for.
    alone = {"shared": is_diffusive} if what.get("blocks") == 1 else {}
    return replace(PROTOCOL, **(own | what | alone))


def row_name(row: RowRecord) -> str:
    """Return a row's label, with its start and backbone where they are not the default ones."""
    what = setting(row.recipe)
    start = "" if what.start in ("", START) or what.start in row.label else f", start {what.start}"
    backbone = "" if what.backbone == PROTOCOL.backbone else f", {group_size(what.backbone)}"
    return f"{row.label}{start}{backbone}"


def kind_of(row: RowRecord) -> Kind:
    """Return the form of a row's blocks, "None" without blocks, and whether all have one affinity."""
    what = setting(row.recipe)
    return str(what.form), what.shared is True


def row_order(row: RowRecord) -> tuple[int, bool, int]:
    """Return what sorts rows by form and affinity, as the tables have them, then by the number of blocks."""
    form, is_one = kind_of(row)
    return ["None", *NAMES].index(form), is_one, setting(row.recipe).blocks


def deciding_seeds(what: Setting) -> Sequence[int] | None:
    """Return the seeds that decide, None for all: of Table 1 with 3 bottlenecks a group not the one that was seen."""
    return CONFIRMING if what in {setting(row.recipe) for row in TABLE1_N3.rows} else None


def group_length(backbone: str) -> int:
    """Return how many residual blocks a group of this backbone has."""
    return NetworkSpec.parse(f"{backbone}/baseline").blocks_per_group


def group_size(backbone: str) -> str:
    """Return the same in words."""
    return f"{group_length(backbone)} bottlenecks a group"


def errors(row: RowRecord | None) -> dict[int, float]:
    """Return the error in % of each seed of a row that came to its end; a diverged run has none."""
    ended = [] if row is None else row.started
    return {run.recipe.seed: run.score for run in ended if run.score is not None}


def lost(row: RowRecord | None) -> set[int]:
    """Return the seeds of a row that diverged."""
    return set() if row is None else {run.recipe.seed for run in row.diverged}


def median_run(row: RowRecord) -> RunRecord | None:
    """Return the run with the row's median score (the lower one of two), else the first that did not diverge."""
    ended = sorted(
        (run for run in row.started if run.score is not None), key=lambda run: (run.score, run.recipe.seed)
    )
    if ended:
        return ended[(len(ended) - 1) // 2]
    return next((run for run in row.started if run.ending != "diverged"), None)
