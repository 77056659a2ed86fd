"""The two forms of the nonlocal operation: the original one of Wang et al., the paper's diffusive one."""

from __future__ import annotations

from torch import Tensor

from nonloc.nn.affinity import AnyAffinity
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.ops import aggregate, diffuse


class Original(NonlocalModule):
    """Abstract: Z_i ← Z_i + W_Z Σ_j K_ij W_g Z_j, Eq. (1)."""

    form = "original"
    uses_differences = False

    def _operate(self, affinity: AnyAffinity, z: Tensor) -> Tensor:
        return aggregate(affinity, z, backend=self.backend)


class Diffusive(NonlocalModule):
    """Abstract: Z_i ← Z_i + W_Z Σ_j K_ij (W_g Z_j − W_g Z_i), Eq. (8)."""

    form = "diffusive"
    uses_differences = True

    def _operate(self, affinity: AnyAffinity, z: Tensor) -> Tensor:
        return diffuse(affinity, z, backend=self.backend)
