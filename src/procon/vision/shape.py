"""The input of the backbone for a set of images: its shape, chosen from theirs, and what becomes of their pixels.

Needs numpy and Pillow only. Of a file the header is read, not the pixels.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from procon.amounts import count_of
from procon.config import AUTO, PATCH, Config
from procon.vision.framing import frame_of, patch_size
from procon.vision.images import ImageLike, in_order, read_size

MOST_CELLS = 4096 // PATCH  # on a side: no input is longer
NOTICEABLE = 1.1  # a change of proportions by this factor or less is not mentioned

Size = tuple[int, int]  # (height, width)


@dataclass(frozen=True)
class Shape:
    """How a set of images enters the backbone."""

    config: Config  # with a concrete image_size
    sizes: Counter[Size]  # how many images have each (height, width) in pixels; without unreadable images
    chosen: bool = False  # whether the images decided on image_size

    def describe(self) -> list[str]:
        """The input, its scale against the images in both directions, and what is lost, in lines for people."""
        if not self.sizes:
            return []
        height, width = self.config.input_size
        rows, columns = self.config.grid
        middle = self.middle_size
        down, across = scale_of(self.config, middle)
        patch_width, patch_height = patch_size(self.config, middle)
        why = "chosen from the proportions of the images (image_size auto)" if self.chosen else "as set by image_size"
        several = "" if len(self.sizes) == 1 else f"; the images have {len(self.sizes)} sizes"
        return [
            f"input of {width} x {height} pixels, {columns} x {rows} patches, {why}",
            f"images of {middle[1]} x {middle[0]} pixels{several}: scale {across:.2f} across and {down:.2f} down, so "
            f"a patch covers {patch_width:.1f} x {patch_height:.1f} of their pixels",
            *self._describe_losses(middle),
        ]

    @property
    def middle_size(self) -> Size:
        """The image whose proportions are in the middle; of several with these the most frequent size."""
        ordered = sorted(self.sizes, key=lambda size: (size[1] / size[0], -self.sizes[size], size))
        before, half = 0, sum(self.sizes.values()) / 2
        middle = next(size for size in ordered if (before := before + self.sizes[size]) >= half)
        alike = [size for size in self.sizes if size[1] * middle[0] == size[0] * middle[1]]
        return max(alike, key=lambda size: (self.sizes[size], size))

    def _describe_losses(self, middle: Size) -> list[str]:
        """What the input does not show as the images do: fine detail, proportions, edges that are cut off."""
        lines, total = [], sum(self.sizes.values())
        if min(scale_of(self.config, middle)) < 1 / NOTICEABLE:
            lines.append(
                "lost: detail finer than the scale; a larger image_size or patch_budget keeps more, for more time"
            )
        changes = {size: stretch_of(self.config, size) for size in self.sizes}
        stretched = sum(count for size, count in self.sizes.items() if changes[size] > NOTICEABLE)
        if stretched:
            most = max(changes.values())
            remedy = "" if self.config.aspect == "pad" else self._remedy()
            lines.append(
                f"lost: the proportions of {stretched} of {count_of(total, 'image')}, stretched in one direction up to "
                f"{most:.1f} times as much as in the other{remedy}"
            )
        if self.config.resize is not None:
            height, width = self.config.input_size
            lines.append(
                f"lost: the edges; {height * width / self.config.resize**2:.0%} of each image is used (resize)"
            )
        return lines

    def _remedy(self) -> str:
        if not self.chosen and self.config.resize is None and len(self.sizes) == 1:
            return "; --image-size auto keeps them"
        return (
            "; --set aspect=pad keeps them all, and --image-size auto those of most"
            if not self.chosen
            else ("; fit parts of different shapes apart, or use --set aspect=pad")
        )


def shape_of(config: Config, images: Iterable[ImageLike]) -> Shape:
    """How ``images`` enter the backbone under ``config``; reads their headers, and leaves out what cannot be read."""
    sizes = Counter(size for size in in_order(read_size, images) if size is not None)
    return shape_for(config, sizes)


def shape_for(config: Config, sizes: Counter[Size]) -> Shape:
    """:func:`shape_of` images of known ``sizes``."""
    if config.image_size != AUTO:
        return Shape(config, sizes)
    side = math.isqrt(config.patch_budget)  # where no image can be read, which the fit will say
    rows, columns = side, side
    if sizes:
        rows, columns = choose_grid(median_size(sizes), config.patch_budget, config.max_scale)
    chosen = rows * PATCH if rows == columns else (rows * PATCH, columns * PATCH)
    return Shape(replace(config, image_size=chosen), sizes, chosen=True)


def resolve_shape(config: Config, images: Iterable[ImageLike]) -> Config:
    """``config`` with a concrete ``image_size``; the images are looked at only where it is ``auto``."""
    return shape_of(config, images).config if config.image_size == AUTO else config


def median_size(sizes: Counter[Size]) -> tuple[float, float]:
    """(height, width) with the median proportions and the median number of pixels.

    Of an even number of images, the proportions are the geometric mean of the middle two, so that turning all images
    by a quarter turns the result.
    """
    if len(sizes) == 1:
        return next(iter(sizes))
    ratio = math.exp(median(math.log(width / height) for height, width in sizes.elements()))
    pixels = median(height * width for height, width in sizes.elements())
    return math.sqrt(pixels / ratio), math.sqrt(pixels * ratio)


def choose_grid(size: tuple[float, float], budget: int, max_scale: float = 1.0) -> tuple[int, int]:
    """(rows, columns) of patches for images of ``size`` (height, width): at most ``budget``, as fine as possible.

    Of all grids the one whose coarser direction is the finest; of several such the one with the fewest patches, which
    is nearest to the proportions of the image. No direction gets more than ``max_scale`` times the image's pixels.
    """
    height, width = size
    most = [min(MOST_CELLS, max(1, int(max_scale * side / PATCH + 1e-6))) for side in size]
    best, chosen = (-math.inf, 0), (1, 1)
    for rows in range(1, min(most[0], budget) + 1):
        enough = math.ceil(rows * width / height - 1e-9)  # more columns would be finer than the rows are
        columns = max(1, min(most[1], budget // rows, enough))
        fineness = min(rows * width, columns * height), -rows * columns
        if fineness > best:
            best, chosen = fineness, (rows, columns)
    return chosen


def scale_of(config: Config, size: Size) -> tuple[float, float]:
    """Pixels of the resized image per pixel of an image of ``size``, (down, across)."""
    height, width = frame_of(config, size).scaled
    return height / size[0], width / size[1]


def stretch_of(config: Config, size: Size) -> float:
    """How many times as much an image of ``size`` is stretched in one direction as in the other; 1: not at all."""
    down, across = scale_of(config, size)
    return max(down / across, across / down)
