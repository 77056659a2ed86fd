"""What each file of runs and records may hold; `schema.check` reads these. Standard library only."""

from __future__ import annotations

from nonloc_paper.schema import ANY, COUNT, HASH, NUMBER, POSITIVE, TEXT, Maybe, Number, Schema, Text

DIGITS = 7  # of the floats in records; results have all of theirs
SECONDS = LOSS = SIZE = Number(0)
PERCENT = Number(0, 100)
SHARE = Number(0, 1 + 1e-6)  # a quotient of two sums, which are rounded
DEVICE = Text(pattern=r"[\w .,:;()/+@#™®-]*")  # it is in Markdown, too
FORM = Text(("original", "diffusive"))
ENDING = Text(("converged", "finished", "diverged"))  # an interrupted run has no result
VERDICT = Text(("stable", "unstable", "not decided"))

_MACHINE: Schema = {"cpu": TEXT, "cores": POSITIVE, "threads": POSITIVE, "device": DEVICE, "platform": TEXT}
_PLACE: Schema = {"machine": _MACHINE, "versions": {"*": TEXT}}
_PART: Schema = {"machine": Maybe(_MACHINE), "versions?": Maybe({"*": TEXT}), "seconds": SECONDS}
_FILE: Schema = {"size": COUNT, "sha256": HASH}
_RECORDS: Schema = {"metrics.jsonl": _FILE, "spectra.jsonl": _FILE}

METRICS: Schema = {
    "epoch": POSITIVE,
    "step": POSITIVE,
    "train_loss": Maybe(LOSS),
    "test_loss": Maybe(LOSS),
    "error?": Maybe(PERCENT),
    "psnr?": Maybe(NUMBER),
    "learning_rate": Number(0),
    "seconds": SECONDS,
}
_LAST_METRICS: Schema = {
    key.rstrip("?") + "?": schema for key, schema in METRICS.items()
}  # {} before the first epoch
RESULT: Schema = {
    "outcome": {"ending": ENDING, "epoch": COUNT, "step": COUNT, "message": TEXT, "metrics": _LAST_METRICS},
    "metrics": _LAST_METRICS,
    "parameters": POSITIVE,
    "data_sha256": HASH,
    "weights_sha256": Maybe(HASH),
    "seconds": SECONDS,
    **_PLACE,
    "earlier?": [_PART],
    "recipe_sha256?": HASH,
    "records?": _RECORDS,
}
OLDER_MANIFEST: Schema = {  # of a checkpoint
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "step_in_epoch": COUNT,
    "seconds": SECONDS,
    "num_classes": COUNT,
    "data_sha256": HASH,
    "losses": [NUMBER],
    "optimizer": {"*": ANY},
    "parts?": [_PART],
    "recipe_sha256": HASH,
    "recipe": {"*": ANY},
    "versions": {"*": TEXT},
    "size": COUNT,
    "sha256": HASH,
}
MANIFEST: Schema = OLDER_MANIFEST | {"records": _RECORDS}

_SPECTRUM: Schema = {
    "eigenvalues": [NUMBER],
    "trace": NUMBER,
    "positive_energy": SIZE,
    "negative_energy": SIZE,
    "negative_share": Maybe(SHARE),
}
_BAND: Schema = {
    "low": [NUMBER],
    "high": [NUMBER],
    "trace": (NUMBER, NUMBER),
    "negative_share": (SHARE, SHARE),
    "quantile": Number(0, 1),
}
SPECTRA: Schema = {"epoch": COUNT, "stages": [{"name": TEXT, "weights": [_SPECTRUM]}]}
SPECTRUM: Schema = {
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "caption": TEXT,
    "stages": [
        {
            "name": TEXT,
            "form": FORM,
            "weights": [_SPECTRUM | {"norm": SIZE, "rank": POSITIVE, "band?": _BAND}],
        }
    ],
}

