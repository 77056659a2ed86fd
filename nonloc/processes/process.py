"""Process: what moves a state z [B, M, C] in time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity, dirichlet_energy


class Process(ABC):
    """dz/dt = rate(z) in continuous time, z ← z + h · rate(z) in discrete time.

    `affinity` is the kernel the process moves by, None where it has none or where the kernel follows the state.
    `is_linear` says that rate is linear in z, which the steppers "exact" and "implicit" need.
    """

    affinity: Affinity | SparseAffinity | None = None
    is_linear: bool = True

    @abstractmethod
    def rate(self, z: Tensor) -> Tensor:
        """dz/dt [B, M, C] at z [B, M, C]."""

    def checked_euler_step(self, step_size: float) -> float:
        """h, or a ValueError where z + h · rate(z) means nothing for it. Here every h > 0 is allowed."""
        return step_size

    def inner_weights(self) -> Tensor | None:
        """π [B or 1, M] such that rate is self-adjoint and dissipative in ⟨u, v⟩ = Σ_i π_i u_i·v_i, else None."""
        return None

    def mean_weights(self) -> Tensor | None:
        """π [B or 1, M] of the weighted mean that a trajectory reports, None for no such mean."""
        return None

    def energy(self, z: Tensor) -> Tensor | None:
        """The Dirichlet energy [B] of z in the eyes of the kernel, None where there is no kernel."""
        return None if self.affinity is None else dirichlet_energy(self.affinity, z)
