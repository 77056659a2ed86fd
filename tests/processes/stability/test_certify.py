"""How large a step may be, and whether a stage can make a signal grow: exact answers, and never a false "stable"."""

import copy
import itertools
import math
import re

import numpy as np
import pytest
import torch
from chains import chain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stages import norm_of, random_weights, whole_map

from nonloc.nn.inspect import stage_inputs
from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, aggregate, diffuse, kernel_matrix
from nonloc.processes import certify, cfl_limit
from nonloc.processes.stability.own_norm import kernel_size, own_norm, stationary_weights
from problems import generator
from strategies import problems

TURNING = torch.tensor([[0.1, 1.0], [-1.0, 0.1]], dtype=torch.float64)


def points(size=20, seed=0, width=2):
    return torch.randn(1, size, width, generator=generator(seed), dtype=torch.float64)


def heat(normalize="row", size=20, **keywords):
    x = points(size)
    return Affinity(x, x, "heat", normalize, **keywords)


def everyone_alike(size, normalize):
    """ω ≡ 1."""
    x = torch.zeros(1, size, 1, dtype=torch.float64)
    return Affinity(x, x, "heat", normalize)


def identity(channels):
    return torch.eye(channels, dtype=torch.float64)


SIGNED = {
    "negative": -identity(2),
    "of both signs": torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)),
    "not symmetric": torch.tensor([[-0.5, 1.0], [0.0, -0.5]], dtype=torch.float64),
}


# The largest stable step.


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (everyone_alike(5, "none"), 2 / 5),
        (everyone_alike(5, "row"), 2.0),
        (everyone_alike(5, "sinkhorn"), 2.0),
        (chain([[0, 1], [1, 0]]), 1.0),
        (chain([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), 1.0),
        (Affinity(points(4), points(4), "delta", "row"), math.inf),
    ],
    ids=["all alike", "all alike by row", "doubly stochastic", "swap", "directed ring", "delta"],
)
def test_known_limits(affinity, expected):
    actual = cfl_limit(affinity)
    assert actual.limit == pytest.approx(expected, rel=1e-12)
    assert actual.kind == "exact"


def test_a_signed_kernel_may_have_no_stable_step_at_all():
    x = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    limit = cfl_limit(Affinity(x, x, "dot", "none"))
    assert (limit.limit, limit.kind) == (0.0, "exact")
    assert "eigenvalue -2 < 0" in limit.reason


@pytest.mark.parametrize(
    ("rows", "limit", "kind"),
    [
        ([[0, 2, 0], [-1, 0, 0], [0, 0, 0]], 2.0, "exact"),  # L has the eigenvalues 0, 0 and 1
        ([[0, 1, 0], [-2, 0, 0], [0, 0, 0]], 0.0, "exact"),  # 0, 0 and −1
        ([[0, 1, -1], [0, 0, 0], [0, 0, 0]], 0.0, "certified"),  # 0 alone, and no full set of eigenvectors
    ],
)
def test_a_signed_kernel_without_a_norm_is_judged_by_its_eigenvectors(rows, limit, kind):
    actual = cfl_limit(chain(rows, "none"))
    assert (actual.limit, actual.kind) == (pytest.approx(limit, rel=1e-12), kind)


def test_the_rounding_of_a_signed_kernel_is_no_growth():
    """One position moves nothing, but K and its row sum may differ by a rounding."""
    for left, right in torch.randn(200, 2, 1, 1, 1, generator=generator(0), dtype=torch.float64):
        limit = cfl_limit(Affinity(left, right, "dot", "none"), exact_up_to=0)
        assert (limit.limit, limit.kind) != (0, "exact")


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_large_kernels_have_a_certified_limit_below_the_exact_one_and_lanczos_beside_it(normalize):
    affinity = heat(normalize, size=60)
    exact, certified = cfl_limit(affinity), cfl_limit(affinity, exact_up_to=10)
    assert certified.kind == "certified"
    assert certified.limit <= exact.limit * (1 + 1e-12)
    assert certified.limit >= 0.4 * exact.limit
    assert certified.estimate == pytest.approx(exact.limit, rel=1e-6)
    assert exact.estimate is None


