"""Every number that `nonloc report` writes into paper/README.md, and those of the experiments in README.md, computed
again from the records by numpy alone.

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
PUBLISHED2 = {"baseline": 26.57, "original": {2: 26.13, 3: 26.26, 4: 34.89}}
PUBLISHED2["diffusive"] = {2: 26.04, 3: 25.57, 4: 25.43, 5: 25.29, 6: 25.49}
# What a run of Table 1 has, but for its network, its affinity and its seed.
PLAIN = {"data": "cifar10", "epochs": 164, "learning_rate": 0.1, "pixel_scale": 64.0, "batch_size": 128}
ON_CIFAR100 = PLAIN | {"data": "cifar100"}
PLAIN_STAGE = {"init": "normal", "init_std": 0.01, "scaled": False, "batch_norm": False, "weight": "factored"}
LITERAL, MATCHING, DEEPEST = "preresnet20", "preresnet29", "preresnet83"


def read_runs():
    """Return (network, share_affinity, recipe, result, folder) of every record."""
    for path in sorted(PAPER.glob("results/*/*/*/result.json")):
        recipe = json.loads((path.parent / "recipe.json").read_text())
        result = json.loads(path.read_text())
        yield recipe["network"], recipe["stage"]["share_affinity"], recipe, result, path.parent


RUNS = list(read_runs())


def select(pattern, one=None, training=PLAIN, **changes):
    """Return (recipe, result, folder) of the runs of Table 1 on networks like `pattern`.

    one       whether blocks share one affinity, or which part of it; None: either
    training  what their recipes have
    changes   of the options of their stages
    """
    found = []
    for name, shared, recipe, result, folder in RUNS:
        is_wanted = re.fullmatch(pattern, name) and training.items() <= recipe.items()
        if is_wanted and "/baseline" not in name:
            shares = "diffusive" in name if shared is None else shared
            is_wanted = shares in ((True, False) if one is None else (one,))
            is_wanted &= (PLAIN_STAGE | changes).items() <= recipe["stage"].items()
            is_wanted &= recipe["stage"]["shared_embedding"] is None
        if is_wanted:
            found.append((recipe, result, folder))
    return found


def has_diverged(result):
    return result["outcome"]["ending"] == "diverged"


def errors(network, one=None, training=PLAIN):
    """Return the error of each seed of a row, None where it diverged; `one`: whether blocks share one affinity."""
    found = {}
    for recipe, result, _ in select(network, one, training):
        found.setdefault(recipe["seed"], None if has_diverged(result) else result["metrics"]["error"])
    return found


def stage(backbone, form, blocks, one, training=PLAIN):
    return errors(f"{backbone}/{form}-{blocks}@2", one, training)


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


def is_inside(values, published):
    """Whether a published number lies in the prediction interval of such values; None with fewer than two."""
    if len(values) < 2:
        return None
    mean, _, high, n = summed_up(values)
    return abs(published - mean) <= (high - mean) * math.sqrt(1 + n * math.pi / 10)


def predicted(backbone, published, seeds=None, training=PLAIN):
    """Return how many published errors lie where rows of a kind predict them, of how many, kind by kind."""
    counts = []
    for form, one in (("diffusive", False), ("diffusive", True), ("original", False)):
        rows = {n: stage(backbone, form, n, one, training) for n in published[form]}
        inside = [is_inside(combined([row], [1], seeds)[0], published[form][n]) for n, row in rows.items()]
        known = [one for one in inside if one is not None]
        counts += [sum(known), len(known)] if known else []
    return counts


def own_minus_one(backbone, blocks, seeds, training=PLAIN):
    """The mean over these numbers of blocks."""
    rows = [stage(backbone, "diffusive", n, one, training) for n in blocks for one in (False, True)]
    return combined(rows, [1 / len(blocks), -1 / len(blocks)] * len(blocks), seeds)


def score(row):
    """Return the numbers that stand for a row: median, range, n, then how many of all diverged."""
    ended = [value for value in row.values() if value is not None]
    edges = [min(ended), max(ended)] if len(ended) > 1 else []
    shown = [np.median(ended), *edges, len(ended)] if ended else []
    return shown + ([len(row) - len(ended), len(row)] if len(ended) < len(row) else [])


def numbers(text):
    """Return the numbers of a text without its links; digits of a name such as bfloat16 are none."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"(?<=\d),(?=\d{3})", "", text))
    return [one.replace("−", "-") for one in re.findall(r"(?<![A-Za-z\d.])[+−]?\d+(?:\.\d+)?", text)]


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
    found, lost = own_minus_one(MATCHING, (2, 3, 4, 5, 6), (1, 2, 3, 4))
    seen, _ = own_minus_one(MATCHING, (2, 3, 4, 5, 6), (0,))
    word, shown = "undecided", summed_up(found)
    if len(found) > 1 and len(found) + len(lost) == 4:
        word = "held" if shown[2] < 0 else "refuted" if shown[1] > -0.1 else "undecided"
    sentence, *parts = re.match(r"(.*)\n\n- (.*)\n- (.*)\n- (.*)\n(?:- (.*)\n)?", TEXT.strip()).groups()
    assert sentence.startswith(f"The hypothesis is **{word}, n = {len(found)}**: ")
    first, second, third, before = (part and part.partition(": ")[2] for part in parts)
    assert_shown(first, summed_up(found, lost))
    assert_shown(second, predicted(MATCHING, PUBLISHED, (1, 2, 3, 4)))
    assert_shown(third, start_counts("proposed", False) + start_counts("proposed", True))
    assert_shown(before or "", list(seen.values()))


