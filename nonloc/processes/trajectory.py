"""Trajectory: the states that a simulation saved, and what was measured on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.affinity import zero_masked
from nonloc.outcomes import Outcome
from nonloc.processes.process import Process, mask_of


@dataclass(frozen=True)
class SimulationOutcome(Outcome):
    """The Outcome of a simulation, see `Trajectory`. `metrics["time"]` is the time of the state number `step`."""

    @property
    def sentence(self) -> str:
        return f"The simulation {_describe(self)}. {self.message}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file. Those of training write "converged", which would be false here."""
        return super().to_dict() | {"ending": self.ending}


def _describe(outcome: Outcome) -> str:
    """ "finished", or "ran away at step 2 (t = 6)"."""
    if outcome.ending != "diverged":
        return outcome.ending
    time = outcome.metrics.get("time")
    return f"ran away at step {outcome.step}" + ("" if time is None else f" (t = {time:g})")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """S saved states in the order of time, the first and the last always among them.

    Means, variances and energies of states in half precision are float32.

    states         [S, B, M, C]
    times          [S] float64 on the CPU
    mean           [S, B, C]  over the positions, weighted by the measure where there is one; masked ones left out
    weighted_mean  [S, B, C]  under π, in which the kernel is in detailed balance: what diffusion conserves. None
                              where there is no π (Ω not symmetric) or no kernel, and with a source or fixed values
    variance       [S, B, C]  the mean of |z − mean|², the paper's var(z)
    energy         [S, B]     ½ Σ_ij K_ij |z_i − z_j|²; None where the process has no kernel
    outcome        how it ended: "finished" where all steps were taken, which does not mean that a steady state was
                   reached, or "diverged"; `outcome.step` is then the first state that is not finite, or, where all
                   are finite, the first from which on Euler steps beyond the limit of stability run away

    >>> from nonloc import Affinity, Diffusion, simulate
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> path = simulate(Diffusion(Affinity(same, same, "heat")), z, num_steps=2, step_size=0.5)
    >>> path.mean.flatten().tolist(), path.variance.flatten().tolist(), path.outcome.ending
    ([0.5, 0.5, 0.5], [0.25, 0.0625, 0.015625], 'finished')
    """

    states: Tensor
    times: Tensor
    mean: Tensor
    weighted_mean: Tensor | None
    variance: Tensor
    energy: Tensor | None
    outcome: Outcome

    @property
    def final(self) -> Tensor:
        """The last state [B, M, C]."""
        return self.states[-1]

    def __len__(self) -> int:
        return self.states.shape[0]

    def __repr__(self) -> str:
        saved, batch, positions, channels = self.states.shape
        text = (
            f"Trajectory({_describe(self.outcome)}: {saved} states of [{batch}, {positions}, {channels}], "
            f"t = {float(self.times[0]):g} … {float(self.times[-1]):g}"
        )
        for name, measured in (("variance", self.variance), ("energy", self.energy)):
            if measured is not None and measured.numel():
                text += f", {name} {float(measured[0].mean()):.3g} → {float(measured[-1].mean()):.3g}"
        return text + ")"


class Recorder:
    """Fills the tensors of a Trajectory while the simulation runs."""

    def __init__(self, process: Process, z0: Tensor, saved: int) -> None:
        affinity = process.affinity
        self._energy = process.energy
        self._mask = mask_of(process)
        # Squares of numbers in half precision overflow soon.
        self._dtype = torch.promote_types(z0.dtype, torch.float32)
        like = z0.new_empty(0, dtype=self._dtype)
        self._plain = None if affinity is None else _shares(_position_weights(affinity), like)
        self._balance = _shares(process.mean_weights(), like)
        try:
            self._states = torch.empty(saved, *z0.shape, dtype=z0.dtype, device=z0.device)
        except RuntimeError:  # torch's error for too little memory
            size = saved * z0.numel() * z0.element_size() / 2**30
            raise ValueError(
                f"{saved:,} states need {size:,.1f} GiB, which {z0.device} does not have; use a larger save_every"
            ) from None
        self._times: list[float] = []
        self._rows: dict[str, list[Tensor]] = {"mean": [], "weighted_mean": [], "variance": [], "energy": []}

    def save(self, time: float, z: Tensor) -> None:
        """Save the state z [B, M, C] at a time, and its numbers."""
        self._states[len(self._times)] = z
        self._times.append(time)
        energy = self._energy(z)
        z = zero_masked(z, self._mask).to(self._dtype)
        mean = _average(z, self._plain)
        self._rows["mean"].append(mean)
        self._rows["variance"].append(_average((z - mean.unsqueeze(1)).square(), self._plain))
        if self._balance is not None:
            self._rows["weighted_mean"].append(_average(z, self._balance))
        if energy is not None:
            self._rows["energy"].append(energy)

    def finish(self, outcome: Outcome) -> Trajectory:
        """Return the trajectory of all saved states."""

        def rows(name: str) -> Tensor | None:
            return torch.stack(self._rows[name]) if self._rows[name] else None

        return Trajectory(
            states=self._states[: len(self._times)],
            times=torch.tensor(self._times, dtype=torch.float64),
            mean=torch.stack(self._rows["mean"]),
            weighted_mean=rows("weighted_mean"),
            variance=torch.stack(self._rows["variance"]),
            energy=rows("energy"),
            outcome=outcome,
        )


def _position_weights(affinity: Affinity | SparseAffinity) -> Tensor | None:
    """The measure without the masked positions [B or 1, M], None where all weights are equal."""
    if affinity.mask is None:
        return None if affinity.measure is None else affinity.measure.unsqueeze(0)
    return affinity.mask if affinity.measure is None else affinity.mask * affinity.measure


def _shares(weights: Tensor | None, like: Tensor) -> Tensor | None:
    """Weights that sum to 1 [B or 1, M, 1], in the dtype of `like`."""
    if weights is None:
        return None
    weights = weights.double()
    # Where all weights are 0, as in a graph without edges, all positions count equally.
    weights = torch.where(weights.sum(-1, keepdim=True) == 0, 1, weights)
    return (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1).to(like)


def _average(z: Tensor, shares: Tensor | None) -> Tensor:
    """[B, M, C] -> [B, C]."""
    return z.mean(1) if shares is None else (shares * z).sum(1)
