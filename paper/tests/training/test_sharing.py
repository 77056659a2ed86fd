"""SharedData: one object for all runs of a data set."""

import pytest
import torch
from tiny import tiny_data

from nonloc_paper.training import sharing
from nonloc_paper.training.scheduler import SharedData

CPU = torch.device("cpu")


def test_a_data_set_is_loaded_once_and_only_when_asked_for(monkeypatch):
    loaded = []
    monkeypatch.setattr(sharing, "load", lambda name, folder: loaded.append((name, folder)) or tiny_data())
    shared = SharedData(CPU, data_dir="somewhere")
    assert shared.found("tiny") is None
    assert loaded == []
    assert shared.find("tiny") is shared.find("tiny") is shared.found("tiny")
    assert loaded == [("tiny", "somewhere")]


def test_what_is_at_hand_is_not_copied_on_the_same_device():
    data = tiny_data()
    assert (
        SharedData(CPU, {"tiny": data}).find("tiny").train.images.data_ptr() == data.train.images.data_ptr()
    )


def test_a_wrong_name_is_an_error():
    with pytest.raises(ValueError, match="data\\['cifar10'\\] is 'tiny'"):
        SharedData(CPU, {"cifar10": tiny_data()}).find("cifar10")