def check_table(title, backbone, seeds, training=PLAIN, published_errors=PUBLISHED):
    baseline = errors(f"{backbone}/baseline", None, training)
    expected = {}
    if baseline:
        expected["baseline"] = [score(baseline), [published_errors["baseline"]], [], [], [], []]
    for n in range(1, 7):
        original, own, one = (
            stage(backbone, form, n, is_one, training)
            for form, is_one in (("original", False), ("diffusive", False), ("diffusive", True))
        )
        published = [
            [published_errors[form][n]] if any(rows) and n in published_errors[form] else []
            for form, rows in (("original", [original]), ("diffusive", [own, one]))
        ]
        less = summed_up(*own_minus_one(backbone, [n], seeds, training))
        if original or own or one:
            expected[str(n)] = [score(original), published[0], score(own), score(one), published[1], less]
    lines = {name: cells for name, *cells in table(title)}
    assert lines.keys() == expected.keys()
    for name, cells in lines.items():
        for cell, some in zip(cells, expected[name], strict=True):
            assert_shown(cell, some)


def test_table_1_with_n_3():
    check_table("Table 1 with 3 bottlenecks a group, the backbone that matches", MATCHING, (1, 2, 3, 4))


def test_table_1_with_n_2():
    check_table("Table 1 with 2 bottlenecks a group, the literal reading", LITERAL, None)


def test_table_2():
    runs = [recipe for recipe, *_ in select(rf"{DEEPEST}/(original|diffusive)-.*", training=ON_CIFAR100)]
    title = "Table 2 with 9 bottlenecks a group, CIFAR-100"
    assert (f"## {title}" in TEXT) == bool(runs)
    if runs:
        check_table(title, DEEPEST, None, ON_CIFAR100, PUBLISHED2)


def map_lines(*parts):
    """Return every run of these parts of the map."""
    texts = [(PAPER / "results" / "map" / f"{part}.jsonl").read_text() for part in parts]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def map_endings(part, form):
    """Return whether each run of a part of the map diverged."""
    return {
        (x["blocks"], x["init"], x["seed"]): x["ending"] == "diverged"
        for x in map_lines(part)
        if x["form"] == form
    }


def map_counts(form):
    """Return how many diverged with own affinities and with one, of how many pairs, and p of the sign test."""
    parts = {
        "original": ("ten_epochs", "ten_epochs_shared"),
        "proposed": ("ten_epochs_recomputed", "ten_epochs"),
    }
    own, one = (map_endings(part, form.replace("proposed", "diffusive")) for part in parts[form])
    return pair_counts(own, one)


