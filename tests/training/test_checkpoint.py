"""Checkpoints: whole or absent after a crash at any point, checked when read, only the last two kept."""

import dataclasses
import json
import os

import pytest
import torch
from tiny import tiny_recipe

from nonloc.runs import Run
from nonloc.training.checkpoint import Checkpoint, latest_valid, save_checkpoint


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.write_recipe(tiny_recipe().to_dict())
    return run


def checkpoint(step):
    return Checkpoint(
        step=step,
        epoch=step // 5,
        step_in_epoch=step % 5,
        seconds=0.1 + step,
        num_classes=3,
        data_sha256="0" * 64,
        losses=[float(torch.tensor(1 / (n + 3))) for n in range(step % 5)],
        tensors={"model.w": torch.arange(6.0).view(2, 3) + step, "model.n": torch.tensor(step)},
        optimizer={"lr": 0.1, "momentum": 0.9},
    )


def names(run):
    return sorted(entry.name for entry in run.checkpoints_path.iterdir())


def test_it_comes_back_whole(run):
    save_checkpoint(run, tiny_recipe(), checkpoint(7))
    found = latest_valid(run)
    assert (found.step, found.epoch, found.step_in_epoch, found.seconds) == (7, 1, 2, 7.1)
    assert found.losses == checkpoint(7).losses
    assert (found.num_classes, found.optimizer) == (3, {"lr": 0.1, "momentum": 0.9})
    assert found.tensors["model.w"].equal(torch.arange(6.0).view(2, 3) + 7)
    assert found.tensors["model.n"].equal(torch.tensor(7))


def test_a_run_without_checkpoints_has_none(run):
    assert latest_valid(run) is None


def test_the_last_two_are_kept(run):
    for step in (2, 4, 6, 10):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    assert names(run) == ["00000006.json", "00000006.safetensors", "00000010.json", "00000010.safetensors"]


def test_the_manifest_says_what_the_file_is(run):
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    manifest = json.loads((run.checkpoints_path / "00000002.json").read_text())
    assert manifest["size"] == (run.checkpoints_path / "00000002.safetensors").stat().st_size
    assert manifest["recipe_sha256"] == tiny_recipe().sha256
    assert set(manifest["versions"]) == {"python", "torch", "nonloc"}


class PowerCut(Exception):
    pass


def crash_at_rename(number):
    replace, done = os.replace, []

    def crash(source, target):
        if len(done) == number:
            raise PowerCut
        done.append(target)
        replace(source, target)

    return crash


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_before_either_rename_leaves_the_checkpoint_before(run, monkeypatch, renames):
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    monkeypatch.setattr(os, "replace", crash_at_rename(renames))
    with pytest.raises(PowerCut):
        save_checkpoint(run, tiny_recipe(), checkpoint(4))
    monkeypatch.undo()
    assert any(name.endswith(".tmp") for name in names(run))
    assert latest_valid(run).step == 2

    save_checkpoint(run, tiny_recipe(), checkpoint(6))
    assert names(run) == ["00000002.json", "00000002.safetensors", "00000006.json", "00000006.safetensors"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".safetensors", truncate),
        (".safetensors", flip_a_bit),
        (".safetensors", os.unlink),
        (".json", truncate),
        (".json", lambda path: path.write_text("[]")),
        (".json", lambda path: path.write_text('{"format": 1}')),
    ],
    ids=["truncated", "flipped bit", "missing", "torn manifest", "not an object", "empty manifest"],
)
def test_a_damaged_newest_is_skipped_with_a_warning(run, suffix, damage):
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    save_checkpoint(run, tiny_recipe(), checkpoint(4))
    damage(run.checkpoints_path / f"00000004{suffix}")
    with pytest.warns(RuntimeWarning, match=r"00000004.*going back"):
        assert latest_valid(run).step == 2


def test_a_step_can_be_saved_again_with_a_crash_between_the_renames(run, monkeypatch):
    """As it is before and after the evaluation of an epoch: the numbers are the same, the manifest is not."""
    save_checkpoint(run, tiny_recipe(), checkpoint(4))
    evaluated = dataclasses.replace(checkpoint(4), epoch=1, step_in_epoch=0, losses=[])
    monkeypatch.setattr(os, "replace", crash_at_rename(1))
    with pytest.raises(PowerCut):
        save_checkpoint(run, tiny_recipe(), evaluated)
    monkeypatch.undo()
    assert latest_valid(run).step_in_epoch == 4


def test_a_damaged_newer_one_is_removed_by_the_next_save(run):
    for step in (2, 4):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    truncate(run.checkpoints_path / "00000004.safetensors")
    save_checkpoint(run, tiny_recipe(), checkpoint(3))
    assert names(run) == ["00000002.json", "00000002.safetensors", "00000003.json", "00000003.safetensors"]
    assert latest_valid(run).step == 3


def test_files_of_others_are_left_alone(run):
    run.checkpoints_path.mkdir()
    (run.checkpoints_path / "notes.json").write_text("{}")
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    assert "notes.json" in names(run)
    assert latest_valid(run).step == 2


def test_another_recipe_is_an_error_that_names_the_fields(run):
    save_checkpoint(run, tiny_recipe(seed=1, learning_rate=0.5), checkpoint(2))
    with pytest.raises(ValueError, match=r"learning_rate is 0\.05, was 0\.5; seed is 0, was 1"):
        latest_valid(run, tiny_recipe())
