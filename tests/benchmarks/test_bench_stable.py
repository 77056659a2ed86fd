"""The audit of the stable stage passes, and a stage that can break does not."""

from benchmarks import stable


def test_a_small_audit_passes_and_its_control_fails():
    rows = stable.audit(inputs=6)
    assert [(row["dtype"], row["embedding"], row["passed"]) for row in rows] == [
        ("float64", "shared", True),
        ("float64", "separate", True),
        ("float32", "shared", True),
        ("float32", "separate", True),
    ]
    assert all(row["control"] > 1.01 for row in rows)
    assert f"{rows[0]['control'] - 1:+.1e}" in stable.table(rows)


def test_weights_above_their_limit_do_not_pass(monkeypatch):
    growth = stable._growth

    def with_larger_weights(affinity, law, z, weights):
        return growth(affinity, law, z, [1.5 * weight for weight in weights])

    monkeypatch.setattr(stable, "_growth", with_larger_weights)
    assert not all(row["passed"] for row in stable.audit(inputs=3))
