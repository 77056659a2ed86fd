"""Checkpoints: whole or absent after a crash at any point, checked when read; at most two stay."""

import copy
import dataclasses
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tiny import make_older, tiny_recipe
from torch import nn

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import read_json, write_json
from nonloc_paper.training.checkpoint import (
    MOST_WAITING,
    Checkpoint,
    Writer,
    latest_valid,
    remove_later,
    restore_model,
    restore_optimizer,
    save_checkpoint,
    state_tensors,
    weights_sha256,
)
from nonloc_paper.training.graph_group import without_trace
from nonloc_paper.training.machine import machine, versions
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import make_optimizer


@pytest.fixture(autouse=True)
def recipe(run):
    run.write_recipe(tiny_recipe().to_dict())


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
        parts=[{"machine": machine(torch.device("cpu")), "versions": versions(), "seconds": 0.1 + step}],
    )


def save(run, *steps):
    for step in steps:
        save_checkpoint(run, tiny_recipe(), checkpoint(step))


def names(run):
    return sorted(entry.name for entry in run.checkpoints_path.iterdir())


def test_it_comes_back_whole(run):
    assert latest_valid(run) is None
    save(run, 7)
    read, saved = (dataclasses.asdict(each) for each in (latest_valid(run), checkpoint(7)))
    tensors, expected = read.pop("tensors"), saved.pop("tensors")
    assert read == saved | {"records": run.digests()}
    assert tensors.keys() == expected.keys()
    assert all(tensors[name].equal(value) for name, value in expected.items())
    manifest = json.loads((run.checkpoints_path / "00000007.json").read_text())
    assert manifest["size"] == (run.checkpoints_path / "00000007.safetensors").stat().st_size
    assert manifest["recipe_sha256"] == tiny_recipe().sha256
    assert manifest["versions"] == versions()


def change_manifest(run, number, **changes):
    """Change a manifest, and let it have the checksum of what it then says."""
    path = run.checkpoints_path / f"{number:08d}.json"
    write_json(path, read_json(path) | changes)


def test_one_made_before_it_told_the_machine_can_be_read(run):
    save(run, 7)
    make_older(run, 7, "parts")
    read = latest_valid(run)
    [part] = read.parts
    assert (part["machine"], part["seconds"]) == (None, 7.1)
    assert part["versions"] == versions()
    assert read.records is None


@pytest.mark.parametrize(
    "change",
    [
        {"step": 8},
        {"step_in_epoch": 3},
        {"losses": []},
        {"epoch": "1"},
        {"size": None},
        {"recipe_sha256": "0" * 64},
    ],
)
@pytest.mark.parametrize("damage", [change_manifest, make_older])
def test_numbers_that_contradict_each_other_are_damage(run, damage, change):
    save(run, 2, 7)
    damage(run, 7, **change)
    with pytest.warns(RuntimeWarning, match=r"00000007\.json.*going back"):
        assert latest_valid(run).step == 2


def test_every_bit_of_a_manifest_is_verified(run):
    """Each flip is noticed, or changes nothing that is read."""
    save(run, 7)
    path = run.checkpoints_path / "00000007.json"
    content, whole = path.read_bytes(), latest_valid(run)
    for place in range(0, 8 * len(content), 13):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        with suppress(CorruptDataError):
            read = latest_valid(run)
            assert dataclasses.replace(read, tensors={}) == dataclasses.replace(whole, tensors={}), place


