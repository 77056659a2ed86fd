"""The comparison of estimators measures both sides, and checks the eigenvectors."""

from benchmarks.estimators import compare, table


def test_both_sides_are_measured_and_agree():
    rows = compare(points=1500, rounds=1)
    assert [row["ours"] for row in rows] == ["DiffusionMap", "LabelDiffusion"]
    assert rows[0]["passed"]
    assert rows[0]["residual"] < 1e-9
    assert all(row["agreement"] > 0.9 for row in rows)
    assert all(row["time_ratio"] == row["seconds"][0] / row["other_seconds"][0] for row in rows)
    assert "LabelDiffusion, LabelSpreading" in table(rows)
