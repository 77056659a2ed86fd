import pytest

from nonloc_paper.data import DATASETS, NAMES
from nonloc_paper.data.download import SOURCES, source_of


@pytest.mark.parametrize("name", SOURCES)
def test_names_table_agrees_with_the_source(name: str) -> None:
    source = SOURCES[name]
    assert DATASETS[name] == {"classes": len(set(source.classes)), "size": source.size}


def test_every_other_name_is_the_embedded_set() -> None:
    assert set(NAMES) - set(SOURCES) == {"motifs"}


@pytest.mark.parametrize(("name", "record_bytes"), [("cifar10", 3073), ("cifar100", 3074)])
def test_records_have_the_published_length(name: str, record_bytes: int) -> None:
    assert SOURCES[name].record_bytes == record_bytes


@pytest.mark.parametrize("name", SOURCES)
def test_sources_hold_50000_and_10000_images(name: str) -> None:
    source = SOURCES[name]
    assert [sum(m.records for m in part) for part in (source.train, source.test)] == [50_000, 10_000]


@pytest.mark.parametrize("name", SOURCES)
def test_members_lie_in_the_folder_of_their_source(name: str) -> None:
    source = SOURCES[name]
    assert [m.path for m in source.members] == [f"{source.folder}/{m.file}" for m in source.members]


def test_unknown_source_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="cifar10, cifar100"):
        source_of("mnist")


def test_motifs_need_no_download_and_the_error_says_so() -> None:
    with pytest.raises(ValueError, match="nothing to download"):
        source_of("motifs")
