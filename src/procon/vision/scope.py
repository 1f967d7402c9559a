"""Which patches of an image count: those that show the part, not padding around the image or background."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from scipy import ndimage
from torch import Tensor

from procon.arrays import Bools, Floats
from procon.config import PATCH, Config
from procon.errors import ConfigError
from procon.vision.framing import frame_of
from procon.vision.images import ImageLike, open_image

Polygon = Sequence[tuple[float, float]]
RoiLike = ImageLike | Polygon  # a mask image (white counts), or the corners of a polygon

_PROPORTIONS_TOLERANCE = 0.02  # between the proportions of a mask and those of the images


@dataclass(frozen=True, eq=False)
class Scope:
    """The patches of an image that count, on the device that scores them."""

    rows: Tensor  # [K] int64: their numbers, ascending
    nearest: Tensor  # [P] int64: for every patch, which of the K is nearest; itself where it counts
    pixels: Tensor  # [H, W] bool: the pixels of the input that count

    def everywhere(self, scores: Tensor) -> Tensor:
        """Scores of the patches that count [..., K] to all patches [..., P]: others repeat their nearest."""
        return scores[..., self.nearest]

    def place(self, patch: int) -> int:
        """Which of the K patch number ``patch`` is."""
        place = int(torch.searchsorted(self.rows, patch))
        if place == len(self.rows) or int(self.rows[place]) != patch:
            raise ConfigError("xy must lie in the region of interest of the model")
        return place


def scope_of(config: Config, roi: Bools | None, size: tuple[int, int], device: torch.device) -> Scope | None:
    """The scope of an image of ``size`` (height, width); None where every patch counts.

    ``roi`` [h, w] is stretched over the image. A patch counts if at least half its pixels do.
    """
    frame = frame_of(config, size)
    if roi is None and (config.aspect == "stretch" or frame.scaled == config.input_size):
        return None  # a centre crop is all image too
    height, width = config.input_size
    mask = np.ones(frame.scaled, bool) if roi is None else _resized(roi, frame.scaled)
    rows, columns = (
        np.arange(start, start + side) for start, side in zip(frame.origin, config.input_size, strict=True)
    )
    inside = ((rows >= 0) & (rows < frame.scaled[0]))[:, None] & ((columns >= 0) & (columns < frame.scaled[1]))
    pixels = inside & mask[rows.clip(0, frame.scaled[0] - 1)][:, columns.clip(0, frame.scaled[1] - 1)]
    cells = pixels.reshape(height // PATCH, PATCH, width // PATCH, PATCH).mean(axis=(1, 3))
    counts = cells >= 0.5
    if not counts.any():
        raise ConfigError(
            f"the region of interest must cover at least half of one of the {counts.size} patches of an image; make it "
            "larger, or raise image_size"
        )
    numbers = counts.cumsum().reshape(counts.shape) - 1
    nearest = ndimage.distance_transform_edt(~counts, return_distances=False, return_indices=True)
    places = numbers[tuple(nearest)].ravel()
    return Scope(
        torch.from_numpy(np.flatnonzero(counts)).to(device),
        torch.from_numpy(places).to(device),
        torch.from_numpy(pixels).to(device),
    )


def patch_shares(config: Config, mask: Bools) -> Floats:
    """The share of each patch that ``mask`` covers, for a mask [height, width] at the size of the image: [P]."""
    frame = frame_of(config, (mask.shape[0], mask.shape[1]))
    image = Image.fromarray(np.where(mask, np.float32(1), np.float32(0)))
    scaled = np.asarray(image.resize(frame.scaled[::-1], Image.Resampling.BOX))
    (top, left), (height, width) = frame.origin, config.input_size
    canvas = np.zeros(config.input_size, np.float32)
    visible = scaled[max(top, 0) : top + height, max(left, 0) : left + width]
    rows, columns = visible.shape
    canvas[max(-top, 0) :, max(-left, 0) :][:rows, :columns] = visible
    shares = canvas.reshape(height // PATCH, PATCH, width // PATCH, PATCH).mean(axis=(1, 3))
    return np.asarray(shares, np.float32).ravel()


def roi_mask(roi: RoiLike, sizes: Iterable[tuple[int, int]], shape: tuple[int, int]) -> Bools:
    """A region of interest as a mask of ``shape`` (height, width) that is stretched over every image.

    ``roi`` is a mask image, white where the part is, with the proportions of the images; or the corners of a polygon,
    (x, y) in pixels of the images, which then have one size, or all as shares of width and height from 0 to 1.
    """
    is_polygon = isinstance(roi, Sequence) and not isinstance(roi, str)
    mask = (_draw_polygon if is_polygon else _open_mask)(roi, sorted(set(sizes)), shape)
    if not mask.any():
        raise ConfigError("the region of interest is empty: white pixels of a mask count, or the inside of a polygon")
    return mask


def parse_roi(text: str) -> RoiLike:
    """The path of a mask image, or a polygon written ``x,y x,y x,y``."""
    if Path(text).exists():
        return Path(text)
    try:
        return [(float(x), float(y)) for x, y in (corner.split(",") for corner in text.split())]
    except ValueError:
        raise ConfigError(
            f"roi must be an existing mask image or a polygon written 'x,y x,y x,y', got {text!r}"
        ) from None


def _draw_polygon(corners: Polygon, sizes: list[tuple[int, int]], shape: tuple[int, int]) -> Bools:
    points = np.asarray(corners, np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3 or not np.isfinite(points).all():
        raise ConfigError(f"roi must have at least three corners (x, y), got {list(corners)!r}")
    if points.max() > 1:
        if len(sizes) > 1:
            raise ConfigError(
                f"a polygon in pixels needs images of one size, got {len(sizes)} sizes; give its corners as shares of "
                "width and height, from 0 to 1"
            )
        points /= sizes[0][::-1]
    if points.min() < 0 or points.max() > 1:
        raise ConfigError(f"the corners of roi must lie in the images, {sizes[0][1]} x {sizes[0][0]} pixels")
    # At four times the resolution, the edge of the polygon is exact to a fraction of a pixel of the input.
    fine = (4 * shape[1], 4 * shape[0])
    canvas = Image.new("L", fine)
    ImageDraw.Draw(canvas).polygon([(x * fine[0] - 0.5, y * fine[1] - 0.5) for x, y in points], fill=255)
    return _resized(np.asarray(canvas) > 127, shape)


def _open_mask(roi: ImageLike, sizes: list[tuple[int, int]], shape: tuple[int, int]) -> Bools:
    picture = open_image(roi)
    height, width = picture.size
    for size in sizes:
        if abs(width / height * size[0] / size[1] - 1) > _PROPORTIONS_TOLERANCE:
            raise ConfigError(
                f"the mask must have the proportions of the images ({size[1]} x {size[0]} pixels), got {width} x "
                f"{height}; draw it over one of them"
            )
    return _resized(picture.rgb8().mean(axis=2) > 127, shape)


def _resized(mask: Bools, shape: tuple[int, int]) -> Bools:
    """A mask at another (height, width): a pixel is set if at least half of what it covers is."""
    if mask.shape == shape:
        return mask
    image = Image.fromarray(np.where(mask, np.float32(1), np.float32(0)))
    return np.asarray(image.resize(shape[::-1], Image.Resampling.BOX)) >= 0.5
