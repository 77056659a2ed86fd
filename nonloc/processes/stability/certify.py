"""certify: whether a stage can make a signal grow. By the kernel's matrix where M is small, by bounds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor, nn

from nonloc._checks import check_choice, check_whole, is_finite, is_number, shown
from nonloc._evaluation import evaluating
from nonloc.ops import Affinity, SparseAffinity, self_adjoint_weights
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.bounds import STOCHASTIC, has_negative_entries, is_definite, stable_weight_limit
from nonloc.processes.jump.process import JumpProcess
from nonloc.processes.kernel import check_affinity, check_operator
from nonloc.processes.solvers import NotSolvedError
from nonloc.processes.stability import growth as grow
from nonloc.processes.stability.certificate import EXACT_POSITIONS, Certificate, StageSample, split_samples
from nonloc.processes.stability.growth import Growth
from nonloc.processes.stability.own_norm import (
    BALANCED,
    STATIONARY,
    OwnNorm,
    own_norm,
    plain_norm,
    step_matrix,
)

FORMS = ("diffusive", "original")
LARGEST_WHOLE = 1536  # M · C up to which a stage is one matrix
LARGEST_WORK = 2**33  # M · C³ up to which all eigenvalues are used
# The least growth that counts where the norm is not the kernel's own: eigenvalues of such maps are less exact.
CLEAR_GROWTH = 1 + 1e-6
CLEAR_REPETITION = 1 + 1e-3  # of a mean over finitely many passes
HALF = "Half precision has few digits: certify in float32, as copy.deepcopy(stage).float() with x.float()"
SEVERITY = ("stable", "not decided", "unstable")


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

    >>> from nonloc import Affinity, certify
    >>> same = torch.zeros(1, 2, 1, dtype=torch.float64)  # I − w L has the eigenvalues 1 and 1 − w
    >>> [certify(Affinity(same, same, "heat"), w).verdict for w in (0.9, 3.0)]
    ['stable', 'unstable']
    """
    check_whole("exact_up_to", exact_up_to, least=0)
    with torch.inference_mode(False), torch.no_grad():
        affinities, weights, form = _unpacked(subject, given, mask, form)
    return certify_kernels(affinities, weights, form, exact_up_to)


def certify_kernels(
    affinities: Sequence[Affinity | SparseAffinity],
    weights: Sequence[Tensor],
    form: str,
    exact_up_to: int = EXACT_POSITIONS,
) -> Certificate:
    """Certify the stage with these kernels and W_n [C, C], one of each for each sub-block."""
    for affinity in affinities:
        check_affinity(affinity)
    # The search for a signal that grows needs gradients.
    with torch.inference_mode(False), torch.no_grad():
        precision = max(torch.finfo(weight.dtype).eps for weight in weights) if weights else 0.0
        # Copies: tensors from inference mode cannot be differentiated.
        wide_weights = [weight.to(torch.float64, copy=True).contiguous() for weight in weights]
        if not all(bool(weight.isfinite().all()) for weight in wide_weights):
            raise ValueError("weights has entries that are not finite; there is nothing to certify")
        # Sub-blocks that share an affinity share the samples, too: the same objects.
        samples = {affinity: split_samples(affinity) for affinity in dict.fromkeys(affinities)}
        certificates = []
        for number, kernels in enumerate(zip(*(samples[one] for one in affinities), strict=True)):
            stage = StageSample(list(kernels), wide_weights, form, precision)
            certificates.append(replace(_judge(stage, exact_up_to), sample=number))
    worst = max(certificates, key=lambda one: (SEVERITY.index(one.verdict), one.growth))
    if worst.verdict != "not decided" or precision <= torch.finfo(torch.float32).eps:
        return worst
    return replace(worst, reason=f"{worst.reason}. {HALF}")


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
        masked = {} if mask is None else {"mask": mask}  # a stage from elsewhere need not take masks
        # A stage in training must not update its batch normalisation here.
        with evaluating(subject) if isinstance(subject, nn.Module) else torch.no_grad():
            weights = [weight.detach() for weight in subject.weights()]
            if hasattr(subject, "affinities"):
                affinities = list(subject.affinities(given, **masked))
            else:
                affinities = [subject.affinity(given, **masked)] * max(1, len(weights))
    else:
        raise ValueError(
            "certify takes an affinity and weights, or a stage (an object with weights() and affinity(x)) and an "
            f"input, got {type(subject).__name__}; of a network, nonloc.nn.stage_inputs(network, images) has each "
            "stage and its input"
        )
    form = form or "diffusive"
    check_choice("form", form, FORMS)
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
    items = [_checked_item(item, n) for n, item in enumerate(weights)]
    channels = next((len(one) for one in items if isinstance(one, Tensor)), 1)
    for n, one in enumerate(items):
        if isinstance(one, Tensor) and len(one) != channels:
            raise ValueError(
                f"weights[{n}] is {list(one.shape)}, one before it [{channels}, {channels}]; all act on the same C"
            )
    identity = torch.eye(channels, dtype=torch.float64, device=device)
    return [one.to(device) if isinstance(one, Tensor) else one * identity for one in items]


