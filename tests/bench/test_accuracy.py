"""The accuracy table covers every cell and notices a wrong backend."""

from nonloc.bench import accuracy
from nonloc.ops import BACKENDS, KINDS, NORMALIZATIONS


def test_every_cell_is_within_its_limit():
    found = list(accuracy.deviations(trials=2, positions=4))
    assert len(found) == len(KINDS) * len(NORMALIZATIONS) * len(BACKENDS)
    assert [d for d in found if not d.passed] == []


def test_a_wrong_backend_fails(monkeypatch):
    def wrong(affinity, dtype):
        operator = BACKENDS["reference"](affinity, dtype)
        return operator._replace(apply=lambda z: operator.apply(z) * (1 + 1e-9))

    monkeypatch.setitem(BACKENDS, "wrong", wrong)
    failed = {d.backend for d in accuracy.deviations(trials=1, positions=3) if not d.passed}
    assert failed == {"wrong"}