def pair_counts(own, one):
    """Return how many diverged with own affinities and with one, of how many pairs, and p of the sign test."""
    pairs = [(own[key], one[key]) for key in own.keys() & one.keys()]
    alone = pairs.count((True, False)), pairs.count((False, True))
    p = min(1.0, 2 * sum(math.comb(sum(alone), k) for k in range(min(alone) + 1)) / 2 ** sum(alone))
    return sum(a for a, _ in pairs), sum(b for _, b in pairs), len(pairs), p


def added(*counts):
    """Return such counts added up as they are shown: the first of how many, the second of as many."""
    first, second, n = (sum(one[place] for one in counts) for place in range(3))
    return [first, n, second, n]


def start_endings(form, one):
    """Return whether each run from a larger start with n = 3 diverged."""
    return {
        (network.partition("-")[2], recipe["stage"]["init"], recipe["seed"]): has_diverged(result)
        for network, shared, recipe, result, _ in RUNS
        if network.startswith(f"{MATCHING}/{form.replace('proposed', 'diffusive')}-")
        and recipe["epochs"] == 10
        and ("diffusive" in network if shared is None else shared) is one
    }


def start_counts(form, one):
    """Return how many of the runs from larger starts with n = 3 diverged, of how many."""
    endings = list(start_endings(form, one).values())
    return [endings.count(True), len(endings)] if endings else []


def assert_chance(cell, p):
    assert cell == "p < 0.001" if p < 0.001 else float(cell.removeprefix("p = ")) == float(f"{p:.2g}")


def test_form_by_affinity():
    group, errors_shown = "", set()
    for name, own, one, less in table("Form by affinity"):
        if name.startswith("*"):
            group = name.strip("*")
            continue
        form = name.partition(",")[0]
        if group == "diverged, 2 bottlenecks a group":
            first, second, n, p = map_counts(form)
            assert_shown(own, [first, n])
            assert_shown(one, [second, n])
            assert_chance(less, p)
        elif group == "diverged, 3 bottlenecks a group":
            assert_shown(own, start_counts(form, False))
            assert_shown(one, start_counts(form, True))
            if form == "proposed":
                assert_chance(
                    less, pair_counts(*(start_endings(form, shared) for shared in (False, True)))[-1]
                )
        else:
            backbone = MATCHING if group == "error, 3 bottlenecks a group" else LITERAL
            low, high = map(int, re.search(r"(\d) to (\d) blocks", name).groups())
            blocks = range(low, high + 1)
            errors_shown.add((group, low, form))
            seeds = (1, 2, 3, 4) if backbone == MATCHING else None
            for cell, is_one in ((own, False), (one, True)):
                rows = [stage(backbone, form.replace("proposed", "diffusive"), n, is_one) for n in blocks]
                assert_shown(cell, summed_up(*combined(rows, [1 / len(blocks)] * len(blocks), seeds)))
            if form == "proposed":
                assert_shown(less, summed_up(*own_minus_one(backbone, blocks, seeds)))
    assert ("error, 2 bottlenecks a group", 2, "original") in errors_shown


def diverged(lines):
    """Return how many runs of the map diverged, of how many."""
    return [sum(line["ending"] == "diverged" for line in lines), len(lines)]


def lost_runs(found):
    """Return how many selected runs diverged, of how many."""
    return [sum(has_diverged(result) for _, result, _ in found), len(found)]


def differences(backbone, training=PLAIN, published=PUBLISHED):
    """Return (kind, minus what, up to so many blocks) -> values by seed, seeds lost, the published number.

    With n = 3, seed 0 had been seen before the rules were written, and does not count.
    """
    seeds = (1, 2, 3, 4) if backbone == MATCHING else None
    kinds = {
        "original": ("original", False),
        "proposed, own affinities": ("diffusive", False),
        "proposed, one affinity": ("diffusive", True),
    }

    def terms(kind, n):
        if kind == "baseline":
            return errors(f"{backbone}/baseline", None, training), published["baseline"]
        form, one = kinds[kind]
        return stage(backbone, form, n, one, training), published[form][n]

    found = {}
    for kind in kinds:
        for other, last in (("baseline", 4), ("baseline", 6), ("original", 4)):
            if kind != "original" or (other, last) == ("baseline", 4):
                blocks = range(2, last + 1)
                one, less = ([terms(name, n) for n in blocks] for name in (kind, other))
                share = 1 / len(blocks)
                factors = [share] * len(blocks) + [-share] * len(blocks)
                values, lost = combined([row for row, _ in one + less], factors, seeds)
                number = np.mean([a - b for (_, a), (_, b) in zip(one, less, strict=True)])
                found[kind, other, last] = values, lost, number
    return found


