import sys
from pathlib import Path

import pooch
import pytest

from nonloc.outcomes import MissingDataError
from nonloc_paper.data.download import data_folder, files_folder


def test_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NONLOC_DATA", str(tmp_path / "environment"))
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"


def test_environment_wins_over_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NONLOC_DATA", str(tmp_path))
    assert data_folder() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_cache_is_the_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("NONLOC_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("NONLOC_DATA", value)
    assert data_folder() == Path(pooch.os_cache("nonloc"))


def test_without_pooch_the_error_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NONLOC_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingDataError, match=r"data_dir.*NONLOC_DATA.*nonloc\[train\]"):
        data_folder()


def test_relative_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_folder(".") == tmp_path


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder("~/sets") == tmp_path / "sets"


def test_files_are_expected_in_the_source_folder(tiny, tmp_path: Path) -> None:
    assert files_folder(tiny.source, tmp_path) == tmp_path / tiny.source.folder


def test_the_source_folder_itself_is_recognised_by_name(tiny, tmp_path: Path) -> None:
    place = tmp_path / tiny.source.folder
    assert files_folder(tiny.source, place) == place


def test_the_source_folder_itself_is_recognised_by_its_files(tiny, tmp_path: Path) -> None:
    tiny.write(tmp_path)
    renamed = (tmp_path / tiny.source.folder).rename(tmp_path / "renamed")
    assert files_folder(tiny.source, renamed) == renamed
