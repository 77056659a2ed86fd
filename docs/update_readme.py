"""Write the tables of README.md and of the documents here, and README's picture, from kept results: no number in them
is typed by hand.

    nonloc reproduce demo --output demo --json > results/demo.json
    nonloc bench accuracy --output results/bench     (likewise memory, backends, stage, graphs, certificates, stable)
    python docs/update_readme.py [--picture demo]

A test holds them to what this script would write.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks import convolutions, learning, stage, stage_cpu, table, training_step
from benchmarks.stage_kernels import StageKernel
from benchmarks.stage_kernels import table as stage_kernels_table
from nonloc_paper.map.table import MapTable
from nonloc_paper.report import map_corners
from nonloc_paper.report.finding import finding
from nonloc_paper.runs import Run, find_runs

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def conditions(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    where = f"{machine['cpu']}, {machine['cores']} cores, {threads}"
    names = {"torch": "torch", "triton": "Triton", "cuda": "CUDA", "cudnn": "cuDNN", "python": "Python"}
    if machine["device"] != "cpu":
        where = f"{machine['device']}, {where}"
    return f"*{where}; {', '.join(f'{names[n]} {versions[n]}' for n in names if n in versions)}.*"


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


def is_exact(row: dict[str, Any]) -> bool:
    return row.get("dtype", "float64") == "float64"


def accuracy() -> str:
    result = load("bench/accuracy.json")
    worst = {
        backend: {
            what: max((row for row in result["rows"] if row["backend"] == backend), key=lambda row: row[what])
            for what in ("value", "gradient")
        }
        for backend in dict.fromkeys(row["backend"] for row in result["rows"] if is_exact(row))
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
    error = max(row["error"] for row in result["rows"])
    return (
        f"{table.backends_table(result['rows'])}\n\n"
        f"Forward and backward of a stage in float32, median and range of {repeats}, in turns; values and gradients of "
        f"the two differ by at most {error:.0e} in norm. {conditions(result)}"
    )


def stage_on_cuda() -> str:
    """With its heading: there is no such section before it was measured."""
    if not (RESULTS / "bench/stage.json").exists():
        return ""
    result = load("bench/stage.json")
    row = result["rows"][0]
    return (
        "**A stage on a GPU.** `python -m benchmarks stage`: forward and backward to q, k, x and all W, fused and by every "
        f"public way,\nin one run. What is further from float64 than {100 * stage.LIMIT:.0f} % is not timed.\n\n"
        f"{stage.table(result['rows'])}\n\n"
        f"gaussian, row, C = {row['channels']}, d = r = {row['embed']}, {row['dtype']}; median and range of "
        f"{row['repeats']}, in turns; memory at the peak above the inputs; error: the largest ‖found − float64‖ / "
        f"‖float64‖ of value and gradients. {conditions(result)}"
    )


def stage_on_cpu() -> str:
    if not (RESULTS / "bench/stage_cpu.json").exists():
        return ""
    result = load("bench/stage_cpu.json")
    row = result["rows"][0]
    return (
        "**A stage on the CPU.** `python -m benchmarks stage --device cpu`: with the matrix and without it.\n\n"
        f"{stage_cpu.table(result['rows'])}\n\n"
        f"Forward and backward, gaussian, row, C = {row['channels']}, N = {row['blocks']}, float32, batch 1; median "
        f"and range of {row['repeats']}, in turns; memory of a fresh process; error as above, at M = "
        f"{stage_cpu.CHECKED:,}. {conditions(result)}"
    )


def graphs() -> str:
    result = load("bench/graphs.json")
    return (
        f"{table.graphs_table(result['rows'])} Random points in the unit square, heat weights, row normalisation, "
        f"float64; both in one process, in turns, the best of 3. {conditions(result)}"
    )


def certificates() -> str:
    result = load("bench/certificates.json")
    return (
        f"{table.certificates_table(result['rows'])}\n\n"
        "M · C ≤ 512, all kernels and normalisations, W of any kind; a verdict is wrong where the largest singular "
        "value of the stage as one matrix, in the norm that the certificate states, is on the other side of 1 by more "
        f"than 1e-9. {conditions(result)}"
    )


def stable() -> str:
    result = load("bench/stable.json")
    row = result["rows"][0]
    return (
        f"{table.stable_table(result['rows'])}\n\n"
        f"‖Z^N‖ / ‖Z⁰‖ in the kernel's own norm, the largest over {row['inputs']:,} random inputs and weights V from "
        "nearly nothing to saturated; the control has W 0.1 % above the exact limit, and must grow. "
        f"{conditions(result)}"
    )


def training() -> str:
    result = load("bench/training.json")
    row = result["rows"][0]
    return (
        f"{training_step.table(result['rows'])}\n\n"
        f"Batch {row['batch_size']}, bfloat16, channels-last, with augmentation; median and range. {conditions(result)}"
    )


def complete_runs() -> str:
    """The rows of Table 1 that were run as a test of the whole."""
    (spent, *_) = (json.loads(line) for line in (RESULTS / "table1" / "spent.jsonl").read_text().splitlines())
    cells, found = [], {}
    rows = ("baseline", "5-block-proposed")
    for row in rows:
        paths = [
            RESULTS / "table1" / row / str(seed) / "result.json" for seed in range(spent["runs"] // len(rows))
        ]
        runs = [json.loads(path.read_text()) for path in paths]
        found = runs[0]
        recipe = json.loads((RESULTS / "table1" / row / "0" / "recipe.json").read_text())
        errors = ", ".join(f"{run['metrics']['error']:.2f}" for run in runs)
        seconds = ", ".join(f"{run['seconds']:.0f}" for run in runs)
        cells.append([recipe["network"], str(recipe["epochs"]), str(len(runs)), errors, seconds])
    shown = table.markdown(["network", "epochs", "n", "error in %, every seed", "seconds, every seed"], cells)
    return (
        f"{shown}\n\n{spent['runs']} runs side by side took {spent['seconds']:.0f} s in all, evaluation after every "
        f"epoch and saving included: {spent['seconds'] / spent['runs']:.0f} s a run on average. {conditions(found)}"
    )


def convolutions_on_cuda() -> str:
    result = load("bench/convolutions.json")
    return (
        f"Pass by pass, `python -m benchmarks convolutions`:\n\n{convolutions.table(result['rows'])}\n\n"
        f"Microseconds, batch 128, bfloat16. {conditions(result)}"
    )


def convolution_ways() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "convolution_ways.json").read_text())
    cells = [[row["way"], f"{row['ms']:.3f} ({row['low']:.3f}–{row['high']:.3f})"] for row in result["rows"]]
    shown = table.markdown(["convolutions by", "ms a step and run"], cells)
    return (
        f"{shown}\n\nThe baseline, {result['runs']} side by side; median and range of {result['repeats']}; the last "
        f"line is from a later run than the others. *{result['device']}; torch {result['torch']}.*"
    )


def norm_ways() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "norm_ways.json").read_text())
    cells = [
        [
            row["network"],
            str(row["runs"]),
            row["way"],
            f"{row['ms']:.3f} ({row['low']:.3f}–{row['high']:.3f})",
        ]
        for row in result["rows"]
    ]
    shown = table.markdown(["network", "side by side", "batch norm and ReLU", "ms a step and run"], cells)
    return (
        f"{shown}\n\nMedian and range of {result['repeats']}. *{result['device']}; torch {result['torch']}.*"
    )


def learning_curves() -> str:
    result = load("bench/learning.json")
    return (
        "`python -m benchmarks learning` trains the first epochs by the plain loop, too: one curve, as far as seeds agree.\n\n"
        f"{learning.table(result['rows'])}\n\nEvery seed, in its order. {conditions(result)}"
    )


def kernels() -> str:
    result = load("bench/kernels.json")
    found = [
        StageKernel(**{key: value for key, value in row.items() if key != "ratio"}) for row in result["rows"]
    ]
    return f"{stage_kernels_table(found)} {conditions(result)}"


# What was set as a goal for the fused stage, in ms, by (N, M).
GOALS = {(4, 1024): 0.69, (1, 1024): 0.25, (4, 65_536): 16.0}


def goals() -> str:
    rows = load("bench/stage.json")["rows"]
    cells = []
    for (blocks, positions), goal in GOALS.items():
        here = [
            row
            for row in rows
            if (row["blocks"], row["positions"]) == (blocks, positions) and row["captured"] is not None
        ]
        (ours,) = (row["captured"] for row in here if row["way"] == "fused")
        best = min((row for row in here if row["way"] != "fused"), key=lambda row: row["captured"])
        cells.append(
            [
                f"N {blocks}, M {positions:,}",
                f"{goal:g} ms",
                f"{ours:.3g} ms",
                f"{100 * (ours / goal - 1):+.0f} %",
                f"{best['ratio']:.2f}×",
                best["way"],
            ]
        )
    return table.markdown(["stage", "goal", "took", "above it", "faster than", "the best public way"], cells)


def profile() -> str:
    result = load("bench/profile.json")
    parts = []
    for row in result["rows"]:
        cells = [
            [
                kind["name"],
                f"{kind['calls']:.0f}",
                f"{kind['microseconds']:.0f}",
                f"{100 * kind['microseconds'] / row['microseconds']:.0f} %",
            ]
            for kind in row["kinds"]
        ]
        shown = table.markdown(["kernels of one step", "launches", "µs", "share"], cells)
        parts.append(
            f"{row['network']}: {row['microseconds'] / 1e3:.2f} ms in {row['launches']:.0f} launches\n\n{shown}"
        )
    return "\n\n".join([*parts, conditions(result)])


def trials() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "stage_trials.json").read_text())
    cells = [
        [row["trial"], row["of"], f"{row['microseconds']:.0f} µs", f"{row['against']:.0f} µs"]
        for row in result["trials"]
    ]
    return table.markdown(["tried", "in", "took", "against"], cells)


def rounding() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "rounded_delta.json").read_text())
    kinds = ("stored_maps", "exact_maps", "stored_others", "exact_others")
    cells = [
        [str(row["step"]), f"{row['spread']:,.0f}", *(f"{100 * row[kind]:.2f} %" for kind in kinds)]
        for row in result["training"]
    ]
    headers = ["step", "spread", "θ, φ: δ as stored", "θ, φ: made exact", "others: as stored", "made exact"]
    trained = result["trained"]
    low, high = (choose(row["spread"] for row in trained) for choose in (min, max))
    worst = {kind: 100 * max(row[kind] for row in trained) for kind in kinds[:2]}
    return (
        f"{table.markdown(headers, cells)}\n\nOf {len(trained)} trained networks of the suites `protocol` and "
        f"`table1`, all with logits that spread over {low:.0f} to {high:.0f}, the gradients of θ and φ are off by at "
        f"most {worst['stored_maps']:.2f} % with δ as stored, and {worst['exact_maps']:.2f} % made exact.\n\n"
        "The table is one run (`training`, seed 0); the networks are those that `trained` was given, 2 or 3 seeds a "
        f"row, whose weights `nonloc reproduce protocol --keep --weights all` keeps. {conditions(result)}"
    )


def first_mend() -> str:
    """The way that lost, as it was measured at its own commit."""
    folder = ROOT / "docs" / "experiments" / "first_mend"
    result, of_kernels = (json.loads((folder / f"{name}.json").read_text()) for name in ("stage", "kernels"))
    shown = [row for row in result["rows"] if row["way"] in ("fused", "FlexAttention")]
    (query,) = (row for row in of_kernels["rows"] if row["name"] == "query")
    return (
        f"{stage.table(shown)}\n\n`query` alone: {query['microseconds']:.0f} µs "
        f"({query['low']:.0f}–{query['high']:.0f}). `python -m benchmarks stage` and `kernels` at commit ce3ebaf; shapes, "
        f"dtype and repeats as in README.md. {conditions(result)}"
    )


def affinity_or_form() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "affinity_or_form.json").read_text())
    kinds = {
        "shared": "once",
        "same maps": "again, by the same θ and φ",
        "own maps": "again, by its own θ and φ",
    }
    cells = []
    for form in ("original", "diffusive"):
        for affinity, words in kinds.items():
            runs = [row for row in result["rows"] if (row["form"], row["affinity"]) == (form, affinity)]
            spreads = [
                " → ".join(f"{statistics.median(values):,.0f}" for values in zip(*at, strict=True))
                for at in ([run[when] for run in runs] for when in ("before", "after"))
            ]
            cells.append([form, words, ", ".join(f"{run['psnr']:.2f}" for run in runs), *spreads])
    headers = ["form", "affinity computed", "PSNR in dB, every seed", "spread before training", "and after"]
    return (
        f"{table.markdown(headers, cells)}\n\nThe demo's task, 4 sub-blocks, all maps begun with deviation 0.5, 300 "
        "steps; spread: how far the logits of the kernel of sub-block 1 → 2 → 3 → 4 are apart, the median of the seeds "
        f"(docs/experiments/affinity_or_form.py). {conditions(result)}"
    )


def by_run(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The lines of a table of the map by cell and seed."""
    return {(row["cell"], row["seed"]): row for row in MapTable(path).rows}


