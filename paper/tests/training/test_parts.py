"""Parts: the seconds of a run that was carried, by the machines they were spent on."""

import torch

from nonloc_paper.training.machine import elsewhere, place, with_part

HERE = {"machine": {"device": "cpu"}, "versions": {"torch": "2.13"}}
THERE = {"machine": {"device": "a GPU"}, "versions": {"torch": "2.13"}}
UPDATED = {"machine": {"device": "cpu"}, "versions": {"torch": "2.14"}}


def test_the_same_place_is_one_part():
    parts = with_part(with_part([], HERE, 2.0), HERE, 3.0)
    assert parts == [HERE | {"seconds": 5.0}]
    assert elsewhere(parts, HERE) == []


def test_other_machines_and_other_versions_are_other_parts():
    parts = with_part(with_part(with_part([], THERE, 1.0), UPDATED, 2.0), HERE, 4.0)
    assert parts == [THERE | {"seconds": 1.0}, UPDATED | {"seconds": 2.0}, HERE | {"seconds": 4.0}]
    assert elsewhere(parts, HERE) == parts[:2]


def test_a_run_that_comes_back_goes_on_with_its_part():
    parts = with_part(with_part(with_part([], HERE, 1.0), THERE, 2.0), HERE, 4.0)
    assert parts == [THERE | {"seconds": 2.0}, HERE | {"seconds": 5.0}]


def test_what_is_given_is_not_changed():
    parts = with_part([], HERE, 1.0)
    with_part(parts, HERE, 1.0)
    assert parts == [HERE | {"seconds": 1.0}]


def test_a_place_says_what_a_result_says():
    found = place(torch.device("cpu"))
    assert set(found) == {"machine", "versions"}
    assert found["machine"]["device"] == "cpu"
    assert found["versions"]["torch"] == torch.__version__
