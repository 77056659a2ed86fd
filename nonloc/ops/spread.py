"""logit_spread: how far the logits of each row are apart, the number to watch when training runs away."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import reference
from nonloc.ops.affinity import Affinity
from nonloc.ops.exponential import BLOCK_ENTRIES
from nonloc.ops.operator import position_weights, valid_positions


def logit_spread(affinity: Affinity) -> Tensor:
    """max_j − min_j of log Ω_ij for each row [B, M], in float32, or float64 for such features; memory linear in M.

    At 0 a row of the kernel is a plain mean. At tens it picks a few positions, at hundreds one, and which one turns on
    rounding. In the trainability map every run that diverged had got there long before (docs/reproduction/map.md); if
    yours does, divide the logits by √d (`scaled=True`) or begin with smaller maps.

    Only for kernels that have logits, "gaussian" and "heat". Givers that are masked or weigh nothing do not count; a
    masked row has 0.
    """
    if affinity.kind not in ("gaussian", "heat"):
        raise ValueError(f'only kinds "gaussian" and "heat" have logits, not {affinity.kind!r}')
    dtype = torch.promote_types(affinity.left.dtype, torch.float32)
    gives = position_weights(affinity, dtype).unsqueeze(1) > 0
    rows = max(1, BLOCK_ENTRIES // max(1, affinity.batch * affinity.right.shape[1]))
    spreads = []
    for left in affinity.left.split(rows, 1):
        block = Affinity(left, affinity.right, affinity.kind, scale=affinity.scale)
        logits = reference.logits(block, dtype)
        highest = logits.masked_fill(~gives, -torch.inf).amax(-1)
        spreads.append(highest - logits.masked_fill(~gives, torch.inf).amin(-1))
    return torch.where(valid_positions(affinity), torch.cat(spreads, 1), 0)
