"""Spectra of every recorded W through the epochs, and the variance of the features at the end, row by row. No torch."""

from __future__ import annotations

import math
from typing import Any

from nonloc_paper.explorer.rounding import rounded
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.records import RunRecord
from nonloc_paper.report.signs import TOP, Weight, has_bands, negative_share, share_band, top, weights_at
from nonloc_paper.report.table1_runs import TABLE, Setting, Table1Runs, median_run, setting
from nonloc_paper.report.tables import format_run
from nonloc_paper.suites import SUITES, Suite

PARTS = 1000  # eigenvalues are whole numbers of these parts of the largest magnitude: a third of the bytes


def data(runs: Table1Runs) -> dict[str, Any]:
    """Return the suites with their rows and runs, and the bands of random weights by the size of W."""
    tables = [suite for suite in SUITES.values() if suite.name.startswith(TABLE) or suite.name in runs.suites]
    known: set[Setting] = set()
    suites = [{"title": suite.title, "rows": _rows(runs, suite, known)} for suite in tables]
    return {
        "top": TOP,
        "parts": PARTS,
        "suites": [suite for suite in suites if suite["rows"]],
        "bands": _bands(runs),
    }


def _rows(runs: Table1Runs, suite: Suite, known: set[Setting]) -> list[dict[str, Any]]:
    """The rows of a suite whose runs recorded spectra, but for those that an earlier suite has."""
    rows = []
    recorded = runs.rows_of(suite)
    for planned in suite.rows:
        row, what = recorded[planned.label], setting(planned.recipe)
        seen = [] if row is None or what in known else [_run(run) for run in row.started if run.spectra]
        known.add(what)
        if row is not None and seen:
            median = median_run(row)
            first = None if median is None else median.recipe.seed
            rows.append({"label": planned.label, "group": planned.group, "first": first, "runs": seen})
    return rows


def _run(run: RunRecord) -> dict[str, Any]:
    last = weights_at(run)
    has_band = has_bands(last)
    return {
        "seed": run.recipe.seed,
        "score": format_run(run),
        "blocks": _names(run),
        "sizes": [_size(weight) for weight in last] if has_band else None,
        "chance": [rounded(end, 3) for end in share_band(last)] if has_band else None,
        "epochs": [
            {
                "epoch": line["epoch"],
                "negative": rounded(negative_share(weights_at(run, line["epoch"])), 3),
                "weights": [_spectrum(weight) for weight in weights_at(run, line["epoch"])],
            }
            for line in run.spectra
        ],
        "variance": [
            [rounded(stage["blocks"][0]["before"]["variance"])]
            + [rounded(block["after"]["variance"]) for block in stage["blocks"]]
            for stage in run.observations.get("features", [])
        ],
        "variance_epoch": run.observations.get("epoch"),
    }


def _names(run: RunRecord) -> list[str]:
    """The sub-blocks in words, with their stage where there are several."""
    places, stages = NetworkSpec.parse(run.recipe.network).places, run.spectra[0]["stages"]
    numbers = [
        (place, 1 + n) for place, one in zip(places, stages, strict=True) for n in range(len(one["weights"]))
    ]
    if len(places) == 1:
        return [f"block {number}" for _, number in numbers]
    return [f"after residual block {place}, block {number}" for place, number in numbers]


def _size(weight: Weight) -> str:
    return f"{len(weight['eigenvalues'])} channels, rank {weight['rank']}"


def _spectrum(weight: Weight) -> dict[str, Any]:
    values = top(weight)
    largest = abs(values[0])
    energy = weight["positive_energy"] + weight["negative_energy"]
    return {
        "largest": rounded(largest),
        "values": [round(PARTS * value / largest) if largest else 0 for value in values],
        "energy": rounded(energy),
        "negative": rounded(weight["negative_share"], 3),
    }


def _bands(runs: Table1Runs) -> dict[str, dict[str, Any]]:
    """The recorded bands by the size of W, in units of the root of the energy of sym(W).

    The norm of W is recorded after the last epoch alone, the energy after each. Half of the squared norm of a random W
    is in sym(W), but for 1/C of it.
    """
    bands: dict[str, dict[str, Any]] = {}
    every = (run for row in runs.everything for run in row.started)
    for weight in (weight for run in every for weight in weights_at(run) if "band" in weight):
        if weight["norm"] and _size(weight) not in bands:
            unit, band = math.sqrt(2) / weight["norm"], weight["band"]
            bands[_size(weight)] = {
                "low": [rounded(unit * one) for one in band["low"][:TOP]],
                "high": [rounded(unit * one) for one in band["high"][:TOP]],
                "negative": [rounded(one, 3) for one in band["negative_share"]],
            }
    return bands
