"""Where each downloaded data set comes from and what its files must be: facts, no input or output."""

from __future__ import annotations

from dataclasses import dataclass

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"

_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Member:
    """One binary file: its path in the archive, its SHA-1 and its number of records."""

    path: str
    sha1: str
    records: int

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """One data set as published: an archive with binary files of fixed-length records.

    A record is `label_bytes` bytes of labels, the last of which is the one we use, followed by `size`²
    red, `size`² green and `size`² blue bytes, each plane row by row.
    """

    name: str
    title: str
    archive: str
    md5: str
    url: str
    folder: str
    train: tuple[Member, ...]
    test: tuple[Member, ...]
    label_bytes: int
    classes: tuple[str, ...]
    size: int = 32
    home: str = HOME

    @property
    def members(self) -> tuple[Member, ...]:
        return self.train + self.test

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + 3 * self.size * self.size

    def bytes_of(self, member: Member) -> int:
        return member.records * self.record_bytes


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=(
        Member("cifar-10-batches-bin/data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540", 10_000),
        Member("cifar-10-batches-bin/data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795", 10_000),
        Member("cifar-10-batches-bin/data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295", 10_000),
        Member("cifar-10-batches-bin/data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e", 10_000),
        Member("cifar-10-batches-bin/data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628", 10_000),
    ),
    test=(Member("cifar-10-batches-bin/test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c", 10_000),),
    label_bytes=1,
    classes=tuple(_CIFAR10_CLASSES.split()),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=(Member("cifar-100-binary/train.bin", "e207cd2e05b73b1393c74c7f5e7bea451d63e08e", 50_000),),
    test=(Member("cifar-100-binary/test.bin", "8fb6623e830365ff53cf14adec797474f5478006", 10_000),),
    label_bytes=2,  # the coarse label comes first, the fine one second
    classes=tuple(_CIFAR100_CLASSES.split()),
)

SOURCES = {source.name: source for source in (CIFAR10, CIFAR100)}


def source_of(name: str) -> Source:
    """The `Source` called `name`; a name that is not one lists the choices."""
    if name not in SOURCES:
        hint = " (motifs are made on the spot: nothing to download)" if name == "motifs" else ""
        raise ValueError(
            f"name={name!r} is not a downloadable data set; choose one of {', '.join(SOURCES)}{hint}"
        )
    return SOURCES[name]
