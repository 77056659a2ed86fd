"""The audit of `certify` finds no wrong answer, and would find one."""

from dataclasses import replace

import pytest
import torch

from benchmarks import certificates
from benchmarks.certificates import audit
from nonloc.ops import Affinity, kernel_matrix
from problems import generator


@pytest.mark.slow
@pytest.mark.parametrize("by_matrix", [True, False])
def test_a_small_audit_finds_nothing_wrong(by_matrix):
    result = audit(12, seed=5, by_matrix=by_matrix)
    assert result["wrong"] == []
    assert result["stable"] > 0
    assert result["unstable"] > 0
    assert result["near the boundary"] >= 4
    if by_matrix:
        assert "the bound does not decide" not in result["undecided_because"]


def test_a_certificate_that_says_stable_too_often_is_caught(monkeypatch):
    certify = certificates.certify

    def careless(*arguments, **options):
        return replace(certify(*arguments, **options), verdict="stable")

    monkeypatch.setattr(certificates, "certify", careless)
    assert audit(6, seed=5)["wrong"]


def test_a_verdict_is_held_to_the_norm_that_it_states():
    """Separate embeddings, decided without their law: non-expansive in its norm, and not in the plain one."""
    left, right = (torch.randn(1, 12, 2, generator=generator(seed), dtype=torch.float64) for seed in (0, 1))
    affinity, weights = Affinity(2 * left, 2 * right, "gaussian"), [torch.ones(1, 1, dtype=torch.float64)]
    certificate = certificates.certify(affinity, weights, exact_up_to=0)
    assert (certificate.verdict, certificate.weights) == ("stable", None)
    kernel = kernel_matrix(affinity)[0]
    law = certificates.stated_law(kernel, certificate)
    assert certificates.stage_norm(kernel, weights, law) <= 1 + 1e-12
    plain = replace(certificate, norm="‖z‖² = Σ_i |z_i|²")
    law = certificates.stated_law(kernel, plain)
    assert certificates.stage_norm(kernel, weights, law) > 1.1
