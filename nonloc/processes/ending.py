"""How a simulation ended, in words for people: it finished, or it ran away."""

from __future__ import annotations

from dataclasses import dataclass

from nonloc.outcomes import Outcome


@dataclass(frozen=True)
class SimulationOutcome(Outcome):
    """The Outcome of a simulation: the same values as a run's, told as what a simulation does.

    "finished" means, as of a run, that it came to its end, not that a steady state was reached. `step` is the number
    of a state and `metrics["time"]` its time: of the last state, or of the first that ran away.
    """

    @property
    def sentence(self) -> str:
        return f"The simulation {ended(self)}. {self.message}".rstrip()


def ended(outcome: Outcome) -> str:
    """ "finished", or "ran away at step 2 (t = 6)"."""
    if outcome.ending == "finished":
        return "finished"
    if outcome.ending != "diverged":
        return outcome.ending
    time = outcome.metrics.get("time")
    return f"ran away at step {outcome.step}" + ("" if time is None else f" (t = {time:g})")
