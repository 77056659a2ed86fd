"""The differences of the tables panel, computed again from the result files of a few runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nonloc_paper.explorer import tables_data
from nonloc_paper.report.map.cells import read_map
from nonloc_paper.report.table1_runs import read_table1_runs

RESULTS = Path(__file__).parents[2] / "results"
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    records = tmp_path_factory.mktemp("records")
    for row in ("baseline", "2-block-original", "2-block-proposed"):
        for seed in SEEDS:
            shutil.copytree(RESULTS / "table1" / row / str(seed), records / "table1" / row / str(seed))
    return tables_data.data(read_table1_runs(records), read_map(records))


def errors(row):
    files = [RESULTS / "table1" / row / str(seed) / "result.json" for seed in SEEDS]
    return np.array([json.loads(path.read_text())["metrics"]["error"] for path in files])


@pytest.mark.parametrize(
    ("comparison", "first", "second", "published"),
    [
        ("original minus baseline", "2-block-original", "baseline", 7.83 - 8.19),
        ("proposed, one affinity, minus baseline", "2-block-proposed", "baseline", 7.74 - 8.19),
        ("proposed, one affinity, minus original", "2-block-proposed", "2-block-original", 7.74 - 7.83),
    ],
)
def test_a_difference_has_its_seeds_mean_interval_and_published_number(
    made, comparison, first, second, published
):
    [line] = [line for line in made["differences"] if line["comparison"] == comparison]
    values = errors(first) - errors(second)
    assert [seed for seed, *_ in line["seeds"]] == list(SEEDS)
    assert [value for _, value, _ in line["seeds"]] == pytest.approx(values, abs=1e-9)
    assert line["mean"] == pytest.approx(values.mean(), rel=1e-3)
    ends = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    assert line["ends"] == pytest.approx(ends, rel=1e-3)
    assert line["published"] == pytest.approx(published, abs=1e-9)


def test_a_difference_is_shown_once(made):
    seeds = [line["seeds"] for line in made["differences"]]
    assert all(seeds.count(one) == 1 for one in seeds)


def test_a_seed_that_was_seen_before_is_shown_and_decides_nothing(tmp_path):
    rows = {"table1-n3": ("2-block-proposed", "2-block-proposed-own-affinities")}
    for suite, some in rows.items():
        for row in some:
            shutil.copytree(RESULTS / suite / row / "0", tmp_path / suite / row / "0")
    [line] = [
        one
        for one in tables_data.data(read_table1_runs(tmp_path), read_map(tmp_path))["differences"]
        if one["affinity"] == "both" and one["label"] == "2 blocks"
    ]
    [[seed, value, decides]] = line["seeds"]
    assert (seed, decides, line["mean"]) == (0, False, None)
    assert line["text"] == f"seed 0: {value:+.2f}; decides nothing".replace("-", "−")
