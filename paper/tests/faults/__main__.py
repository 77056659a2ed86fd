"""Run trials of faults: `make test-faults`, or `python -m faults NAME --seed 1 --seconds 60` with the Makefile's path.

A file of this folder with GOALS (how many trials of each kind are wanted) and `trials(chance, folder)` is one NAME.
`trials` yields a Trial after each one, for ever; all its choices come from `chance`, so a seed repeats them.
`--log` appends the counts to log.jsonl, and `python -m faults table` adds them up in README.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch
from tqdm import tqdm

HERE = Path(__file__).parent
LOG = HERE / "log.jsonl"
NAMES = sorted(
    path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_") and path.stem != "trial"
)


def run(name: str, seed: int, seconds: float, most: int | None) -> list[dict[str, object]]:
    """Make trials until the time is spent or `most` are made; return one line for each kind."""
    module = importlib.import_module(f"faults.{name}")
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    end = time.monotonic() + seconds
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=most, desc=f"{name}, seed {seed}") as bar,
        suppress(KeyboardInterrupt),  # what was tried until then counts
    ):
        for trial in module.trials(random.Random(seed), Path(folder)):
            tried[trial.kind] += 1
            bar.update()
            if trial.failure is not None:
                failed[trial.kind] += 1
                tqdm.write(f"{name}, seed {seed}, trial {tried.total()} ({trial.kind}): {trial.failure}")
            if time.monotonic() > end or tried.total() == most:
                break
    return [
        {"name": name, "kind": kind, "seed": seed, "tried": tried[kind], "failed": failed[kind]}
        | {"seconds": round(time.monotonic() - begin), "commit": commit(), "machine": platform.machine()}
        | {"python": platform.python_version(), "torch": torch.__version__}
        for kind in tried
    ]


def commit() -> str:
    """Return the commit of the checkout, with a + if files other than the log differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(HERE), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ":/", f":!{LOG.name}")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def table() -> str:
    """Return the sums of log.jsonl as Markdown."""
    lines = [json.loads(line) for line in LOG.read_text().splitlines()]
    rows = ["| what | trials | wanted | failed | seeds |", "|---|---|---|---|---|"]
    for name in NAMES:
        for kind, goal in importlib.import_module(f"faults.{name}").GOALS.items():
            mine = [line for line in lines if (line["name"], line["kind"]) == (name, kind)]
            tried, failed = (sum(line[key] for line in mine) for key in ("tried", "failed"))
            seeds = ", ".join(sorted({str(line["seed"]) for line in mine}))
            rows.append(f"| {name}: {kind} | {tried:,} | {goal:,} | {failed} | {seeds} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; by default all; or table"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all choices")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try each NAME")
    parser.add_argument("--most", type=int, help="at most so many trials of each NAME")
    parser.add_argument("--log", action="store_true", help="append the counts to log.jsonl")
    arguments = parser.parse_args()
    if arguments.names == ["table"]:
        page = HERE / "README.md"
        head = page.read_text().partition("| what |")[0]
        page.write_text(head + table() + "\n")
        return 0
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}, table")
    torch.set_num_threads(1)
    lines = [
        line
        for name in arguments.names or NAMES
        for line in run(name, arguments.seed, arguments.seconds, arguments.most)
    ]
    for line in lines:
        print(f"{line['name']}: {line['kind']}: {line['tried']} tried, {line['failed']} failed")
    if arguments.log:
        with LOG.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return 1 if any(line["failed"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
