import itertools
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from procon.config import Config
from procon.errors import ImageError
from procon.vision.folders import as_list, is_batch, list_images
from procon.vision.framing import crop_origin, resample, to_input
from procon.vision.images import Picture, open_each, open_image

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (20, 16), np.uint8)
RGB = RANDOM.integers(0, 256, (20, 16, 3), np.uint8)
ALPHA = RANDOM.integers(0, 256, (20, 16, 1), np.uint8)
DEEP = RANDOM.integers(0, 65_536, (20, 16), np.uint16)
FLOAT = RANDOM.random((20, 16, 3), np.float32)


def grey(array: NDArray[Any]) -> NDArray[Any]:
    return np.stack([array] * 3, axis=2)


def over_black(rgb: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.rint(rgb.astype(float) * alpha / 255).astype(np.uint8)


def palette_image() -> Image.Image:
    image = Image.fromarray(GREY, "L").convert("P")
    image.putpalette([(255 - index) if channel else index for index in range(256) for channel in range(3)])
    return image


PALETTE = np.stack([GREY, 255 - GREY, 255 - GREY], axis=2)  # what the palette above stands for


def translucent_palette_image() -> Image.Image:
    image = palette_image()
    image.info["transparency"] = int(GREY[3, 4])  # this one colour is see-through
    return image


# ----------------------------------------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(GREY), grey(GREY)),
        (Image.fromarray(GREY > 99), grey((GREY > 99) * np.uint8(255))),  # mode 1
        (palette_image(), PALETTE),
        (palette_image().convert("PA"), PALETTE),
        (translucent_palette_image(), PALETTE * (GREY[3, 4] != GREY)[:, :, None]),
        (Image.fromarray(np.dstack([GREY, ALPHA])), grey(over_black(GREY, ALPHA[:, :, 0]))),  # mode LA
        (Image.fromarray(RGB), RGB),
        (Image.fromarray(np.dstack([RGB, ALPHA])), over_black(RGB, ALPHA)),
        (Image.fromarray(np.dstack([RGB, 0 * GREY]), "CMYK"), 255 - RGB),
        (Image.fromarray(DEEP), grey(DEEP / np.float32(65_535))),  # mode I;16
        (Image.fromarray(DEEP.astype(np.int32)), grey(DEEP / np.float32(65_535))),  # mode I
        (Image.fromarray(FLOAT[:, :, 0]), grey(FLOAT[:, :, 0])),  # mode F
        (GREY, grey(GREY)),
        (GREY[:, :, None], grey(GREY)),
        (RGB, RGB),
        (RGB[::-1, ::-1], RGB[::-1, ::-1]),
        (np.dstack([RGB, ALPHA]), over_black(RGB, ALPHA)),
        (DEEP, grey(DEEP / np.float32(65_535))),
        (DEEP.astype(">u2"), grey(DEEP / np.float32(65_535))),
        (FLOAT, FLOAT),
        (FLOAT.astype(np.float64), FLOAT),
        (FLOAT.astype(np.float16), FLOAT.astype(np.float16).astype(np.float32)),
        (np.dstack([FLOAT, FLOAT[:, :, :1]]), FLOAT * FLOAT[:, :, :1]),
        (GREY > 99, grey((GREY > 99) * np.uint8(255))),
        (torch.from_numpy(GREY), grey(GREY)),
        (torch.from_numpy(GREY)[None], grey(GREY)),
        (torch.from_numpy(RGB).permute(2, 0, 1), RGB),
        (torch.from_numpy(np.dstack([RGB, ALPHA])).permute(2, 0, 1), over_black(RGB, ALPHA)),
        (torch.from_numpy(FLOAT).permute(2, 0, 1).requires_grad_(), FLOAT),
        (torch.from_numpy(DEEP), grey(DEEP / np.float32(65_535))),
    ],
)
def test_every_kind_of_image_gives_its_pixels(image: Any, expected: NDArray[Any]) -> None:
    picture = open_image(image)
    assert picture.source is None
    assert picture.size == (20, 16)
    assert picture.pixels.dtype == (np.uint8 if expected.dtype == np.uint8 else np.float32)
    np.testing.assert_array_equal(picture.pixels, expected.astype(picture.pixels.dtype))


