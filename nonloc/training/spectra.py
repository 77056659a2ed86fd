"""Recording the spectra of a network's nonlocal stages into its run folder."""

from __future__ import annotations

from torch import nn

from nonloc.nn import stages
from nonloc.runs import Run
from nonloc.spectrum import weight_spectrum


def record_spectra(run: Run, model: nn.Module, epoch: int) -> bool:
    """Append the spectra of all stages' weights after `epoch` epochs to spectra.jsonl.

    Records nothing and returns False for a network without stages, and for one with weights that are not
    finite, which have no spectrum.
    """
    weights = {name: [weight.detach() for weight in stage.weights()] for name, stage in stages(model)}
    matrices = [matrix for matrices in weights.values() for matrix in matrices]
    if not matrices or not all(bool(matrix.isfinite().all()) for matrix in matrices):
        return False
    recorded = [
        {"name": name, "weights": [weight_spectrum(matrix).to_dict() for matrix in matrices]}
        for name, matrices in weights.items()
    ]
    run.append_spectra({"epoch": epoch, "stages": recorded})
    return True
