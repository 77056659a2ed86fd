"""Pictures of every shape and mode: the numbers that their pixels stand for, or an error that names the fix."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from nonloc.cli import main
from nonloc.cli.simulate_picture import read_picture

GREY = np.array([[0, 51, 102], [153, 204, 255]], dtype=np.uint8)  # fifths of white
FIFTHS = torch.tensor([[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]], dtype=torch.float64)


def read(tmp_path, picture, name="picture.png", **options):
    picture.save(tmp_path / name, **options)
    return read_picture(str(tmp_path / name), max(picture.size))


@pytest.mark.parametrize(
    ("mode", "name"), [("L", "a.png"), ("LA", "a.png"), ("RGB", "a.png"), ("P", "a.png"), ("CMYK", "a.tif")]
)
def test_a_grey_picture_is_the_same_in_every_mode(tmp_path, mode, name):
    actual = read(tmp_path, Image.fromarray(GREY).convert(mode), name)
    assert actual.shape == (3, 2, 3)
    assert float((actual - FIFTHS).abs().max()) <= 1e-12


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_are_not_cut_off_at_white(tmp_path, name):
    actual = read(tmp_path, Image.fromarray(GREY.astype(np.uint16) * 257), name)
    assert float((actual - FIFTHS).abs().max()) <= 1e-7


def test_floating_point_is_taken_as_it_is(tmp_path):
    actual = read(tmp_path, Image.fromarray(GREY.astype(np.float32) / 255), "a.tif")
    assert float((actual - FIFTHS).abs().max()) <= 1e-7


def test_two_levels_are_black_and_white(tmp_path):
    actual = read(tmp_path, Image.fromarray(GREY > 100))
    assert torch.equal(actual[0], torch.tensor([[0, 0, 1], [1, 1, 1]], dtype=torch.float64))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_white(tmp_path, mode):
    clear = Image.new("RGBA", (3, 3), (0, 0, 0, 0)).convert(mode)
    assert bool((read(tmp_path, clear) == 1).all())


def test_a_transparent_colour_of_a_palette_is_white(tmp_path):
    palette = Image.new("P", (3, 3), 0)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert bool((read(tmp_path, palette, "a.gif", transparency=0) == 1).all())


def test_a_camera_that_was_held_upright_is_believed(tmp_path):
    wide = Image.new("RGB", (8, 4))
    exif = wide.getexif()
    exif[274] = 6
    assert read(tmp_path, wide, "a.jpg", exif=exif).shape == (3, 8, 4)


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((1, 1), (3, 9, 9)),
        ((20, 1), (3, 1, 9)),
        ((1, 20), (3, 9, 1)),
        ((1000, 1), (3, 1, 9)),
        ((3, 2), (3, 6, 9)),
    ],
)
def test_shapes_are_scaled_by_their_longer_side(tmp_path, size, shape):
    path = tmp_path / "picture.png"
    Image.new("RGB", size, "white").save(path)
    assert read_picture(str(path), 9).shape == shape


def headed(width, height):
    """A PNG that says how large it is and then has no pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as an image .*; use a PNG or JPEG"),
        (b"no picture", "cannot be read as an image"),
        (headed(8, 8), "cannot be read as an image"),
        (headed(0, 8), "cannot be read as an image"),
        (headed(50_000, 50_000), "is too large to be opened .*; scale it down first"),
    ],
)
def test_a_file_that_is_empty_broken_or_a_bomb_is_refused(tmp_path, content, message):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_picture(str(path), 9)


@pytest.mark.parametrize("keep", [0.3, 0.9])
@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_file_that_is_cut_short_is_refused(tmp_path, name, keep):
    pixels = np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match="cannot be read as an image"):
        read_picture(str(tmp_path / name), 9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0.0, np.nan]], dtype=np.float32), "mode F that are not finite numbers from 0 to 1"),
        (np.array([[0.0, 255.0]], dtype=np.float32), "mode F that are not finite numbers from 0 to 1"),
        (np.array([[0, 70_000]], dtype=np.int32), "mode I that are not whole numbers from 0 to 65535"),
        (np.array([[0, -1]], dtype=np.int32), "mode I that are not whole numbers from 0 to 65535"),
    ],
)
def test_values_beyond_white_are_refused_and_not_cut_off(tmp_path, values, message):
    with pytest.raises(ValueError, match=f"{message}; scale them and save it again"):
        read(tmp_path, Image.fromarray(values), "a.tif")


@pytest.mark.parametrize("process", ["diffusion", "jump"])
def test_a_single_row_is_simulated_without_patches_and_refused_with_them(capsys, tmp_path, process):
    path = tmp_path / "row.png"
    Image.fromarray(GREY[:1]).save(path)
    output = ["--quiet", "--output", str(tmp_path / "out")]
    command = ["simulate", process, "--image", str(path), "--size", "3", "--steps", "2", *output]
    assert main([*command, "--radius", "0"]) == 0
    assert (tmp_path / "out" / f"states-{process}.png").exists()
    capsys.readouterr()
    assert main(command) == 2
    assert "use --radius 0, or a larger image" in capsys.readouterr().err
