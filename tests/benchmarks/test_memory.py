"""The memory ladder: its exponent is that of a power law, its measurement is of the right size."""

import pytest

from benchmarks import memory


def test_the_exponent_of_a_power_law_is_found():
    sizes = [1000, 2000, 4000]
    assert memory.exponent(sizes, [3 * s**1.5 for s in sizes]) == pytest.approx(1.5)


def test_a_measurement_sees_the_matrix_of_the_reference():
    found = memory.measure("gaussian", "row", 3000, backend="reference")
    one_matrix = 4 * 3000 * 3000
    assert 3 * one_matrix <= found.peak_bytes <= 7 * one_matrix
    assert found.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "normalize", "sizes"), memory.LADDERS)
def test_memory_is_linear_in_the_positions(kind, normalize, sizes):
    found = list(memory.ladder(kind, normalize, sizes))
    assert memory.exponent(sizes, [m.peak_bytes for m in found]) <= 1.1
