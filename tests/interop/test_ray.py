"""nonloc reproduce --engine ray: the same records as without it, also where a worker is killed, or the command.

Data that a run lacks are an error of that run, and a run that is too large for the cluster is a warning.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nonloc_paper.runs import find_runs

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SMALL = ["epochs=3", "steps_per_epoch=2", "train_images=64", "test_images=16", "batch_size=8"]
WORDS = ["demo", "--seeds", "4", "--rows", "1", "3", "--device", "cpu", "--kept", "null", "--set", *SMALL]


def reproduce(folder, *more, environment=None):
    words = [sys.executable, "-m", "nonloc", "reproduce", *WORDS, "--output", str(folder), "--json", *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def cluster():
    """(the environment that names a cluster of two machines with one core each, their processes)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    start = [Path(sys.executable).parent / "ray", "start", "--block", "--num-cpus", "1"]
    places = [["--head", "--port", address.partition(":")[2]], ["--address", address]]
    nodes = []
    try:
        for place in places:
            log = subprocess.DEVNULL
            nodes.append(subprocess.Popen([*start, *place], stdout=log, stderr=log, env=environment))
            status = [start[0], "status", "--address", address]
            for _ in range(60):
                found = subprocess.run(status, capture_output=True, text=True, env=environment).stdout
                if found.count(" node_") == len(nodes):
                    break
                time.sleep(1)
            else:
                raise AssertionError("the cluster has not begun")
        yield environment | {"RAY_ADDRESS": address}, nodes
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait()


def worker_in_a_run(process, nodes, folder):
    """A process of Ray that trains, once the first run has finished an epoch."""
    import psutil

    for _ in range(1200):
        time.sleep(0.1)
        assert process.poll() is None, process.communicate()
        if not any(folder.glob("runs/*/metrics.jsonl")):
            continue
        with suppress(psutil.Error):
            for child in (
                child for node in nodes for child in psutil.Process(node.pid).children(recursive=True)
            ):
                if child.name().startswith("ray::_train"):
                    return child
    raise AssertionError("no run has begun")


def timeless(value):
    """Without seconds, which two runs of one recipe differ in, and what is computed from files that have them."""
    if isinstance(value, dict):
        left_out = {"seconds", "checksum", "sha256", "size"}
        return {key: timeless(one) for key, one in value.items() if key not in left_out}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def records(folder):
    """Every JSON file of every run."""
    found = {}
    for run in find_runs(folder / "runs"):
        for path in sorted(run.path.glob("*.json*")):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            found[path.parent.name, path.name] = [timeless(json.loads(line)) for line in lines]
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    process = reproduce(folder)
    assert process.wait() == 0, process.communicate()
    return records(folder)


def test_a_killed_worker_loses_nothing(tmp_path, expected, cluster):
    environment, nodes = cluster
    process = reproduce(tmp_path, "--engine", "ray", environment=environment)
    worker_in_a_run(process, nodes, tmp_path).kill()
    output, messages = process.communicate()
    assert process.returncode == 0, messages
    assert "A worker died or was killed while executing a task" in messages
    assert json.loads(output)["done"] == 8
    assert records(tmp_path) == expected
    (line,) = (tmp_path / "spent.jsonl").read_text().splitlines()
    assert json.loads(line)["device"] == "cpu"


def test_an_interrupted_command_goes_on(tmp_path, expected, cluster):
    environment, nodes = cluster
    process = reproduce(tmp_path, "--engine", "ray", environment=environment)
    worker_in_a_run(process, nodes, tmp_path)
    process.send_signal(signal.SIGTERM)
    output, messages = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, messages
    result = json.loads(output)
    assert result["reason"] == "It was stopped by SIGTERM."
    assert 0 < len(result["left"]) <= 8
    unfinished = [run for run in find_runs(tmp_path / "runs") if not run.is_finished]
    assert all(any(run.checkpoints_path.iterdir()) for run in unfinished)
    process = reproduce(tmp_path)
    assert process.wait() == 0
    assert records(tmp_path) == expected


WITH_AND_WITHOUT_DATA = """
import json, sys, torch
from nonloc_paper.suites.ray_engine import train_all_by_ray
from nonloc_paper.training.recipe import Recipe
size = json.loads(sys.argv[1])
torch.set_num_threads(1)  # a machine of the cluster has one core
networks = ("preresnet20/diffusive-1@2", "cifar10"), ("restorer4/diffusive-2@1", "motifs")
recipes = [Recipe(*each, seed=seed, **size) for seed in (0, 1) for each in networks]
progress = train_all_by_ray(recipes, "runs", data_dir=".", device="cpu")
sides = [[recipe.data for recipe in side] for side in (progress.done, progress.left)]
print(json.dumps([*sides, progress.reason, [[type(error).__name__, str(error)] for error in progress.errors]]))
"""


def test_missing_data_are_an_error_of_each_run_that_lacks_them(tmp_path, cluster):
    environment, _ = cluster
    size = {name: int(value) for name, _, value in (word.partition("=") for word in SMALL)}
    words = [sys.executable, "-c", WITH_AND_WITHOUT_DATA, json.dumps(size)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finished, left, reason, errors = json.loads(done.stdout)
    assert (finished, left, reason) == (["motifs"] * 2, ["cifar10"] * 2, "")
    assert [name for name, _ in errors] == ["MissingDataError"] * 2
    assert all("nonloc data" in message for _, message in errors)


def test_a_run_that_no_machine_can_take_is_a_warning(tmp_path, cluster):
    environment, _ = cluster
    process = reproduce(tmp_path, "--engine", "ray", "--threads", "2", environment=environment)
    assert process.stderr is not None
    messages = []
    while not messages or "no machine of the cluster has 2 cores" not in messages[-1]:
        messages.append(process.stderr.readline())
        assert messages[-1], messages
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert len(json.loads(output)["left"]) == 8
