"""The comparison of graphs does the same work twice and says so."""

from benchmarks.graphs import compare, table


def test_both_reach_the_same_state_and_are_measured():
    result = compare(points=2000, k=8, steps=3, repeats=1)
    assert result["largest_difference"] <= 1e-14
    assert result["passed"]
    assert set(result["seconds"]) == set(result["peak_bytes"]) == {"nonloc", "by_hand"}
    assert result["time_ratio"] == result["seconds"]["nonloc"] / result["seconds"]["by_hand"]
    assert "the final states differ by" in table([result])
