"""Checkpoints: whole or absent after a crash at any point, checked when read, only the last two kept."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import Checkpoint, latest_valid, remove_later, save_checkpoint


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
        parts=[{"machine": {"device": "a GPU"}, "versions": {"torch": "2.13"}, "seconds": 0.1 + step}],
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
    assert found.parts == checkpoint(7).parts


def change_manifest(run, step, change):
    path = run.checkpoints_path / f"{step:08d}.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_one_made_before_it_told_the_machine_can_be_read(run):
    save_checkpoint(run, tiny_recipe(), checkpoint(7))
    change_manifest(run, 7, lambda manifest: manifest.pop("parts"))
    [part] = latest_valid(run).parts
    assert (part["machine"], part["seconds"]) == (None, 7.1)
    assert set(part["versions"]) == {"python", "torch", "nonloc"}


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
    # As a process that is killed, and cannot clean up, leaves them.
    for name in ("00000004.safetensors.4711-0123abcd.tmp", "00000004.json.tmp"):
        (run.checkpoints_path / name).write_text("{")
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
        (".json", lambda path: path.write_text('{"format": 2}')),
    ],
    ids=["truncated", "flipped bit", "missing", "torn manifest", "not an object", "empty manifest"],
)
def test_a_damaged_newest_is_skipped_with_a_warning(run, suffix, damage):
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    save_checkpoint(run, tiny_recipe(), checkpoint(4))
    damage(run.checkpoints_path / f"00000004{suffix}")
    with pytest.warns(RuntimeWarning, match=r"00000004.*going back"):
        assert latest_valid(run).step == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_all_of_them_damaged_is_an_error_that_names_the_way_out(run, suffix):
    """As after a transfer that broke off: to begin anew would destroy what can still be brought back."""
    for step in (2, 4):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
        truncate(run.checkpoints_path / f"{step:08d}{suffix}")
    with pytest.raises(CorruptDataError, match=r"00000004.*00000002.*bring the files back, or") as caught:
        latest_valid(run)
    assert f"no checkpoint in {run.checkpoints_path} is whole" in str(caught.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_what_cannot_be_read_is_not_taken_for_damage(run, monkeypatch, suffix):
    for step in (2, 4):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    read_bytes = Path.read_bytes

    def refuse(path):
        if path.name == f"00000004{suffix}":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=f"00000004{suffix}"):
        latest_valid(run)


@pytest.mark.parametrize("number", [1, 3])
def test_another_format_is_an_error_even_with_an_older_one_at_hand(run, number):
    for step in (2, 4):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    change_manifest(run, 4, lambda manifest: manifest.update(format=number))
    with pytest.raises(
        ValueError, match=rf"00000004\.json has format {number}, but this .* reads 2; go on with"
    ):
        latest_valid(run)


def test_one_that_is_removed_while_it_is_read_gives_way_to_the_newer_one(run, monkeypatch):
    """By the process that trains, while another one looks."""
    save_checkpoint(run, tiny_recipe(), checkpoint(2))
    read_bytes = Path.read_bytes

    def read_after_two_more_saves(path):
        if path.name == "00000002.json":
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            for step in (4, 6):
                save_checkpoint(run, tiny_recipe(), checkpoint(step))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_after_two_more_saves)
    assert latest_valid(run).step == 6


def test_later_ones_can_be_removed(run):
    for step in (2, 4):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    remove_later(run, 2)
    assert names(run) == ["00000002.json", "00000002.safetensors"]


def test_a_crash_while_later_ones_are_removed_leaves_no_manifest_without_numbers(run, monkeypatch):
    for step in (5, 10):
        save_checkpoint(run, tiny_recipe(), checkpoint(step))
    removed, unlink = [], Path.unlink

    def crash_after_the_first(path):
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", crash_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        remove_later(run, 5)
    assert names(run) == ["00000005.json", "00000005.safetensors", "00000010.safetensors"]
    assert latest_valid(run).step == 5


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
