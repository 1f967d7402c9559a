"""Small copies of pictures and heat maps, and JPEG for pages and model files."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def shrink(pixels: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """At most ``longest`` pixels on a side, antialiased; smaller images are left alone."""
    height, width = pixels.shape[:2]
    factor = longest / max(height, width)
    if factor >= 1:
        return pixels
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.HAMMING))


def shrink_map(heatmap: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """A heat map at (height, width), bilinear."""
    if heatmap.shape == size:
        return heatmap
    return np.asarray(Image.fromarray(heatmap).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def jpeg(pixels: NDArray[np.uint8], quality: int = 88) -> bytes:
    """Encoded for a page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
