"""write_explorer: the page's files and, as scripts, the data of each panel; the same records give the same data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nonloc_paper.explorer import affinity_maps, map_data, tables_data, training_data
from nonloc_paper.explorer.pictures import pictures
from nonloc_paper.paths import real_path
from nonloc_paper.report.map.cells import read_map
from nonloc_paper.report.reproduction import MAP, has_records
from nonloc_paper.report.table1_runs import read_table1_runs
from nonloc_paper.runs import write_atomically

PAGE = Path(__file__).parent / "page"
PANELS = ("click", "play", "training", "map", "tables")  # the ids, which page/ID.js and data/ID.js have, too
# What "Play" makes a kernel of: patches of 3 × 3 pixels, h of exp(−|patch − patch'|²/h²) as in `nonloc simulate`, and
# the pixels between neighbours in each direction.
PLAY = {"patch_radius": 1, "bandwidth": 0.1, "reach": 4}


def write_explorer(
    folder: str | os.PathLike[str],
    records: str | os.PathLike[str],
    *,
    demo: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write the explorer of some records into a folder, and return its files.

    demo  the folder of a finished demo, to show its networks, too
    """
    root = Path(folder)
    _check_folder(root, Path(records))
    contents = {
        path.relative_to(PAGE): path.read_bytes() for path in sorted(PAGE.rglob("*")) if path.is_file()
    }
    runs, trained = read_table1_runs(records), read_map(Path(records, MAP))
    panels = (
        affinity_maps.data(Path(records), demo),
        {"pictures": affinity_maps.encode_pictures(pictures()), **PLAY},
        training_data.data(runs),
        map_data.data(trained),
        tables_data.data(runs, trained),
    )
    for name, data in zip(PANELS, panels, strict=True):
        contents[Path("data", f"{name}.js")] = as_script(name, data)
    for path, content in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(root / path, content)
    return [root / path for path in contents]


def as_script(name: str, data: dict[str, Any]) -> bytes:
    """Return data as a script, for pages that are opened from disk cannot read JSON."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"explorer.data.{name} = {text};\n".encode()


def from_script(name: str, content: bytes) -> Any:
    """Return the data of a script that `as_script` made."""
    return json.loads(content.decode().removeprefix(f"explorer.data.{name} = ").rstrip().removesuffix(";"))


def _check_folder(root: Path, records: Path) -> None:
    """Refuse a folder with other things in it, and the records themselves."""
    if not has_records(records):
        raise ValueError(f"{records} has no kept records; name a folder that has, such as paper/results")
    if real_path(records) in (real_path(root), *real_path(root).parents):
        raise ValueError(f"{root} is in the records {records}; name a folder elsewhere")
    is_other = root.is_dir() and any(root.iterdir()) and not (root / "frame.js").is_file()
    if is_other or (root.exists() and not root.is_dir()):
        raise ValueError(f"{root} is there and is no explorer; name a new folder")