def float32() -> str:
    """The four stages of the map in float32 on a CPU, beside the same runs in bfloat16 on a GPU."""
    folder, steps = ROOT / "docs" / "experiments" / "float32", 120
    cells = []
    for (form, affinity), part in map_corners.PARTS.items():
        exact, usual = (by_run(where / f"{part.name}.jsonl") for where in (folder, RESULTS / "map"))
        here = [key for key, row in sorted(exact.items()) if row["form"] == form]
        ends = [
            ", ".join("–" if (row["step"] or steps + 1) > steps else f"step {row['step']}" for row in rows)
            for rows in ([exact[key] for key in here], [usual[key] for key in here])
        ]
        losses = ", ".join(f"{exact[key]['mean_loss']:.2f}" for key in here)
        cells.append([form, affinity, ends[0], losses, ends[1]])
    headers = ["stage", "", "float32: diverged", "mean loss of its last steps", "bfloat16: diverged"]
    on_cuda = MapTable(folder / "ten_epochs_cuda.jsonl").rows
    # A line of the map has no versions: those of the runs beside it, on the same machine in the same hour.
    gpu = Run.open(folder / "places" / "0").read_result()
    ends = [f"{row['ending']} at step {row['step']}" for row in sorted(on_cuda, key=lambda row: row["seed"])]
    return (
        f"{table.markdown(headers, cells)}\n\n4 blocks, PyTorch's default as the start, rate 0.1, the first {steps} "
        "steps, seeds 0 and 1 in this order. bfloat16: from the map, by the fused kernels. float32: by plain products. "
        f"{conditions(json.loads((folder / 'conditions.json').read_text()))} The first row in float32 on a GPU, by the "
        'fused kernels (`nonloc map ten_epochs --only torch "original 4" --seeds 2 --set precision=float32 --output '
        f"FOLDER`): {', '.join(ends)}. {conditions(gpu)}"
    )


