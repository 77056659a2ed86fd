"""No check that cannot fail: each statement is given an operator that breaks it, and says so."""

from dataclasses import replace

import pytest
import torch

from nonloc.ops import Affinity, aggregate
from nonloc.processes.continuum.continuum import Continuum, cell_kernel
from nonloc.processes.continuum.local import ReversalGrowth
from nonloc.processes.diffusion import DampedFlow, Diffusion
from nonloc_paper.theory import continuum, sections, theorems
from nonloc_paper.theory.case import one_sided_case, symmetric_case


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
        (sections.steps_up_to_the_limit_are_stable, "none", twice),
        (sections.steps_up_to_the_limit_are_stable, "row", backwards),
        (sections.symmetric_part_decides_the_flow, "row", backwards),
        (sections.two_forms_are_one, "row", twice),
        (sections.diffusion_regularizes, "row", backwards),
        (
            sections.reversal_is_stable_in_finite_time,
            "row",
            lambda given: replace(given, backward=Diffusion(given.affinity, weight=2.0, backwards=True)),
        ),
        (
            sections.reversal_is_stable_in_finite_time,
            "none",
            lambda given: replace(given, backward=given.growing),
        ),
        (sections.only_steady_state_is_zero, "none", lambda given: replace(given, damped=given.forward)),
        (sections.original_flow_is_damped, "row", lambda given: replace(given, damped=given.growing)),
        (sections.original_flow_grows, "row", lambda given: replace(given, growing=given.damped)),
    ],
)
def test_a_wrong_process_fails_under_a_hypothesis_that_is_met(statement, normalize, broken):
    right = case(normalize)
    assert statement(right).verdict == "holds"
    assert statement(broken(right)).verdict == "fails"


@pytest.mark.parametrize(
    "statement",
    [
        theorems.mean_of_the_image,
        theorems.weighted_mean_of_the_image,
        theorems.form_is_positive,
        theorems.weighted_form_is_the_energy,
        theorems.mean_is_preserved,
        theorems.weighted_mean_is_preserved,
        theorems.flow_tends_to_the_weighted_mean,
        theorems.variance_decreases,
        theorems.weighted_variance_decreases,
        theorems.poincare_inequality,
        theorems.decay_is_exponential,
        sections.steps_up_to_the_limit_are_stable,
        sections.symmetric_part_decides_as_stated,
        sections.small_weights_are_stable_as_stated,
        sections.reversal_is_stable_in_finite_time,
        sections.symmetric_with_rows_of_one,
        sections.only_steady_state_is_zero,
        sections.original_flow_is_damped,
        sections.original_flow_grows,
        sections.diffusion_regularizes,
        sections.diffusion_regularizes_as_stated,
    ],
)
def test_an_asymmetric_kernel_does_not_meet_the_hypothesis(statement):
    assert statement(one_sided_case("none", 9, 0)).verdict == "hypothesis not met"


def test_a_symmetric_kernel_is_no_case_of_separate_embeddings():
    assert theorems.stationary_mean_of_the_image(one_sided_case("row", 9, 0)).verdict == "holds"
    assert theorems.stationary_mean_of_the_image(case("row")).verdict == "hypothesis not met"
    turned = one_sided_case("row", 9, 0)
    other = Diffusion(replace(turned.affinity, left=turned.affinity.right, right=turned.affinity.left))
    assert theorems.stationary_mean_of_the_image(replace(turned, forward=other)).verdict == "fails"


def test_a_kernel_that_falls_apart_is_not_connected():
    points = torch.tensor([[[0.0], [1.0], [100.0], [101.0]]], dtype=torch.float64)
    parted = Affinity(points, points, "heat", "none")
    start = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = replace(case(), affinity=parted, start=start, forward=Diffusion(parted))
    for statement in (
        theorems.flow_tends_to_the_mean,
        theorems.poincare_inequality,
        theorems.decay_is_exponential,
    ):
        assert statement(given).verdict == "hypothesis not met"
    assert theorems.mean_of_the_image(given).verdict == "holds"


def test_a_signed_kernel_is_not_what_the_theorems_are_about():
    points = torch.tensor([[[1.0], [-1.0], [0.5], [-2.0]]], dtype=torch.float64)
    signed = Affinity(points, points, "dot", "none")
    start = torch.ones(1, 4, 3, dtype=torch.float64)
    given = replace(case(), affinity=signed, start=start, forward=Diffusion(signed))
    assert theorems.form_is_positive(given).verdict == "hypothesis not met"
    assert theorems.form_is_positive(given).residual > 0.1
    assert theorems.mean_of_the_image(given).verdict == "holds"


def test_a_semi_definite_kernel_is_not_strictly_definite():
    alike = torch.zeros(1, 9, 1, dtype=torch.float64)
    affinity = Affinity(alike, alike, "heat", "none")
    given = replace(case(), affinity=affinity, damped=DampedFlow(affinity))
    for statement in (sections.only_steady_state_is_zero, sections.original_flow_is_damped):
        assert statement(given).verdict == "hypothesis not met"