def test_limit_of_a_kernel_that_is_not_symmetric_is_that_of_its_contraction():
    affinity = Affinity(points(12), points(12, seed=1), "gaussian", "row")
    actual = cfl_limit(affinity)
    norm = own_norm(affinity)
    assert actual.kind == "exact"
    assert "stationary law" in actual.norm
    for factor, grows in ((1.0, False), (1.001, True)):
        step = whole_map(affinity, [factor * actual.limit * identity(1)], "diffusive")
        growth = float(torch.linalg.matrix_norm(norm.roots.unsqueeze(1) * step / norm.roots, 2))
        assert (growth > 1 + 1e-10) is grows


@pytest.mark.parametrize("exact_up_to", [1024, 0])
def test_positions_that_no_norm_weighs_are_judged_by_averages(exact_up_to):
    """ω ≡ 1: the position without measure listens to the two others, and takes 4 in all."""
    x = torch.zeros(1, 3, 1, dtype=torch.float64)
    affinity = Affinity(x, x, "heat", "none", measure=torch.tensor([2.0, 2.0, 0.0]).double())
    actual = cfl_limit(affinity, exact_up_to=exact_up_to)
    assert (actual.kind, actual.norm) == ("certified", "max_i |z_i|")
    assert actual.limit == pytest.approx(1 / 4, rel=1e-12)


@pytest.mark.parametrize(("rare", "seldom"), [(1e-167, 1e-12), (1.736e-164, 1e-6)])
def test_a_law_too_small_for_its_digits_is_not_relied_upon(rare, seldom):
    """Position 0 is hardly ever left for the ring of the last three, whose law of 1e-322 is known to two digits."""
    rows = [
        [0, rare, 0, 0, 0],
        [1, 0, rare, 0, 0],
        [0, seldom, 0, 1, 0],
        [0, 0, 0, 0, 0.7],
        [0, 0, 0.3, 0, 0],
    ]
    limit = cfl_limit(chain(rows, "none"))
    assert (limit.kind, limit.norm) == ("certified", "max_i |z_i|")
    assert limit.limit == pytest.approx(1.0)


