import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data.cifar import read_cifar, read_source
from nonloc_paper.data.download import SOURCES


def flip_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("inside", [False, True])
def test_files_are_read_in_order_with_their_last_label_byte(tiny, tmp_path: Path, inside: bool) -> None:
    """From the folder of the data sets, or from that of the files."""
    folder = tiny.write(tmp_path)
    data = read_source(tiny.source, folder / tiny.source.folder if inside else folder)
    assert torch.equal(torch.cat([data.train.images, data.test.images]), torch.from_numpy(tiny.images))
    assert data.train.labels is not None
    assert data.train.labels.tolist() == tiny.labels[:10].tolist()
    assert data.classes == ("ant", "bee", "cat")


def test_missing_files_say_what_to_get_where_to_put_it_and_how(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        read_cifar("cifar10", tmp_path)
    message = str(caught.value)
    expected = (
        "data_batch_1.bin",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        str(tmp_path / "cifar-10-binary.tar.gz"),
        f"nonloc data cifar10 --data-dir {tmp_path}",
    )
    assert [part for part in expected if part not in message] == []


def test_only_the_missing_file_is_named(tiny, tmp_path: Path) -> None:
    (tiny.write(tmp_path) / tiny.source.folder / "b.bin").unlink()
    with pytest.raises(MissingDataError, match=r": no b\.bin\."):
        read_source(tiny.source, tmp_path)


def test_a_flipped_byte_names_the_file_and_both_hashes(tiny, tmp_path: Path) -> None:
    bad = tiny.write(tmp_path) / tiny.source.folder / "b.bin"
    flip_byte(bad, 20)
    with pytest.raises(CorruptDataError) as caught:
        read_source(tiny.source, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{bad} has a wrong SHA-1: got ")
    assert f"expected {tiny.source.train[1].sha1}" in message
    assert f"Delete it and run `nonloc data cifar100 --data-dir {tmp_path}`" in message
    assert len(read_source(tiny.source, tmp_path, verify=False).train) == 10


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("change", [-1, 1, 50], ids=["short", "long", "a record too many"])
def test_a_wrong_size_names_the_file_and_both_sizes(tiny, tmp_path: Path, change: int, verify: bool) -> None:
    bad = tiny.write(tmp_path) / tiny.source.folder / "t.bin"
    bad.write_bytes((bad.read_bytes() + bytes(50))[: 200 + change])
    with pytest.raises(
        CorruptDataError, match=rf"t\.bin has a wrong size: {200 + change} bytes, expected 200"
    ):
        read_source(tiny.source, tmp_path, verify=verify)


def test_a_label_out_of_range_is_found_unverified(tiny, tmp_path: Path) -> None:
    bad = tiny.write(tmp_path) / tiny.source.folder / "a.bin"
    content = bytearray(bad.read_bytes())
    content[3 * 50 + 1] = 3
    bad.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"a\.bin has label 3 in record 3, expected 0 to 2"):
        read_source(tiny.source, tmp_path, verify=False)


def test_one_label_byte_is_read_as_cifar10_does(tiny, tmp_path: Path) -> None:
    source = replace(tiny.source, label_bytes=1, classes=("ant", "bee", "cat"))
    for member in source.members:
        path = tmp_path / member.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(bytes([2]) + bytes(range(48)) for _ in range(member.records)))
    data = read_source(source, tmp_path, verify=False)
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [2] * 4
    assert data.test.images[3].flatten().tolist() == list(range(48))


@pytest.fixture
def official(request: pytest.FixtureRequest) -> Path:
    """The folder NONLOC_DATA, when it holds the official files of the data set `request.param`."""
    source = SOURCES[request.param]
    folder = Path(os.environ.get("NONLOC_DATA", ""))
    if not all((folder / member.path).is_file() for member in source.members):
        pytest.skip(f"set NONLOC_DATA to a folder with {source.folder}/ to check the official files")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "official", "per_class"),
    [("cifar10", "cifar10", 5000), ("cifar100", "cifar100", 500)],
    indirect=["official"],
)
def test_official_files_hold_balanced_classes(name: str, official: Path, per_class: int) -> None:
    data = read_cifar(name, official)
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.test.images.shape == (10_000, 3, 32, 32)
    assert data.train.labels is not None
    assert data.test.labels is not None
    assert data.train.labels.bincount().tolist() == [per_class] * data.num_classes
    assert data.test.labels.bincount().tolist() == [10_000 // data.num_classes] * data.num_classes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "official", "file"),
    [("cifar10", "cifar10", "data_batch_3.bin"), ("cifar100", "cifar100", "test.bin")],
    indirect=["official"],
)
def test_official_files_with_a_flipped_byte_are_refused(
    name: str, official: Path, file: str, tmp_path: Path
) -> None:
    copy = tmp_path / SOURCES[name].folder
    shutil.copytree(official / SOURCES[name].folder, copy)
    flip_byte(copy / file, 12_345_678)
    with pytest.raises(CorruptDataError, match=rf"{file} has a wrong SHA-1"):
        read_cifar(name, tmp_path)
