"""cfl_limit: the largest stable step of a kernel. certify: whether a stage can make any signal grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nonloc._checks import is_number, is_whole
from nonloc.modes import evaluating
from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.bounds import wide
from nonloc.processes.kernel_checks import check_affinity, check_numbers
from nonloc.processes.stability.certificate import Certificate, Stage
from nonloc.processes.stability.cfl import CFLLimit, sample_limit
from nonloc.processes.stability.verdicts import judge

__all__ = ["CFLLimit", "Certificate", "certify", "cfl_limit"]

FORMS = ("diffusive", "original")
EXACT_POSITIONS = 1024
EMPTY = "the batch is empty (B = 0); give at least one sample"
SEVERITY = ("stable", "not decided", "unstable")


def cfl_limit(affinity: Affinity | SparseAffinity, *, exact_up_to: int = EXACT_POSITIONS) -> CFLLimit:
    """The largest h for which a step z + h ℒz enlarges no signal, in the kernel's own norm; see `CFLLimit`.

    exact_up_to  M up to which the eigenvalues are computed; above it the limit is a bound from below, by what the
                 kernel is or by its degrees. The smallest limit of the batch is returned.
    """
    check_affinity(affinity)
    check_numbers(affinity)
    _check_exact_up_to(exact_up_to)
    if affinity.batch == 0:
        raise ValueError(EMPTY)
    with torch.no_grad():
        limits = [sample_limit(one, exact_up_to) for one in _samples(affinity)]
    return min(limits, key=lambda one: one.limit)


def certify(
    subject: Any,
    given: Any,
    *,
    mask: Tensor | None = None,
    form: str | None = None,
    exact_up_to: int = EXACT_POSITIONS,
) -> Certificate:
    """Whether a stage is non-expansive for every input: `certify(affinity, weights)`, or `certify(stage, x)`.

    subject, given  an affinity with weights as `propagate` takes them, or one W [C, C] for a single sub-block, where a
                    number w stands for w I; or a trained stage with an input, any object that has `weights()` and
                    `affinity(x)` or `affinities(x)`
    mask            of the stage's input, as the stage takes it; `nonloc.nn.inspect.stage_inputs` gives (name, stage,
                    x, mask) for every stage of a model. An affinity has its own
    form            "diffusive": z + diffuse(affinity, z) Wᵀ; "original": z + aggregate(affinity, z) Wᵀ. When left out,
                    that of the stage, or "diffusive"
    exact_up_to     M up to which kernels are looked at as matrices; above it bounds decide, or nothing

    The kernel is held as it is at x. A stage with a bias or a batch normalisation (taken as in evaluation) adds the
    same to every state: the certificate is then about the distance of two states. See `Certificate`.
    """
    _check_exact_up_to(exact_up_to)
    # The search for a signal that grows needs gradients.
    with torch.inference_mode(False):
        return _certified(*_unpacked(subject, given, mask, form), exact_up_to)


def _certified(
    affinities: list[Affinity | SparseAffinity], weights: list[Tensor], form: str, exact_up_to: int
) -> Certificate:
    precision = max(torch.finfo(weight.dtype).eps for weight in weights) if weights else 0.0
    with torch.no_grad():
        # Copies: those that were made in inference mode cannot be differentiated.
        wide_weights = [weight.to(torch.float64, copy=True).contiguous() for weight in weights]
        if not all(bool(weight.isfinite().all()) for weight in wide_weights):
            raise ValueError("weights has entries that are not finite; there is nothing to certify")
        found = []
        for sample, kernels in enumerate(zip(*_samples_of_each(affinities), strict=True)):
            stage = Stage(list(kernels), wide_weights, form, precision)
            found.append(replace(judge(stage, exact_up_to), sample=sample))
    if not found:
        raise ValueError(EMPTY)
    return max(found, key=lambda one: (SEVERITY.index(one.verdict), one.growth))


def _unpacked(
    subject: Any, given: Any, mask: Tensor | None, form: str | None
) -> tuple[list[Affinity | SparseAffinity], list[Tensor], str]:
    """One affinity and one W [C, C] for each sub-block, and the form."""
    if isinstance(subject, (Affinity, SparseAffinity)):
        if mask is not None:
            raise ValueError(
                "mask goes with a stage and its input; an affinity has its own, Affinity(..., mask=mask)"
            )
        weights = _checked_weights(given, subject)
        affinities: list[Affinity | SparseAffinity] = [subject] * max(1, len(weights))
    elif callable(getattr(subject, "weights", None)) and hasattr(subject, "affinity"):
        if not isinstance(given, Tensor):
            raise ValueError(
                f"x must be an input of the stage, a tensor, got {type(given).__name__}; "
                "a stage has its own weights"
            )
        form = form or getattr(subject, "form", None)
        masked = {} if mask is None else {"mask": mask}  # a stage of one's own need not know of masks
        # A look at a stage in training must not feed its batch normalisation.
        with evaluating(subject) if isinstance(subject, nn.Module) else torch.no_grad():
            weights = [weight.detach() for weight in subject.weights()]
            if hasattr(subject, "affinities"):
                affinities = list(subject.affinities(given, **masked))
            else:
                affinities = [subject.affinity(given, **masked)] * max(1, len(weights))
    else:
        raise ValueError(
            "certify takes an affinity and weights, or a stage (an object with weights() and affinity(x)) and an "
            f"input, got {type(subject).__name__}"
        )
    form = form or "diffusive"
    if form not in FORMS:
        raise ValueError(f"form={form!r} is unknown; choose one of {', '.join(FORMS)}")
    for affinity in affinities:
        check_affinity(affinity)
        check_numbers(affinity)
    return affinities, weights, form


def _checked_weights(weights: Any, affinity: Affinity | SparseAffinity) -> list[Tensor]:
    """Each W [C, C], on the affinity's device."""
    device = affinity.matrix.device if isinstance(affinity, SparseAffinity) else affinity.left.device
    if _is_number(weights) or (isinstance(weights, Tensor) and weights.dim() == 2):
        weights = [weights]
    if not isinstance(weights, (Tensor, Sequence)) or isinstance(weights, str):
        raise ValueError(
            "weights must be a number, one W [C, C], a tensor [N, C, C], or a sequence of W, pairs (W_Z, W_g) and "
            f"numbers, got {type(weights).__name__}"
        )
    if isinstance(weights, Tensor) and weights.dim() == 1:
        raise ValueError(
            f"weights is {list(weights.shape)}, which may mean two things; use weights.tolist() for one number a "
            "sub-block, or torch.diag(weights) for one diagonal W"
        )
    found = [float(item) if _is_number(item) else _checked_matrix(item, n) for n, item in enumerate(weights)]
    channels = next((len(one) for one in found if isinstance(one, Tensor)), 1)
    for n, one in enumerate(found):
        if isinstance(one, Tensor) and len(one) != channels:
            raise ValueError(
                f"weights[{n}] is {list(one.shape)}, one before it [{channels}, {channels}]; all act on the same C"
            )
    identity = torch.eye(channels, dtype=torch.float64, device=device)
    return [one.to(device) if isinstance(one, Tensor) else one * identity for one in found]


