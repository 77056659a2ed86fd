"""Lazy names: imported on first use, and never shadowed by a file of the same name."""

import sys
from types import ModuleType

import pytest

from nonloc._lazy import lazy


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazyhouse"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from nonloc._lazy import lazy\n"
        "__getattr__, __dir__ = lazy(__name__, {'door': 'lazyhouse.door', 'room': 'lazyhouse.rooms'})\n"
    )
    (folder / "door.py").write_text("def door():\n    return 'open'\n")
    (folder / "rooms.py").write_text("def room():\n    return 'quiet'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [n for n in sys.modules if n.startswith("lazyhouse")]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_module_is_imported_on_first_use():
    import lazyhouse

    assert "lazyhouse.rooms" not in sys.modules
    assert lazyhouse.room() == "quiet"
    assert "lazyhouse.rooms" in sys.modules
    assert dir(lazyhouse) == ["door", "room"]


@pytest.mark.usefixtures("package")
def test_a_name_spelled_like_its_file_stays_the_name():
    import lazyhouse.door

    assert lazyhouse.door() == "open"
    assert isinstance(sys.modules["lazyhouse.door"], ModuleType)


def test_an_unknown_name_is_an_attribute_error():
    get, _ = lazy("nonloc._lazy", {})
    with pytest.raises(AttributeError, match="'nonloc._lazy' has no attribute 'nothing'"):
        get("nothing")