def test_the_last_two_are_kept(run):
    save(run, 2, 4, 6, 10)
    assert names(run) == ["00000006.json", "00000006.safetensors", "00000010.json", "00000010.safetensors"]


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
    save(run, 2)
    monkeypatch.setattr(os, "replace", crash_at_rename(renames))
    with pytest.raises(PowerCut):
        save(run, 4)
    monkeypatch.undo()
    # As a process that is killed, and cannot clean up, leaves them.
    for name in ("00000004.safetensors.4711-0123abcd.tmp", "00000004.json.tmp"):
        (run.checkpoints_path / name).write_text("{")
    assert latest_valid(run).step == 2

    save(run, 6)
    assert names(run) == ["00000002.json", "00000002.safetensors", "00000006.json", "00000006.safetensors"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


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
    save(run, 2, 4)
    damage(run.checkpoints_path / f"00000004{suffix}")
    with pytest.warns(RuntimeWarning, match=r"00000004.*going back"):
        assert latest_valid(run).step == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_all_of_them_damaged_is_an_error_that_names_the_way_out(run, suffix):
    """As after a transfer that broke off: to begin anew would destroy what can still be brought back."""
    save(run, 2, 4)
    for step in (2, 4):
        truncate(run.checkpoints_path / f"{step:08d}{suffix}")
    with pytest.raises(CorruptDataError, match=r"00000004.*00000002.*bring the files back, or") as caught:
        latest_valid(run)
    assert f"no checkpoint in {run.checkpoints_path} is whole" in str(caught.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_what_cannot_be_read_is_not_taken_for_damage(run, monkeypatch, suffix):
    save(run, 2, 4)
    read_bytes = Path.read_bytes

    def refuse(path):
        if path.name == f"00000004{suffix}":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=f"00000004{suffix}"):
        latest_valid(run)


@pytest.mark.parametrize("number", [1, 4])
def test_another_format_is_an_error_even_if_an_older_checkpoint_is_valid(run, number):
    save(run, 2, 4)
    change_manifest(run, 4, format=number)
    with pytest.raises(ValueError, match=rf"00000004\.json has format {number}"):
        latest_valid(run)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("target", [None, "nowhere", "itself"])
def test_a_folder_or_a_broken_link_in_its_place_is_named_and_nothing_is_removed(run, suffix, target):
    save(run, 2, 4)
    path = run.checkpoints_path / f"00000004{suffix}"
    path.unlink()
    if target is None:
        path.mkdir()
    else:
        path.symlink_to(path.name if target == "itself" else target)
    with pytest.raises(
        CorruptDataError, match=rf"00000004\{suffix} is a folder or a broken link.*move it away"
    ):
        latest_valid(run)
    assert len(names(run)) == 4


def test_one_that_is_removed_while_it_is_read_gives_way_to_the_newer_one(run, monkeypatch):
    """By the process that trains, while another one looks."""
    save(run, 2)
    read_bytes = Path.read_bytes

    def read_after_two_more_saves(path):
        if path.name == "00000002.json":
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            save(run, 4, 6)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_after_two_more_saves)
    assert latest_valid(run).step == 6


def test_a_crash_while_later_ones_are_removed_leaves_no_manifest_without_numbers(run, monkeypatch):
    save(run, 5, 10)
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
    monkeypatch.undo()
    remove_later(run, 5)
    assert names(run) == ["00000005.json", "00000005.safetensors"]


def test_a_step_can_be_saved_again_with_a_crash_between_the_renames(run, monkeypatch):
    """As it is before and after the evaluation of an epoch: the numbers are the same, the manifest is not."""
    save(run, 4)
    evaluated = dataclasses.replace(checkpoint(4), epoch=1, step_in_epoch=0, losses=[])
    monkeypatch.setattr(os, "replace", crash_at_rename(1))
    with pytest.raises(PowerCut):
        save_checkpoint(run, tiny_recipe(), evaluated)
    monkeypatch.undo()
    assert latest_valid(run).step_in_epoch == 4


def test_a_damaged_newer_one_is_removed_by_the_next_save(run):
    save(run, 2, 4)
    truncate(run.checkpoints_path / "00000004.safetensors")
    save(run, 3)
    assert names(run) == ["00000002.json", "00000002.safetensors", "00000003.json", "00000003.safetensors"]
    assert latest_valid(run).step == 3


def test_files_of_others_are_left_alone(run):
    run.checkpoints_path.mkdir()
    (run.checkpoints_path / "notes.json").write_text("{}")
    save(run, 2)
    assert "notes.json" in names(run)
    assert latest_valid(run).step == 2


def test_another_recipe_is_an_error_that_names_the_fields(run):
    save_checkpoint(run, tiny_recipe(seed=1, learning_rate=0.5), checkpoint(2))
    with pytest.raises(ValueError, match=r"learning_rate is 0\.05, was 0\.5; seed is 0, was 1"):
        latest_valid(run, tiny_recipe())


RECIPES = [Recipe(), Recipe(momentum=0), Recipe(nesterov=True), Recipe(optimizer="adam", learning_rate=0.01)]


def train(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 5, 5, generator=generator)).square().mean().backward()
        optimizer.step()