def _checked_matrix(item: Any, n: int) -> Tensor:
    """W [C, C] of weights[n], a matrix or a pair of factors."""
    factors = item if isinstance(item, (tuple, list)) else (item,)
    matrix = factors[0].detach() if isinstance(factors[0], Tensor) else factors[0]
    if len(factors) == 2 and _are_chained(*factors):
        # In float64, so that forming W loses nothing of what the factors are.
        matrix = factors[0].detach().double() @ factors[1].detach().double()
    is_square = isinstance(matrix, Tensor) and matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not is_square or len(factors) > 2 or (len(factors) == 2 and not _are_chained(*factors)):
        shapes = [list(f.shape) if isinstance(f, Tensor) else type(f).__name__ for f in factors]
        got = shapes[0] if len(shapes) == 1 else shapes
        raise ValueError(
            f"weights[{n}] must be W [C, C], a number or a pair (W_Z [C, r], W_g [r, C]), got {got}"
        )
    if not matrix.dtype.is_floating_point:
        raise ValueError(f"weights[{n}] must be floating point and real, got {matrix.dtype}; use .double()")
    return matrix


def _is_number(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.dim() == 0 and not item.is_complex()
    return is_number(item)


def _are_chained(first: Any, second: Any) -> bool:
    """Whether W_Z W_g can be formed."""
    tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    return tensors and first.dim() == second.dim() == 2 and first.shape[1] == second.shape[0]


def _check_exact_up_to(exact_up_to: Any) -> None:
    if not is_whole(exact_up_to) or exact_up_to < 0:
        raise ValueError(f"exact_up_to must be a whole number ≥ 0 of positions, got {exact_up_to!r}")


def _samples(affinity: Affinity | SparseAffinity) -> list[Affinity | SparseAffinity]:
    """One affinity of batch 1 for each sample, in float64."""
    affinity = wide(affinity)
    if isinstance(affinity, SparseAffinity):
        return [affinity]
    return [affinity.sample(b) for b in range(affinity.batch)]


def _samples_of_each(
    affinities: list[Affinity | SparseAffinity],
) -> list[list[Affinity | SparseAffinity]]:
    """The samples of each sub-block's affinity; where sub-blocks share one, its samples are the same objects."""
    known = {id(affinity): _samples(affinity) for affinity in affinities}
    return [known[id(affinity)] for affinity in affinities]
