"""Damaged records: a report refuses them with a message that names the folder, or shows nothing of the damage.

Three small folders are made: runs of a restorer with all that a page shows, runs of Table 1 with a part of the map, and
four recorded runs. A trial damages one value, line or file and makes the tables, or the whole pages, of that folder.

It fails
- with any exception but CorruptDataError, ValueError and OSError, or with one that does not name the folder,
- if damage is accepted that can be noticed: another type, an unknown, repeated or missing name, a number that is not
  finite or out of its range, a number that another one contradicts, lost, doubled or exchanged lines,
- if a sentinel is in the output, or the output changes where only the order of lines did.

FREE and OPTIONAL say what nothing else in a record contradicts. Free numbers may change within their range.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from faults.trial import Trial
from nonloc.outcomes import CorruptDataError

PAPER = Path(__file__).parents[2]
sys.path.append(str(PAPER / "tests" / "report"))

GOALS = {"tables": 4600, "pages": 400}
PAGES = 0.08  # the share of trials that make whole pages, figures included
TEXT, NUMBER = "MUTATED<b>", 7777.77
SHOWN = (TEXT, "7777.8", "7777.77", "7,777.77", "7778", "7,778")
REAL = ("4-block-proposed/0", "4-block-original/0", "3-blocks-in-different-places-proposed/0", "baseline/0")
CHOICES = {"ending", "form", "verdict", "task", "data_sha256", "weights_sha256", "recipe_sha256", "device"}

# Numbers that nothing else contradicts, and that have no upper end.
FREE = """
    train_loss test_loss psnr learning_rate seconds parameters cores threads batch_size images positions
    channels rank norm mean variance energy quotient linear low high trace quantile growth largest lowest limit
    repeated logit_spread logit_spreads amplification eigenvalue loss first_loss last_loss mean_loss
    milliseconds runs side_by_side format input_psnr noisy restored grid position seed step epoch rate blocks
    seeds
"""
# Of these the upper end, or another field, is known where they are in these files.
BOUND = {
    "metrics.jsonl": {"epoch", "step"},
    "result.json": {"epoch", "step", "train_loss", "test_loss", "psnr", "learning_rate"},
    "spectra.jsonl": {"trace", "epoch"},
    "observations.json": {"num_blocks", "block"},
    "stability.json": {"num_blocks"},
}
OPTIONAL = """
    apart logit_spread logit_spreads quotient linear band growth verdict weights after device runs part command
    step earlier error psnr
"""
SIGNED = """
    psnr mean energy quotient linear low high trace eigenvalue eigenvalues lowest limit input_psnr noisy restored
