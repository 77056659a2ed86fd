import gzip
import hashlib
import http.server
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pooch
import pytest

import nonloc_paper.data
from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data import load
from nonloc_paper.data.cifar import read_source
from nonloc_paper.data.download import SOURCES, data_folder, download, fetch, files_folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which a server on this machine shows it."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def expected(tiny) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: content for path, content in tiny.files.items()}


def test_the_archive_is_downloaded_and_unpacked(
    tiny, served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = served
    source = replace(tiny.archive(folder), url=f"{address}/tiny.tar.gz")
    place = fetch(source, tmp_path / "data", progress=True)
    assert contents(place) == expected(tiny)
    assert "100%" in capsys.readouterr().err
    data = read_source(source, place)
    assert (len(data.train), len(data.test)) == (10, 4)


def test_an_archive_that_is_there_needs_no_network_and_only_the_named_files_are_unpacked(
    tiny, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    place = fetch(tiny.archive(folder), folder)
    assert contents(place) == expected(tiny)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"data/tiny.tar.gz", *(f"data/{path}" for path in tiny.files)}
    (tmp_path / "any").touch()
    assert (place / "a.bin").stat().st_mode == (tmp_path / "any").stat().st_mode, "as any new file"


def test_sound_files_need_neither_archive_nor_network(tiny, tmp_path: Path) -> None:
    tiny.write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    fetch(tiny.source, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_damaged_file_is_mended_and_the_others_left_alone(tiny, tmp_path: Path) -> None:
    source = tiny.archive(tiny.write(tmp_path))
    damaged, sound = (tmp_path / source.folder / name for name in ("a.bin", "b.bin"))
    damaged.write_bytes(b"damaged")
    before = sound.stat().st_ino
    assert contents(fetch(source, tmp_path)) == expected(tiny)
    assert sound.stat().st_ino == before


def test_a_damaged_archive_is_named_and_kept(tiny, tmp_path: Path) -> None:
    tiny.archive(tmp_path)
    with pytest.raises(
        CorruptDataError, match=r"tiny\.tar\.gz has a wrong MD5: got \w{32}, expected 0{32}\."
    ):
        fetch(tiny.source, tmp_path)
    assert (tmp_path / "tiny.tar.gz").is_file()


def test_a_damaged_file_is_named_and_kept_when_no_other_can_be_had(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    tiny.write(tmp_path)
    damaged = tmp_path / tiny.source.folder / "a.bin"
    damaged.write_bytes(b"damaged")
    with pytest.raises(
        CorruptDataError, match=r"a\.bin has a wrong size.*No other copy can be had.*ConnectionError"
    ):
        fetch(tiny.source, tmp_path, progress=False)
    assert damaged.read_bytes() == b"damaged"


@pytest.mark.parametrize(("file", "message"), [("tiny.tar.gz", "wrong MD5"), ("other.tar.gz", "404")])
def test_a_wrong_or_missing_download_leaves_nothing(
    tiny, served, tmp_path: Path, file: str, message: str
) -> None:
    folder, address = served
    tiny.archive(folder)
    source = replace(tiny.source, url=f"{address}/{file}")
    with pytest.raises(MissingDataError, match=message):
        fetch(source, tmp_path / "data", progress=False)
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a regular file"),
        (bytes(251), r"tiny-bin/a\.bin with 251 bytes, .* 250 bytes"),
        (bytes(250), r"tiny-bin/a\.bin with SHA-1"),
    ],
    ids=["a link", "wrong size", "other content"],
)
def test_a_member_that_is_not_the_published_file_is_refused(
    tiny, tmp_path: Path, content: bytes | None, message: str
) -> None:
    entry = tiny.entry("tiny-bin/a.bin", content or b"")
    if content is None:
        entry[0].type, entry[0].linkname = tarfile.SYMTYPE, "b.bin"
    source = tiny.archive(tmp_path, [entry])
    with pytest.raises(CorruptDataError, match=message):
        fetch(source, tmp_path)
    assert list((tmp_path / "tiny-bin").glob("*")) == []


@pytest.mark.parametrize("path", ["a.bin", "../tiny-bin/a.bin", "tiny-bin/./a.bin"])
def test_a_member_counts_only_under_its_exact_name(tiny, tmp_path: Path, path: str) -> None:
    entries = [
        tiny.entry(name, content) for name, content in tiny.files.items() if not name.endswith("a.bin")
    ]
    source = tiny.archive(tmp_path, [tiny.entry(path, tiny.files["tiny-bin/a.bin"]), *entries])
    with pytest.raises(CorruptDataError, match=r"does not hold tiny-bin/a\.bin"):
        fetch(source, tmp_path)


def test_an_entry_that_says_it_is_huge_is_refused_at_once(tiny, tmp_path: Path) -> None:
    """To pass over it would take hours, though the archive ends."""
    source = tiny.archive(tmp_path, [tiny.entry(path, content) for path, content in tiny.files.items()])
    path = tmp_path / source.archive
    huge = tarfile.TarInfo("other")
    huge.size = 10**15
    path.write_bytes(gzip.compress(huge.tobuf() + gzip.decompress(path.read_bytes())))
    source = replace(source, md5=hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(CorruptDataError, match="holds 'other' with 1,000,000,000,000,000 bytes"):
        fetch(source, tmp_path)


@pytest.mark.parametrize("length", [3, -600])
def test_a_truncated_archive_is_refused(tiny, tmp_path: Path, length: int) -> None:
    tiny.archive(tmp_path)
    path = tmp_path / "tiny.tar.gz"
    path.write_bytes(path.read_bytes()[:length])
    source = replace(tiny.source, md5=hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(CorruptDataError, match=r"cannot be read as a \.tar\.gz"):
        fetch(source, tmp_path)


def test_unknown_names_list_the_choices_and_data_dir_reaches_the_reader(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cifar10, cifar100"):
        download("mnist")
    with pytest.raises(ValueError, match=r"cifar10, cifar100 \(motifs need no download"):
        download("motifs")
    with pytest.raises(ValueError, match="motifs, cifar10, cifar100"):
        load("mnist")
    with pytest.raises(MissingDataError, match=str(tmp_path)):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("name", "record_bytes", "classes"), [("cifar10", 3073, 10), ("cifar100", 3074, 100)]
)
def test_sources_are_as_published(name: str, record_bytes: int, classes: int) -> None:
    source = SOURCES[name]
    assert (source.record_bytes, len(set(source.classes))) == (record_bytes, classes)
    assert [sum(m.records for m in part) for part in (source.train, source.test)] == [50_000, 10_000]


def test_the_data_folder_is_the_argument_or_the_environment_or_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NONLOC_DATA", str(tmp_path / "environment"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert data_folder(".") == tmp_path
    assert data_folder("~/sets") == tmp_path / "sets"
    assert data_folder() == tmp_path / "environment"
    monkeypatch.setenv("NONLOC_DATA", "")
    assert data_folder() == Path(pooch.os_cache("nonloc"))


def test_the_folder_of_the_files_is_recognised_by_its_name_or_its_files(tiny, tmp_path: Path) -> None:
    inside = tmp_path / tiny.source.folder
    assert files_folder(tiny.source, tmp_path) == inside
    assert files_folder(tiny.source, inside) == inside
    tiny.write(tmp_path)
    renamed = inside.rename(tmp_path / "renamed")
    assert files_folder(tiny.source, renamed) == renamed


def test_the_package_names_are_there_and_not_hidden_by_modules_of_the_same_name() -> None:
    assert callable(nonloc_paper.data.download)
    assert [name for name in dir(nonloc_paper.data) if not hasattr(nonloc_paper.data, name)] == []
