"""Small copies of pictures and heat maps, and JPEG for pages and model files."""

import io

import numpy as np
from PIL import Image

from procon.arrays import Bytes, Floats


def shrink(pixels: Bytes, longest: int) -> Bytes:
    """At most ``longest`` pixels on a side, antialiased; smaller images are left alone."""
    height, width = pixels.shape[:2]
    factor = longest / max(height, width)
    if factor >= 1:
        return pixels
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.HAMMING))


def shrink_map(heatmap: Floats, size: tuple[int, int]) -> Floats:
    """A heat map at (height, width), bilinear."""
    if heatmap.shape == size:
        return heatmap
    return np.asarray(Image.fromarray(heatmap).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def jpeg(pixels: Bytes, quality: int = 88) -> bytes:
    """The picture as a JPEG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file; packed fast, as hundreds are written for one run."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