@pytest.mark.parametrize("normalize", ["none", "row", "count"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_size_of_a_signed_kernel_is_that_of_its_absolute_rows(is_sparse, normalize):
    x = torch.tensor([[[1.0], [-2.0], [3.0], [-1.9]]], dtype=torch.float64)
    affinity = Affinity(x, x, "dot", normalize)
    if is_sparse:
        affinity = SparseAffinity((x[0] * x[0].T).to_sparse_csr(), normalize)
    expected = 2 * float(kernel_matrix(affinity).abs().sum(-1).max())
    assert kernel_size(affinity) == pytest.approx(expected, rel=1e-12)


def test_stationary_weights_are_exact_where_they_are_tiny():
    """A walk that is ten times as likely to go left as to go right: π_i = 10^-i, to the last digits."""
    size = 40
    rates = torch.diag(torch.full((size - 1,), 0.1, dtype=torch.float64), 1)
    rates += torch.diag(torch.ones(size - 1, dtype=torch.float64), -1)
    law = stationary_weights(rates)
    expected = 10.0 ** -torch.arange(size, dtype=torch.float64)
    torch.testing.assert_close(law, expected, rtol=1e-13, atol=0)
    assert stationary_weights(torch.tensor([[0.0, 1.0], [0.0, 0.0]])) is None


# Certificates.


# `python -m benchmarks certificates` looks at thousands.
@settings(max_examples=2 * settings.default.max_examples)
@given(
    problems(batch=1, least=2, wild=True),
    st.sampled_from(["diffusive", "diffusive", "original"]),
    st.booleans(),
)
def test_a_verdict_is_what_the_stage_does(problem, form, by_matrix):
    try:
        affinity = problem.affinity
        weights = random_weights(affinity, generator(problem.seed))
        certificate = certify(affinity, weights, form=form, exact_up_to=1024 if by_matrix else 1)
    except ValueError as refused:  # sinkhorn on a kernel without total support, or exp of too much
        assume("sinkhorn" not in str(refused) and "not finite" not in str(refused))
        raise
    stage = whole_map(affinity, weights, form)
    if certificate.verdict == "stable":
        weight = own_norm(affinity).weights if certificate.weights is None else certificate.weights
        # Positions that weigh nothing here neither give nor receive.
        roots = torch.where(weight > 0, weight, 1).sqrt().repeat_interleave(len(weights[0]))
        turned = roots.unsqueeze(1) * stage / roots
        assert float(torch.linalg.matrix_norm(turned, 2)) <= 1 + 1e-10
    if certificate.verdict == "unstable":
        image = (stage @ certificate.witness.flatten()).view_as(certificate.witness)
        growth = float(norm_of(certificate, image) / norm_of(certificate, certificate.witness))
        assert growth > 1
        assert growth == pytest.approx(certificate.growth, rel=1e-4)


@pytest.mark.parametrize("exact_up_to", [1024, 1])
def test_the_symmetric_part_of_w_does_not_decide(exact_up_to):
    """λ is 0 or 1 here, so a step turns and stretches by exactly |1 − 0.1 + i|."""
    certificate = certify(everyone_alike(6, "row"), [TURNING], exact_up_to=exact_up_to)
    assert certificate.verdict == "unstable"
    assert certificate.growth == pytest.approx(math.sqrt(0.9**2 + 1), rel=1e-9)


def test_a_stage_is_judged_as_a_whole():
    """λ is 0 or 1: the first step grows by 1.5, the second halves; bounds of single steps cannot see it."""
    weights = [-0.5 * identity(2), 0.5 * identity(2)]
    affinity = everyone_alike(4, "row")
    assert certify(affinity, weights[:1]).growth == pytest.approx(1.5)
    assert certify(affinity, weights).verdict == "stable"
    assert certify(affinity, weights, exact_up_to=1).verdict == "not decided"


def test_growth_that_does_not_go_on_is_told_apart():
    """A W of rank 1 that is not symmetric always stretches something once; this one never twice."""
    weight = torch.tensor([[0.5, 0.15], [0.0, 0.0]], dtype=torch.float64)
    certificate = certify(heat(), [weight])
    assert certificate.verdict == "unstable"
    assert 1 < certificate.growth < 1.1
    assert certificate.repeated == pytest.approx(1.0, abs=1e-12)
    assert "would not go on growing" in certificate.reason


@pytest.mark.parametrize("exact_up_to", [1024, 1])
@pytest.mark.parametrize(
    ("normalize", "separate", "limit"), [("row", False, 2.0), ("sinkhorn", False, 2.0), ("row", True, 1.0)]
)
def test_known_limits_are_certified(normalize, separate, limit, exact_up_to):
    x = points(15)
    affinity = Affinity(x, points(15, seed=1) if separate else x, "gaussian", normalize)
    assert certify(affinity, [limit * identity(3)] * 4, exact_up_to=exact_up_to).verdict == "stable"
    assert certify(affinity, [3 * limit * identity(3)] * 4, exact_up_to=exact_up_to).verdict == "unstable"


def test_original_blocks_damp_by_negative_weights_and_grow_by_positive_ones():
    affinity = heat()
    assert certify(affinity, [-0.5 * identity(2)] * 3, form="original").verdict == "stable"
    grown = certify(affinity, [0.5 * identity(2)] * 3, form="original")
    assert grown.verdict == "unstable"
    # K has the eigenvalue 1, on constants.
    assert grown.growth == pytest.approx(1.5**3, rel=1e-9)


@pytest.mark.parametrize("form", ["diffusive", "original"])
@pytest.mark.parametrize("normalize", ["none", "count", "row"])
@pytest.mark.parametrize("weight", SIGNED.values(), ids=SIGNED)
def test_what_is_decided_without_the_matrix_never_contradicts_it(weight, normalize, form):
    x = points(7)
    holes = torch.tensor([0.2, 0.4, 0.0, 0.8, 1.0, 0.0, 1.4], dtype=torch.float64)
    for size, right, measure in itertools.product((0.02, 1.5), (x, points(7, seed=1)), (None, holes)):
        affinity = Affinity(x, right, "gaussian", normalize, measure=measure)
        actual = {certify(affinity, [size * weight], form=form, exact_up_to=n).verdict for n in (1024, 0)}
        assert actual != {"stable", "unstable"}


def test_what_the_norm_does_not_see_is_never_called_stable():
    """A position without measure receives from the others, and its own size is seen by no weight."""
    x = torch.zeros(1, 3, 1, dtype=torch.float64)
    affinity = Affinity(x, x, "heat", "none", measure=torch.tensor([0.05, 0.05, 0.0]).double())
    for exact_up_to in (1024, 1):
        assert certify(affinity, 15.0, exact_up_to=exact_up_to).verdict != "stable"
    # Nor is a chain that is left for ever, in which a signal is copied to where nothing returns from.
    assert certify(chain([[1, 0], [1, 0]]), 0.5).verdict == "not decided"


def test_certificate_of_a_batch_is_the_worst():
    x = torch.stack([points(6)[0], 5 * points(6)[0]])
    affinity = Affinity(x, x, "heat", "none")
    limits = [cfl_limit(Affinity(y, y, "heat", "none")).limit for y in x.split(1)]
    between = math.sqrt(limits[0] * limits[1])
    certificate = certify(affinity, between)
    assert (certificate.verdict, certificate.sample) == ("unstable", limits.index(min(limits)))
    assert certify(affinity, 0.99 * min(limits)).verdict == "stable"


@pytest.mark.parametrize(("dtype", "verdict"), [(torch.float32, "stable"), (torch.float64, "unstable")])
def test_weights_are_forgiven_the_last_digit_of_their_own_dtype_alone(dtype, verdict):
    """λ is 0 or 1, so 2 is the limit; the next number after it in float32 is beyond by 2.4e-7."""
    weight = torch.nextafter(torch.tensor(2.0), torch.tensor(3.0)).to(dtype)
    assert certify(everyone_alike(5, "row"), weight * torch.eye(1, dtype=dtype)).verdict == verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stable_stage_that_half_precision_hides_is_decided_by_the_fix_that_is_named(dtype):
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, weight="stable", init="torch").to(dtype)
    x = torch.randn(1, 4, 3, 3).to(dtype)
    certificate = certify(stage, x)
    assert certificate.verdict == "not decided"
    assert certificate.reason.endswith("in float32, as copy.deepcopy(stage).float() with x.float()")
    assert certify(copy.deepcopy(stage).float(), x.float()).verdict == "stable"


@pytest.mark.parametrize(("dtype", "verdict"), [(torch.bfloat16, "not decided"), (torch.float32, "unstable")])
def test_growth_in_half_precision_is_not_taken_for_rounding(dtype, verdict):
    """λ is 0 or 1/5: one pass enlarges differences by 1 + 1/5120, in any dtype."""
    weight = torch.full((1, 1), -(2.0**-10), dtype=dtype)
    assert certify(chain([[9.0, 1.0], [1.0, 9.0]], "row"), weight).verdict == verdict


def test_the_rounding_of_many_sub_blocks_is_named():
    """λ is 0 or 1: each of 64 sub-blocks enlarges by 1 + 2e-6, less than 32 roundings of its W."""
    certificate = certify(everyone_alike(5, "row"), [torch.full((1, 1), 2 + 2e-6)] * 64)
    assert certificate.verdict == "stable"
    assert re.search(r"is 1\.0001\d*, which is 1 ± \S+ of rounding$", certificate.reason)


def test_weights_in_float64_are_not_called_stable_where_rounding_hides_more_than_1e_10():
    """λ is 0 or 1: the second step takes away what the first enlarged a million times, rounding and all."""
    certificate = certify(everyone_alike(5, "row"), [-1e6, 1.0])
    assert certificate.verdict == "not decided"
    assert "known to ±" in certificate.reason


@pytest.mark.parametrize(
    ("weights", "matrices"),
    [
        (0.5, [0.5 * identity(1)]),
        (torch.tensor(0.5), [0.5 * identity(1)]),
        ([0.5, np.float32(3)], [0.5 * identity(1), 3 * identity(1)]),
        (TURNING, [TURNING]),
        (torch.stack([TURNING] * 2), [TURNING] * 2),
        ([0.5, TURNING], [0.5 * identity(2), TURNING]),
        ([(TURNING, 2 * identity(2))], [2 * TURNING]),
    ],
    ids=["number", "tensor", "numbers", "matrix", "stack", "number and matrix", "pair"],
)
def test_weights_are_numbers_matrices_or_pairs(weights, matrices):
    assert certify(heat(), weights).growth == certify(heat(), matrices).growth


# Trained stages, by what they answer.


@pytest.mark.parametrize("kind", [DiffusiveStage, OriginalStage])
@pytest.mark.parametrize(
    ("share", "affinity"), [(True, "heat"), (False, "embedded_gaussian"), (False, "dot")]
)
def test_a_witness_grows_in_the_stage_itself(kind, share, affinity):
    torch.manual_seed(0)
    stage = kind(4, 2, affinity=affinity, share_affinity=share, init="fan_in", layout="positions").double()
    x = points(8, width=4)
    certificate = certify(stage, x)
    assert certificate.verdict == "unstable"
    z = image = certificate.witness.unsqueeze(0)
    operate = aggregate if stage.form == "original" else diffuse
    for one, weight in zip(stage.affinities(x), stage.weights(), strict=True):
        image = (image + operate(one, image) @ weight.T).detach()
    assert float(norm_of(certificate, image) / norm_of(certificate, z)) == pytest.approx(
        certificate.growth, rel=1e-8
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certify(points(), 1.0), "certify takes an affinity and weights, or a stage"),
        (lambda: certify(heat(), "small"), "weights must be a number"),
        (lambda: certify(heat(), [torch.ones(2, 3)]), r"weights\[0\] must be W \[C, C\]"),
        (lambda: certify(heat(), [torch.ones(2, 2), torch.ones(3, 3)]), r"weights\[1\] is \[3, 3\]"),
        (lambda: certify(heat(), torch.ones(3)), r"weights is \[3\].*tolist\(\).*torch.diag\(weights\)"),
        (lambda: certify(heat(), [True]), r"weights\[0\] must be W \[C, C\].*got bool"),
        (lambda: certify(heat(), [torch.full((1, 1), math.inf)]), "weights has entries that are not finite"),
        (lambda: certify(heat(), 1.0, form="wang"), "form='wang' is unknown; choose one of diffusive"),
        (lambda: certify(DiffusiveStage(2, 1), 1.0), "x must be an input of the stage"),
        (lambda: certify(Affinity(points(4)[:0], points(4)[:0], "heat"), 1.0), "the batch is empty"),
        (lambda: cfl_limit(heat(), exact_up_to=None), "exact_up_to must be a whole number ≥ 0"),
        (lambda: certify(heat(), [torch.ones(2, 2).long()]), r"weights\[0\] must be floating point and real"),
        (lambda: certify(heat(), 0.5, mask=torch.ones(1, 20, dtype=torch.bool)), "mask goes with a stage"),
        (
            lambda: certify(heat(), [(torch.ones(2, 3), torch.ones(2, 2))]),
            r"a pair .* got \[\[2, 3\], \[2, 2\]\]",
        ),
    ],
)
def test_what_is_wrong_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_many_channels_are_judged_by_bounds(monkeypatch):
    monkeypatch.setattr("nonloc.processes.stability.certify.LARGEST_WORK", 0)
    weight = 0.5 * torch.eye(200)
    stable, unstable = certify(heat(size=8), [weight]), certify(heat(size=8), [-weight])
    assert (stable.verdict, stable.reason) == ("stable", "no sub-block enlarges any signal by itself")
    assert unstable.verdict == "unstable"
    assert unstable.reason.startswith("a signal was found")