def stable_again() -> str:
    """The stable stages of the map's ten epochs beside the same recipes with the kernels as they are now."""
    kept = RESULTS / "map", ROOT / "docs" / "experiments" / "stable_again"
    first, again = (by_run(folder / "ten_epochs.jsonl") for folder in kept)
    lost = [{key for key in again if runs[key]["ending"] == "diverged"} for runs in (first, again)]

    def end(row: dict[str, Any]) -> str:
        return f"step {row['step']}" if row["ending"] == "diverged" else f"{row['error']:.1f} %"

    cells = []
    for init, blocks, cell in sorted({(row["init"], row["blocks"], row["cell"]) for row in again.values()}):
        keys = sorted(key for key in again if key[0] == cell)
        ends = [", ".join(end(runs[key]) for key in keys) for runs in (first, again)]
        cells.append([init, str(blocks), *ends])
    # A line of the map has no versions: those of a run on the same machine in the same hour.
    gpu = Run.open(RESULTS / "table1-fragile" / "4-block-original" / "0").read_result()
    return (
        f"{table.markdown(['start', 'blocks', 'in the map', 'once more'], cells)}\n\nSeed by seed, the error after ten "
        f"epochs or the step at which a run diverged. {len(lost[0])} of {len(again)} runs diverged in the map and "
        f"{len(lost[1])} once more, {len(lost[0] & lost[1])} of these both times. {conditions(gpu)}"
    )


