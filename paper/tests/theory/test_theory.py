"""Every statement for every normalisation: which hold, which lack their hypothesis, which fail as stated."""

import pytest

from nonloc_paper.theory.all_checks import STATEMENTS, all_as_expected, check_all, summary
from nonloc_paper.theory.check import Check

PLAIN = ["Proposition 1 (ii)", "Proposition 1 (iii)", "Theorem 2 (i)", "Theorem 2 (ii)", "Theorem 3"]
# Which hold, fail or lack their hypothesis (–) for row, count, none, symmetric and sinkhorn, in this order.
VERDICTS = {
    "holds holds holds holds holds": [
        "Proposition 1 (i)",
        *(f"{name}, weighted" for name in PLAIN),
        "Poincaré inequality",
        "Theorem 4",
        "Section 3.1, flow",
        "Section 4.2, network",
        "Section 4.2, reversal",
        "Section 4.4, CFL condition",
        "Section 4.4, small weights",
        "Section 4.4, finite time",
        "Section 4.4, steady state",
        "Section 4.4, steady state of the Gaussian",
        "Section 4.4, damping",
        "Section 4.4, growth",
        "Section 4.4, regularizer",
    ],
    # The paper's symmetric 𝒦 is what row takes away: there, only the weighted mean is conserved.
    "– holds holds holds holds": PLAIN,
    "holds – – – holds": ["Section 4.3, two forms", "Section 4.3, laws"],
    "fails fails fails fails fails": [
        "Section 3.1, steps as stated",
        "Section 4.1, kernels as stated",
        "Section 4.4, steady state as stated",
        "Section 4.4, regularizer as stated",
    ],
    "fails – – – fails": [
        "Section 4.3, time step as stated",
        "Section 4.3, reversed laws as stated",
    ],
    "fails fails fails fails holds": ["Section 4.1, symmetric and stochastic"],
    "fails – – – holds": ["Section 4.3, columns"],
    "fails holds holds fails fails": ["Section 4.4, blow-up"],
    "holds holds holds": ["Separate embeddings"],
}
CONTINUUM_FAILS = [
    "Poincaré inequality as stated",
    "Theorem 4 as stated",
    "Section 4.2, Hilbert–Schmidt as stated",
    "Section 4.2, bounded as stated",
    "Section 4.3, cells as stated",
]


@pytest.fixture(scope="module")
def checks():
    return check_all()


def test_everything_is_as_expected(checks):
    assert all_as_expected(checks)


def test_every_hypothesis_is_tested():
    asserted = [one.name for one in STATEMENTS if not one.hypothesis.needs and one.hypothesis.text != "none"]
    assert asserted == []


def test_every_statement_has_its_verdict_for_every_normalisation(checks):
    """`check_all` takes one normalisation after the other."""
    found = {}
    for check in checks:
        if check.normalize != "continuum":
            found.setdefault(check.name, []).append(check.verdict.replace("hypothesis not met", "–"))
    expected = {name: words.split() for words, names in VERDICTS.items() for name in names}
    assert found == expected


def test_the_continuum(checks):
    found = {check.name: check.verdict for check in checks if check.normalize == "continuum"}
    assert {name for name, verdict in found.items() if verdict == "fails"} == set(CONTINUUM_FAILS)
    assert {verdict for name, verdict in found.items() if name not in CONTINUUM_FAILS} == {"holds"}
    assert {"Proposition 1 (ii)", "Theorem 2 (i)", "Theorem 4", "Poincaré inequality"} <= set(found)
    assert {"Theorem 4 for ρ = xy", "Section 4.2, bounded", "Section 4.2, local limit"} <= set(found)


def test_the_measured_rate_stands_beside_the_gap(checks):
    detail = next(check.detail for check in checks if check.name == "Theorem 4").split()
    gap, measured, attained = (float(word.strip(",;")) for word in (detail[1], detail[5], detail[-1]))
    assert attained == pytest.approx(gap, rel=1e-5)
    assert measured == pytest.approx(gap, rel=0.05)


def test_which_mean_drifts_is_seen_in_the_residual(checks):
    found = {(check.name, check.normalize): check.residual for check in checks}
    assert found["Theorem 2 (i)", "row"] > 1e-3
    assert found["Theorem 2 (i), weighted", "row"] < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("positions", [4, 10, 36])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_points_say_the_same(positions, seed):
    assert all_as_expected(check_all(positions=positions, seed=seed))


def made(verdict, expected="holds", name="Theorem 0", normalize="row"):
    return Check(name, "all is well", "none", normalize, verdict, 0.5, "by a half", expected)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (made("holds"), True),
        (made("fails"), False),
        (made("hypothesis not met"), True),
        (made("fails", "fails"), True),
        (made("holds", "fails"), False),
    ],
)
def test_what_counts_as_expected(check, expected):
    assert all_as_expected([made("holds"), check]) is expected


def test_summary_is_a_table_with_what_is_needed_and_what_is_wrong_below():
    text = summary(
        [
            made("holds", name="A"),
            made("hypothesis not met", name="A", normalize="none"),
            made("fails", "fails", name="B"),
            made("fails", name="C", normalize="none"),
        ]
    )
    lines = text.splitlines()
    assert lines[0].split() == ["row", "none"]
    assert lines[1].split() == ["A", "holds", "–"]
    assert lines[2].split() == ["B", "fails*"]
    assert lines[3].split() == ["C", "FAILS"]
    assert "*  B (row): by a half" in lines
    assert "!! C (none): all is well; by a half" in lines
    assert lines[-1].endswith("1 NOT AS EXPECTED")
    assert summary([made("holds")]).endswith("all as expected")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"positions": 3}, "positions must be a whole number ≥ 4, got 3"),
        ({"positions": 9.0}, "positions must be a whole number ≥ 4"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"seed": 2**70}, "seed must be a whole number of less than 63 bits"),
    ],
)
def test_what_is_wrong_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        check_all(**keywords)
