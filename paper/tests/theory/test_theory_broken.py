"""No check that cannot fail: each statement is given an operator that breaks it, and says so."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, aggregate, kernel_matrix
from nonloc.processes.continuum.continuum import Continuum, cell_kernel
from nonloc.processes.continuum.local import ReversalGrowth
from nonloc.processes.diffusion import DampedFlow, Diffusion
from nonloc.processes.stability.certify import certify
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.theory import all_checks, continuum, discussion, examples, sections, theorems
from nonloc_paper.theory.case import Case, one_sided_case, symmetric_case
from nonloc_paper.theory.meshes import Meshes, rates, settles


def case(normalize="none"):
    return symmetric_case(normalize, 9, 0)


def backwards(given):
    return replace(given, forward=given.backward)


def one_sided(given):
    """A kernel that is not symmetric, presented as the one that is."""
    return replace(given, forward=one_sided_case(given.normalize, given.positions, 0).forward)


def damped(given):
    return replace(given, forward=given.damped)


def twice(given):
    return replace(given, forward=Diffusion(given.affinity, weight=2.0))


def reversed_twice(given):
    return replace(given, backward=Diffusion(given.affinity, weight=2.0, backwards=True))


REVERSAL = sections.reversal_is_stable_in_finite_time


@pytest.mark.parametrize(
    ("statement", "normalize", "broken"),
    [
        (theorems.constants_do_not_move, "row", damped),
        (theorems.mean_of_the_image, "none", one_sided),
        (theorems.mean_of_the_image, "sinkhorn", damped),
        (theorems.weighted_mean_of_the_image, "row", one_sided),
        (theorems.form_is_positive, "none", backwards),
        (theorems.weighted_form_is_the_energy, "row", backwards),
        (theorems.weighted_form_is_the_energy, "row", twice),
        (theorems.mean_is_preserved, "count", one_sided),
        (theorems.weighted_mean_is_preserved, "row", one_sided),
        (theorems.flow_tends_to_the_mean, "symmetric", damped),
        (theorems.flow_tends_to_the_mean, "none", backwards),
        (theorems.flow_tends_to_the_weighted_mean, "row", one_sided),
        (theorems.variance_decreases, "none", backwards),
        (theorems.weighted_variance_decreases, "row", backwards),
        (theorems.poincare_inequality, "row", twice),
        (theorems.poincare_inequality, "none", backwards),
        (theorems.decay_is_exponential, "row", one_sided),
        (theorems.decay_is_exponential, "none", backwards),
        (sections.stage_is_a_diffusion, "row", twice),
        (discussion.steps_up_to_the_limit_are_stable, "none", twice),
        (discussion.steps_up_to_the_limit_are_stable, "row", backwards),
        (discussion.small_weights_are_stable, "none", twice),
        (discussion.small_weights_are_stable, "row", backwards),
        (discussion.stages_are_stable_in_finite_time, "row", twice),
        (sections.symmetric_part_decides_the_flow, "row", backwards),
        (sections.two_forms_are_one, "row", twice),
        (discussion.diffusion_regularizes, "row", backwards),
        (REVERSAL, "row", reversed_twice),
        (REVERSAL, "none", lambda given: replace(given, backward=given.growing)),
        (discussion.only_steady_state_is_zero, "none", lambda given: replace(given, damped=given.forward)),
        (discussion.original_flow_is_damped, "row", lambda given: replace(given, damped=given.growing)),
        (discussion.original_flow_grows, "row", lambda given: replace(given, growing=given.damped)),
    ],
)
def test_a_wrong_process_fails_under_a_hypothesis_that_is_met(statement, normalize, broken):
    right = case(normalize)
    assert statement(right).verdict == "holds"
    assert statement(broken(right)).verdict == "fails"


ASK_FOR_NO_SYMMETRY = (
    theorems.constants_do_not_move,
    sections.only_the_gaussian_is_symmetric_as_stated,
    sections.stage_is_a_diffusion,
    discussion.only_steady_state_is_zero_as_stated,
    discussion.only_steady_state_of_the_gaussian_is_zero,
    discussion.growth_is_infinite_in_finite_time,
)


@pytest.mark.parametrize("statement", all_checks.STATEMENTS, ids=lambda statement: statement.name)
def test_an_asymmetric_kernel_does_not_meet_the_hypothesis(statement):
    """Of the others some ask for rows that sum to 1, which it has not, either."""
    met = statement(one_sided_case("none", 9, 0)).verdict != "hypothesis not met"
    assert met is (statement in ASK_FOR_NO_SYMMETRY)


def test_a_symmetric_kernel_is_no_case_of_separate_embeddings():
    assert theorems.stationary_mean_of_the_image(one_sided_case("row", 9, 0)).verdict == "holds"
    assert theorems.stationary_mean_of_the_image(case("row")).verdict == "hypothesis not met"
    turned = one_sided_case("row", 9, 0)
    other = Diffusion(replace(turned.affinity, left=turned.affinity.right, right=turned.affinity.left))
    assert theorems.stationary_mean_of_the_image(replace(turned, forward=other)).verdict == "fails"


ASK_FOR_A_GAP = (theorems.flow_tends_to_the_mean, theorems.poincare_inequality, theorems.decay_is_exponential)


@pytest.mark.parametrize(("far", "is_connected"), [(100.0, False), (10.0, True)])
def test_a_kernel_that_falls_apart_or_is_joined_by_1e_18_lacks_the_hypothesis(far, is_connected):
    """exp(−40) is above 0, so that every position reaches every other; the gap is rounding."""
    points = torch.tensor([[[0.0], [1.0], [far], [far + 1]]], dtype=torch.float64)
    parted = Case.of(Affinity(points, points, "heat", "none", 0.5), case().start[:, :4])
    assert parted.is_connected is is_connected
    for statement in (*ASK_FOR_A_GAP, theorems.flow_tends_to_the_weighted_mean, REGULAR):
        assert statement(parted).verdict == "hypothesis not met"
    for statement in (theorems.mean_of_the_image, theorems.variance_decreases):
        assert statement(parted).verdict == "holds"


@pytest.mark.parametrize("size", [1.0, 1e-8])
def test_a_gap_counts_relative_to_its_kernel(size):
    """ω ≡ 1 with the measure c/M has the gap c."""
    alike = torch.zeros(1, 9, 1, dtype=torch.float64)
    measure = torch.full((9,), size / 9, dtype=torch.float64)
    given = Case.of(Affinity(alike, alike, "heat", "none", measure=measure), case().start)
    assert given.gap == pytest.approx(size, rel=1e-14)
    for statement in ASK_FOR_A_GAP:
        assert statement(given).verdict == "holds"


def test_a_signed_kernel_is_not_what_the_theorems_are_about():
    points = torch.tensor([[[1.0], [-1.0], [0.5], [-2.0]]], dtype=torch.float64)
    given = Case.of(Affinity(points, points, "dot", "none"), case().start[:, :4])
    assert theorems.form_is_positive(given).verdict == "hypothesis not met"
    assert theorems.form_is_positive(given).residual > 0.1
    assert theorems.mean_of_the_image(given).verdict == "holds"


def test_a_semi_definite_kernel_is_not_strictly_definite():
    alike = torch.zeros(1, 9, 1, dtype=torch.float64)
    given = Case.of(Affinity(alike, alike, "heat", "none"), case().start)
    for statement in (discussion.only_steady_state_is_zero, discussion.original_flow_is_damped):
        assert statement(given).verdict == "hypothesis not met"


def product(rows):
    """The dot product of these features with themselves, divided by its row sums."""
    points = torch.tensor([rows], dtype=torch.float64)
    return Case.of(Affinity(points, points, "dot", "row"), case().start[:, : len(rows)])


@pytest.mark.parametrize(
    "statement",
    [
        theorems.weighted_mean_of_the_image,
        theorems.weighted_mean_is_preserved,
        sections.reversal_is_stable_in_finite_time,
    ],
)
def test_row_sums_of_both_signs_are_no_weights(statement):
    """x = 1, −1, ½, −2 have the sum −3/2, so that the row sums are −3/2 x."""
    check = statement(product([[1.0], [-1.0], [0.5], [-2.0]]))
    assert (check.verdict, check.residual > 0.5) == ("hypothesis not met", True)
    assert statement(product([[1.0], [1.0], [0.5], [2.0]])).verdict == "holds"


def test_a_definite_kernel_may_have_row_sums_below_0_and_then_its_flow_grows():
    """Ω = (1 −2; −2 5) is definite with row sums −1 and 3; K has the determinant −1/3, and so an eigenvalue < 0."""
    given = product([[1.0, 0.0], [-2.0, 1.0]])
    assert given.is_definite
    assert float(torch.linalg.det(given.kernel)) == pytest.approx(-1 / 3)
    check = discussion.original_flow_is_damped(given)
    assert (check.verdict, check.residual > 0.1) == ("hypothesis not met", True)
    # With the row sums 0 and 1 the first row of K is 0.
    check = discussion.only_steady_state_is_zero(product([[1.0, 0.0], [-1.0, 1.0]]))
    assert (check.verdict, check.residual) == ("hypothesis not met", 1.0)


# What a claim adds to a kernel is part of its hypothesis, and is tested, too.

SMALL_WEIGHTS, REACTION = examples.small_weights, examples.reaction_weights
SHEAR = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)


def heat(z, normalize):
    return Affinity(z, z, "heat", normalize)


def at_zero(z, normalize):
    return Affinity(torch.zeros_like(z), torch.zeros_like(z), "gaussian", normalize)


FLOW, STEADY = sections.symmetric_part_decides_the_flow, discussion.only_steady_state_is_zero_as_stated
SMALL, GAUSSIAN = discussion.small_weights_are_stable, discussion.only_steady_state_of_the_gaussian_is_zero
BLOW_UP, REGULAR = discussion.growth_is_infinite_in_finite_time, discussion.diffusion_regularizes
REGULAR_AS_STATED = discussion.diffusion_regularizes_as_stated


@pytest.mark.parametrize(
    ("statement", "module", "name", "value"),
    [
        (FLOW, sections, "TURNING", sections.TURNING - 0.2 * torch.eye(2)),  # sym(W) = −0.1 I
        (SMALL, examples, "small_weights", lambda given: 1.001 * SMALL_WEIGHTS(given)),
        (SMALL, examples, "small_weights", lambda given: -SMALL_WEIGHTS(given)),
        (SMALL, examples, "small_weights", lambda given: SMALL_WEIGHTS(given) / 2 + 1e-6 * SHEAR),
        (STEADY, examples, "constant_kernel", heat),
        (STEADY, examples, "constant_kernel", examples.gaussian_kernel),
        (GAUSSIAN, examples, "gaussian_kernel", heat),
        (GAUSSIAN, examples, "gaussian_kernel", at_zero),
        (BLOW_UP, examples, "gaussian_kernel", at_zero),
        (BLOW_UP, examples, "blow_up_start", lambda given: given.start[..., :1]),
        (BLOW_UP, examples, "blow_up_start", lambda given: 0 * given.start[..., :1]),
        (REGULAR, examples, "STRENGTH", 0.99),
        (
            REGULAR,
            examples,
            "reaction_weights",
            lambda given: (REACTION(given)[0], 2.01 * REACTION(given)[1]),
        ),
        # The first channel grows.
        (REGULAR_AS_STATED, examples, "HELD_BACK", torch.diag(torch.tensor([1.0, -2.0])).double()),
        (REGULAR_AS_STATED, examples, "SECOND_ALONE", -examples.SECOND_ALONE),
        (REGULAR_AS_STATED, examples, "SECOND_ALONE", examples.SECOND_ALONE + SHEAR),
    ],
)
def test_what_a_claim_adds_is_tested(monkeypatch, statement, module, name, value):
    assert statement(case("none")).verdict in ("holds", "fails")
    monkeypatch.setattr(module, name, value)
    assert statement(case("none")).verdict == "hypothesis not met"


def test_without_the_cfl_condition_small_weights_grow(monkeypatch):
    """‖I − λW‖ = √(1 + λ²ε²) for W = ε (0 1; −1 0); ten such steps with λε = 0.2 grow by 1.04⁵."""
    given = case("row")
    turning = cfl_limit(given.affinity).limit / 10 * examples.ALWAYS_GROWING[1]
    monkeypatch.setattr(examples, "small_weights", lambda given: turning.expand(10, -1, -1))
    check = discussion.small_weights_are_stable(given)
    assert check.verdict == "hypothesis not met"
    assert check.residual == pytest.approx(1.04**5 - 1, rel=1e-10)
    assert check.residual == pytest.approx(certify(given.affinity, [turning] * 10).growth - 1, rel=1e-10)


def test_a_kernel_that_is_wrong_meets_no_hypothesis_and_does_not_pass(monkeypatch):
    """Ω with one entry off by a hundredth is not symmetric: of what asks for symmetry nothing is checked, a failure."""

    def skew(affinity):
        matrix = kernel_matrix(affinity).clone()
        matrix[0, 0, 1] *= 1.01
        return matrix

    monkeypatch.setattr("nonloc_paper.theory.case.kernel_matrix", skew)
    monkeypatch.setattr(all_checks, "STATEMENTS", theorems.TABLE)
    monkeypatch.setattr(all_checks, "ONE_SIDED", ())
    monkeypatch.setattr(all_checks, "continuum_checks", list)
    checks = all_checks.check_all(positions=9)
    assert all(check.is_as_expected for check in checks)
    assert not all_checks.all_as_expected(checks)
    names = [one.name for one in theorems.TABLE if one.hypothesis.needs]
    assert all_checks.unmet_everywhere(checks) == names
    assert f"{len(names)}  say nothing at all" in all_checks.counts(checks)
    assert all_checks.summary(checks).endswith(f"{len(names)} NOT AS EXPECTED")


# Statements that fail as stated would hold, were it not for the example that they rest on.


def different_everywhere(affinity):
    return DampedFlow(replace(affinity, kind="delta"))


def less_symmetric(left, right, *rest):
    return Affinity(left, right.cumsum(-1), *rest)


@pytest.mark.parametrize(
    ("module", "name", "value", "statement"),
    [
        (sections, "TURNING", 0.1 * torch.eye(2).double(), sections.symmetric_part_decides_as_stated),
        (sections, "TIME_STEPS", (1.0,), sections.short_steps_keep_probability_as_stated),
        (sections, "Affinity", less_symmetric, sections.only_the_gaussian_is_symmetric_as_stated),
        # A walker who never jumps.
        (sections, "apply_adjoint", lambda _, laws: laws, sections.reversed_laws_stay_laws_as_stated),
        (discussion, "DampedFlow", different_everywhere, STEADY),
        (examples, "HELD_BACK", -torch.eye(2).double(), REGULAR_AS_STATED),
    ],
)
def test_without_the_counterexample_the_statement_holds(monkeypatch, module, name, value, statement):
    assert statement(case("row")).verdict == "fails"
    monkeypatch.setattr(module, name, value)
    assert statement(case("row")).verdict == "holds"
    assert not statement(case("row")).is_as_expected


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_steady_state_of_the_gaussian_needs_a_kernel_that_follows_the_state(monkeypatch, normalize):
    assert GAUSSIAN(case(normalize)).verdict == "holds"
    alike = torch.zeros(1, 9, 1, dtype=torch.float64)
    fixed = DampedFlow(Affinity(alike, alike, "heat", normalize))
    monkeypatch.setattr(discussion, "DampedFlow", lambda affinity: fixed)
    assert GAUSSIAN(case(normalize)).verdict == "fails"


def test_the_flow_with_the_gaussian_of_the_state_descends_its_energy():
    """Φ = ½ Σ_ij exp(z_i·z_j) has the gradient Σ_j exp(z_i·z_j) z_j."""
    z = case().start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.exp(z @ z.mT).sum() / 2, z)
    rate = DampedFlow(lambda state: Affinity(state, state, "gaussian", "none")).rate(z.detach())
    assert torch.allclose(rate, -gradient, rtol=1e-12, atol=0)


def test_blow_up_is_that_of_positive_weights(monkeypatch):
    assert BLOW_UP(case("none")).verdict == "holds"
    monkeypatch.setattr(discussion, "DampedFlow", lambda affinity, backwards: DampedFlow(affinity))
    assert BLOW_UP(case("none")).verdict == "fails"


def test_columns_are_looked_at():
    given = case("sinkhorn")
    assert sections.columns_sum_to_one(given).verdict == "holds"
    # The rows of another stochastic kernel, under the same name.
    other = replace(given, affinity=replace(given.affinity, normalize="row"))
    given.__dict__["kernel"] = other.kernel
    assert sections.columns_sum_to_one(given).verdict == "fails"
    assert sections.symmetric_with_rows_of_one(given).verdict == "fails"


def test_columns_count_by_the_measure():
    given = case("sinkhorn")
    measure = torch.arange(1.0, given.positions + 1, dtype=torch.float64)
    affinity = replace(given.affinity, measure=measure)
    assert sections.columns_sum_to_one(Case.of(affinity, given.start)).verdict == "holds"


def test_laws_moved_by_k_instead_of_its_transpose_lose_probability(monkeypatch):
    assert sections.probability_is_conserved(case("row")).verdict == "holds"
    monkeypatch.setattr(sections, "apply_adjoint", aggregate)
    assert sections.probability_is_conserved(case("row")).verdict == "fails"


# The continuum.


def named(checks):
    return {check.name: check.verdict for check in checks}


class Reversed(Continuum):
    """With the sign turned."""

    def apply(self, z):
        return -super().apply(z)

    def diffusion(self, *, backwards=False):
        return super().diffusion(backwards=not backwards)


class Damped(Continuum):
    """Without the term that keeps constants."""

    def apply(self, z):
        return aggregate(self.affinity, z)

    def diffusion(self, *, backwards=False):
        return DampedFlow(self.affinity)


def on(kind, features=continuum.bounded_below, rule="gauss"):
    return Meshes(partial(kind, "dot", rule=rule, features=features))


def of(kernel, rule="gauss"):
    return Meshes(partial(Continuum, kernel, rule=rule))


class Fading(Continuum):
    """Weaker on finer meshes, so that no gap is left."""

    def diffusion(self, *, backwards=False):
        return Diffusion(self.affinity, weight=1 / self.num_cells)


class Rising(Continuum):
    """Stronger on finer meshes, so that no rate bounds it."""

    def diffusion(self, *, backwards=False):
        return Diffusion(self.affinity, weight=float(self.num_cells))


def blocks(points):
    """ρ = 1 on [0, ½]² and on [½, 1]², 0 elsewhere: degree ½ everywhere, and no gap."""
    return torch.cat([points < 0.5, points >= 0.5], -1).double()


def test_operator_on_the_continuum_can_fail():
    assert named(continuum.operator_statements(on(Reversed)))["Proposition 1 (iii)"] == "fails"
    found = named(continuum.operator_statements(on(Damped)))
    assert (found["Proposition 1 (i)"], found["Proposition 1 (ii)"]) == ("fails", "fails")


def test_flow_on_the_continuum_can_fail():
    found = named(continuum.flow_statements(on(Reversed)))
    assert {found[name] for name in ("Theorem 2 (ii)", "Theorem 3", "Theorem 4")} == {"fails"}
    assert named(continuum.flow_statements(on(Damped)))["Theorem 2 (i)"] == "fails"


def test_kernels_on_the_continuum_that_are_not_symmetric():
    skew = of(lambda x, y: (1 + x + 0 * y).squeeze(-1))
    found = named(continuum.operator_statements(skew)) | named(continuum.flow_statements(skew))
    assert found.pop("Proposition 1 (i)") == "holds"
    assert set(found.values()) == {"hypothesis not met"}


def test_a_disconnected_kernel_lacks_the_hypothesis_of_poincare_and_of_the_rate():
    parted = on(Continuum, blocks)
    assert all(float((kernel.sum(1) - 0.5).abs().max()) < 1e-15 for kernel in parted.kernels)
    found = named(continuum.flow_statements(parted))
    assert (found["Theorem 2 (i)"], found["Theorem 3"]) == ("holds", "holds")
    assert (found["Theorem 2 (ii)"], found["Theorem 4"]) == ("hypothesis not met", "hypothesis not met")
    found = named(continuum.poincare_statements(parted, parted))
    assert set(found.values()) == {"hypothesis not met"}


def test_a_connection_of_the_size_of_rounding_is_no_gap():
    nearly = of(lambda x, y: 1e-15 + ((x < 0.5) == (y < 0.5)).double().squeeze(-1))
    assert nearly.is_connected
    assert nearly.has_degrees_above_zero
    assert not nearly.has_gap
    assert named(continuum.flow_statements(nearly))["Theorem 4"] == "hypothesis not met"


@pytest.mark.parametrize("size", [1.0, 1e-12])
def test_a_gap_is_measured_by_the_scale_of_its_kernel(size):
    """The gap of ω ≡ c is c, and that is the largest rate, too."""
    alike = of(lambda x, y: size + 0 * (x + y).squeeze(-1))
    assert alike.has_gap
    found = {check.name: check for check in continuum.flow_statements(alike)}
    assert {check.verdict for check in found.values()} == {"holds"}
    assert found["Theorem 4"].detail == f"gap {size:.6g}"


def test_the_rate_needs_degrees_bounded_below():
    touching = on(Continuum, continuum.touching_zero)
    assert touching.is_connected
    assert touching.has_gap  # on each mesh, though not in the limit
    assert not touching.has_degrees_above_zero
    assert named(continuum.flow_statements(touching))["Theorem 4"] == "hypothesis not met"


def test_poincare_depends_on_the_degrees():
    below, touching = (
        on(Continuum, features, "midpoint") for features in (continuum.bounded_below, continuum.touching_zero)
    )
    right = named(continuum.poincare_statements(below, touching))
    assert right == {"Poincaré inequality": "holds", "Poincaré inequality as stated": "fails"}
    exchanged = named(continuum.poincare_statements(touching, below))
    assert exchanged == {
        "Poincaré inequality": "hypothesis not met",
        "Poincaré inequality as stated": "holds",
    }
    assert named(continuum.poincare_statements(on(Fading), below))["Poincaré inequality"] == "fails"


def islands(x, y):
    """ρ = xy + 2^k where x and y are both in (2^−k, 2^(1−k)], of degree 1 + x/2. ∬ ρ² is 1 for each k, and ∞."""
    first, second = (torch.floor(-torch.log2(points)) for points in (x, y))
    return (x * y + (first == second) * 2 ** (first + 1)).squeeze(-1)


def test_degrees_bounded_below_give_a_rate_where_rho_is_square_integrable():
    """In the cell at 0, which is an island of its own, z has the rate x/2 = 1/(4M), and so no mesh bounds the gap."""
    parted = of(islands, "midpoint")
    sizes = [len(kernel) for kernel in parted.kernels]
    # The second cell is at x = 3/(2M).
    least = [float(kernel.sum(1).min()) for kernel in parted.kernels]
    assert least == pytest.approx([1 + 3 / (4 * size) for size in sizes], rel=1e-12)
    gaps = [float(rates(mesh)[1]) for mesh in parted.all]
    assert gaps == pytest.approx([1 / (4 * size) for size in sizes], rel=1 / min(sizes))
    assert parted.is_connected
    assert parted.has_gap
    assert parted.has_degrees_above_zero
    assert not parted.is_square_integrable
    first, _ = continuum.poincare_statements(parted, on(Continuum, continuum.touching_zero, "midpoint"))
    assert (first.verdict, first.residual > 0.9) == ("hypothesis not met", True)
    assert named(continuum.flow_statements(parted))["Theorem 4"] == "hypothesis not met"


def test_decay_of_xy_is_that_of_its_root():
    right = continuum.slow_decay_statements(on(Continuum, continuum.touching_zero))
    assert named(right) == {"Theorem 4 as stated": "fails", "Theorem 4 for ρ = xy": "holds"}
    exchanged = named(continuum.slow_decay_statements(on(Continuum)))
    assert exchanged == {"Theorem 4 as stated": "holds", "Theorem 4 for ρ = xy": "hypothesis not met"}
    turned = named(continuum.slow_decay_statements(on(Reversed, continuum.touching_zero)))
    assert turned["Theorem 4 for ρ = xy"] == "fails"


def test_hilbert_schmidt_norm_is_that_of_the_kernel(monkeypatch):
    found = named(continuum.hilbert_schmidt_statements(on(Continuum, continuum.touching_zero)))
    assert found["Section 4.2, Hilbert–Schmidt"] == "fails"
    monkeypatch.setattr(continuum, "hilbert_schmidt_norm", lambda mesh, part="integral": 1.0)
    found = named(continuum.hilbert_schmidt_statements(on(Continuum)))
    assert found["Section 4.2, Hilbert–Schmidt as stated"] == "holds"


def test_square_integrability_is_looked_at():
    """∬ ρ² of ρ = (xy)^(−½) grows like log² M, and is finite on every mesh."""
    found = continuum.hilbert_schmidt_statements(on(Continuum, lambda x: x.rsqrt()))
    assert set(named(found).values()) == {"hypothesis not met"}


def test_square_integrability_does_not_bound_the_operator():
    bounded, square = on(Continuum), on(Continuum, continuum.unbounded)
    names = ("Section 4.2, bounded", "Section 4.2, bounded as stated")
    right = named(continuum.boundedness_statements(bounded, square))
    assert [right[name] for name in names] == ["holds", "fails"]
    exchanged = named(continuum.boundedness_statements(square, bounded))
    assert [exchanged[name] for name in names] == ["hypothesis not met", "holds"]
    assert named(continuum.boundedness_statements(on(Rising), square))[names[0]] == "fails"


def test_anti_diffusion_is_compared_with_the_heat_equation(monkeypatch):
    assert named(continuum.reversal_statements()) == {"Section 4.2, anti-diffusion": "holds"}
    (unbounded,) = continuum.reversal_statements(lambda x, y: (x * y).pow(-0.25).squeeze(-1))
    assert unbounded.verdict == "hypothesis not met"
    assert unbounded.residual > 0.4
    monkeypatch.setattr(
        continuum,
        "reversal_growth",
        lambda cells, kernel: ReversalGrowth(
            cells, local_rate=1.0, nonlocal_rate=cells**2, largest_degree=1.0
        ),
    )
    assert named(continuum.reversal_statements()) == {"Section 4.2, anti-diffusion": "fails"}


def test_the_local_limit_is_that_of_a_kernel_with_the_second_moment_2(monkeypatch):
    assert named(continuum.local_limit_statements()) == {"Section 4.2, local limit": "holds"}
    # The mesh makes the moment 2 for a HorizonKernel; a function is taken as it is.
    twice = continuum.local_limit_statements(
        lambda radius: lambda x, y: 6 / radius**3 * ((x - y).abs() <= radius).double().squeeze(-1)
    )
    assert named(twice) == {"Section 4.2, local limit": "hypothesis not met"}
    # To one side alone the second moment of 2/Σr² on r = h, 2h, …, 10h is 2, too, and the first one moves z.
    (one_sided,) = continuum.local_limit_statements(
        lambda radius: (
            lambda x, y: (
                2e3 / 385 / radius**3 * ((y > x + 1e-9) & (y < x + radius + 1e-9)).double().squeeze(-1)
            )
        )
    )
    assert (one_sided.verdict, one_sided.residual > 1) == ("hypothesis not met", True)
    monkeypatch.setattr(continuum, "Continuum", Reversed)
    assert named(continuum.local_limit_statements()) == {"Section 4.2, local limit": "fails"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, 1.0, 1.0), True),
        ((1.0, 1.5, 1.75), True),  # M^(−½)
        ((2.0, 1.1, 1.01), True),
        ((4.0, 6.0, 8.0), False),  # log M
        ((1.0, 1.4, 2.0), False),  # M^¼
        ((1.0, 2.0, float("inf")), False),
        ((1.0, float("nan"), 1.0), False),
    ],
)
def test_what_settles(values, expected):
    assert settles(values) is expected


def test_cells_need_their_measure(monkeypatch):
    def uniform(x, y):
        return (1 + 0 * x * y).squeeze(-1)

    monkeypatch.setattr(
        continuum,
        "cell_kernel",
        lambda density, cells, form="probability": cell_kernel(
            density, cells, form="average" if form == "probability" else "probability"
        ),
    )
    found = named(continuum.cell_statements(uniform))
    assert found == {"Section 4.3, cells": "fails", "Section 4.3, cells as stated": "holds"}


def test_cells_of_what_is_no_density():
    found = named(continuum.cell_statements(lambda x, y: (1 + x * y).squeeze(-1)))
    assert set(found.values()) == {"hypothesis not met"}