def known_differences():
    """Return those of each backbone that has some, by the words for it."""
    every = {
        "3 bottlenecks a group, the backbone that matches": differences(MATCHING),
        "2 bottlenecks a group, the literal reading": differences(LITERAL),
        "9 bottlenecks a group, CIFAR-100": differences(DEEPEST, ON_CIFAR100, PUBLISHED2),
    }
    return {
        name: some for name, some in every.items() if any(values or lost for values, lost, _ in some.values())
    }


def test_the_differences():
    known = known_differences()
    lines = {name: cells for name, *cells in table("Against the baseline and the original form")}
    assert len(lines) == 7
    for line, cells in lines.items():
        kind, other, last = re.match(r"(.+), minus (\w+), 2 to (\d) blocks", line).groups()
        key = kind, other, int(last)
        for cell, some in zip(cells, known.values(), strict=True):
            values, lost, number = some[key]
            inside = is_inside(values, number)
            assert_shown(cell, [*summed_up(values, lost), number] if values else [])
            where = {True: "inside", False: "outside", None: ""}[inside]
            assert re.findall(r"inside|outside", cell) == [where] * (inside is not None)


def accuracy(some):
    """Return the numbers of the sentence on a backbone, in its order, and the words beside each mean."""
    shown, words = [], []
    for other, last in (("baseline", 4), ("baseline", 6), ("original", 4)):
        known = {kind: values for (kind, *what), (values, *_) in some.items() if what == [other, last]}
        found = {kind: summed_up(values) for kind, values in known.items() if len(values) > 1}
        shown += [2, last, *(mean for mean, *_ in found.values())] if found else []
        words += ["the baseline" if other == "baseline" else "original ones"] * bool(found)
        for kind, (_, low, high, *_) in found.items():
            words += [kind.replace(", ", " with "), *(["may be chance"] if low <= 0 <= high else [])]
    return shown, words


def corners():
    """Return the numbers of the two effects on five blocks and their words; () without runs."""
    own_state, one_state, own_input, one_input = (
        stage(MATCHING, "diffusive", 5, shared) for shared in (False, "embedding", "input", True)
    )
    shown, words = [5, 3], []
    for first, second in (
        ([own_state, own_input], [one_state, one_input]),
        ([own_state, one_state], [own_input, one_input]),
    ):
        values, lost = combined(first + second, [0.5, 0.5, -0.5, -0.5], (0, 1, 2))
        if values or lost:
            shown += summed_up(values, lost)
            words.append("gains" if len(values) > 1 and summed_up(values)[2] < 0 else "undecided")
    return (shown, words) if words else ()


def rate():
    """Return the numbers at rate 0.01 and what is said of four original blocks; () without runs."""
    slow = PLAIN | {"learning_rate": 0.01}
    baseline, usual = (errors(f"{MATCHING}/baseline", None, one) for one in (slow, PLAIN))
    four, usual_four = (stage(MATCHING, "original", 4, False, one) for one in (slow, PLAIN))
    values, lost = combined([four, baseline], [1, -1])
    if not values and not lost:
        return ()
    _, low, high, *_ = summed_up(values)
    breaks = None in four.values() or low > 1
    word = "they break" if breaks else "they do not break" if high < 1 else "that they break is not shown"
    medians = [x for row in (baseline, usual, four, usual_four) for x in score(row)]
    return [0.01, 3, 3, *summed_up(values, lost), 0.01, 0.1, *medians, 15.02], word