def test_ycbcr() -> None:
    # The conversion rounds twice; two levels are all it may cost.
    picture = open_image(Image.new("RGB", (16, 20), (200, 40, 90)).convert("YCbCr"))
    assert np.abs(picture.pixels.astype(int) - [200, 40, 90]).max() <= 2


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp", "ppm", "gif"])
def test_lossless_files_as_text_or_path(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"part.{suffix}"
    expected = grey(GREY) if suffix == "gif" else RGB
    Image.fromarray(expected).convert("L" if suffix == "gif" else "RGB").save(path, lossless=True)
    for given in (path, str(path)):
        picture = open_image(given)
        np.testing.assert_array_equal(picture.pixels, expected)
        assert picture.source == str(path)
        assert open_image(picture) is picture


def test_a_lazily_opened_pil_image_keeps_its_source(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        picture = open_image(image)
    assert picture.source == str(tmp_path / "a.png")
    np.testing.assert_array_equal(picture.pixels, RGB)


ORIENTATIONS: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {  # what EXIF asks a viewer to do
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: lambda stored: np.rot90(stored, 1),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(open_image(tmp_path / "a.png").pixels, ORIENTATIONS[orientation](RGB))


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.new("CMYK", (32, 32), (0, 200, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    difference = open_image(tmp_path / "a.jpg").pixels.astype(int) - [255, 55, 0]
    assert np.abs(difference).max() <= 3  # JPEG is lossy


def test_16_bit_png_keeps_more_than_8_bits(tmp_path: Path) -> None:
    Image.fromarray(DEEP).save(tmp_path / "a.png")
    picture = open_image(tmp_path / "a.png")
    np.testing.assert_array_equal(picture.pixels, grey(DEEP / np.float32(65_535)))
    assert len(np.unique(picture.pixels)) > 256
    np.testing.assert_array_equal(picture.rgb8(), grey(np.rint(DEEP / 257.0).astype(np.uint8)))


def test_mpo_is_its_first_picture(tmp_path: Path) -> None:
    first, preview = Image.new("RGB", (40, 32), (200, 0, 0)), Image.new("RGB", (20, 16), (0, 0, 200))
    first.save(tmp_path / "phone.jpg", format="MPO", save_all=True, append_images=[preview])
    with Image.open(tmp_path / "phone.jpg") as image:
        assert image.format == "MPO"
        assert getattr(image, "n_frames", 1) == 2
    picture = open_image(tmp_path / "phone.jpg")
    assert picture.size == (32, 40)
    assert picture.pixels[0, 0, 0] > 190


# ------------------------------------------------------------------------------------------------ what is refused


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size without holding its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def saved(image: Image.Image, keep: float = 1.0, **options: Any) -> Callable[[Path], None]:
    """Writes ``image``, and leaves only the share ``keep`` of the file."""

    def write(path: Path) -> None:
        image.save(path, **options)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])

    return write


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


NOISE = Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), np.uint8))
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [Image.new("L", (64, 64), 200)]}
BAD_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "text file": ("a.png", text(b"just words"), "export it as PNG"),
    "web page": ("a.jpg", text(b"<!DOCTYPE html><html></html>"), "export it as PNG"),
    "random bytes": ("a.bmp", text(RANDOM.bytes(4096)), "export it as PNG"),
    "empty file": ("a.png", text(b""), "copy the file again"),
    "signature only": ("a.png", text(b"\x89PNG\r\n\x1a\n"), "export it"),
    "truncated png": ("a.png", saved(NOISE, 0.5), "copy or export it again"),
    "truncated jpeg": ("a.jpg", saved(NOISE, 0.5), "copy or export it again"),
    "truncated tiff": ("a.tif", saved(NOISE, 0.5), "export it"),
    "truncated webp": ("a.webp", saved(NOISE, 0.5), "export it"),
    "png without pixels": ("a.png", text(png_header(64, 64)), "copy or export it again"),
    "one pixel": ("a.png", saved(Image.new("RGB", (1, 1))), "use the original"),
    "13 pixels wide": ("a.png", saved(Image.new("RGB", (13, 100))), "at least 14"),
    "13 pixels high": ("a.png", saved(Image.new("RGB", (100, 13))), "at least 14"),
    "panorama": ("a.png", saved(Image.new("L", (40_000, 20))), "scale it down"),
    "bomb": ("a.png", text(png_header(60_000, 60_000)), "scale it down"),
    "bomb below Pillow's own limit": ("a.png", text(png_header(12_000, 12_000)), "scale it down"),
    "animation": ("a.gif", saved(Image.new("L", (64, 64)), **FRAMES), "save the one to inspect"),
    "pages": ("a.tif", saved(Image.new("L", (64, 64)), **FRAMES), "save the one to inspect"),
    "folder": ("a.png", Path.mkdir, "pass the images inside"),
    "missing": ("a.png", lambda path: None, "check the path"),
    "name too long for any file": ("a" * 5000, lambda path: None, "check the path"),
    "32-bit tiff out of range": (
        "a.tif",
        saved(Image.fromarray(np.full((20, 20), 70_000, np.int32))),
        "save it as 8 or 16 bit",
    ),
    "negative tiff": ("a.tif", saved(Image.fromarray(np.full((20, 20), -1, np.int32))), "save it as 8 or 16 bit"),
    "float tiff out of range": ("a.tif", saved(Image.fromarray(np.full((20, 20), 255, np.float32))), "divide by"),
    "float tiff with NaN": ("a.tif", saved(Image.fromarray(np.full((20, 20), np.nan, np.float32))), "replace them"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_with_a_remedy(tmp_path: Path, case: str) -> None:
    name, write, remedy = BAD_FILES[case]
    path = tmp_path / name
    write(path)
    with pytest.raises(ImageError) as caught:
        open_image(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert remedy in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ImageError, match=r"a\.png: is not a regular file; pass an image file"):
        open_image(tmp_path / "a.png")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    NOISE.save(path)
    path.chmod(0)
    with pytest.raises(ImageError, match=r"a\.png: may not be read; check its permissions"):
        open_image(path)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # as asking about a file in a closed folder does
    with pytest.raises(ImageError, match=r"a\.png: may not be read; check its permissions"):
        open_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("image", "name", "remedy"),
    [
        (np.full((20, 20), np.nan), "array", "replace them"),
        (np.full((20, 20, 3), np.inf, np.float32), "array", "replace them"),
        (np.full((20, 20, 3), 200.0), "array", "pass uint8"),
        (np.full((20, 20, 3), -0.1), "array", "pass uint8"),
        (np.zeros((20, 20, 3), np.int32), "array", "convert"),
        (np.zeros((20, 20, 3), np.int64), "array", "convert"),
        (np.zeros((20, 20, 3), np.complex64), "array", "convert"),
        (np.full((20, 20, 3), None), "array", "convert"),
        (np.zeros((20, 20, 2), np.uint8), "array", "channels last"),
        (np.zeros((3, 20, 20), np.uint8), "array", "channels last"),
        (np.zeros((1, 20, 20, 3), np.uint8), "array", "one image at a time"),
        (np.zeros((1, 1, 20, 20, 3), np.uint8), "array", "one image at a time"),
        (np.zeros(20, np.uint8), "array", "one image at a time"),
        (np.zeros((0, 0, 3), np.uint8), "image", "at least 14"),
        (np.zeros((0, 20), np.float32), "image", "at least 14"),
        (np.zeros((13, 100), np.uint8), "image", "at least 14"),
        (np.broadcast_to(np.uint8(0), (20, 40_000)), "image", "scale it down"),
        (torch.zeros(1, 3, 20, 20), "tensor", "one image at a time"),
        (torch.zeros(20, 20, 3), "tensor", "channels first"),
        (torch.zeros(2, 20, 20), "tensor", "channels first"),
        (torch.full((3, 20, 20), 255.0), "tensor", "pass uint8"),
        (torch.zeros(3, 20, 20, dtype=torch.int64), "tensor", "convert"),
        (torch.zeros(3, 20, 20, dtype=torch.bfloat16), "tensor", "convert"),
        (Image.new("RGB", (13, 100)), "PIL image", "at least 14"),
        (Image.new("F", (20, 20), 255.0), "PIL image", "divide by"),
        (Image.new("La", (20, 20)), "PIL image", "convert"),
        (3, "an image", "must be a path"),
        (None, "an image", "must be a path"),
        (b"a.png", "an image", "must be a path"),
    ],
)
def test_a_bad_object_is_named_with_a_remedy(image: Any, name: str, remedy: str) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(image)
    assert str(caught.value).startswith(name)
    assert remedy in str(caught.value)


