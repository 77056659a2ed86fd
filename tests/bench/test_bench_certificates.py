"""The audit of `certify` finds no wrong answer, and would find one."""

import pytest

from nonloc.bench import certificates
from nonloc.bench.certificates import audit


@pytest.mark.parametrize("by_matrix", [True, False])
def test_a_small_audit_finds_nothing_wrong(by_matrix):
    found = audit(40, seed=5, by_matrix=by_matrix)
    assert found["wrong"] == []
    assert found["stable"] > 0
    assert found["unstable"] > 0
    assert found["near the boundary"] >= 10
    if by_matrix:
        assert "the bound does not decide" not in found["undecided_because"]


def test_a_certificate_that_says_stable_too_often_is_caught(monkeypatch):
    certify = certificates.certify

    class Careless:
        def __init__(self, found):
            self.verdict, self.growth, self.weights, self.reason = "stable", found.growth, found.weights, ""

    monkeypatch.setattr(certificates, "certify", lambda *a, **k: Careless(certify(*a, **k)))
    assert audit(12, seed=5)["wrong"]
