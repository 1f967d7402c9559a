"""Defects drawn on good images: a criterion that needs no labels.

Three kinds: a piece of another good image pasted in, a scratch, a stain. Crude on purpose: a rule that only works with
defects that look real would need to know the part.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

KINDS = ("paste", "scratch", "stain")

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def draw_defect(pixels: Pixels, donor: Pixels, kind: str, random: np.random.RandomState) -> tuple[Pixels, Mask]:
    """A copy of ``pixels`` [H, W, 3] with a defect, and where it is [H, W]. ``donor`` is another good image."""
    draw = {"paste": _paste, "scratch": _scratch, "stain": _stain}[kind]
    cover, colour = draw(pixels, donor, random)
    blended = np.rint(pixels * (1 - cover[:, :, None]) + colour * cover[:, :, None]).astype(np.uint8)
    return blended, cover > 0.2


def _centre(pixels: Pixels, random: np.random.RandomState) -> tuple[int, int]:
    height, width = pixels.shape[:2]
    return int(random.uniform(0.15, 0.85) * width), int(random.uniform(0.15, 0.85) * height)


def _paste(pixels: Pixels, donor: Pixels, random: np.random.RandomState) -> tuple[Any, Any]:
    height, width = pixels.shape[:2]
    side = float(height * width) ** 0.5
    rows, columns = (int(np.clip(random.uniform(0.03, 0.12) * side, 4, min(height, width) // 2)) for _ in range(2))
    top, left = random.randint(donor.shape[0] - rows), random.randint(donor.shape[1] - columns)
    piece = Image.fromarray(donor[top : top + rows, left : left + columns])
    turned = piece.rotate(float(random.choice([90, 180, 270])), expand=True)
    x, y = _centre(pixels, random)
    colour, cover = Image.fromarray(pixels), Image.new("L", (width, height), 0)
    corner = (x - turned.width // 2, y - turned.height // 2)
    colour.paste(turned, corner)
    cover.paste(255, (*corner, corner[0] + turned.width, corner[1] + turned.height))
    return np.asarray(cover, np.float32) / 255, np.asarray(colour, np.float32)


def _scratch(pixels: Pixels, donor: Pixels, random: np.random.RandomState) -> tuple[Any, Any]:
    height, width = pixels.shape[:2]
    side = float(height * width) ** 0.5
    x, y = _centre(pixels, random)
    angle, bend = random.uniform(0, 2 * np.pi), random.uniform(-0.6, 0.6)
    step = random.uniform(0.05, 0.25) * side / 8
    points = [(float(x), float(y))]
    for _ in range(8):
        angle += bend / 8
        points.append((points[-1][0] + step * np.cos(angle), points[-1][1] + step * np.sin(angle)))
    cover = Image.new("L", (width, height), 0)
    ImageDraw.Draw(cover).line(
        points, fill=255, width=max(2, round(random.uniform(0.003, 0.008) * side)), joint="curve"
    )
    cover = cover.filter(ImageFilter.GaussianBlur(0.6))
    shade = random.choice([random.uniform(0, 60), random.uniform(195, 255)])
    colour = np.full(pixels.shape, shade, np.float32)
    return np.asarray(cover, np.float32) / 255 * random.uniform(0.5, 0.9), colour


def _stain(pixels: Pixels, donor: Pixels, random: np.random.RandomState) -> tuple[Any, Any]:
    height, width = pixels.shape[:2]
    side = float(height * width) ** 0.5
    x, y = _centre(pixels, random)
    size = random.uniform(0.03, 0.1) * side
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    radii = size * np.clip(1 + 0.35 * random.standard_normal(24), 0.4, 1.8)
    radii = (radii + np.roll(radii, 1) + np.roll(radii, -1)) / 3
    outline = [(x + r * np.cos(a), y + r * np.sin(a)) for a, r in zip(angles, radii, strict=True)]
    cover = Image.new("L", (width, height), 0)
    ImageDraw.Draw(cover).polygon(outline, fill=255)
    cover = cover.filter(ImageFilter.GaussianBlur(0.01 * side))
    colour = np.clip(pixels * random.uniform(0.3, 1.0, 3) + random.uniform(0, 120, 3), 0, 255).astype(np.float32)
    return np.asarray(cover, np.float32) / 255 * random.uniform(0.4, 0.8), colour
