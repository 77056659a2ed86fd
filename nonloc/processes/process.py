"""Process: what moves a state z [B, M, C] in time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity
from nonloc.processes.kernel import PreparedKernel

MOST_STEPS = 10**10  # a simulation of more would take days for the smallest state


class Process(ABC):
    """dz/dt = rate(z) in continuous time, z ← z + h · rate(z) in discrete time.

    `affinity` is the kernel of the process, None where it has none or where the kernel follows the state.
    `is_linear` says that rate is linear in z, which the steppers "exact" and "implicit" need.

    A new process with a fixed affinity prepares it once, with `nonloc.ops.prepare`: `diffuse` would normalise the
    affinity itself in every step, which for "sinkhorn" is most of the work.

        class Reaction(Process):
            is_linear = False

            def __init__(self, affinity):
                self.affinity, self.kernel = affinity, prepare(affinity, torch.float64)

            def rate(self, z):
                return diffuse(self.kernel, z) + z - z**3

    >>> from nonloc.processes import Process, simulate
    >>> class Decay(Process):
    ...     def rate(self, z):
    ...         return -z
    >>> simulate(Decay(), torch.ones(1, 1, 1), num_steps=2, step_size=0.5).final.item()
    0.25
    """

    affinity: Affinity | SparseAffinity | None = None
    is_linear: bool = True
    follows_state: bool = False  # True where it is the kernel that makes it nonlinear

    @abstractmethod
    def rate(self, z: Tensor) -> Tensor:
        """dz/dt [B, M, C] at z [B, M, C]."""

    def check_state(self, z: Tensor) -> None:  # noqa: B027
        """Raise a ValueError where a simulation must not begin at z [B, M, C]. By default it may begin anywhere."""

    def checked_euler_step(self, step_size: float) -> float:
        """Return h, or raise a ValueError where z + h · rate(z) has no meaning. By default every h > 0 is allowed."""
        return step_size

    def certified_euler_step(self) -> float | None:
        """h up to which Euler steps are known to enlarge no signal, None where no such h is known."""
        return None

    def range_euler_step(self) -> float | None:
        """h up to which Euler steps keep every channel in the range of its values before, as the process itself does;
        None where no such h is known."""
        return None

    def fastest_rate(self) -> float:
        """How fast a position may give away its own value; 0 where not known. An Euler step h adds that much of it and
        takes it away again, which multiplies rounding by h times this."""
        return 0.0

    def inner_weights(self) -> Tensor | None:
        """π [B or 1, M] such that rate is self-adjoint and dissipative in ⟨u, v⟩ = Σ_i π_i u_i·v_i, else None."""
        return None

    def mean_weights(self) -> Tensor | None:
        """π [B or 1, M] of the weighted mean that a trajectory reports, None for no such mean."""
        return None

    def energy(self, z: Tensor) -> Tensor | None:
        """The Dirichlet energy [B] of z for the kernel, None where there is no kernel."""
        if self.affinity is None:
            return None
        affinity, prepared = self.__dict__.get("_prepared", (None, None))
        if prepared is None or affinity is not self.affinity:
            prepared = PreparedKernel(self.affinity, "affinity", is_fixed=False)
            self.__dict__["_prepared"] = self.affinity, prepared
        return prepared.energy(z)


def mask_of(process: Process) -> Tensor | None:
    """The mask [B, M] of its affinity, None where it has none."""
    return None if process.affinity is None else process.affinity.mask
