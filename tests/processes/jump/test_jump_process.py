"""JumpProcess: which kernels it takes, the transition matrix, and the master equation in both kinds of time."""

import pytest
import torch
from chains import chain, order

from nonloc.ops import Affinity, aggregate, diffuse
from nonloc.ops.functional import check_signal
from nonloc.processes import JumpProcess, simulate
from nonloc.processes.jump import process as jump_process
from problems import affinity, features, generator, relative, symmetric


def law_of(like, channels=2, seed=3):
    p = torch.rand(like.batch, like.positions, channels, generator=generator(seed), dtype=torch.float64)
    return p / p.sum(1, keepdim=True)


@pytest.mark.parametrize("normalize", ["count", "none", "symmetric"])
def test_rows_that_need_not_sum_to_1_are_refused_with_the_fix(normalize):
    with pytest.raises(
        ValueError, match=f"normalize='{normalize}' does not see to that; use one of row, sinkhorn"
    ):
        JumpProcess(symmetric(normalize=normalize))


def test_a_signed_kernel_is_refused():
    with pytest.raises(ValueError, match="negative entries, which are no probabilities"):
        JumpProcess(affinity("dot", "row"))


@pytest.mark.parametrize("step_size", [0.0, 1.5, True])
def test_a_step_that_is_no_probability_is_refused(step_size):
    with pytest.raises(ValueError, match=r"step_size must be a number in \(0, 1\]"):
        JumpProcess(symmetric()).transition_matrix(step_size)


def test_a_law_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"z0 \[.*must have the affinity.s batch and positions, \[2, 6, C\]"):
        simulate(JumpProcess(symmetric()), torch.ones(2, 5, 1), num_steps=1)


@pytest.mark.parametrize(("name", "argument"), [("rate", "z"), ("evolve", "law"), ("energy", "z")])
def test_a_law_is_checked_once_under_the_name_of_its_argument(name, argument, monkeypatch):
    process = JumpProcess(symmetric())
    checked = []

    def counted(affinity, z, name="z"):
        checked.append(name)
        check_signal(affinity, z, name)

    monkeypatch.setattr(jump_process, "check_signal", counted)
    getattr(process, name)(law_of(process.affinity))
    assert checked == [argument]


@pytest.mark.parametrize("step_size", [1.0, 0.3])
def test_expectations_are_the_other_side_of_laws(step_size):
    process = JumpProcess(affinity("gaussian"))
    law, f = law_of(process.affinity), torch.randn(2, 6, 2, generator=generator(8), dtype=torch.float64)
    actual = process.expect(f, step_size)
    assert relative(actual, process.transition_matrix(step_size) @ f) < 1e-14
    assert relative((law * actual).sum(1), (process.evolve(law, step_size) * f).sum(1)) < 1e-15


def test_the_discrete_master_equation_tends_to_the_continuous_one_with_order_1():
    process = JumpProcess(affinity("heat"))
    law = law_of(process.affinity)
    exact = simulate(process, law, num_steps=1, step_size=1.0, stepper="exact").final
    errors = [
        float((simulate(process, law, num_steps=n, step_size=1 / n, save_every=n).final - exact).abs().max())
        for n in (16, 32, 64, 128)
    ]
    assert all(0.9 < p < 1.1 for p in order(errors)), errors


def test_implicit_steps_use_the_inner_product_of_1_over_pi():
    process = JumpProcess(symmetric())
    weights = process.inner_weights()
    assert weights is not None
    matrix = process.transition_matrix() - torch.eye(6, dtype=torch.float64)
    form = weights.unsqueeze(-1) * matrix.mT
    assert relative(form, form.mT) < 1e-14
    assert JumpProcess(affinity("heat")).inner_weights() is None
    law = law_of(process.affinity)
    actual = simulate(process, law, num_steps=1, step_size=5.0, stepper="implicit").final
    assert relative(actual - 5.0 * process.rate(actual), law) < 1e-11