def test_a_damaged_file_opened_by_the_user(tmp_path: Path) -> None:
    saved(NOISE, 0.5)(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image, pytest.raises(ImageError, match=r"a\.png: cannot be decoded .*again"):
        open_image(image)


# ------------------------------------------------------------------------------------------------- what is listed


def write_images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"never opened")


def names_of(paths: Any, folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


@pytest.mark.parametrize(
    "ordered",
    [["1.png", "2.png", "10.png"], ["a1b2.png", "a1b10.png", "a2.png", "b.png", "b²3.png"]],  # ² is no decimal
)
def test_files_are_listed_in_natural_order(tmp_path: Path, ordered: list[str]) -> None:
    write_images(tmp_path, *reversed(ordered))
    assert names_of(list_images(tmp_path), tmp_path) == ordered


def test_equal_numbers_are_ordered_whatever_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, "1.png", "01.png", "001.png")
    listings = [sorted(tmp_path.iterdir()), sorted(tmp_path.iterdir(), reverse=True)]
    results = []
    for listing in listings:
        monkeypatch.setattr(Path, "iterdir", lambda _, listing=listing: iter(listing))
        results.append(names_of(list_images(tmp_path), tmp_path))
    assert results == [["001.png", "01.png", "1.png"]] * 2


def test_only_visible_image_files_are_listed(tmp_path: Path) -> None:
    write_images(tmp_path, "a.PNG", "b.jpeg", "._a.png", ".hidden.png", "notes.txt", "sub/c.png", ".cache/d.png")
    (tmp_path / "folder.png").mkdir()
    assert names_of(list_images(tmp_path), tmp_path) == ["a.PNG", "b.jpeg"]
    assert names_of(list_images(tmp_path, recursive=True), tmp_path) == ["a.PNG", "b.jpeg", "sub/c.png"]