@pytest.mark.parametrize("exact_up_to", [1024, 0])
def test_several_kernels_are_judged_in_the_plain_norm_whatever_one_of_them_weighs_by(exact_up_to):
    """The first kernel listens to position 0 alone, by a law of e⁻³⁰ elsewhere; the second to the last position."""

    class Made:
        form = "original"

        def weights(self):
            return [identity(1)] * 2

        def affinity(self, x):
            raise NotImplementedError

        def affinities(self, x):
            left = torch.ones(1, 4, 1, dtype=torch.float64)
            return [Affinity(left, left * torch.tensor(logits).view(1, 4, 1), "gaussian") for logits in peaks]

    peaks = ([30.0, 0, 0, 0], [0, 0, 0, 30.0])
    exact = identity(4)
    for logits in peaks:
        exact = exact + torch.tensor(logits, dtype=torch.float64).softmax(0).expand(4, 4) @ exact
    certificate = certify(Made(), points(4), exact_up_to=exact_up_to)
    assert certificate.growth == pytest.approx(float(torch.linalg.matrix_norm(exact, 2)), rel=1e-9)
    assert certificate.verdict == "unstable"
    assert "in common" in certificate.norm


def test_kernels_without_a_common_norm_are_not_judged_by_that_of_the_first():
    """Every sub-block is stable in its own norm, and none of them says anything about the stage as a whole."""
    torch.manual_seed(0)
    options = {"affinity": "heat", "share_affinity": False, "layout": "positions"}
    stage = DiffusiveStage(3, 2, weight="full", **options).double()
    with torch.no_grad():
        for one in stage.maps:
            one.w_z.weight.copy_(0.9 * identity(3))
        stage.embeddings[1].theta.weight.mul_(300)
    x = 3 * points(9, width=3)
    for exact_up_to in (1024, 1):
        assert certify(stage, x, exact_up_to=exact_up_to).verdict == "not decided"


