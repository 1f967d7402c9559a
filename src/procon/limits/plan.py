"""Which defects are rendered, in what sizes, and where on a good image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from procon.arrays import Bools, Box
from procon.config import Config
from procon.errors import ConfigError
from procon.limits.kinds import PAINTED_KINDS, RENDERED_KINDS, SMALLEST_DEFECT, Painted, paint_defect
from procon.model.renderings import PixelPlace, Rendering, RenderingPlan
from procon.vision.framing import patch_box
from procon.vision.images import Picture

CONTRASTS = {"faint": 10, "medium": 25, "clear": 60}  # grey levels of 255
LARGEST_SHARE = 0.1  # of the part
SIZES = 6
_TRIES = 12  # places at which a defect is tried
_ON_PART = 0.5  # least share of a defect that lies on the part


@dataclass(frozen=True)
class Host:
    """A good image on which defects are rendered, with the patches that show the part."""

    boxes: tuple[Box, ...]  # of these patches, in pixels of the image
    size: tuple[int, int]  # (height, width) of the image

    @classmethod
    def of(cls, config: Config, size: tuple[int, int], part: Bools) -> "Host":
        """The host of ``size`` (height, width) whose patches ``part`` [P] show the part."""
        return cls(tuple(patch_box(config, int(number), size) for number in np.flatnonzero(part)), size)

    @property
    def area(self) -> Bools:
        """[H, W]: the pixels of the part."""
        mask = np.zeros(self.size, np.bool_)
        for left, top, right, bottom in self.boxes:
            mask[top:bottom, left:right] = True
        return mask

    @property
    def extent(self) -> int:
        """The longer side of the box around the part, in pixels."""
        left, top, right, bottom = zip(*self.boxes, strict=True)
        return int(max(max(right) - min(left), max(bottom) - min(top)))

    def draw(self, random: Generator) -> PixelPlace:
        """A pixel (x, y) of the part, any patch as likely as another."""
        left, top, right, bottom = self.boxes[random.integers(len(self.boxes))]
        return int(random.integers(left, right)), int(random.integers(top, bottom))


def choose_sizes(extent: int) -> tuple[int, ...]:
    """Sizes in pixels from the smallest to a tenth of a part of this ``extent``, in equal ratios."""
    largest = max(LARGEST_SHARE * extent, 2 * SMALLEST_DEFECT)
    return tuple(sorted({round(float(size)) for size in np.geomspace(SMALLEST_DEFECT, largest, SIZES)}))


def check_sizes(sizes: Sequence[int], extent: int) -> tuple[int, ...]:
    """Sizes that a user asks for, ascending and each once."""
    if not sizes or min(sizes) < SMALLEST_DEFECT or max(sizes) > extent:
        raise ConfigError(
            f"sizes must be from {SMALLEST_DEFECT} pixels to the {extent} of the part in these images, got "
            f"{list(sizes)}"
        )
    return tuple(sorted(set(sizes)))


def check_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Kinds of defects that a user asks for, each once; by default those whose share says something of real ones."""
    if kinds is None:
        return RENDERED_KINDS
    if not kinds or not set(kinds) <= set(PAINTED_KINDS):
        raise ConfigError(f"kinds must be among {', '.join(PAINTED_KINDS)}, got {', '.join(kinds) or 'none'}")
    return tuple(kind for kind in PAINTED_KINDS if kind in kinds)


def host_of(plan: RenderingPlan, number: int, hosts: int) -> int:
    """Which of so many ``hosts`` carries defect ``number``."""
    return int(np.random.default_rng([plan.seed, number, 0]).integers(hosts))


def place_defect(plan: RenderingPlan, number: int, host: Host, picture: Picture) -> tuple[Rendering, Painted | None]:
    """Defect ``number`` on its host: places are drawn until it lies on the part and can be seen."""
    kind, size, contrast = plan.cells[number % len(plan.cells)]
    random, area = np.random.default_rng([plan.seed, number, 1]), host.area
    center, source = (0, 0), None
    for _ in range(_TRIES):
        center = host.draw(random)
        source = host.draw(random) if kind == "foreign" else None
        painted = _paint(plan, number, picture, kind, size, contrast, center, source)
        if painted is not None and area[painted.mask].mean() >= _ON_PART:
            return Rendering(kind, size, contrast, -1, center, source, None), painted
    return Rendering(kind, size, contrast, -1, center, source, None), None


def paint_again(plan: RenderingPlan, number: int, row: Rendering, picture: Picture) -> Painted | None:
    """The picture with defect ``number``, as it was measured."""
    return _paint(plan, number, picture, row.kind, row.size, row.contrast, row.center, row.source)


def _paint(
    plan: RenderingPlan,
    number: int,
    picture: Picture,
    kind: str,
    size: int,
    contrast: int,
    center: PixelPlace,
    source: PixelPlace | None,
) -> Painted | None:
    random = np.random.default_rng([plan.seed, number, 2])
    return paint_defect(picture.pixels, kind, size, contrast, center, random, source)
