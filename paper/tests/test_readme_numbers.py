"""Every number that `nonloc report` writes into paper/README.md, computed again from the records by numpy alone.

It imports neither package: a fault of theirs cannot hide here.
"""

import json
import math
import re
from pathlib import Path

import numpy as np

PAPER = Path(__file__).parents[1]
TEXT = (PAPER / "README.md").read_text().partition("<!-- made by nonloc report -->")[2]
TEXT = TEXT.partition("<!-- until here -->")[0]
PUBLISHED = {"baseline": 8.19, "original": {2: 7.83, 3: 8.28, 4: 15.02}}
PUBLISHED["diffusive"] = {2: 7.74, 3: 7.62, 4: 7.37, 5: 7.29, 6: 7.55}
# What a run of Table 1 has, but for its network, its affinity and its seed.
PLAIN = {"data": "cifar10", "epochs": 164, "learning_rate": 0.1, "pixel_scale": 64.0, "batch_size": 128}
PLAIN_STAGE = {"init": "normal", "init_std": 0.01, "scaled": False, "batch_norm": False, "weight": "factored"}
LITERAL, MATCHING = "preresnet20", "preresnet29"


def read_runs():
    """Return (network, share_affinity, recipe, result) of every record."""
    for path in sorted(PAPER.glob("results/*/*/*/result.json")):
        recipe = json.loads((path.parent / "recipe.json").read_text())
        yield recipe["network"], recipe["stage"]["share_affinity"], recipe, json.loads(path.read_text())


RUNS = list(read_runs())


def errors(network, one=None):
    """Return the error of each seed of a row, None where it diverged; `one`: whether blocks share one affinity."""
    found = {}
    for name, shared, recipe, result in RUNS:
        is_plain = PLAIN.items() <= recipe.items()
        if "/baseline" not in name:
            shares = "diffusive" in name if shared is None else shared
            is_plain &= PLAIN_STAGE.items() <= recipe["stage"].items() and shares is one
            is_plain &= recipe["stage"]["shared_embedding"] is None
        if name == network and is_plain:
            diverged = result["outcome"]["ending"] == "diverged"
            found.setdefault(recipe["seed"], None if diverged else result["metrics"]["error"])
    return found


def stage(backbone, form, blocks, one):
    return errors(f"{backbone}/{form}-{blocks}@2", one)


def t_quantile(p, freedom):
    """Return Student's t: with t = √ν tan u the density is cos(u)^(ν − 1)."""
    u = np.linspace(-np.pi / 2, np.pi / 2, 2_000_001)
    density = np.cos(u) ** (freedom - 1)
    area = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(np.interp(p, area / area[-1], u))


def combined(rows, factors, seeds=None):
    """Return (values by seed, seeds lost by divergence) of a sum of rows with factors."""
    common = [seed for seed in set.intersection(*map(set, rows)) if seeds is None or seed in seeds]
    lost = [seed for seed in common if any(row[seed] is None for row in rows)]
    values = {
        s: sum(f * row[s] for f, row in zip(factors, rows, strict=True)) for s in common if s not in lost
    }
    return values, lost


def summed_up(values, lost=()):
    """Return the numbers that stand for such values: mean, ends and n, then what was lost."""
    shown, every = [], np.array(list(values.values()))
    if len(every):
        shown = [every.mean()]
        if len(every) > 1:
            half = t_quantile(0.975, len(every) - 1) * every.std(ddof=1) / math.sqrt(len(every))
            shown += [every.mean() - half, every.mean() + half]
        shown.append(len(every))
    return shown + ([len(lost), len(lost) + len(every)] if lost else [])


def own_less_one(backbone, blocks, seeds):
    """The mean over these numbers of blocks."""
    rows = [stage(backbone, "diffusive", n, one) for n in blocks for one in (False, True)]
    return combined(rows, [1 / len(blocks), -1 / len(blocks)] * len(blocks), seeds)


def score(row):
    """Return the numbers that stand for a row: median, range, n, then how many of all diverged."""
    ended = [value for value in row.values() if value is not None]
    shown = (
        [np.median(ended), *([min(ended), max(ended)] if len(ended) > 1 else []), len(ended)] if ended else []
    )
    return shown + ([len(row) - len(ended), len(row)] if len(ended) < len(row) else [])


def numbers(text):
    return [one.replace("−", "-") for one in re.findall(r"[+−]?\d+(?:\.\d+)?", text)]


def assert_shown(text, expected):
    """Every number of the text is the expected one, rounded to the digits that it has."""
    shown = numbers(text)
    assert len(shown) == len(expected), (text, expected)
    for one, value in zip(shown, expected, strict=True):
        digits = len(one.partition(".")[2])
        assert abs(float(one) - value) <= 0.5 * 10**-digits + 1e-9, (text, expected)