def sharpening():
    """Return the changes of the variance through stages, in %, by kind of block; () without runs."""
    shown = []
    for form, one in (("original", False), ("diffusive", False), ("diffusive", True)):
        changes = []
        for _, result, folder in select(rf"{MATCHING}/{form}-\d+@2", one):
            path = folder / "observations.json"
            if not has_diverged(result) and path.is_file():
                for trained in json.loads(path.read_text()).get("features", []):
                    first, last = (trained["blocks"][place] for place in (0, -1))
                    changes.append(100 * (last["after"]["variance"] / first["before"]["variance"] - 1))
        shown += [min(changes), max(changes)] if changes else []
    return [*shown, 3] if shown else ()


def test_the_spectra():
    lines = {name: cells for name, *cells in table("Spectra")}
    slow = PLAIN | {"learning_rate": 0.01}
    for name, form, one, training in (
        ("original", "original", False, PLAIN),
        ("proposed, own affinities", "diffusive", False, PLAIN),
        ("proposed, one affinity", "diffusive", True, PLAIN),
        ("original, rate 0.01", "original", False, slow),
        ("proposed, own affinities, rate 0.01", "diffusive", False, slow),
    ):
        expected, counts = [], []
        for backbone in (MATCHING, LITERAL):
            parts = []
            for _, result, folder in select(rf"{backbone}/{form}-\d+@2", one, training):
                if not has_diverged(result):
                    stages = json.loads((folder / "spectrum.json").read_text())["stages"]
                    values = [np.array(w["eigenvalues"]) for x in stages for w in x["weights"]]
                    energies = [[(v[v < 0] ** 2).sum(), (v**2).sum()] for v in values]
                    parts.append(100 * np.divide(*np.sum(energies, axis=0)))
                    counts += [(v[:32] < 0).sum() for v in values]
            expected.append([min(parts), max(parts)] if parts else [])
        expected.append([min(counts), max(counts)])
        for cell, some in zip(lines.pop(name), expected, strict=True):
            assert_shown(cell, some)
    assert not lines


def test_the_sentences():
    """Every number of each sentence, in its order."""
    shared = [map_counts(form) for form in ("original", "proposed")]
    stable = select(r"preresnet20/diffusive-\d+@2", weight="stable")
    fragile = select(r"preresnet20/diffusive-\d+@2", weight="stable", init_std=0.07)
    deepest = max(int(recipe["network"].split("-")[-1][:-2]) for recipe, *_ in stable)
    four = {start: select(r"preresnet\d+/original-4@2", False, init_std=start) for start in (0.01, 0.07)}
    places = [select(r"preresnet\d+/\w+-1@\d,\d,\d", scaled=scaled) for scaled in (False, True)]
    divided = [run for run in RUNS if run[2]["stage"]["scaled"] and PLAIN.items() <= run[2].items()]
    own, one = (start_endings("proposed", shared) for shared in (False, True))
    with_original = pair_counts(*(start_endings(form, False) for form in ("original", "proposed")))
    undivided = [
        line
        for divided, plain in (("scaled", ""), ("recomputed_scaled", "_recomputed"))
        for line in map_lines(f"ten_epochs{plain}")
        if line["cell"] in {other["cell"] for other in map_lines(f"ten_epochs_{divided}")}
    ]
    by_form = pair_counts(
        map_endings("ten_epochs", "original"), map_endings("ten_epochs_recomputed", "diffusive")
    )
    small = [
        run for run in RUNS if "@2,5" not in run[0] and "@2,4" not in run[0] and "/baseline" not in run[0]
    ]
    small = [
        run[2:]
        for run in small
        if PLAIN.items() <= run[2].items()
        and run[2]["stage"]["init_std"] == 0.01
        and not run[2]["stage"]["scaled"]
    ]
    known = {title: accuracy(some) for title, some in known_differences().items()}
    known = {title: shown for title, shown in known.items() if shown[0]}
    expected = {
        "Divide the logits by √d": [
            *diverged(map_lines("ten_epochs_scaled", "ten_epochs_recomputed_scaled")),
            *diverged(undivided),
            *lost_runs([run[2:] for run in divided]),
        ],
        "Or share the affinity": [*added(*shared, pair_counts(own, one)), *added(by_form, with_original)],
        "Sharing is no guarantee": [
            *diverged([line for line in map_lines("ten_epochs") if line["form"] == "stable"]),
            *(*lost_runs(fragile), 0.07, *lost_runs(stable), 0.01, deepest),
        ],
        "Start small, in one place": [
            *(0.1, *lost_runs(small), 0.01, *lost_runs(four[0.01]), 0.07, *lost_runs(four[0.07])),
            *(x for some in places for x in lost_runs(some)),
        ],
        **{
            f"Accuracy, {title.partition(',')[0]}": [int(title[0]), *shown[0]]
            for title, shown in known.items()
        },
        **({"Own embeddings or a fresh state": corners()[0]} if corners() else {}),
        **({"Rate 0.01": rate()[0]} if rate() else {}),
        **({"Damping or sharpening": sharpening()} if sharpening() else {}),
    }
    found = TEXT.partition("## What was found")[2]
    shown = dict(re.findall(r"^- \*\*(.+?)\*\*(.*)$", found, re.MULTILINE))
    assert list(shown) == list(expected)
    assert [text for text in shown.values() if not text.endswith(".") or ".." in text] == []
    for title, text in shown.items():
        assert_shown(title + text, expected[title])
    for title, (_, words) in known.items():
        group, name = title.split(", ")
        text = shown[f"Accuracy, {group}"]
        assert text.startswith(f", {name}, ")
        kinds = "original ones|original|proposed with (?:own affinities|one affinity)"
        assert re.findall(rf"the baseline|{kinds}|may be chance", text) == words
    if corners():
        assert re.findall(r"gains|undecided", shown["Own embeddings or a fresh state"]) == corners()[1]
    if rate():
        assert f" {rate()[1]} there: " in shown["Rate 0.01"]