def _checked_item(item: Any, n: int) -> Tensor | float:
    """W [C, C] of weights[n], a matrix or a pair of factors; w where it is a number, which stands for w I."""
    factors = item if isinstance(item, (tuple, list)) else (item,)
    for factor in factors:
        if isinstance(factor, Tensor) and (factor.is_meta or factor.layout != torch.strided):
            raise ValueError(
                f"weights[{n}] must be numbers in a dense tensor, got {factor.layout} on {factor.device}"
            )
    if _is_number(item):
        number = item.item() if isinstance(item, Tensor) else item
        if not is_finite(number):
            raise ValueError(f"weights[{n}] is {shown(number)}, not finite; there is nothing to certify")
        return float(number)
    for factor in factors:
        if isinstance(factor, Tensor) and not factor.dtype.is_floating_point:
            raise ValueError(
                f"weights[{n}] must be floating point and real, got {factor.dtype}; use .double()"
            )
    are_matrices = all(isinstance(factor, Tensor) and factor.dim() == 2 for factor in factors)
    is_one_or_pair = len(factors) in (1, 2) and are_matrices
    # W is square, and W_Z [C, r] has the shape of W_gᵀ.
    if is_one_or_pair and factors[0].shape == factors[-1].mT.shape and len(factors[0]):
        if len(factors) == 1:
            return factors[0].detach()
        # In float64, so that forming W loses nothing of what the factors are.
        return factors[0].detach().double() @ factors[1].detach().double()
    shapes = [list(f.shape) if isinstance(f, Tensor) else type(f).__name__ for f in factors]
    got = shapes[0] if len(shapes) == 1 else shapes
    raise ValueError(f"weights[{n}] must be W [C, C], a number or a pair (W_Z [C, r], W_g [r, C]), got {got}")