@pytest.mark.parametrize("exact_up_to", [1024, 0])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.0, 1.0], [2.0, 0.0]], r"needs a symmetric matrix.*\(matrix \+ matrix.t\(\)\) / 2"),
        ([[0.0, -1.0], [-1.0, 0.0]], "needs a matrix that is nowhere negative"),
    ],
)
def test_a_sparse_kernel_that_cannot_be_normalised_is_refused_in_its_own_words(rows, message, exact_up_to):
    for question in (cfl_limit, lambda a, **k: certify(a, 0.5, **k)):
        with pytest.raises(ValueError, match=message):
            question(chain(rows, "symmetric"), exact_up_to=exact_up_to)


def test_the_stages_of_a_model_are_certified_with_their_masks():
    """Padding in a batch changes nothing: a mask leaves the certificate of the positions that are there."""
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, affinity="heat", weight="full", layout="positions").double()
    with torch.no_grad():
        stage.embeddings[0].theta.weight.normal_()
        for one in stage.maps:
            one.w_z.weight.copy_(3 * identity(4))
    x, mask = points(9, seed=1, width=4), torch.tensor([[True] * 6 + [False] * 3])
    ((_, module, features, own_mask),) = stage_inputs(stage, {"x": x, "mask": mask})
    certificate = certify(module, features, mask=own_mask)
    assert certificate.verdict == "unstable"
    assert certificate.growth == pytest.approx(certify(stage, x[:, :6]).growth, rel=1e-12)
    assert certificate.growth != pytest.approx(certify(stage, x).growth, rel=1e-3)


