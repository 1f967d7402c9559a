"""Files of images: decoded by the package and by the service alike, or refused."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from procon.errors import ImageError
from procon.server.request_errors import RequestError
from procon.server.settings import Limits
from procon.server.uploads import check_image, decode
from procon.vision import images
from procon.vision.images import MIN_SIDE, read_file
from tests.fuzz.targets import Check, Target

Image.init()  # imports all decoders now, so that their branches guide the fuzzer
_PIXELS = 2**20  # no fuzzer learns from decoding larger ones


@contextmanager
def _open(folder: Path) -> Iterator[Check]:
    path, limits = folder / "image", Limits(pixels=_PIXELS)

    def check(data: bytes) -> None:
        if not data:
            return
        path.write_bytes(data)
        pixels = None
        try:
            picture, content = read_file(path)
        except ImageError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            pixels = picture.pixels
            assert content == data and pixels.ndim == 3 and pixels.shape[2] == 3
            assert min(picture.size) >= MIN_SIDE and pixels.shape[0] * pixels.shape[1] <= _PIXELS
            assert pixels.dtype == np.uint8 or (pixels.dtype == np.float32 and 0 <= pixels.min() <= pixels.max() <= 1)
        try:
            check_image(data, limits)
            received = decode(data)
        except RequestError:
            assert pixels is None
        else:
            assert pixels is not None and np.array_equal(received.pixels, pixels)

    with patch.object(images, "MAX_PIXELS", _PIXELS):
        yield check


def _seeds() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (15, 16, 3), np.uint8)
    rgb = Image.fromarray(pixels)
    alpha = rgb.convert("RGBA")
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    turned = rgb.transpose(Image.Transpose.ROTATE_180).convert("P")
    exif = Image.Exif()
    exif[0x0112] = 6
    saved: dict[str, tuple[Image.Image, str, dict[str, object]]] = {
        "rgb.png": (rgb, "PNG", {}),
        "alpha.png": (alpha, "PNG", {}),
        "deep.png": (deep, "PNG", {}),
        "palette.png": (rgb.convert("P"), "PNG", {"transparency": 3}),
        "bits.png": (rgb.convert("1"), "PNG", {}),
        "turned.jpg": (rgb, "JPEG", {"exif": exif, "quality": 30}),
        "progressive.jpg": (rgb.convert("L"), "JPEG", {"progressive": True, "quality": 30}),
        "cmyk.jpg": (rgb.convert("CMYK"), "JPEG", {"quality": 30}),
        "rgb.bmp": (rgb, "BMP", {}),
        "palette.bmp": (rgb.convert("P"), "BMP", {}),
        "raw.tif": (rgb, "TIFF", {}),
        "deflated.tif": (rgb, "TIFF", {"compression": "tiff_deflate"}),
        "fax.tif": (rgb.convert("1"), "TIFF", {"compression": "group4"}),
        "float.tif": (deep.convert("F"), "TIFF", {}),
        "deep.tif": (deep, "TIFF", {}),
        "lossy.webp": (rgb, "WEBP", {"quality": 20}),
        "lossless.webp": (alpha, "WEBP", {"lossless": True}),
        "one.gif": (rgb.convert("P"), "GIF", {}),
        "two.gif": (
            rgb.convert("P"),
            "GIF",
            {"save_all": True, "append_images": [turned]},
        ),
        "rgb.jp2": (rgb, "JPEG2000", {}),
        "rgb.ppm": (rgb, "PPM", {}),
        "deep.pgm": (deep, "PPM", {}),
    }
    seeds = {"text.ppm": b"P3 14 14 255 " + b"1 2 3 " * 196}
    for name, (image, kind, options) in saved.items():
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        seeds[name] = buffer.getvalue()
    return seeds


TARGET = Target(_open, _seeds, ("PIL",))
