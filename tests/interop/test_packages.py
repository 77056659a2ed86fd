"""What `pip install` and a package registry get: small, pure Python, without records."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[2]
TEXT = {".py", ".typed", ".html", ".css", ".js", ".json", ".md", ".toml", ".cff", ".LICENSE", ""}
STATISTICS = "nonloc_paper/data/pixel_statistics.safetensors"  # the mean image of a data set, not a record


def build(project, target, folder):
    """The file that hatchling makes of a project, and the names in it without its topmost folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=project, capture_output=True, check=True)
    (path,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    if target == "wheel":
        return path, set(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(folder, filter="data")
    return path, names


@pytest.mark.parametrize(("folder", "package"), [("", "nonloc"), ("paper", "nonloc_paper")])
def test_both_packages_are_small_and_pure_and_the_source_makes_the_wheel(folder, package, tmp_path):
    wheel, installed = build(ROOT / folder, "wheel", tmp_path)
    source, names = build(ROOT / folder, "sdist", tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert max(wheel.stat().st_size, source.stat().st_size) < 2**20
    for name in (installed | names) - {STATISTICS}:
        assert name.startswith(f"{package}/") or name.count("/") == 0 or ".dist-info/" in name
        assert Path(name).suffix in TEXT or ".dist-info/" in name
    files = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder / package).rglob("*.py")}
    assert files <= installed
    assert any(name.endswith("licenses/LICENSE") for name in installed)
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    again, same = build(unpacked, "wheel", tmp_path / "again")
    assert (again.name, same) == (wheel.name, installed)
