"""The two forms of the nonlocal operation: the original one of Wang et al., the paper's diffusive one."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.ops import Affinity, aggregate, diffuse, propagate


class Original(NonlocalModule):
    """Abstract: Z_i ← Z_i + W_Z Σ_j K_ij W_g Z_j, Eq. (1)."""

    form = "original"
    uses_differences = False

    def _operate(self, affinity: Affinity, z: Tensor) -> Tensor:
        return aggregate(affinity, z, backend=self.backend)


class Diffusive(NonlocalModule):
    """Abstract: Z_i ← Z_i + W_Z Σ_j K_ij (W_g Z_j − W_g Z_i), Eq. (8)."""

    form = "diffusive"
    uses_differences = True

    def _operate(self, affinity: Affinity, z: Tensor) -> Tensor:
        return diffuse(affinity, z, backend=self.backend)

    def _final_state(self, z: Tensor, mask: Tensor | None, shape: torch.Size) -> Tensor:
        maps = self._weight_maps()
        if not self.shares_affinity or not all(weight.is_linear for weight in maps):
            return super()._final_state(z, mask, shape)
        # Everything is W and one kernel: the whole stage is one operation, which prepares the kernel once.
        affinity = self._affinity_at(0, z, None, mask)
        return propagate(affinity, z, [weight.factors() for weight in maps], backend=self.backend)