def rechecked() -> str:
    """What `nonloc eval` made of the kept weights, on the kind of machine that the records come from."""
    result = json.loads((ROOT / "docs" / "experiments" / "rechecked.json").read_text())
    cells = []
    for row in result["rows"]:
        _, suite, name, seed = Path(row["run"]).parts
        numbers = [f"{row[one]:.2f} %" for one in ("stored", "recomputed")]
        cells.append([suite, name, seed, *numbers, "–" if row["agrees"] else str(row["images"])])
    headers = ["suite", "row", "seed", "recorded", "again", "images off"]
    checked = {row["run"] for row in result["rows"]}
    kept = [str(run.path.relative_to(ROOT)) for run in find_runs(RESULTS) if run.has_weights]
    later = [run for run in kept if run not in checked]
    return (
        f"{table.markdown(headers, cells)}\n\n{result['agree']} of {len(cells)} have the same error to the last of "
        f"10,000 images. {conditions(result)}{_in_float32(later)}"
    )


def _in_float32(runs: list[str]) -> str:
    """Of these, the ones that were evaluated in float32; the records are bfloat16's."""
    result = json.loads((ROOT / "docs" / "experiments" / "rechecked_cpu.json").read_text())
    found = [row for row in result["rows"] if row["run"] in runs]
    if not found:
        return ""
    off = ", ".join(f"{Path(row['run']).parts[2]} {abs(row['images'])}" for row in found)
    beyond = sum(not row["agrees"] for row in found)
    return (
        f"\n\nThe {len(found)} networks kept since, on a CPU in float32 (`--device cpu --precision float32`), where "
        f"records are bfloat16's, with the number of images off: {off}. {beyond} are beyond the 0.05 % that `nonloc "
        f"eval` allows on other hardware. {conditions(result)}"
    )