def test_the_conditions():
    (shown,) = re.findall(r"^Conditions:(.*)$", TEXT, re.MULTILINE)
    made = [run for run in RUNS if "/baseline" not in run[0] and PLAIN.items() <= run[2].items()]
    for _, _, recipe, result, _ in made:
        versions = result["versions"]
        parts = [f"batch {recipe['batch_size']}", recipe["precision"], f"{recipe['epochs']} epochs"]
        parts += [result["machine"]["device"], f"torch {versions['torch']}", f"Triton {versions['triton']}"]
        parts.append(f"Python {versions['python']}")
        assert shown == f" {', '.join(parts)}."


def test_the_experiments_in_the_projects_readme():
    """They are written by hand, so they must follow the records."""
    text = (PAPER.parent / "README.md").read_text().partition("## What the experiments show")[2]
    text = " ".join(text.partition("\n## ")[0].split())
    own, one = (start_endings("proposed", shared) for shared in (False, True))
    pairs = added(*map(map_counts, ("original", "proposed")), pair_counts(own, one))
    assert_shown(text.partition("**Stability.**")[2].partition("- **")[0], pairs)
    less = [
        combined(
            [stage(LITERAL, form, n, form == "diffusive") for form in ("diffusive", "original")], [1, -1]
        )[0]
        for n in (3, 4)
    ]
    found = text.partition("**Accuracy.**")[2].partition("- **")[0]
    assert_shown(found, [2, 3, 4, *(summed_up(values)[0] for values in less)])
    assert "(five seeds)" in found
    assert {len(values) for values in less} == {5}
    found = differences(MATCHING)
    kinds = {"original": 4, "proposed, own affinities": 6, "proposed, one affinity": 6}
    less = [found[kind, "baseline", last][0] for kind, last in kinds.items()]
    means = [-summed_up(values)[0] for values in less]
    assert {len(values) for values in less} == {4}
    shown = text.partition("- **With ")[2].partition("- **")[0]
    assert_shown(shown, [3, 2, 4, means[0], 2, 6, *means[1:]])
    # "May be chance": of one affinity the interval contains 0.
    assert [summed_up(values)[2] < 0 for values in less] == [True, True, False]
    mean, low, high, n = summed_up(own_minus_one(MATCHING, (2, 3, 4, 5, 6), (1, 2, 3, 4))[0])
    last = text.partition("**Own affinities or one?**")[2].partition("[paper/README.md]")[0]
    assert_shown(last, [-mean, low, high, 2, 6])
    assert n == 4
    assert "(four seeds)" in shown
    assert "four seeds)" in last
