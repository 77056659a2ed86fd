"""Process: what moves a state z [B, M, C] in time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.functional import energy
from nonloc.processes.ready_kernel import ReadyKernel


class Process(ABC):
    """dz/dt = rate(z) in continuous time, z ← z + h · rate(z) in discrete time.

    `affinity` is the kernel the process moves by, None where it has none or where the kernel follows the state.
    `is_linear` says that rate is linear in z, which the steppers "exact" and "implicit" need.

    A process of one's own that moves by a fixed affinity makes it ready once, with `nonloc.ops.prepare`: `diffuse`
    would normalise it anew in every step, which for "sinkhorn" is most of the work.

        class Reaction(Process):
            is_linear = False

            def __init__(self, affinity):
                self.affinity, self.kernel = affinity, prepare(affinity, torch.float64)

            def rate(self, z):
                return self.kernel.apply(z) - self.kernel.sums * z + z - z**3
    """

    affinity: Affinity | SparseAffinity | None = None
    is_linear: bool = True
    follows_state: bool = False  # True where it is the kernel that makes it nonlinear

    @abstractmethod
    def rate(self, z: Tensor) -> Tensor:
        """dz/dt [B, M, C] at z [B, M, C]."""

    def check_state(self, z: Tensor) -> None:  # noqa: B027
        """A ValueError where a simulation must not begin at z [B, M, C]. Here it may begin anywhere."""

    def checked_euler_step(self, step_size: float) -> float:
        """h, or a ValueError where z + h · rate(z) means nothing for it. Here every h > 0 is allowed."""
        return step_size

    def certified_euler_step(self) -> float | None:
        """h up to which Euler steps are known to enlarge no signal, None where no such h is known."""
        return None

    def range_euler_step(self) -> float | None:
        """h up to which Euler steps keep every channel within the values that it has at some time, as the process
        itself does; None where no such h is known."""
        return None

    def inner_weights(self) -> Tensor | None:
        """π [B or 1, M] such that rate is self-adjoint and dissipative in ⟨u, v⟩ = Σ_i π_i u_i·v_i, else None."""
        return None

    def mean_weights(self) -> Tensor | None:
        """π [B or 1, M] of the weighted mean that a trajectory reports, None for no such mean."""
        return None

    def energy(self, z: Tensor) -> Tensor | None:
        """The Dirichlet energy [B] of z in the eyes of the kernel, None where there is no kernel."""
        if self.affinity is None:
            return None
        operator, signal = self._seen_kernel(self.affinity).at(z)
        return energy(operator, signal).to(z.dtype)

    def _seen_kernel(self, affinity: Affinity | SparseAffinity) -> ReadyKernel:
        """The affinity made ready, once for as long as the process has the same one."""
        known: tuple[Affinity | SparseAffinity, ReadyKernel] | None = self.__dict__.get("_seen")
        if known is None or known[0] is not affinity:
            known = affinity, ReadyKernel(affinity, "affinity", is_fixed=False)
            self.__dict__["_seen"] = known
        return known[1]