def repeated() -> str:
    """Runs of the table trained a second time, with the code as it is now, beside their first records."""
    kept = ROOT / "docs" / "experiments" / "repeated"
    cells, repeats = [], find_runs(kept)
    for repeat in repeats:
        row, seed = repeat.path.relative_to(kept).parts
        first, second = Run.open(RESULTS / "table1" / row / seed).read_result(), repeat.read_result()
        same = first["weights_sha256"] == second["weights_sha256"]
        errors = [f"{result['metrics']['error']:.2f} %" for result in (first, second)]
        cells.append([row, seed, *errors, "the same" if same else "others"])
    headers = ["row", "seed", "recorded", "once more", "weights"]
    return f"{table.markdown(headers, cells)}\n\n{conditions(repeats[0].read_result())}"


def places() -> str:
    """Different places in float32 on a CPU, epoch by epoch, beside the same row in bfloat16 on a GPU."""
    exact = json.loads((ROOT / "docs" / "experiments" / "float32" / "different_places.json").read_text())
    seed = exact["recipe"]["seed"]
    usual = Run.open(RESULTS / "table1" / "3-blocks-in-different-places-proposed" / str(seed))
    lines = {line["epoch"]: line for line in usual.read_metrics()}
    cells = []
    for one in exact["epochs"]:
        other = lines.get(one["epoch"])
        spreads = ", ".join(f"{value:,.0f}" for value in one["logit_spreads"])
        told = [f"{line['train_loss']:.3f}, {line['error']:.1f} %" if line else "–" for line in (one, other)]
        cells.append([str(one["epoch"]), *told, spreads])
    ends = [
        "was stopped there" if outcome is None else f"{outcome['ending']} at step {outcome['step']}"
        for outcome in (exact["outcome"], usual.read_result()["outcome"])
    ]
    headers = [
        "epoch",
        "float32: loss, error",
        "bfloat16: loss, error",
        "float32: logits apart, after blocks 2, 4, 6",
    ]
    return (
        f"{table.markdown(headers, cells)}\n\nOne proposed block after each of residual blocks 2, 4 and 6, seed "
        f"{seed}. The run in float32 {ends[0]}, the one in bfloat16 {ends[1]}. Logits apart: the largest difference of "
        f"two in a row, over 32 training images (docs/experiments/places_float32.py). {conditions(exact)}"
    )