def test_a_hidden_folder_that_is_asked_for_is_listed(tmp_path: Path) -> None:
    write_images(tmp_path / ".parts", "a.png")
    assert names_of(list_images(tmp_path / ".parts"), tmp_path) == [".parts/a.png"]


@pytest.mark.parametrize("name", ["missing", "a.png"])
def test_listing_what_is_no_folder(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, "a.png")
    with pytest.raises(ImageError, match=f"{name}: no such folder; check the path"):
        list_images(tmp_path / name)


def test_one_image_or_many(tmp_path: Path) -> None:
    write_images(tmp_path, "2.png", "1.png")
    one: list[Any] = [tmp_path / "1.png", str(tmp_path / "1.png"), RGB, NOISE, torch.zeros(3, 20, 20), Picture(RGB)]
    for image in one:
        assert not is_batch(image)
        assert len(as_list(image)) == 1
    for many in (tmp_path, str(tmp_path), [RGB, GREY], (RGB, GREY), iter([RGB, GREY])):
        assert is_batch(many)
        assert len(as_list(many)) == 2
    assert as_list(tmp_path) == [tmp_path / "1.png", tmp_path / "2.png"]
    with pytest.raises(ImageError, match="images must be a folder, an image or a list of images, got int"):
        as_list(3)


# --------------------------------------------------------------------------------------------------- to the input


def triangle(distance: float) -> float:
    """The kernel of bilinear interpolation."""
    return max(0.0, 1 - abs(distance))


