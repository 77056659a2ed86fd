"""The trainability map: every cell, its runs, and the last steps of those that diverged. No torch."""

from __future__ import annotations

from typing import Any

from nonloc_paper.explorer.rounding import rounded
from nonloc_paper.report.map.cells import (
    CHANCE_LOSS,
    TRAINS_BELOW,
    Cell,
    Line,
    TrainabilityMap,
    largest,
    sort_inits,
)
from nonloc_paper.report.map.rules import largest_growth


def data(trained: TrainabilityMap) -> dict[str, Any]:
    """Return the parts of the map with their cells; a part without a run is left out."""
    return {
        "chance_loss": rounded(CHANCE_LOSS),
        "trains_below": rounded(TRAINS_BELOW),
        "parts": [
            {
                "title": f"{part.base.epochs} epochs with {part.change}" if part.change else part.title,
                "epochs": part.base.epochs,
                "seeds": part.seeds,
                "rates": sorted({cell.rate for cell in cells}, reverse=True),
                "starts": sort_inits(cell.init for cell in cells),
                "cells": [_cell(cell) for cell in cells],
            }
            for part, cells in trained.parts
            if cells
        ],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "rate": cell.rate,
        "start": cell.init,
        "form": cell.form,
        "blocks": cell.blocks,
        "trained": len(cell.trained),
        "diverged": len(cell.diverged),
        "first_step": cell.first_step,
        "loss": rounded(cell.loss),
        "error": rounded(cell.error),
        "spread": rounded(cell.logit_spread, 3),
        "runs": [_run(line) for line in cell.runs],
    }


def _run(line: Line) -> dict[str, Any]:
    """A run: losses by epoch, the spread of the logits at the end, and the moments before a divergence."""
    return {
        "seed": line["seed"],
        "diverged_at": line["step"],
        "first_loss": rounded(line["first_loss"]),
        "loss": rounded(line["mean_loss"]),
        "error": rounded(line["error"]),
        "train": [rounded(epoch["train_loss"]) for epoch in line["epochs"]],
        "spread": rounded(largest(line["after"], "logit_spread"), 3) if line.get("after") else None,
        "growth": rounded(largest_growth(line), 3),
        "before": {
            "step": [moment["step"] for moment in line["before"]],
            "loss": [rounded(moment["loss"]) for moment in line["before"]],
            "spread": [rounded(largest(moment, "logit_spread"), 3) for moment in line["before"]],
        },
    }
