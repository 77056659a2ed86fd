"""Recording the spectra of a network's nonlocal stages into its run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from nonloc.nn import stages
from nonloc.spectrum import weight_spectrum
from nonloc_paper.runs import Run

StageWeights = Mapping[str, Sequence[Tensor]]


def stage_weights(model: nn.Module) -> StageWeights:
    """For each stage the matrices W as they are now, [C, C] on the CPU."""
    return {
        name: [weight.detach().to("cpu", copy=True) for weight in stage.weights()]
        for name, stage in stages(model)
    }


def record_spectra(run: Run, weights: StageWeights, epoch: int) -> bool:
    """Append the spectra of all stages' weights after `epoch` epochs to spectra.jsonl.

    Records nothing and returns False for a network without stages, and for one with weights that are not
    finite, which have no spectrum.
    """
    matrices = [matrix for matrices in weights.values() for matrix in matrices]
    if not matrices or not all(bool(matrix.isfinite().all()) for matrix in matrices):
        return False
    recorded = [
        {"name": name, "weights": [weight_spectrum(matrix).to_dict() for matrix in matrices]}
        for name, matrices in weights.items()
    ]
    run.append_spectra({"epoch": epoch, "stages": recorded})
    return True