# Statements that fail as stated would hold, were it not for the example that they rest on.


@pytest.mark.parametrize(
    ("module", "name", "value", "statement"),
    [
        (sections, "TURNING", 0.1 * torch.eye(2).double(), sections.symmetric_part_decides_as_stated),
        (sections, "ROTATION", torch.eye(2).double(), sections.small_weights_are_stable_as_stated),
        (sections, "HELD_BACK", -torch.eye(2).double(), sections.diffusion_regularizes_as_stated),
    ],
)
def test_without_the_counterexample_the_statement_holds(monkeypatch, module, name, value, statement):
    assert statement(case("row")).verdict == "fails"
    monkeypatch.setattr(module, name, value)
    assert statement(case("row")).verdict == "holds"
    assert not statement(case("row")).is_as_expected


def test_steady_state_as_stated_rests_on_a_kernel_that_is_everywhere_the_same(monkeypatch):
    assert sections.only_steady_state_is_zero_as_stated(case()).verdict == "fails"
    monkeypatch.setattr(sections, "DampedFlow", lambda affinity: DampedFlow(replace(affinity, kind="delta")))
    assert sections.only_steady_state_is_zero_as_stated(case()).verdict == "holds"


def test_blow_up_is_that_of_positive_weights(monkeypatch):
    assert sections.growth_is_infinite_in_finite_time(case("none")).verdict == "holds"
    monkeypatch.setattr(sections, "DampedFlow", lambda affinity, backwards: DampedFlow(affinity))
    assert sections.growth_is_infinite_in_finite_time(case("none")).verdict == "fails"


def test_columns_are_looked_at():
    given = case("sinkhorn")
    assert sections.columns_sum_to_one(given).verdict == "holds"
    # The rows of another stochastic kernel, under the same name.
    other = replace(given, affinity=replace(given.affinity, normalize="row"))
    given.__dict__["kernel"] = other.kernel
    assert sections.columns_sum_to_one(given).verdict == "fails"
    assert sections.symmetric_with_rows_of_one(given).verdict == "fails"


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


def test_operator_on_the_continuum_can_fail():
    turned = Reversed("dot", 24, rule="gauss", features=continuum.bounded_below)
    assert named(continuum.operator_statements(turned))["Proposition 1 (iii)"] == "fails"
    other = Damped("dot", 24, rule="gauss", features=continuum.bounded_below)
    found = named(continuum.operator_statements(other))
    assert (found["Proposition 1 (i)"], found["Proposition 1 (ii)"]) == ("fails", "fails")


def test_flow_on_the_continuum_can_fail():
    turned = Reversed("dot", 24, rule="gauss", features=continuum.bounded_below)
    found = named(continuum.flow_statements(turned))
    assert {found[name] for name in ("Theorem 2 (ii)", "Theorem 3", "Theorem 4")} == {"fails"}
    other = Damped("dot", 24, rule="gauss", features=continuum.bounded_below)
    assert named(continuum.flow_statements(other))["Theorem 2 (i)"] == "fails"


def test_kernels_on_the_continuum_that_are_not_symmetric():
    skew = Continuum(lambda x, y: (1 + x + 0 * y).squeeze(-1), 24, rule="gauss")
    found = named(continuum.operator_statements(skew)) | named(continuum.flow_statements(skew))
    assert found.pop("Proposition 1 (i)") == "holds"
    assert set(found.values()) == {"hypothesis not met"}


def test_poincare_depends_on_the_degrees():
    exchanged = continuum.poincare_statements(continuum.touching_zero, continuum.bounded_below)
    assert named(exchanged) == {"Poincaré inequality": "fails", "Poincaré inequality as stated": "holds"}


def test_hilbert_schmidt_norm_is_that_of_the_kernel(monkeypatch):
    found = named(continuum.hilbert_schmidt_statements(continuum.touching_zero))
    assert found["Section 4.2, Hilbert–Schmidt"] == "fails"
    monkeypatch.setattr(continuum, "hilbert_schmidt_norm", lambda mesh, part="integral": 1.0)
    found = named(continuum.hilbert_schmidt_statements())
    assert found["Section 4.2, Hilbert–Schmidt as stated"] == "holds"


def test_boundedness_is_looked_at():
    """Degrees that grow with the mesh: u(x) = 1/√x is not bounded."""
    found = continuum.hilbert_schmidt_statements(lambda x: x.rsqrt())
    assert named(found)["Section 4.2, bounded"] == "fails"


def test_anti_diffusion_is_compared_with_the_heat_equation(monkeypatch):
    assert named(continuum.reversal_statements()) == {"Section 4.2, anti-diffusion": "holds"}
    monkeypatch.setattr(
        continuum,
        "reversal_growth",
        lambda cells, kernel: ReversalGrowth(
            cells, local_rate=1.0, nonlocal_rate=cells**2, largest_degree=1.0
        ),
    )
    assert named(continuum.reversal_statements()) == {"Section 4.2, anti-diffusion": "fails"}


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
