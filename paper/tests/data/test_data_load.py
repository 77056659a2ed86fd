import subprocess
import sys
from pathlib import Path

import pytest

import nonloc_paper.data
from nonloc.outcomes import MissingDataError
from nonloc_paper.data import load


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="motifs, cifar10, cifar100"):
        load("mnist")


def test_motifs_are_loaded_as_their_table_says() -> None:
    data = load("motifs")
    size = nonloc_paper.data.DATASETS["motifs"]["size"]
    assert (data.name, data.num_classes, list(data.test.images.shape)) == ("motifs", 0, [512, 3, size, size])


def test_data_dir_reaches_the_reader(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=str(tmp_path)):
        load("cifar100", tmp_path)


def test_the_package_names_are_not_hidden_by_modules_of_the_same_name() -> None:
    import nonloc_paper.data.download
    import nonloc_paper.data

    assert callable(nonloc_paper.data)
    assert callable(nonloc_paper.data.download)


def test_every_listed_name_is_there() -> None:
    assert [name for name in dir(nonloc_paper.data) if not hasattr(nonloc_paper.data, name)] == []


def test_names_and_download_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from nonloc_paper.data import DATASETS, NAMES, download, load;"
        "print(sorted({'torch', 'numpy', 'pooch', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