def table(title):
    """Return the lines of the table below a heading, as cells, without its header."""
    lines = re.findall(r"^\|(.+)\|$", TEXT.partition(f"## {title}")[2].partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def test_the_hypothesis():
    found, lost = own_less_one(MATCHING, (2, 3, 4, 5, 6), (1, 2, 3, 4))
    seen, _ = own_less_one(MATCHING, (2, 3, 4, 5, 6), (0,))
    word, shown = "not yet run", summed_up(found)
    if len(found) == 1:
        word = "undecided"
    elif found:
        word = "held" if shown[2] < 0 else "refuted" if shown[1] > -0.1 else "undecided"
    sentence = TEXT.strip().partition("\n")[0]
    assert f"**{word}, n = {len(found)}**" in sentence
    if found or lost:
        assert_shown(
            re.search(r"seeds 1 to 4: (.*?)\.(?: Seed| The rows|$)", sentence)[1], summed_up(found, lost)
        )
    assert_shown(re.search(r"(?:has (\S+) and decides|$)", sentence)[1] or "", list(seen.values()))
    inside = []
    for n in (2, 3, 4, 5, 6):
        own, _ = combined([stage(MATCHING, "diffusive", n, False)], [1], (1, 2, 3, 4))
        if len(own) > 1:
            mean, _, high, k = summed_up(own)
            half = (high - mean) * math.sqrt(1 + k * math.pi / 10)
            inside.append(abs(PUBLISHED["diffusive"][n] - mean) <= half)
    assert (f"predict {sum(inside)} of {len(inside)} published errors" in sentence) == bool(inside)


def check_table(title, backbone, seeds):
    baseline = errors(f"{backbone}/baseline")
    expected = {"baseline": [score(baseline), [PUBLISHED["baseline"]], [], [], [], []]} if baseline else {}
    for n in range(1, 7):
        original, own, one = (
            stage(backbone, form, n, is_one)
            for form, is_one in (("original", False), ("diffusive", False), ("diffusive", True))
        )
        published = [
            [PUBLISHED[form][n]] if any(rows) and n in PUBLISHED[form] else []
            for form, rows in (("original", [original]), ("diffusive", [own, one]))
        ]
        less = summed_up(*own_less_one(backbone, [n], seeds))
        if original or own or one:
            expected[str(n)] = [score(original), published[0], score(own), score(one), published[1], less]
    lines = {name: cells for name, *cells in table(title)}
    assert lines.keys() == expected.keys()
    for name, cells in lines.items():
        for cell, some in zip(cells, expected[name], strict=True):
            assert_shown(cell, some)


def test_table_1_with_n_3():
    check_table("Table 1 with n = 3, the backbone that matches", MATCHING, (1, 2, 3, 4))


def test_table_1_with_n_2():
    check_table("Table 1 with n = 2, the literal reading", LITERAL, None)


def map_endings(part, form):
    """Return whether each run of a part of the map diverged."""
    path = PAPER / "results" / "map" / f"{part}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (x["blocks"], x["init"], x["seed"]): x["ending"] == "diverged" for x in lines if x["form"] == form
    }


def map_counts(form):
    """Return how many diverged with own affinities and with one, of how many pairs, and p of the sign test."""
    parts = {
        "original": ("ten_epochs", "ten_epochs_shared"),
        "proposed": ("ten_epochs_recomputed", "ten_epochs"),
    }
    own, one = (map_endings(part, form.replace("proposed", "diffusive")) for part in parts[form])
    pairs = [(own[key], one[key]) for key in own.keys() & one.keys()]
    alone = pairs.count((True, False)), pairs.count((False, True))
    p = min(1.0, 2 * sum(math.comb(sum(alone), k) for k in range(min(alone) + 1)) / 2 ** sum(alone))
    return sum(a for a, _ in pairs), sum(b for _, b in pairs), len(pairs), p


def start_counts(form, one):
    """Return how many of the runs from larger starts with n = 3 diverged, of how many."""
    endings = [
        result["outcome"]["ending"]
        for network, shared, recipe, result in RUNS
        if network.startswith(f"{MATCHING}/{form.replace('proposed', 'diffusive')}-")
        and recipe["epochs"] == 10
        and ("diffusive" in network if shared is None else shared) is one
    ]
    return [endings.count("diverged"), len(endings)] if endings else []


def test_form_by_affinity():
    group, errors_shown = "", set()
    for name, own, one, less in table("Form by affinity"):
        if name.startswith("*"):
            group = name.strip("*")
            continue
        form = name.partition(",")[0]
        if group == "diverged, n = 2":
            first, second, n, p = map_counts(form)
            assert_shown(own, [first, n])
            assert_shown(one, [second, n])
            assert less == "p < 0.001" if p < 0.001 else float(less.removeprefix("p = ")) == float(f"{p:.2g}")
        elif group == "diverged, n = 3":
            assert_shown(own, start_counts(form, False))
            assert_shown(one, start_counts(form, True))
        else:
            backbone = MATCHING if group == "error, n = 3" else LITERAL
            low, high = map(int, re.search(r"(\d) to (\d) blocks", name).groups())
            blocks = range(low, high + 1)
            errors_shown.add((group, low, form))
            for cell, is_one in ((own, False), (one, True)):
                rows = [stage(backbone, form.replace("proposed", "diffusive"), n, is_one) for n in blocks]
                assert_shown(cell, summed_up(*combined(rows, [1 / len(blocks)] * len(blocks))))
            if form == "proposed":
                seeds = (1, 2, 3, 4) if backbone == MATCHING else None
                assert_shown(less, summed_up(*own_less_one(backbone, blocks, seeds)))
    assert ("error, n = 2", 2, "original") in errors_shown
