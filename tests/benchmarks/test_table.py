"""Tables: aligned, and the exponent stands with the last size of its kernel."""

from benchmarks.table import markdown, memory_table


def test_words_are_left_and_numbers_right():
    assert markdown(["name", "n"], [["ab", "1"], ["c", "10"]]).splitlines() == [
        "| name |  n |",
        "|------|---:|",
        "| ab   |  1 |",
        "| c    | 10 |",
    ]


def test_the_exponents_of_a_ladder():
    rows = [
        {"kind": "dot", "normalize": "row", "positions": m, "peak_bytes": 8 * m, "seconds": m**2 / 1e6}
        for m in (1000, 2000, 4000)
    ]
    lines = memory_table(rows).splitlines()
    assert "M^1.00" in lines[-1]
    assert "M^2.00" in lines[-1]
    assert "M^" not in lines[-2]
