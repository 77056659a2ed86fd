import os
from pathlib import Path

import pytest
from tiny_archive import make_tiny

from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data.cifar import read_cifar, read_source
from nonloc_paper.data.download import SOURCES


@pytest.mark.parametrize(("inside", "label_bytes"), [(False, 1), (False, 2), (True, 2)])
def test_files_are_read_in_order_with_their_last_label_byte(
    tmp_path: Path, inside: bool, label_bytes: int
) -> None:
    """From the folder of the data sets, or from that of the files."""
    tiny = make_tiny(0, label_bytes)
    folder = tiny.write(tmp_path)
    data = read_source(tiny.source, folder / tiny.source.folder if inside else folder)
    assert tiny.is_whole(data)
    assert (len(data.train), data.classes) == (10, ("ant", "bee", "cat"))


def test_missing_files_say_what_to_get_where_to_put_it_and_how(tiny, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        read_cifar("cifar10", tmp_path)
    for part in (
        "data_batch_1.bin",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        str(tmp_path / "cifar-10-binary.tar.gz"),
        f"nonloc data cifar10 --data-dir {tmp_path}",
    ):
        assert part in str(caught.value)
    (tiny.write(tmp_path) / tiny.source.folder / "b.bin").unlink()
    with pytest.raises(MissingDataError, match=r": no b\.bin\."):
        read_source(tiny.source, tmp_path)


def test_a_flipped_byte_names_the_file_and_both_hashes(tiny, tmp_path: Path) -> None:
    damaged = tiny.write(tmp_path) / tiny.source.folder / "b.bin"
    content = bytearray(damaged.read_bytes())
    content[20] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(CorruptDataError) as caught:
        read_source(tiny.source, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{damaged} has a wrong SHA-1: got ")
    assert f"expected {tiny.source.train[1].sha1}" in message
    assert f"Delete it and run `nonloc data cifar100 --data-dir {tmp_path}`" in message


@pytest.mark.parametrize("size", [199, 201, 250], ids=["short", "long", "a record too many"])
def test_a_wrong_size_names_the_file_and_both_sizes(tiny, tmp_path: Path, size: int) -> None:
    damaged = tiny.write(tmp_path) / tiny.source.folder / "t.bin"
    damaged.write_bytes((damaged.read_bytes() + bytes(50))[:size])
    with pytest.raises(CorruptDataError, match=rf"t\.bin has a wrong size: {size} bytes, expected 200"):
        read_source(tiny.source, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_official_files_hold_balanced_classes(name: str) -> None:
    """In the folder NONLOC_DATA, if the official files are there."""
    folder = Path(os.environ.get("NONLOC_DATA", ""))
    if not all((folder / SOURCES[name].folder / one.file).is_file() for one in SOURCES[name].members):
        pytest.skip(f"set NONLOC_DATA to a folder with {SOURCES[name].folder}/ to check the official files")
    data = read_cifar(name, folder)
    for split, count in ((data.train, 50_000), (data.test, 10_000)):
        assert split.images.shape == (count, 3, 32, 32)
        assert split.labels is not None
        assert split.labels.bincount().tolist() == [count // data.num_classes] * data.num_classes
