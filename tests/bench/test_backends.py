"""Timings are taken in turns, and the table says what "auto" takes."""

from nonloc.bench import backends


def test_the_table(monkeypatch):
    monkeypatch.setattr(backends, "SHAPES", ((1, 8, 2, 1),))
    found = list(backends.timings(repeats=2))
    assert [(t.kind, t.normalize) for t in found] == list(backends.CELLS)
    for timing in found:
        low, high = timing.reference_range
        assert 0 < low <= timing.reference <= high
        assert timing.auto in ("reference", "factored")


def test_sides_take_turns():
    calls = []
    seconds = backends.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu")
    assert calls == ["a", "b"] * 4
    assert [len(s) for s in seconds.values()] == [3, 3]