def test_energy_is_that_of_the_density_and_never_grows():
    process = JumpProcess(symmetric())
    law = law_of(process.affinity)
    pi = process.stationary_law()
    f = law / pi.unsqueeze(-1)
    squares = (f.unsqueeze(1) - f.unsqueeze(2)).square().sum(-1)
    expected = 0.5 * (pi.unsqueeze(-1) * process.transition_matrix() * squares).sum((1, 2))
    assert relative(process.energy(law), expected) < 1e-13
    energy = simulate(process, law, num_steps=20).energy
    assert bool((energy.diff(dim=0) < 0).all())


def test_energy_does_not_see_the_padding():
    keep = torch.tensor([True, True, False, True, True, True])
    whole = symmetric(mask=keep.expand(2, -1))
    law = law_of(whole)
    rest = whole.left[:, keep]
    expected = JumpProcess(Affinity(rest, rest, "heat")).energy(law[:, keep])
    assert relative(JumpProcess(whole).energy(law), expected) < 1e-13
    law[:, 2] = torch.nan
    assert relative(simulate(JumpProcess(whole), law, num_steps=1).energy[0], expected) < 1e-13


class TestBothFormsOfThePaper:
    """z_i ← Σ_j K_ij z_j, and z_i ← z_i + Σ_j K_ij (z_j − z_i): one and the same where rows sum to 1."""

    z = torch.randn(2, 6, 3, generator=generator(9), dtype=torch.float64)

    @pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
    def test_they_agree_where_rows_sum_to_1(self, normalize):
        kernel = symmetric(normalize=normalize)
        actual = JumpProcess(kernel).expect(self.z)
        assert relative(actual, aggregate(kernel, self.z)) < 1e-13
        assert relative(actual, self.z + diffuse(kernel, self.z)) < 1e-13

    def test_densities_move_by_the_kernel_itself_under_sinkhorn_with_a_measure(self):
        x = features("heat", "sinkhorn", batch=1)
        measure = torch.rand(6, generator=generator(2), dtype=torch.float64) + 0.1
        kernel = Affinity(x, x, "heat", "sinkhorn", 0.7, measure=measure)
        law = law_of(kernel)
        moved = JumpProcess(kernel).evolve(law) / measure.view(1, -1, 1)
        assert relative(moved, aggregate(kernel, law / measure.view(1, -1, 1))) < 1e-13


class TestWalkersThatStay:
    def test_at_a_masked_position(self):
        x = features("heat", "row")
        mask = torch.tensor([[True, True, False, True, True, True]] * 2)
        x = torch.where(mask.unsqueeze(-1), x, torch.nan)
        process = JumpProcess(Affinity(x, x, "heat", "row", 0.7, mask=mask))
        matrix = process.transition_matrix()
        assert torch.equal(matrix[:, 2], torch.eye(6, dtype=torch.float64)[2].expand(2, -1))
        assert float(matrix[:, [0, 1, 3, 4, 5], 2].abs().max()) == 0
        law = law_of(process.affinity)
        for stepper in ("euler", "exact", "implicit"):
            final = simulate(process, law, num_steps=3, stepper=stepper).final
            assert torch.equal(final[:, 2], law[:, 2])
            assert relative(final.sum(1), torch.ones(2, 2)) < 1e-13

    def test_where_the_row_is_empty_and_walkers_may_still_arrive(self):
        process = JumpProcess(chain([[0.0, 1.0], [0.0, 0.0]]))
        assert process.transition_matrix().tolist() == [[[0.0, 1.0], [0.0, 1.0]]]
        law = torch.tensor([[[0.4], [0.6]]], dtype=torch.float64)
        assert process.evolve(law).flatten().tolist() == [0.0, 1.0]


def test_where_walkers_leave_a_position_that_none_comes_to_there_is_no_energy():
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).view(1, -1, 1)
    measure = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    process = JumpProcess(Affinity(x, x, "heat", "row", measure=measure))
    law = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).view(1, -1, 1)
    actual = simulate(process, law, num_steps=8, step_size=0.5)
    assert (actual.outcome.ending, actual.energy) == ("finished", None)