"""
SHARES = "error negative_share spread apart same_share same_chance"
NAMED = {"versions", "changes"}  # objects with any names


@dataclass(frozen=True)
class Base:
    """A folder of records that is damaged again and again; `tables` returns what it shows without figures."""

    folder: Path
    tables: Callable[[Path], str]
    files: tuple[Path, ...]
    whole: str


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    bases = [
        make_base(folder / "page", make_page, page_tables),
        make_base(folder / "reproduction", make_reproduction, reproduction_tables),
        make_base(folder / "recorded", make_recorded, reproduction_tables),
    ]
    while True:
        base = chance.choice(bases)
        path = chance.choice(base.files)
        kind = "pages" if chance.random() < PAGES else "tables"
        before = path.read_bytes()
        place = path.relative_to(base.folder)
        what, must_refuse, is_free, same = damage(path, chance)
        try:
            failure = look(base, path, kind, must_refuse=must_refuse, is_free=is_free, same=same)
        finally:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(before)
        yield Trial(kind, failure and f"{base.folder.name}/{place}: {what}: {failure}")


def look(base: Base, path: Path, kind: str, *, must_refuse: bool, is_free: bool, same: bool) -> str | None:
    """Make the tables or pages of a damaged folder; return what is wrong with what comes of it."""
    try:
        shown = base.tables(base.folder) if kind == "tables" else pages(base.folder)
    except (CorruptDataError, ValueError, OSError) as error:
        text = str(error)
        if isinstance(error, UnicodeError) or str(path.parent) not in text:
            return f"the message does not name it: {type(error).__name__}: {text[:200]}"
        return "an order that means nothing is refused" if same else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    if must_refuse:
        return "accepted"
    if same and kind == "tables" and shown != base.whole:
        return "the order of lines changes what is shown"
    if not is_free and (seen := [sentinel for sentinel in SHOWN if sentinel in shown]):
        return f"{seen[0]} is shown"
    return f"{TEXT} is shown as it is" if TEXT in shown else None


def damage(path: Path, chance: random.Random) -> tuple[str, bool, bool, bool]:
    """Damage a file; return what was done, whether it must be noticed, is free, or changes nothing but an order."""
    is_lines = path.suffix == ".jsonl"
    if chance.random() < 0.2:
        return damage_bytes(path, chance)
    texts = path.read_text().splitlines() if is_lines else [path.read_text()]
    values = [json.loads(text) for text in texts]
    if is_lines and chance.random() < 0.2:
        return damage_lines(path, values, chance)
    number = chance.randrange(len(values))
    name, holder, key = chance.choice(list(places(values[number])))
    ways = [retype, constant]
    if isinstance(holder, dict):
        ways += [repeat, rename, remove]
    if type(holder[key]) in (int, float):
        ways += [exceed, contradict, contradict]
    elif isinstance(holder[key], str):
        ways += [exceed]
    way = chance.choice(ways)
    what, must_refuse, is_free = way(path, name, holder, key, chance)
    lines = [json.dumps(value) for value in values]
    # Text that no value can stand for: constants, and a name that is there twice.
    lines[number] = re.sub('"@([^"]*)@"', r"\1", lines[number].replace('"@again ', '"'))
    path.write_text("\n".join(lines) + "\n")
    if number == len(values) - 1 and is_lines and not (path.parent / "result.json").exists():
        # Of a run that goes on, a last line that is no JSON counts as torn.
        must_refuse &= way not in (constant, repeat)
    return f"line {number + 1}, {name}: {way.__name__}: {what}", must_refuse, is_free, False


CONSTANTS = ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 30)
Way = tuple[str, bool, bool]


def places(value: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every value inside: its name, what holds it, and its key or index there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries:
        place = f"{name}.{key}".strip(".")
        yield place, value, key
        if isinstance(item, dict | list):
            yield from places(item, place)


def field(name: str) -> str:
    """The last name of a place that is no index."""
    return [word for word in name.split(".") if not word.isdecimal()][-1]


def is_named(name: str) -> bool:
    return name.split(".")[0] in NAMED


def retype(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """Another type of JSON."""
    old = holder[key]
    others = [TEXT, str(NUMBER), NUMBER, True, [NUMBER], {TEXT: NUMBER}, None]
    kinds = {bool: "bool", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    fits = [one for one in others if kinds.get(type(one)) != kinds.get(type(old))]
    new = chance.choice(fits)
    holder[key] = new
    # Null stands for a number that was not finite, and for a note that is not there.
    may_be = new is None or (old is None and not isinstance(new, bool | list | dict))
    if path.name == "recipe.json" or name == "changes":
        may_be = True
    # A recipe that can be meant is another run.
    is_free = field(name) in FREE.split() or path.name == "recipe.json"
    return f"{type(old).__name__} to {new!r}", not may_be, is_free


def constant(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """A number that is not finite, or larger than any."""
    holder[key] = f"@{chance.choice(CONSTANTS)}@"
    return holder[key], True, False


def repeat(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """A name that is there twice, first with a sentinel."""
    rest = dict(holder)
    holder.clear()
    holder.update({f"@again {key}": NUMBER} | rest)
    return str(key), True, False


def rename(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """A name with another character."""
    place = chance.randrange(len(key)) if key else 0
    new = key[:place] + chr(ord(key[place]) ^ 1) + key[place + 1 :]
    holder[new] = holder.pop(key)
    return f"to {new}", not is_named(name), is_named(name)


def remove(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    del holder[key]
    may_be = key in OPTIONAL.split() or is_named(name) or path.name in ("recipe.json", "suite.json")
    return "", not may_be, False


def exceed(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """Beyond the range of its type: a negative count, a share of 7777.77, a word that is no choice."""
    old, last = holder[key], field(name)
    if isinstance(old, str):
        holder[key] = TEXT
        # A free text may be anything, and is shown as text.
        return TEXT, last in CHOICES and path.name != "recipe.json", True
    if last in SIGNED.split():
        return contradict(path, name, holder, key, chance)
    holder[key] = chance.choice([NUMBER, -NUMBER] if last in SHARES.split() else [-NUMBER, -1])
    return repr(holder[key]), path.name != "recipe.json", False


def contradict(path: Path, name: str, holder: Any, key: Any, chance: random.Random) -> Way:
    """Another number, which a cross-check notices unless the number is free."""
    old, last = holder[key], field(name)
    alike = int(NUMBER) if isinstance(old, int) else NUMBER
    holder[key] = chance.choice([NUMBER, alike, old * 1000 + 1, -old - 1])
    is_free = last in FREE.split() and last not in BOUND.get(path.name, ())
    is_free |= path.name in ("recipe.json", "suite.json")
    if path.suffix == ".jsonl" and path.name not in ("metrics.jsonl", "spectra.jsonl"):
        # Lines of the map and of the time spent are lists of what was measured.
        is_free = last not in ("error", "ending", "epoch") or "epochs" in name
    return repr(holder[key]), not is_free, is_free


def damage_lines(path: Path, values: list[Any], chance: random.Random) -> tuple[str, bool, bool, bool]:
    """Exchange, double or lose a line."""
    way, number = chance.choice(["exchange", "double", "lose"]), chance.randrange(len(values))
    is_run = path.name in ("metrics.jsonl", "spectra.jsonl")
    other = chance.randrange(len(values))
    if way == "exchange":
        values[number], values[other] = values[other], values[number]
    elif way == "double":
        values.insert(other, values[number])
    else:
        del values[number]
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    changes = way != "exchange" or number != other
    if way == "lose" and number == len(values) and not (path.parent / "result.json").exists():
        changes = False  # A run that goes on may be at any line.
    must_refuse = changes and (is_run or (way == "double" and path.name != "spent.jsonl"))
    if path.name == "spectra.jsonl" and not values:
        must_refuse = False
    same = way == "exchange" and not must_refuse
    return f"{way} lines {number + 1} and {other + 1}", must_refuse, not is_run, same


def damage_bytes(path: Path, chance: random.Random) -> tuple[str, bool, bool, bool]:
    """Damage the file below its JSON."""
    content = path.read_bytes()
    way = chance.choice(["cut", "flip", "folder", "empty", "nested", "latin-1", "surrogate", "list"])
    if way == "cut":
        place = chance.randrange(len(content.rstrip()))
        path.write_bytes(content[:place])
        # A line that is cut off may end at the end of one; a torn last line is left by a crash.
        return f"cut at {place}", path.suffix == ".json", True, False
    if way == "flip":
        place, bit = chance.randrange(len(content)), chance.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        return f"flip bit {bit} of byte {place}", False, True, False
    if way == "folder":
        path.unlink()
        path.mkdir()
        return way, True, False, False
    new = {
        "empty": b"",
        "nested": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "latin-1": content.replace(b'"', b'"\xe4', 1),
        "surrogate": content.replace(b'": ', b'\\ud800": ', 1),
        "list": b"[]\n",
    }[way]
    path.write_bytes(new)
    # A file of lines may be empty, and its last line torn.
    is_torn = path.suffix == ".jsonl" and new.count(b"\n") <= 1
    return way, new != content and not is_torn, False, False


def make_base(folder: Path, make: Callable[[Path], None], tables: Callable[[Path], str]) -> Base:
    make(folder)
    for path in sorted(folder.rglob("*.json")):
        value = json.loads(path.read_text())
        # Without it every change of a value is noticed by it alone, and the schema is not tried.
        value.pop("checksum", None)
        path.write_text(json.dumps(value) + "\n")
    files = tuple(path for path in sorted(folder.rglob("*.json*")) if path.stat().st_size)
    return Base(folder, tables, files, tables(folder))


def make_page(folder: Path) -> None:
    """Runs of a restorer: finished, diverged, unfinished, a baseline; with all that was observed of the first."""
    import made
    import made_records

    from nonloc_paper.suites.rows import write_plan
    from nonloc_paper.training.recipe import Recipe

    recipe = Recipe(network="restorer8/diffusive-2@2", data="motifs", epochs=3, spectrum_epochs=(1,))
    recipe = recipe.with_(steps_per_epoch=10)
    made.make_run(folder / "a", recipe, 24.5)
    made.make_run(folder / "b", recipe.with_(seed=1), diverged_at=17)
    made.make_run(folder / "c", recipe.with_(seed=2))
    made.make_run(folder / "d", recipe.with_(network="restorer8/baseline"), 23.5)
    weights = [made_records.weight(size) for size in (0.3, 0.6)]
    stage = {"name": "trunk.stages.2", "form": "diffusive", "weights": weights}
    where = {"format": 2, "step": 30, "epoch": 3}
    states = [{"norm": 2.0 - n, "mean": 0.1, "variance": 1.5, "energy": 4.0 - n} for n in range(3)]
    around = [{"block": n, "before": states[n - 1], "after": states[n]} for n in (1, 2)]
    blocks = [one | {"quotient": 0.25, "linear": 0.5} for one in around]
    trace = {"name": stage["name"], "form": "diffusive", "channels": 8, "num_blocks": 2, "blocks": blocks}
    seen = {"stage": stage["name"], "position": [2, 2], "grid": [4, 4], "spread": 0.5, "apart": 0.25}
    seen |= {"logit_spread": 3.5, "same_share": 0.5, "same_chance": 0.125}
    observations = where | {"task": "restoration", "batch_size": 32, "affinity": [seen], "features": [trace]}
    observations |= {"psnr": {"noisy": [8.0, 8.5], "restored": [20.0, None]}, "input_psnr": 8.25}
    block = {"verdict": "unstable", "growth": 1.25, "largest": 0.5, "lowest": -0.25, "limit": 1.5}
    certificate = made_records.certified(
        2, form="diffusive", verdict="unstable", growth=1.5, blocks=[block] * 2
    )
    images = np.zeros((2, 3, 8, 8), np.uint8)
    pixels, kernel = images.astype(np.float32), np.full((2, 4, 4), 1 / 16, np.float32)
    tensors = {"images": images, "noisy": pixels, "restored": pixels, "affinity.trunk.stages.2": kernel}
    (folder / "a" / "observations.safetensors").write_bytes(safetensors.numpy.save(tensors))
    spectra = [{"epoch": epoch, "stages": [made_records.during(stage)]} for epoch in (0, 1, 3)]
    (folder / "a" / "spectra.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in spectra))
    for name, value in (
        ("observations", observations),
        ("spectrum", where | {"caption": "How to read it.", "stages": [stage]}),
        ("stability", made_records.stability([certificate]) | {"step": 30}),
    ):
        (folder / "a" / f"{name}.json").write_text(json.dumps(value))
    plan = {"name": "demo", "rows": ["1"], "changes": {}, "seeds": 1, "command": "nonloc", "seconds": 2.5}
    write_plan(folder, plan)


def make_reproduction(folder: Path) -> None:
    """Runs of Table 1, short of nothing, and a few lines of the map."""
    import made_records

    errors = {"baseline": [8.25], "2-block (original)": [8.5, None], "2-block (proposed)": [7.75]}
    made_records.write(folder, made_records.records("table1", errors))
    made_records.write_map(
        folder, "ten_epochs", made_records.map_lines("ten_epochs", made_records.deep_originals)[:6]
    )
    spent = [{"seconds": 60.5, "device": "abacus", "runs": 3}, {"seconds": 90.5, "device": "cpu", "runs": 1}]
    (folder / "table1" / "spent.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in spent))


def make_recorded(folder: Path) -> None:
    """Four recorded runs without weights, part of the recorded map, and what was noted along with them."""
    results = PAPER / "results"
    for name in REAL:
        shutil.copytree(
            results / "table1" / name, folder / "table1" / name, ignore=shutil.ignore_patterns("checkpoints")
        )
    for name in ("table1/spent.jsonl", "bench/forms.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(results / name, folder / name)
    (folder / "map").mkdir()
    lines = (results / "map" / "ten_epochs.jsonl").read_text().splitlines(keepends=True)
    (folder / "map" / "ten_epochs.jsonl").write_text("".join(lines[::16]))


def page_tables(folder: Path) -> str:
    from nonloc_paper.report import page, sentences
    from nonloc_paper.report.records import collect
    from nonloc_paper.report.signs import weights_at
    from nonloc_paper.report.tables import results_table
    from nonloc_paper.report.trained_stages import energy_table, factors_table, growth_table

    collection = collect(folder)
    rows = collection.rows
    networks = [(row.label, row.example, weights_at(row.example)) for row in rows if row.example is not None]
    tables = [results_table(collection, "psnr"), factors_table(rows), growth_table(rows)]
    tables.append(energy_table(networks))
    return "\n".join(
        [
            *(table.as_html() + table.as_markdown() for table in tables),
            sentences.summary_text(collection),
            *sentences.findings(collection),
            *(text for row in rows for text in sentences.affinity_findings(row)),
            sentences.time_sentence(collection),
            page.image_table(rows),
        ]
    )


def reproduction_tables(folder: Path) -> str:
    from nonloc_paper.report import reproduction as pages
    from nonloc_paper.report import trained_stages as stages
    from nonloc_paper.report.claims import judge
    from nonloc_paper.report.map import tables as map_tables
    from nonloc_paper.report.map.cells import read_map
    from nonloc_paper.report.signs import weights_at
    from nonloc_paper.report.table1 import differences_table, missing_table, rows_table
    from nonloc_paper.report.table1_runs import read_table1_runs

    runs, trained = read_table1_runs(folder), read_map(folder / "map")
    verdicts = tuple(judge(runs, trained))
    rows = runs.recorded
    seen = [(row.label, run, weights_at(run)) for row in rows for run in row.started if run.observations]
    tables = [
        pages.verdict_table(verdicts),
        *(pages.parts_table(verdict) for _, verdict in verdicts),
        rows_table(runs.rows),
        differences_table(runs),
        missing_table(runs),
        stages.lost_table(rows),
        stages.factors_table(rows),
        stages.growth_table(rows),
        stages.growth_summary(rows),
        stages.energy_table(seen),
        pages.spent_table(folder),
        map_tables.cells_table(trained),
        map_tables.runs_table(trained),
        map_tables.safe_starts_table(trained),
        map_tables.logits_table(trained),
        map_tables.form_by_affinity_table(trained),
    ]
    shown = [table for table in tables if table]
    text = "".join(table.as_html() + table.as_markdown() for table in shown)
    return text + pages.time_sentence(runs)


def pages(folder: Path) -> str:
    """The whole report, figures included, as one text."""
    from nonloc_paper.report.page import write_page
    from nonloc_paper.report.records import collect
    from nonloc_paper.report.reproduction import has_records, write_reproduction

    output = folder.with_name("output")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    if has_records(folder):
        write_reproduction(folder, output)
    else:
        write_page(collect(folder), output / "report.html")
    text = "\n".join(
        path.read_text() for path in sorted(output.rglob("*")) if path.suffix in (".md", ".html")
    )
    # Coordinates are numbers, too.
    return re.sub("<svg.*?</svg>", "", text, flags=re.DOTALL)