def trained_pair(recipe, steps, channels_last=False):
    """A model and its optimizer after `steps` steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, recipe)
    train(model, optimizer, steps, seed=1)
    return model, optimizer


@pytest.mark.parametrize("recipe", RECIPES, ids=["sgd", "no momentum", "nesterov", "adam"])
def test_a_restored_pair_goes_on_identically(recipe):
    model, optimizer = trained_pair(recipe, 3)
    tensors = state_tensors(model, optimizer)
    other, other_optimizer = trained_pair(recipe, 0)
    restore_model(other, tensors)
    restore_optimizer(other_optimizer, other, tensors)
    train(model, optimizer, 3, seed=2)
    train(other, other_optimizer, 3, seed=2)
    assert weights_sha256(other) == weights_sha256(model)


def test_state_tensors_are_copies_and_restoring_needs_all_of_them():
    model, optimizer = trained_pair(Recipe(), 0)
    tensors = state_tensors(model, optimizer)
    before = copy.deepcopy(tensors)
    train(model, optimizer, 1, seed=2)
    assert all(tensors[name].equal(before[name]) for name in tensors)
    del tensors["model.0.weight"]
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        restore_model(model, tensors)


def test_the_hash_sees_one_bit_and_the_buffers_but_not_the_memory_layout():
    model, _ = trained_pair(Recipe(), 0)
    first = weights_sha256(model)
    assert weights_sha256(model.to(memory_format=torch.channels_last)) == first
    model[1].running_mean[0] += 1e-7
    assert weights_sha256(model) != first


def test_restored_state_has_the_layout_of_its_parameters():
    tensors = state_tensors(*trained_pair(Recipe(), 1, channels_last=True))
    assert tensors["optimizer.0.weight.momentum_buffer"].is_contiguous()
    model, optimizer = trained_pair(Recipe(), 0, channels_last=True)
    restore_optimizer(optimizer, model, tensors)
    buffer = optimizer.state[model[0].weight]["momentum_buffer"]
    assert buffer.stride() == model[0].weight.stride()
    assert torch.equal(buffer, tensors["optimizer.0.weight.momentum_buffer"])


@pytest.mark.parametrize(("recipe", "steps"), [*((recipe, 0) for recipe in RECIPES), (RECIPES[0], 2)])
def test_training_without_a_trace_even_if_it_fails(recipe, steps):
    model, optimizer = trained_pair(recipe, steps)
    other, other_optimizer = trained_pair(recipe, steps)
    places = [value.data_ptr() for value in model.state_dict().values()]
    with suppress(ZeroDivisionError), without_trace(model, optimizer):
        train(model, optimizer, 3, seed=9)
        assert weights_sha256(model) != weights_sha256(other)
        raise ZeroDivisionError
    assert [value.data_ptr() for value in model.state_dict().values()] == places
    train(model, optimizer, 2, seed=2)
    train(other, other_optimizer, 2, seed=2)
    assert weights_sha256(model) == weights_sha256(other)


@pytest.mark.parametrize("in_background", [False, True])
def test_files_are_written_in_order(in_background):
    writer, done = Writer(in_background=in_background), []
    for number in range(20):
        writer.do(lambda number=number: done.append(number))
    writer.finish()
    assert done == list(range(20))
    writer.close()


@pytest.mark.parametrize("method", ["finish", "close"])
def test_an_error_comes_out_of_the_next_call_and_nothing_more_is_written(method):
    """A checkpoint without the metrics before it would be resumed without them."""
    writer, written, may_fail = Writer(in_background=True), [], threading.Event()

    def fail():
        may_fail.wait(60)
        raise OSError("no space left")

    writer.do(fail)
    writer.do(lambda: written.append("checkpoint"))
    may_fail.set()
    with pytest.raises(OSError, match="no space left"):
        getattr(writer, method)()
    writer.close()
    assert written == []


def test_the_caller_continues_until_too_many_writes_wait():
    writer, may_go_on, done = Writer(in_background=True), threading.Event(), []
    writer.do(lambda: may_go_on.wait(60))
    for _ in range(MOST_WAITING - 1):
        writer.do(lambda: None)
    caller = threading.Thread(target=lambda: (writer.do(lambda: None), done.append(True)))
    caller.start()
    caller.join(0.1)
    assert done == []
    may_go_on.set()
    caller.join(60)
    assert done == [True]
    writer.close()
