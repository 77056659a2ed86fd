"""The memory ladder: its exponent is that of a power law, its measurement is of the right size."""

import pytest

from benchmarks import memory


def test_the_exponent_of_a_power_law_is_found():
    sizes = [1000, 2000, 4000]
    assert memory.exponent(sizes, [3 * s**1.5 for s in sizes]) == pytest.approx(1.5)


@pytest.mark.slow
def test_a_measurement_sees_the_matrix_of_the_reference():
    measured = memory.measure_size("gaussian", "row", 3000, backend="reference")
    one_matrix = 4 * 3000 * 3000
    assert 3 * one_matrix <= measured["peak_bytes"] <= 7 * one_matrix
    assert measured["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "normalize", "sizes"), memory.LADDERS)
def test_memory_is_linear_in_the_positions(kind, normalize, sizes):
    peaks = [memory.measure_size(kind, normalize, positions)["peak_bytes"] for positions in sizes]
    assert memory.exponent(sizes, peaks) <= 1.1


def test_the_exponents_stand_with_the_last_size():
    rows = [
        {"kind": "dot", "normalize": "row", "positions": m, "peak_bytes": 8 * m, "seconds": m**2 / 1e6}
        for m in (1000, 2000, 4000)
    ]
    *_, before, last = memory.table(rows).splitlines()
    assert "M^1.00" in last
    assert "M^2.00" in last
    assert "M^" not in before