def slow_resize(pixels: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    """Antialiased: the kernel is as wide as an output pixel where the image shrinks; cut off at the border."""

    def weights(source: int, target: int) -> NDArray[np.float64]:
        scale = source / target
        rows = np.array(
            [[triangle((x + 0.5 - (y + 0.5) * scale) / max(scale, 1)) for x in range(source)] for y in range(target)]
        )
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    return np.asarray(np.einsum("yh,hwc,xw->yxc", rows, pixels.astype(float), columns))


def slow_input(pixels: NDArray[Any], size: tuple[int, int], resize: int | None) -> NDArray[np.float64]:
    """``pixels`` in 0..1; resized, cropped and normalised, one value at a time."""
    resized = slow_resize(pixels, *(size if resize is None else (resize, resize))).clip(0, 1)
    top, left = (0, 0) if resize is None else ((resize - size[0]) // 2, (resize - size[1]) // 2)
    result = np.empty((3, *size))
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        for y, x in np.ndindex(*size):
            result[channel, y, x] = (resized[top + y, left + x, channel] - mean) / std
    return result


@pytest.mark.parametrize("resize", [None, 61])  # odd, so that the crop cannot be symmetric
@pytest.mark.parametrize("shape", [(70, 83, 3), (28, 42, 3), (20, 16, 3)])  # shrinks, stays, grows
def test_input_is_the_slow_one(shape: tuple[int, int, int], resize: int | None) -> None:
    size = (28, 42)
    # Away from black and white: there 8-bit pixels are also clipped between Pillow's two passes.
    pixels = np.random.default_rng(1).integers(64, 192, shape, np.uint8)
    expected = slow_input(pixels / 255, size, resize)
    config = Config(image_size=size, resize=resize)
    fine = to_input(Picture((pixels / 255).astype(np.float32)), config)
    coarse = to_input(Picture(pixels), config)
    assert fine.dtype == coarse.dtype == np.float32
    assert fine.flags.c_contiguous
    np.testing.assert_allclose(fine, expected, atol=1e-4)
    # 8-bit pixels are rounded after each pass; the smallest deviation magnifies that.
    np.testing.assert_allclose(coarse, expected, atol=2 / 255 / 0.224)


def test_the_crop_is_the_centre() -> None:
    pixels = np.arange(448 * 448, dtype=np.float32).reshape(448, 448, 1).repeat(3, axis=2) / 448**2
    assert crop_origin((392, 392), 448) == (28, 28)
    assert crop_origin((70, 98), 101) == (15, 1)
    whole = to_input(Picture(pixels), Config(image_size=448))
    crop = to_input(Picture(pixels), Config(image_size=392, resize=448))
    np.testing.assert_array_equal(crop, whole[:, 28:420, 28:420])


def test_float_pixels_stay_in_range_next_to_a_hard_edge() -> None:
    pixels = np.zeros((40, 40, 3), np.float32)
    pixels[:, 20:] = 1
    resized = resample(pixels, (56, 56))
    assert resized.dtype == np.float32
    assert resized.min() == 0
    assert resized.max() == 1


# ---------------------------------------------------------------------------------------------------- in threads


def decoding_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("procon-decode")]


def test_many_images_keep_their_order_and_errors(tmp_path: Path) -> None:
    images: list[Any] = [np.full((20, 20), value, np.uint8) for value in range(30)]
    images[3], images[29] = tmp_path / "missing.png", "also-missing.png"
    opened = list(open_each(images))
    assert len(opened) == len(images)
    for index, picture in enumerate(opened):
        if index in (3, 29):
            assert isinstance(picture, ImageError)
            assert "missing.png" in str(picture)
        else:
            assert isinstance(picture, Picture)
            assert picture.pixels[0, 0, 0] == index
    assert not decoding_threads()


def test_a_consumer_that_stops_early_leaves_nothing_behind() -> None:
    taken = itertools.count()

    def endless() -> Iterator[NDArray[np.uint8]]:
        while True:
            next(taken)
            yield GREY

    opened = open_each(endless(), ahead=4)
    next(opened)
    next(opened)
    assert decoding_threads()
    opened.close()  # type: ignore[attr-defined]
    assert not decoding_threads()
    assert next(taken) <= 2 + 4 + 1  # two used, a few ahead


def test_stopping_does_not_wait_for_what_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def slow(image: NDArray[np.uint8]) -> Picture:
        started.append(image)
        time.sleep(0.02)
        return Picture(image)

    monkeypatch.setattr("procon.vision.images.open_image", slow)
    opened = open_each([RGB] * 100, ahead=50)
    next(opened)
    opened.close()  # type: ignore[attr-defined]
    assert len(started) < 25  # of the 51 that were waiting


def test_an_error_of_the_source_passes_through() -> None:
    def broken() -> Iterator[NDArray[np.uint8]]:
        yield GREY
        raise ConnectionError("the camera is gone")

    with pytest.raises(ConnectionError, match="the camera is gone"):
        list(open_each(broken()))
    assert not decoding_threads()


def test_a_program_dressed_as_an_image_is_not_opened(tmp_path: Path) -> None:
    """Pillow hands PostScript to an interpreter; a renamed one must not get that far."""
    script = tmp_path / "part.png"
    script.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\nshowpage\n")
    with pytest.raises(ImageError, match="not an image Pillow can read"):
        open_image(script)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.uint16])
def test_a_matrix_is_a_plain_array(kind: Any) -> None:
    """Its rules for shapes are others: in a prediction it once ended the interpreter."""
    pixels = np.arange(20 * 16).reshape(20, 16).astype(kind)
    pixels = pixels / pixels.max() if kind is np.float32 else pixels
    picture = open_image(np.matrix(pixels))
    assert type(picture.pixels) is np.ndarray
    np.testing.assert_array_equal(picture.pixels, open_image(pixels).pixels)


def test_masked_pixels_are_refused_and_other_masked_arrays_are_plain() -> None:
    pixels = np.ma.masked_array(np.zeros((20, 16, 3), np.uint8))
    assert type(open_image(pixels).pixels) is np.ndarray
    pixels[3, 4, 0] = np.ma.masked
    with pytest.raises(ImageError, match="array: has masked pixels; fill them before scoring"):
        open_image(pixels)
