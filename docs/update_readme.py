"""Write the tables and the picture of README.md from kept results; no number in them is typed by hand.

    nonloc reproduce demo --output demo --json > results/demo.json
    nonloc bench accuracy --output results/bench     (likewise memory, backends)
    python docs/update_readme.py [--picture demo]

A test holds README.md to what this script would write.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from nonloc.bench import table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def conditions(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    where = f"{machine['cpu']}, {machine['cores']} cores, {threads}"
    return f"*{where}; torch {versions['torch']}, Python {versions['python']}.*"


def demo() -> str:
    result = load("demo.json")
    rows = []
    for row in result["rows"]:
        scores = ", ".join(f"{run['score']:.2f}" for run in row["runs"])
        rows.append([row["label"], str(row["n"]), f"{row['median']:.2f}", scores, f"{row['seconds']:.0f} s"])
    shown = table.markdown(["PSNR in dB, higher is better", "n", "median", "every seed", "time a run"], rows)
    total = sum(row["seconds"] * row["n"] for row in result["rows"])
    (made_with,) = result["conditions"]
    return (
        f"{shown}\n\nThe noisy images have {result['input_psnr']:.2f} dB; {result['seconds']:.0f} s in all, "
        f"{total:.0f} s of them training. {conditions(made_with)}"
    )


def accuracy() -> str:
    result = load("bench/accuracy.json")
    worst = {
        backend: {
            what: max((row for row in result["rows"] if row["backend"] == backend), key=lambda row: row[what])
            for what in ("value", "gradient")
        }
        for backend in dict.fromkeys(row["backend"] for row in result["rows"])
    }
    rows = [
        [
            backend,
            *(
                f"{found[what][what]:.1e} ({found[what]['kind']}, {found[what]['normalize']})"
                for what in found
            ),
        ]
        for backend, found in worst.items()
    ]
    trials = result["rows"][0]["trials"]
    shown = table.markdown(["largest deviation", "value", "gradient"], rows)
    return (
        f"{shown}\n\nRelative to 1 + the largest value, float64, {trials} random problems a cell. "
        f"{conditions(result)}"
    )


def memory() -> str:
    result = load("bench/memory.json")
    return f"{table.memory_table(result['rows'])}\n\n{conditions(result)}"


def backends() -> str:
    result = load("bench/backends.json")
    repeats = result["rows"][0]["repeats"]
    return (
        f"{table.backends_table(result['rows'])}\n\n"
        f"Forward and backward of a stage in float32, median and range of {repeats}. {conditions(result)}"
    )


SECTIONS = {"demo": demo, "accuracy": accuracy, "memory": memory, "backends": backends}


def rendered(text: str) -> str:
    """README.md with all sections made anew."""
    for name, section in SECTIONS.items():
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
        assert len(pattern.findall(text)) == 1, f"README.md needs one section {name}"
        replacement = f"<!-- {name} -->\n{section()}\n<!-- /{name} -->"
        text = pattern.sub(lambda _, new=replacement: new, text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--picture", metavar="FOLDER", help="draw docs/images/demo.png from this demo's folder"
    )
    folder = parser.parse_args().picture
    path = ROOT / "README.md"
    path.write_text(rendered(path.read_text()))
    if folder:
        from nonloc.report.cover import write_cover

        write_cover(folder, ROOT / "docs" / "images" / "demo.png")


if __name__ == "__main__":
    main()