@pytest.mark.parametrize("size", [1e2, 1e14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_however_large_w_is_its_growth_is_decided(size, dtype):
    certificate = certify(heat(size=6), [size * torch.eye(1, dtype=dtype)])
    largest = torch.linalg.eigvals(identity(6) - kernel_matrix(heat(size=6))[0]).real.max()
    assert certificate.verdict == "unstable"
    assert certificate.growth == pytest.approx(float(size * largest - 1), rel=1e-6)


def test_growth_beyond_float64_is_infinite_and_unstable():
    certificate = certify(heat(size=3), [1e5 * identity(2)] * 200)
    assert (certificate.verdict, certificate.growth) == ("unstable", float("inf"))


def test_a_stage_in_training_is_judged_as_in_evaluation_and_left_as_it_was():
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, batch_norm=True, init="torch", share_affinity=False)
    x = torch.randn(2, 4, 3, 3)
    expected = certify(stage.eval(), x).growth
    before = {name: value.clone() for name, value in stage.train().state_dict().items()}
    assert certify(stage, x).growth == expected
    torch.testing.assert_close(stage.state_dict(), before, rtol=0, atol=0)
    assert stage.training


def test_certificates_can_be_had_in_inference_mode():
    """Where bounds do not decide, a signal that grows is searched for by gradients."""
    with torch.inference_mode():
        x, weight = points(), TURNING.clone()
        inside = certify(Affinity(x, x, "heat"), weight, exact_up_to=4)
    outside = certify(heat(), TURNING, exact_up_to=4)
    assert (inside.verdict, inside.growth) == (outside.verdict, outside.growth)
    assert inside.verdict == "unstable"


def test_a_sample_that_grows_is_worse_than_one_that_is_not_decided():
    """λ is 0 where positions are far apart, which no bound can see, and 0 or 1 where they are alike."""
    x = torch.tensor([[0.0, 100.0, 200.0], [0.0, 0.0, 0.0]], dtype=torch.float64).unsqueeze(-1)
    affinity = Affinity(x, x, "heat")
    apart, alike = (certify(affinity.sample(b), 3.0, exact_up_to=0).verdict for b in (0, 1))
    assert (apart, alike) == ("not decided", "unstable")
    certificate = certify(affinity, 3.0, exact_up_to=0)
    assert (certificate.verdict, certificate.sample) == ("unstable", 1)


@pytest.mark.parametrize("shared", [True, False])
def test_growth_beyond_what_a_square_holds_is_decided(shared):
    affinity = Affinity(points(3), points(3, seed=0 if shared else 1), "heat")
    certificate = certify(affinity, [1e100, 1e100])
    step = identity(3) - kernel_matrix(affinity)[0]
    largest = float(torch.linalg.matrix_norm(step @ step, 2))
    assert certificate.verdict == "unstable"
    if not shared:
        assert 0.1 * largest < certificate.growth / 1e200 < 10 * largest, "in another norm, and not far"
    assert bool(certificate.witness.isfinite().all())
