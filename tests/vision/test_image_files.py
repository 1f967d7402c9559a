"""Files of every kind a folder may hold: each gives its pixels or an error that names it, and costs no other image."""

import csv
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from procon import BatchError, Detector
from procon.errors import ImageError
from procon.vision.images import open_image
from tests.conftest import Run, part_pixels

RGB = part_pixels(3, defect=True)  # [96, 80, 3]
GREY = np.asarray(RGB.mean(axis=2), np.uint8)
ALPHA = np.random.default_rng(0).integers(0, 256, GREY.shape, np.uint8)
DEEP = np.random.default_rng(1).integers(0, 65_536, GREY.shape, np.uint16)
UNIT = np.float32(1 / 65_535)
DEEP_RGB = np.dstack([DEEP, DEEP[::-1], ~DEEP])
HIGH_BYTES = (DEEP_RGB >> 8).astype(np.uint8)  # Pillow reads 8 bits of deep colours

Write = Callable[[Path], object]


def repeat(grey: NDArray[Any]) -> NDArray[Any]:
    return np.stack([grey] * 3, axis=2)


def over_black(rgb: NDArray[np.uint8], alpha: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(np.rint(rgb.astype(float) * alpha[:, :, None] / 255), np.uint8)


def saved(image: Image.Image, keep: float = 1.0, **options: Any) -> Write:
    def write(path: Path) -> None:
        image.save(path, **options)
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])

    return write


