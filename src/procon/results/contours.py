"""Outlines of masks as closed lines, with numpy only."""

import numpy as np

from procon.arrays import Bools

Corner = tuple[int, int]


def trace_outlines(mask: Bools) -> list[list[Corner]]:
    """Closed lines around the areas of a mask [H, W], holes included, in half pixels: (x, y) up to (2 W, 2 H).

    Each goes through the middles of the edges between pixels inside and outside, so that steps become slopes.
    """
    following = _directed_edges(mask)
    outlines = []
    while following:
        start = next(iter(following))
        corner, corners = start, [start]
        while True:
            ends = following[corner]
            # Where two areas touch at a corner, the edge added last belongs to the same area.
            following_corner = ends.pop()
            if not ends:
                del following[corner]
            corner = following_corner
            if corner == start:
                break
            corners.append(corner)
        outlines.append(_middles(corners))
    return outlines


def outline_path(mask: Bools) -> str:
    """The outlines as the ``d`` of an SVG path, in half pixels."""
    lines = (" ".join(f"{x},{y}" for x, y in outline) for outline in trace_outlines(mask))
    return "".join(f"M{line}z" for line in lines)


def _directed_edges(mask: Bools) -> dict[Corner, list[Corner]]:
    """From each corner (x, y) to the next ones along the edges of the mask, with the inside on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    following: dict[Corner, list[Corner]] = {}
    sides = (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),  # the pixel above is outside: along the top edge to the right
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    )
    for neighbor, start, end in sides:
        rows, columns = np.nonzero(inside & ~neighbor)
        for y, x in zip(rows.tolist(), columns.tolist(), strict=True):
            following.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    return following


def _middles(corners: list[Corner]) -> list[Corner]:
    """The middles of the edges between ``corners``, without those inside a straight line; in half pixels."""
    ends = [*corners[1:], corners[0]]
    middles = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(corners, ends, strict=True)]
    count = len(middles)

    def is_bend(place: int) -> bool:
        before, here, after = middles[place - 1], middles[place], middles[(place + 1) % count]
        return (here[0] - before[0], here[1] - before[1]) != (after[0] - here[0], after[1] - here[1])

    return [middles[place] for place in range(count) if is_bend(place)]
