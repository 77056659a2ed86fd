"""logit_spread: how far the logits of each row are apart, the number to watch when training runs away."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nonloc.ops import reference
from nonloc.ops.affinity import Affinity
from nonloc.ops.exponential import BLOCK_ENTRIES
from nonloc.ops.operator import centred, position_weights, valid_positions, without_masked
from nonloc.ops.sparse import SparseAffinity


@torch.no_grad()
def logit_spread(affinity: Affinity) -> Tensor:
    """max_j − min_j of log Ω_ij for each row [B, M], without gradients, in float32, or float64 for such features.

    At 0 a row of the kernel is a plain mean; at hundreds it picks single positions. Most runs of ten epochs in the
    trainability map that diverged were there 50 steps before, and most others were not (paper/pages/map.md). What
    makes it smaller: logits divided by √d (`scaled=True`), maps that begin smaller.

    Only for kernels that have logits, "gaussian" and "heat". Givers that are masked or weigh nothing do not count; a
    masked row has 0. Memory is linear in M.
    """
    if not isinstance(affinity, (Affinity, SparseAffinity)):
        raise ValueError(
            f"logit_spread takes an Affinity, got {type(affinity).__name__}; those of a stage are stage.affinities(x), "
            "and nonloc.logit_spreads(model, x) tells of all stages of a model"
        )
    kind = affinity.kind if isinstance(affinity, Affinity) else type(affinity).__name__
    if kind not in ("gaussian", "heat"):
        raise ValueError(f'only kinds "gaussian" and "heat" have logits, not {kind!r}')
    affinity = without_masked(affinity)
    dtype = torch.promote_types(affinity.left.dtype, torch.float32)
    gives = position_weights(affinity, dtype).unsqueeze(1) > 0
    rows = max(1, BLOCK_ENTRIES // max(1, affinity.batch * affinity.right.shape[1]))
    spreads = []
    # Around the givers that count, of which a block of rows knows nothing.
    both = centred(affinity, dtype) if affinity.kind == "heat" else (affinity.left, affinity.right)
    for left in both[0].split(rows, 1):
        block = Affinity(left, both[1], affinity.kind, scale=affinity.scale)
        logits = reference.logits(block, dtype)
        highest = logits.masked_fill(~gives, -torch.inf).amax(-1)
        spreads.append(highest - logits.masked_fill(~gives, torch.inf).amin(-1))
    has_any = valid_positions(affinity) & gives.any(-1)
    return torch.where(has_any, torch.cat(spreads, 1), 0)


def kernel_logit_spreads(affinities: Iterable[Affinity | SparseAffinity]) -> list[float]:
    """The largest of each kernel that has logits; of one that sub-blocks share, once."""
    kernels = {id(one): one for one in affinities}.values()
    return [
        float(logit_spread(one).amax()) if one.batch else 0.0
        for one in kernels
        if isinstance(one, Affinity) and one.kind in ("gaussian", "heat")
    ]


def largest_logit_spread(affinities: Iterable[Affinity | SparseAffinity]) -> float | None:
    """Of all of them; None where none has logits, NaN where one has."""
    found = kernel_logit_spreads(affinities)
    return float(torch.tensor(found, dtype=torch.float64).max()) if found else None