def png(header: tuple[int, int], rows: bytes, depth: int, color: int, *extra: tuple[bytes, bytes]) -> Write:
    """A PNG from its parts: ``color`` 0 is grey, 2 RGB, 4 grey with alpha, 6 RGB with alpha."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", *header, depth, color, 0, 0, 0))
    middle = b"".join(chunk(kind, data) for kind, data in extra) + chunk(b"IDAT", zlib.compress(rows))
    return lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + start + middle + chunk(b"IEND", b""))


def deep_png(values: NDArray[np.uint16], color: int, *extra: tuple[bytes, bytes]) -> Write:
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)  # no filter
    return png((values.shape[1], values.shape[0]), rows, 16, color, *extra)


def palette(transparency: int | bytes | None = None) -> Image.Image:
    image = Image.fromarray(GREY).convert("P")
    image.putpalette([(255 - index) if channel else index for index in range(256) for channel in range(3)])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def turned(orientation: int, image: Image.Image, **options: Any) -> Write:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, exif=exif, **options)


PALETTE = np.stack([GREY, 255 - GREY, 255 - GREY], axis=2)
SEE_THROUGH = int(GREY[50, 40])
LEVELS = np.arange(256, dtype=np.uint8)[::-1]  # transparency of each colour of the palette
BITS = GREY > 100
GOOD_FILES: dict[str, tuple[Write, NDArray[Any]]] = {
    "rgb.png": (saved(Image.fromarray(RGB)), RGB),
    "rgb.bmp": (saved(Image.fromarray(RGB)), RGB),
    "rgb.tif": (saved(Image.fromarray(RGB), compression="tiff_lzw"), RGB),
    "grey.png": (saved(Image.fromarray(GREY)), repeat(GREY)),
    "bits.png": (saved(Image.fromarray(BITS)), repeat(BITS * np.uint8(255))),
    "bits.tif": (saved(Image.fromarray(BITS), compression="group4"), repeat(BITS * np.uint8(255))),
    "grey with alpha.png": (saved(Image.fromarray(np.dstack([GREY, ALPHA]))), over_black(repeat(GREY), ALPHA)),
    "rgb with alpha.png": (saved(Image.fromarray(np.dstack([RGB, ALPHA]))), over_black(RGB, ALPHA)),
    "rgb with alpha.webp": (
        saved(Image.fromarray(np.dstack([RGB, ALPHA])), lossless=True, exact=True),
        over_black(RGB, ALPHA),
    ),
    "palette.png": (saved(palette()), PALETTE),
    "palette with one clear colour.png": (saved(palette(SEE_THROUGH)), PALETTE * (GREY != SEE_THROUGH)[:, :, None]),
    "palette with levels.png": (saved(palette(LEVELS.tobytes())), over_black(PALETTE, LEVELS[GREY])),
    "palette with one clear colour.gif": (
        saved(palette(), transparency=SEE_THROUGH),
        PALETTE * (GREY != SEE_THROUGH)[:, :, None],
    ),
    "grey with a clear value.png": (
        saved(Image.fromarray(GREY), transparency=SEE_THROUGH),
        repeat(GREY * (GREY != SEE_THROUGH)),
    ),
    "16 bit.png": (saved(Image.fromarray(DEEP)), repeat(DEEP * UNIT)),
    "16 bit with a clear value.png": (
        deep_png(DEEP, 0, (b"tRNS", struct.pack(">H", DEEP[0, 0]))),
        repeat(DEEP * (DEEP[0, 0] != DEEP) * UNIT),
    ),
    "16 bit.tif": (saved(Image.fromarray(DEEP)), repeat(DEEP * UNIT)),
    "16 bit big endian.tif": (saved(Image.fromarray(DEEP.astype(">u2"))), repeat(DEEP * UNIT)),
    "16 bit.pgm": (saved(Image.fromarray(DEEP)), repeat(DEEP * UNIT)),
    "16 bit rgb.png": (deep_png(DEEP_RGB, 2), HIGH_BYTES),
    "16 bit with alpha.png": (
        deep_png(np.dstack([DEEP, 257 * ALPHA.astype(np.uint16)]), 4),
        over_black(repeat((DEEP >> 8).astype(np.uint8)), ALPHA),
    ),
    "float.tif": (saved(Image.fromarray(DEEP * UNIT)), repeat(DEEP * UNIT)),
    "turned.png": (turned(6, Image.fromarray(RGB)), np.rot90(RGB, -1)),
    "turned 16 bit.png": (turned(8, Image.fromarray(DEEP)), np.rot90(repeat(DEEP * UNIT), 1)),
    "turned palette.png": (
        turned(3, palette(SEE_THROUGH)),
        (PALETTE * (GREY != SEE_THROUGH)[:, :, None])[::-1, ::-1],
    ),
    "turned.webp": (turned(2, Image.fromarray(RGB), lossless=True), RGB[:, ::-1]),
    "turned.tif": (turned(4, Image.fromarray(RGB)), RGB[::-1]),
    "unknown orientation.png": (turned(77, Image.fromarray(RGB)), RGB),
    "one frame.gif": (saved(palette(), save_all=True), PALETTE),
}


@pytest.mark.parametrize("name", GOOD_FILES)
def test_a_file_gives_its_pixels(tmp_path: Path, name: str) -> None:
    write, expected = GOOD_FILES[name]
    write(tmp_path / name)
    pixels = open_image(tmp_path / name).pixels
    assert pixels.dtype == (np.uint8 if expected.dtype == np.uint8 else np.float32)
    if expected.dtype == np.uint8:
        np.testing.assert_array_equal(pixels, expected)
    else:
        np.testing.assert_allclose(pixels, expected, atol=1e-7)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_is_upright(tmp_path: Path, orientation: int) -> None:
    """The mark is in the upper left quarter of every upright picture, whatever way the camera was held."""
    part = Image.new("RGB", (96, 64), (30, 30, 30))
    ImageDraw.Draw(part).rectangle((8, 8, 24, 24), fill=(250, 20, 20))
    stored = {
        1: part,
        2: part.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: part.transpose(Image.Transpose.ROTATE_180),
        4: part.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: part.transpose(Image.Transpose.TRANSPOSE),
        6: part.transpose(Image.Transpose.ROTATE_90),
        7: part.transpose(Image.Transpose.TRANSVERSE),
        8: part.transpose(Image.Transpose.ROTATE_270),
    }[orientation]
    turned(orientation, stored, quality=95)(tmp_path / "a.jpg")
    picture = open_image(tmp_path / "a.jpg")
    assert picture.size == (64, 96)
    red = picture.pixels[:, :, 0] > 140
    assert red[10:22, 10:22].all() and red.sum() < 19 * 19


# ------------------------------------------------------------------------------------------------- what is refused


def frames(kind: str) -> Write:
    images = [Image.fromarray(part_pixels(seed)) for seed in range(3)]
    return saved(images[0], format=kind, save_all=True, append_images=images[1:])


def text(content: bytes) -> Write:
    return lambda path: path.write_bytes(content)


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(2**31 + 1)


NOISE = Image.fromarray(np.random.default_rng(2).integers(0, 256, (96, 80, 3), np.uint8))
HUGE = (60_000, 60_000)
BAD_FILES: dict[str, tuple[Write, str]] = {
    "text.png": (text(b"not an image"), "is not an image Pillow can read; remove it or export it"),
    "page.jpg": (text(b"<html></html>"), "is not an image Pillow can read; remove it or export it"),
    "script.png": (text(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 96 96\n"), "is not an image Pillow can read"),
    "empty.png": (text(b""), "is empty (0 bytes); copy the file again"),
    "one pixel.png": (saved(Image.new("RGB", (1, 1))), "is 1 x 1 pixels; each side must have at least 14; use"),
    "panorama.png": (saved(Image.new("L", (40_000, 20))), "is 40000 x 20 pixels and is larger than 32768 pixels on a"),
    "panorama.jpg": (saved(Image.new("L", (40_000, 20))), "is 40000 x 20 pixels and is larger than 32768 pixels on a"),
    "bomb.png": (png(HUGE, b"", 8, 2), "is larger than 32768 pixels on a side or 134 megapixels; scale it down"),
    "smaller bomb.png": (png((12_000, 12_000), b"", 8, 2), "is 12000 x 12000 pixels and is larger than"),
    "bomb of text.png": (
        png((80, 96), b"", 8, 2, (b"zTXt", b"a\0\0" + zlib.compress(bytes(2**27)))),
        "is damaged or incomplete",
    ),
    "huge file.png": (sparse, "bytes, more than any image of a camera; export it"),
    "half.png": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.jpg": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.bmp": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.tif": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.gif": (saved(palette(), 0.5), "is damaged or incomplete"),
    "half.webp": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.jp2": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "half.ppm": (saved(NOISE, 0.5), "is damaged or incomplete"),
    "animation.gif": (frames("GIF"), "has 3 frames or pages; save the one to inspect as PNG"),
    "animation.webp": (frames("WEBP"), "has 3 frames or pages; save the one to inspect as PNG"),
    "animation.png": (frames("PNG"), "has 3 frames or pages; save the one to inspect as PNG"),
    "pages.tif": (frames("TIFF"), "has 3 frames or pages; save the one to inspect as PNG"),
    "nan.tif": (saved(Image.fromarray(np.full((20, 20), np.nan, np.float32))), "holds NaN or infinite values; replace"),
    "infinite.tif": (saved(Image.fromarray(np.full((20, 20), np.inf, np.float32))), "holds NaN or infinite values"),
    "counts.tif": (saved(Image.fromarray(np.full((20, 20), 70_000, np.int32))), "holds integers from 70000 to 70000"),
    "floats.tif": (saved(Image.fromarray(np.full((20, 20), 255, np.float32))), "float pixels must be in 0..1, got 255"),
    "broken link.png": (lambda path: path.symlink_to("nothing.png"), "is a link to a file that does not exist; remove"),
    "endless link.png": (lambda path: path.symlink_to(path), "is a link to a file that does not exist; remove"),
    "pipe.png": (os.mkfifo, "is not a regular file; pass an image file"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    write, problem = BAD_FILES[name]
    write(tmp_path / name)
    with pytest.raises(ImageError) as caught:
        open_image(tmp_path / name)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}: ") and problem in message, message
    assert ";" in message  # what to do follows


def test_a_bomb_is_named_where_warnings_are_errors(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    import warnings

    png((12_000, 10_000), b"", 8, 2)(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="is larger than 32768 pixels on a side or 134 megapixels"):
            open_image(tmp_path / "a.png")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to become another user")
def test_files_that_may_not_be_read_cost_no_others(run: Run, detector: Detector, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "new").mkdir()
    Image.fromarray(RGB).save(tmp_path / "new" / "a.png")
    Image.fromarray(RGB).save(tmp_path / "new" / "closed.png")
    (tmp_path / "new" / "closed.png").chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(BatchError) as caught:
            detector.predict(tmp_path / "new")
    finally:
        os.seteuid(0)
    (error,) = caught.value.errors.values()
    assert str(error) == f"{tmp_path / 'new' / 'closed.png'}: may not be read; check its permissions"
    assert caught.value.results[0].score == detector.predict(RGB).score


# ------------------------------------------------------------------------------------------------------ all at once


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "folder.png").mkdir()
    for name, (write, _) in {**GOOD_FILES, **BAD_FILES}.items():
        write(folder / name)
    return folder


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_one_bad_image_costs_no_result_of_another(run: Run, detector: Detector, folder: Path, tmp_path: Path) -> None:
    model = detector.save(tmp_path / "part.procon")
    code, printed, err = run("predict", model, folder, "-o", tmp_path / "out")
    assert code == 2
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "scores.csv").read_text(), newline="")))
    lines = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert {Path(row["source"]).name for row in rows if row["score"]} == set(GOOD_FILES)
    assert {Path(line["source"]).name for line in lines if "error" in line} == set(BAD_FILES)
    for name, (_, problem) in BAD_FILES.items():
        assert any(f"{name}: " in line and problem in line for line in err.splitlines()), name
    for name, (_, pixels) in GOOD_FILES.items():
        (score,) = (line["score"] for line in lines if Path(line["source"]).name == name)
        assert score == pytest.approx(detector.predict(np.ascontiguousarray(pixels)).score, abs=1e-5), name
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["images"], summary["unreadable"]) == (len(GOOD_FILES) + len(BAD_FILES), len(BAD_FILES))
    assert len(list((tmp_path / "out" / "overlays").iterdir())) == len(GOOD_FILES)
    assert f"{len(rows)} images" in printed


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_fit_names_every_bad_image(run: Run, detector: Detector, folder: Path) -> None:
    other = Detector(detector.config, device="cpu")
    with pytest.raises(BatchError) as caught:
        other.fit(folder)
    assert len(caught.value.errors) == len(BAD_FILES)
    assert all(f"{folder / name}: " in str(caught.value) for name in BAD_FILES)
    other.fit(folder, skip_bad=True)
    assert {Path(name).name for name in other.model.memory.names} == set(GOOD_FILES)