_STATE: Schema = {
    "norm": Maybe(SIZE),
    "mean": Maybe(NUMBER),
    "variance": Maybe(SIZE),
    "energy": Maybe(NUMBER),
}
_AFFINITY: Schema = {
    "stage": TEXT,
    "position": (COUNT, COUNT),
    "grid": (POSITIVE, POSITIVE),
    "spread": Maybe(SHARE),
    "apart?": Maybe(SHARE),
    "logit_spread?": Maybe(SIZE),
    "same_share": Maybe(SHARE),
    "same_chance": Maybe(SHARE),
}
_BLOCK: Schema = {
    "block": POSITIVE,
    "before": _STATE,
    "after": _STATE,
    "quotient?": Maybe(NUMBER),
    "linear?": Maybe(NUMBER),
}
_FEATURES: Schema = {
    "name": TEXT,
    "form": FORM,
    "channels": POSITIVE,
    "num_blocks": POSITIVE,
    "blocks": [_BLOCK],
}
NOT_OBSERVED: Schema = {"format": POSITIVE, "step": Maybe(COUNT)}  # it ended before its first checkpoint
OBSERVATIONS: Schema = {
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "task": Text(("classification", "restoration")),
    "batch_size": POSITIVE,
    "affinity": [_AFFINITY],
    "features": [_FEATURES],
    "psnr?": {"noisy": [Maybe(NUMBER)], "restored": [Maybe(NUMBER)]},
    "input_psnr?": Maybe(NUMBER),
    "tensors_sha256?": HASH,
}

_GROWTH: Schema = {"verdict": VERDICT, "growth": Maybe(SIZE)}
STABILITY: Schema = {
    "step?": COUNT,
    "images": POSITIVE,
    "stages": [
        {
            "name": TEXT,
            "form": FORM,
            "num_blocks": POSITIVE,
            "positions": POSITIVE,
            **_GROWTH,
            "repeated": Maybe(SIZE),
            "norm": TEXT,
            "reason": TEXT,
            "logit_spread?": Maybe(SIZE),
            "blocks": [{**_GROWTH, "largest": SIZE, "lowest": NUMBER, "limit": Maybe(NUMBER)}],
        }
    ],
    **_PLACE,
}

PLAN: Schema = {
    "name": TEXT,
    "rows": [TEXT],
    "changes": {"*": ANY},  # a recipe's fields, which Recipe checks
    "seeds": Maybe(POSITIVE),
    "command?": TEXT,
    "seconds?": SECONDS,
}
SPENT: Schema = {"seconds": SECONDS, "device?": DEVICE, "runs?": COUNT, "part?": TEXT}

_MOMENT: Schema = {
    "step": COUNT,
    "stages": [
        {
            "name": TEXT,
            "amplification": Maybe(SIZE),
            "logit_spread?": Maybe(SIZE),
            "logit_spreads?": [Maybe(SIZE)],
            "growth?": Maybe(SIZE),
            "verdict?": Maybe(VERDICT),
            "weights?": [{"eigenvalue": Maybe(NUMBER), "norm": Maybe(SIZE)}],
        }
    ],
}
_EPOCH: Schema = {
    "epoch": POSITIVE,
    "train_loss": Maybe(LOSS),
    "test_loss": Maybe(LOSS),
    "error": Maybe(PERCENT),
}
MAP_ROW: Schema = {
    "cell": TEXT,
    "rate": SIZE,
    "init": TEXT,
    "form": Text(("original", "diffusive", "stable")),
    "blocks": POSITIVE,
    "seed": COUNT,
    "ending": ENDING,
    "step": Maybe(COUNT),
    "first_loss": Maybe(LOSS),
    "last_loss": Maybe(LOSS),
    "mean_loss": Maybe(LOSS),
    "error": Maybe(PERCENT),
    "test_loss": Maybe(LOSS),
    "epochs": [_EPOCH],
    "seconds": SECONDS,
    "device": DEVICE,
    "before_error": Maybe(TEXT),
    "before": [_MOMENT | {"loss": Maybe(LOSS)}],
    "after?": Maybe(_MOMENT),
    "side_by_side": POSITIVE,
    "recipe_sha256": HASH,
}
FORMS: Schema = {  # of `python -m benchmarks forms`
    "command": TEXT,
    "rows": [
        {
            "form": FORM,
            "blocks": POSITIVE,
            "way": TEXT,
            "batch_size": POSITIVE,
            "precision": TEXT,
            "milliseconds": [SIZE],
        }
    ],
    **_PLACE,
}