def places_on_cuda() -> str:
    """The same on a GPU, every seed of the table's row."""
    kept = sorted((ROOT / "docs" / "experiments" / "float32" / "places").iterdir())
    cells = []
    for folder in kept:
        exact = Run.open(folder)
        usual = Run.open(RESULTS / "table1" / "3-blocks-in-different-places-proposed" / folder.name)
        errors = ", ".join(f"{line['error']:.1f}" for line in exact.read_metrics())
        outcomes = [run.read_result()["outcome"] for run in (exact, usual)]
        cells.append([folder.name, *(f"{one['ending']}, step {one['step']}" for one in outcomes), errors])
    headers = ["seed", "float32", "bfloat16", "float32: error after each epoch, in %"]
    return f"{table.markdown(headers, cells)}\n\n{conditions(Run.open(kept[0]).read_result())}"


def busy() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "stage_trials.json").read_text())
    units = ("exponential unit", "tensor cores", "shared memory and L1", "L2", "memory", "issue slots")
    cells = [[row["kernel"], *(f"{row[unit]:.0f} %" for unit in units)] for row in result["busy"]]
    shown = table.markdown(["busy", *units], cells)
    where = f"*{result['device']}; torch {result['torch']}, Triton {result['triton']}.*"
    return f"{shown}\n\n{result['shape']}; Nsight Compute. {where}"


def many_runs() -> str:
    result = json.loads((ROOT / "docs" / "experiments" / "many_runs.json").read_text())
    rows = sorted((row for row in result["rows"] if "ms" in row), key=lambda row: row["ms"])
    cells = [
        [
            row["way"],
            str(row["k"]),
            f"{row['ms']:.3f} ({row['low']:.3f}–{row['high']:.3f})",
            f"{row['setup_s']:.1f} s",
        ]
        for row in rows
    ]
    shown = table.markdown(["way", "runs", "ms a step and run", "set-up"], cells)
    return f"{shown}\n\n*{result['device']}; torch {result['torch']}.*"


def found() -> str:
    return finding(RESULTS)


SECTIONS = {
    "demo": demo,
    "finding": found,
    "accuracy": accuracy,
    "memory": memory,
    "backends": backends,
    "stage": stage_on_cuda,
    "stage_cpu": stage_on_cpu,
    "graphs": graphs,
    "certificates": certificates,
    "stable": stable,
}
PERFORMANCE = {
    "training": training,
    "runs": complete_runs,
    "learning": learning_curves,
    "profile": profile,
    "norm_ways": norm_ways,
    "convolution_ways": convolution_ways,
    "convolutions": convolutions_on_cuda,
    "many_runs": many_runs,
    "goals": goals,
    "kernels": kernels,
    "busy": busy,
    "trials": trials,
    "first_mend": first_mend,
    "rounding": rounding,
}
DOCUMENTS = {
    "README.md": SECTIONS,
    "docs/performance.md": PERFORMANCE,
    "docs/mathematics.md": {"affinity": affinity_or_form},
    "docs/reproduction.md": {
        "stable_again": stable_again,
        "rechecked": rechecked,
        "repeated": repeated,
        "float32": float32,
        "places": places,
        "places_cuda": places_on_cuda,
    },
}


def rendered(text: str, document: str = "README.md") -> str:
    """The document with all sections made anew."""
    for name, section in DOCUMENTS[document].items():
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
        assert len(pattern.findall(text)) == 1, f"{document} needs one section {name}"
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
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(rendered(path.read_text(), document))
    if folder:
        from nonloc_paper.report.cover import write_cover

        write_cover(folder, ROOT / "docs" / "images" / "demo.png")


if __name__ == "__main__":
    main()
