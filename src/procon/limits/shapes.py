"""The shapes of rendered defects: how far a defect covers each pixel of a window."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from procon.arrays import Bools, Reals

_PIECES = 16  # straight pieces of a bent line
_WAVES = (2, 3, 4, 5)  # round the outline of a blob


class DefectShape(NamedTuple):
    """How far a defect covers each pixel, from 0 to 1, and which it touches."""

    cover: Reals  # [h, w]
    mask: Bools  # [h, w]: where the cover is above 0


def line(size: tuple[int, ...], center: tuple[float, float], extent: int, random: Generator) -> DefectShape:
    """A bent line of ``extent`` pixels from end to end, a twentieth as wide and at least one pixel, with soft edges."""
    width = max(1.0, extent / 20)
    angle, bend = random.uniform(0, 2 * np.pi), random.uniform(-0.15, 0.15)
    along = np.array([np.cos(angle), np.sin(angle)])
    across = np.array([-along[1], along[0]])
    half = max(0.0, (extent - width - 1) / 2)
    t = np.linspace(-1, 1, _PIECES + 1)[:, None]
    corners = np.asarray(center) + half * (t * along + 2 * bend * (1 - t**2) * across)
    y, x = np.mgrid[: size[0], : size[1]]
    points = np.stack([x, y], axis=2).astype(np.float64)
    distance = np.full(size[:2], np.inf)
    for start, end in pairwise(corners):
        step = end - start
        length = float(step @ step)
        share = np.clip((points - start) @ step / length, 0, 1) if length > 0 else np.zeros(size[:2])
        nearest = start + share[:, :, None] * step
        distance = np.minimum(distance, np.hypot(*np.moveaxis(points - nearest, 2, 0)))
    cover = np.clip(width / 2 + 0.5 - distance, 0, 1)
    return DefectShape(cover, cover > 0)


def blob(size: tuple[int, ...], center: tuple[float, float], extent: int, random: Generator) -> DefectShape:
    """A spot with a wavy outline and soft edges, ``extent`` pixels across where it is longest."""
    angles = np.linspace(0, 2 * np.pi, 128, endpoint=False)
    waves = [(random.uniform(0, 0.2) / n, random.uniform(0, 2 * np.pi), n) for n in _WAVES]

    def radius(angle: Reals) -> Reals:
        total = np.ones(angle.shape)
        for high, phase, count in waves:
            total += high * np.cos(count * angle + phase)
        return total

    outline = radius(angles)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    widths = (outline @ outline.T / np.maximum(np.linalg.norm(outline, axis=1), 1e-9)).max(axis=0)
    longest = float((widths + np.roll(widths, len(angles) // 2)).max())
    y, x = np.mgrid[: size[0], : size[1]]
    dx, dy = x - center[0], y - center[1]
    scale = (extent - 1) / longest
    cover = np.clip(scale * radius(np.arctan2(dy, dx)) - np.hypot(dx, dy) + 0.5, 0, 1)
    return DefectShape(cover, cover > 0)


def disc(
    size: tuple[int, ...], center: tuple[float, float], extent: int, random: Generator
) -> tuple[DefectShape, Reals]:
    """An ellipse ``extent`` pixels long, and the shading of a smooth dent in it: from -1 to 1 at most.

    The depth at a share r of the way to the edge is (1 - r²)²; the shading is its slope along a random direction.
    """
    angle, light = random.uniform(0, 2 * np.pi, 2)
    flat = random.uniform(0.6, 1.0)
    y, x = np.mgrid[: size[0], : size[1]]
    dx, dy = x - center[0], y - center[1]
    u = (dx * np.cos(angle) + dy * np.sin(angle)) / (extent / 2)
    v = (dy * np.cos(angle) - dx * np.sin(angle)) / (flat * extent / 2)
    inside = u**2 + v**2 < 1
    slope = np.where(inside, 4 * (1 - u**2 - v**2), 0.0)
    turned = light - angle
    shading = slope * (u * np.cos(turned) + v * np.sin(turned) / flat)
    highest = float(np.abs(shading).max())
    shading = shading / highest if highest > 0 else shading
    return DefectShape(np.abs(shading), inside), shading
