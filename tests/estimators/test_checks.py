"""The estimators are what scikit-learn expects of an estimator."""

import importlib
import sys

import pytest
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from nonloc import estimators
from nonloc.estimators import DiffusionMap, LabelDiffusion

ESTIMATORS = [DiffusionMap(), DiffusionMap(diffusion_time=0), LabelDiffusion(), LabelDiffusion(alpha=0.5)]


def expected_failures(estimator):
    """The last part of one check has classes −1 and 1. It leaves out scikit-learn's own estimators for which −1 means
    "not known", by their names."""
    is_one = isinstance(estimator, LabelDiffusion)
    return {"check_classifiers_classes": "−1 is no class"} if is_one else {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


def test_that_check_under_a_name_for_which_it_uses_other_classes():
    check_classifiers_classes("LabelSpreading", LabelDiffusion())


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"nonloc\[graphs\]"):
        importlib.reload(estimators)