def _is_number(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.dim() == 0 and not item.is_complex()
    return is_number(item)


def _judge(stage: StageSample, exact_up_to: int) -> Certificate:
    """The certificate of one sample."""
    if not stage.weights:
        return Certificate("stable", 1.0, "every norm", "no sub-blocks: the identity", 1.0)
    if stage.positions <= exact_up_to:
        return _judge_by_matrix(stage)
    return _judge_by_bound(stage)


def _judge_by_matrix(stage: StageSample) -> Certificate:
    plain = {kernel: step_matrix(kernel, stage.form) for kernel in stage.distinct}
    norm = own_norm(stage.kernels[0], plain[stage.kernels[0]])
    known = {kernel: norm.in_coordinates(matrix) for kernel, matrix in plain.items()}
    symmetric = all(torch.equal(matrix, matrix.T) for matrix in known.values())
    if not stage.is_shared and not symmetric:
        norm, known = plain_norm(stage.positions, stage.weights[0].device, of_several=True), plain
    matrices = [known[kernel] for kernel in stage.kernels]
    if stage.is_shared and symmetric and stage.positions * stage.channels**3 <= LARGEST_WORK:
        ends = torch.linalg.eigvalsh(matrices[0])
        steps = [grow.interval_bound(float(ends[0]), float(ends[-1]), weight) for weight in stage.weights]
        slack = stage.rounding(steps)
        growth = grow.spectral_growth(matrices[0], stage.weights)
        reason = f"the largest ‖Π (I − λ W_n)‖ over the {len(ends)} eigenvalues λ of {_operator(stage)}"
        return _decided(stage, growth, slack, norm, reason)
    bounds = _step_bounds(matrices, stage.weights)
    steps = [
        1 + grow.largest_singular(matrix) * grow.largest_singular(weight)
        for matrix, weight in zip(matrices, stage.weights, strict=True)
    ]
    if bounds is not None:
        slack = stage.rounding(bounds)
        if prod(max(1.0, bound) for bound in bounds) <= 1 + slack <= 1 + stage.tolerance:
            reason = "no sub-block enlarges any signal by itself"
            return Certificate("stable", 1.0, norm.text, reason, weights=norm.weights)
    slack = stage.rounding(steps)
    if stage.positions * stage.channels <= LARGEST_WHOLE:
        growth = grow.dense_growth(matrices, stage.weights)
        held = "" if stage.is_shared else ", with the kernels held as they are at this input"
        return _decided(stage, growth, slack, norm, f"the norm of the stage as one matrix{held}")
    return _searched(stage, norm, prod(steps if bounds is None else bounds))


def _step_bounds(matrices: list[Tensor], weights: list[Tensor]) -> list[float] | None:
    """‖I − A_n ⊗ W_n‖ for each n, where A_n or W_n is symmetric; None where one of them has neither."""
    bounds = []
    for matrix, weight in zip(matrices, weights, strict=True):
        if torch.equal(matrix, matrix.T):
            values = torch.linalg.eigvalsh(matrix)
            bounds.append(grow.interval_bound(float(values[0]), float(values[-1]), weight))
        elif grow.is_symmetric(weight):
            bounds.append(grow.symmetric_weight_bound(matrix, weight))
        else:
            return None
    return bounds


def _decided(stage: StageSample, growth: Growth, slack: float, norm: OwnNorm, reason: str) -> Certificate:
    factor, radius = growth.factor, growth.radius

    def certificate(verdict: str, why: str, witness: Tensor | None = None) -> Certificate:
        return Certificate(verdict, factor, norm.text, why, radius, witness, norm.weights)

    if factor <= 1 + slack:
        if slack <= stage.tolerance:
            size = "1 or less"
            if factor > CLEAR_GROWTH:
                size = f"{factor:.6g}, which is 1 ± {slack:.1e} of rounding"
            return certificate("stable", f"{reason} is {size}")
        return certificate("not decided", f"{reason} is {factor:.6g}, known to ± {slack:.1e} alone")
    text = f"{reason} is {factor:.6g}"
    if radius is not None and radius <= 1 + slack:
        text += f"; repeated for ever it would not go on growing (spectral radius {radius:.6g})"
    if norm.is_own or (radius is not None and radius > CLEAR_GROWTH):
        return certificate("unstable", text, growth.witness / norm.roots.unsqueeze(1))
    return certificate("not decided", f"{text}. But {_lack(stage)}")


def _judge_by_bound(stage: StageSample) -> Certificate:
    """Large M: bounds by kernel and normalisation for "stable", a signal that was seen to grow for "unstable"."""
    balances, found = [], {}
    for kernel, prepared in stage.prepared.items():
        check_operator(prepared.operator, kernel)
        balances.append(self_adjoint_weights(kernel))
        found[kernel] = _interval(kernel, stage.form, prepared.sums, balances[-1])
    intervals = [one for kernel in stage.kernels if (one := found[kernel]) is not None]
    common = balances[0] if _are_equal(balances) else None
    bound = float("inf")
    if common is not None and len(intervals) == len(stage.kernels):
        steps = [
            grow.interval_bound(*one, weight) for one, weight in zip(intervals, stage.weights, strict=True)
        ]
        bound = prod(max(1.0, step) for step in steps)
        slack = stage.rounding(steps)
        if bound <= 1 + slack <= 1 + stage.tolerance:
            reason = f"no sub-block enlarges any signal for any eigenvalue that {_operator(stage)} can have"
            return Certificate("stable", 1.0, BALANCED, reason, weights=common[0])
    elif _is_convex_step(stage):
        reason = "W_n symmetric with eigenvalues in [0, 1], and a stochastic kernel contracts this norm"
        return Certificate("stable", 1.0, STATIONARY, reason)
    if stage.is_shared or common is not None:
        norm = _known_norm(stage.kernels[0], balances[0])
    else:
        norm = plain_norm(stage.positions, stage.weights[0].device, of_several=True)
    if norm is None:
        return Certificate(
            "not decided", bound, "none is known", "no bound applies to this kernel at this size"
        )
    return _searched(stage, norm, bound)


def _searched(stage: StageSample, norm: OwnNorm, bound: float) -> Certificate:
    growth = grow.exhibited_growth(stage.apply, norm.roots, stage.channels)
    repeated = None
    slack = stage.rounding([1.0] * len(stage.kernels), max(1.0, growth.factor))
    if not growth.factor > CLEAR_GROWTH + slack:
        known = (
            f"is known to be at most {bound:.6g} alone" if isfinite(bound) else "has no bound that is known"
        )
        reason = f"no signal was found that grows, and the growth {known}"
        return Certificate("not decided", bound, norm.text, reason, None, None, norm.weights)
    reason = f"a signal was found that grows by {growth.factor:.6g}; others may grow more"
    if not norm.is_own:
        repeated = grow.repeated_growth(stage.apply, growth.witness.unsqueeze(0))
        if repeated <= CLEAR_REPETITION:
            reason = f"{reason}. But {_lack(stage)}"
            return Certificate("not decided", bound, norm.text, reason, repeated, None, norm.weights)
        reason = f"{reason}, and repeated passes go on growing, by {repeated:.6g} each"
    witness = growth.witness * inverse_or_zero(norm.roots).unsqueeze(1)
    return Certificate("unstable", growth.factor, norm.text, reason, repeated, witness, norm.weights)


def _lack(stage: StageSample) -> str:
    lacks = "the kernel has no norm of its own" if stage.is_shared else "the kernels have no norm in common"
    return f"{lacks}, and in this one even a stable stage may grow"


def _interval(
    kernel: Affinity | SparseAffinity, form: str, sums: Tensor, balance: Tensor | None
) -> tuple[float, float] | None:
    """An interval that holds the eigenvalues of A, for Ω ≥ 0 in detailed balance under π > 0; None for others.

    sums, balance  the row sums [1, M, 1] of K, and π [1, M] if there is one
    """
    limit = stable_weight_limit(kernel)
    if limit is None or balance is None or not bool(limit > 0):
        return None
    degrees = sums.squeeze(-1).expand(1, kernel.positions)
    if not bool((balance > 0)[degrees != 0].all()):
        return None
    if form == "diffusive":
        return 0.0, 2 / float(limit[0])
    # K is similar to a stochastic matrix under these, and no larger than its largest row sum under the others.
    largest = 1.0 if kernel.normalize in (*STOCHASTIC, "symmetric") else float(degrees.max())
    return -largest, 0.0 if is_definite(kernel) else largest


def _is_convex_step(stage: StageSample) -> bool:
    """Whether each step is z − W (z − Kz) with W symmetric and its eigenvalues in [0, 1], for a stochastic K > 0.

    Every position then reaches every other, so the stationary law is positive."""
    kernel = stage.kernels[0]
    if stage.form != "diffusive" or not stage.is_shared or isinstance(kernel, SparseAffinity):
        return False
    if not kernel.has_logits or kernel.normalize not in STOCHASTIC:
        return False
    if kernel.measure is not None and not bool((kernel.measure > 0).all()):
        return False
    slack = stage.rounding([1.0] * len(stage.weights))
    return slack <= stage.tolerance and all(_is_within(weight, slack) for weight in stage.weights)


def _is_within(weight: Tensor, slack: float) -> bool:
    """Whether W is symmetric with its eigenvalues in [0, 1], but for the slack."""
    if not grow.is_symmetric(weight):
        return False
    values = torch.linalg.eigvalsh(weight)
    return bool(values[0] >= -slack) and bool(values[-1] <= 1 + slack)


def _known_norm(kernel: Affinity | SparseAffinity, balance: Tensor | None) -> OwnNorm | None:
    if balance is not None:
        return OwnNorm(balance[0].double(), BALANCED)
    if kernel.normalize not in STOCHASTIC or has_negative_entries(kernel):
        return None
    try:
        return OwnNorm(JumpProcess(kernel).stationary_law()[0], STATIONARY)
    except NotSolvedError:
        return None


def _are_equal(balances: list[Tensor | None]) -> bool:
    first = balances[0]
    return first is not None and all(other is not None and torch.equal(first, other) for other in balances)


def _operator(stage: StageSample) -> str:
    return "L" if stage.form == "diffusive" else "−K"
