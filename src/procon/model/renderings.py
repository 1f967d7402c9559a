"""The scores of rendered defects that a model keeps, so that each threshold can be judged by what it would find.

Needs neither torch nor numpy. How the defects are rendered and measured is in :mod:`procon.limits`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PixelPlace = tuple[int, int]
"""(x, y) in pixels of an image."""


class HostImage(NamedTuple):
    """A good image on which defects were rendered."""

    name: str
    digest: str
    size: tuple[int, int]  # (height, width)
    score: float  # without a defect


@dataclass(frozen=True)
class RenderingPlan:
    """Which defects are rendered: number n is the same for every count of them."""

    seed: int
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]  # pixels, ascending
    contrasts: tuple[int, ...]  # grey levels of 255, ascending
    held_out: bool  # separate good images; False: training images, each scored without its own anchors
    whole_image: bool  # no background was told from the part
    extent: int  # of the part, in pixels: the longer side of the box around it

    @property
    def cells(self) -> list[tuple[str, int, int]]:
        """Every kind, size and contrast; defect number n is of cell n modulo their number."""
        return [(kind, size, contrast) for kind in self.kinds for size in self.sizes for contrast in self.contrasts]


class Rendering(NamedTuple):
    """One rendered defect and the score of the image with it."""

    kind: str
    size: int
    contrast: int
    host: int  # number of the good image
    center: PixelPlace
    source: PixelPlace | None  # where a foreign structure was taken from
    score: float | None  # None: it could not be rendered, see procon.limits.kinds


@dataclass(frozen=True)
class Renderings:
    """Rendered defects, in the order of their plan."""

    plan: RenderingPlan
    hosts: tuple[HostImage, ...]
    rows: tuple[Rendering, ...]

    def judged(self, threshold: float) -> Iterator[tuple[Rendering, bool]]:
        """Every defect that was rendered, and whether the threshold finds it.

        Only on good images that it does not flag without the defect.
        """
        for row in self.rows:
            if row.score is not None and self.hosts[row.host].score <= threshold:
                yield row, row.score > threshold

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: what the plan says of a defect is left out."""
        return {
            "plan": asdict(self.plan),
            "hosts": [host._asdict() for host in self.hosts],
            "host": [row.host for row in self.rows],
            "center": [row.center for row in self.rows],
            "source": [row.source for row in self.rows],
            "score": [row.score for row in self.rows],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Renderings":
        """The inverse of :meth:`to_dict`; a KeyError, TypeError or ValueError says what does not fit."""
        plan = _plan(stored["plan"])
        hosts = tuple(
            HostImage(str(host["name"]), str(host["digest"]), _point(host["size"]), float(host["score"]))
            for host in stored["hosts"]
        )
        rows, cells = [], plan.cells
        columns = zip(stored["host"], stored["center"], stored["source"], stored["score"], strict=True)
        for number, (host, center, source, score) in enumerate(columns):
            if not 0 <= int(host) < len(hosts) or (score is not None and not math.isfinite(score)):
                raise ValueError(f"rendered defect {number} has no good image or no finite score")
            taken = None if source is None else _point(source)
            rows.append(Rendering(*cells[number % len(cells)], int(host), _point(center), taken, score))
        return cls(plan, hosts, tuple(rows))


def _plan(stored: Mapping[str, Any]) -> RenderingPlan:
    kinds = tuple(str(kind) for kind in stored["kinds"])
    sizes, contrasts = (tuple(int(value) for value in stored[name]) for name in ("sizes", "contrasts"))
    if not kinds or not sizes or not contrasts:
        raise ValueError("rendered defects without kinds, sizes or contrasts")
    flags = bool(stored["held_out"]), bool(stored["whole_image"])
    return RenderingPlan(int(stored["seed"]), kinds, sizes, contrasts, *flags, int(stored["extent"]))


def _point(pair: Any) -> PixelPlace:
    x, y = pair
    return int(x), int(y)
