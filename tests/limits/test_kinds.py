"""Rendered defects: only their mask changes, in the size and contrast that were asked for."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from procon.limits.kinds import PAINTED_KINDS, SMALLEST_DEFECT, paint_defect
from procon.limits.shapes import blob, disc, line

ASKED = ("scratch", "dent", "stain")  # kinds that can be rendered anywhere, in any contrast


def textured(seed: int = 0, size: tuple[int, int] = (90, 200)) -> NDArray[np.uint8]:
    """Mid-grey noise with a coarse pattern, in three different channels."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    pattern = 40 * np.sin(x / 5)[:, :, None] * np.array([1.0, 0.8, 0.6]) + 20 * np.cos(y / 7)[:, :, None]
    return np.asarray(np.clip(128 + pattern + random.normal(0, 3, (*size, 3)), 0, 255), np.uint8)


def paint(pixels: NDArray[Any], kind: str, size: int = 14, contrast: float = 25, seed: int = 0) -> Any:
    return paint_defect(pixels, kind, size, contrast, (50, 45), np.random.default_rng(seed), (140, 45))


@pytest.mark.parametrize("kind", PAINTED_KINDS)
@settings(deadline=None, max_examples=12)
@given(
    size=st.integers(SMALLEST_DEFECT, 40),
    contrast=st.sampled_from([10, 25, 60]),
    center=st.tuples(st.integers(0, 199), st.integers(0, 89)),
    seed=st.integers(0, 999),
)
def test_only_pixels_of_the_mask_change_and_none_by_more_than_the_contrast(
    kind: str, size: int, contrast: int, center: tuple[int, int], seed: int
) -> None:
    pixels = textured()
    painted = paint_defect(pixels, kind, size, contrast, center, np.random.default_rng(seed), (20, 20))
    if painted is None:
        assert kind not in ASKED or not (size < 90 and 20 <= center[0] < 180 and 20 <= center[1] < 70)
        return
    change = np.abs(painted.pixels.astype(float) - pixels)
    assert painted.pixels.dtype == np.uint8 and painted.mask.shape == pixels.shape[:2]
    assert not change[~painted.mask].any()
    assert change.max() == painted.change
    assert contrast / 2 <= painted.change <= contrast + 0.5
    assert pdist(np.argwhere(painted.mask)).max(initial=0) <= size + 1


@pytest.mark.parametrize("kind", PAINTED_KINDS)
def test_a_rendering_depends_on_its_seed_alone(kind: str) -> None:
    first, again, other = (paint(textured(), kind, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    np.testing.assert_array_equal(first.mask, again.mask)
    assert not np.array_equal(first.mask, other.mask)


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("contrast", [10, 25, 60])
@pytest.mark.parametrize("size", [3, 5, 9, 20, 40])
def test_size_and_contrast_are_those_asked_for(kind: str, contrast: int, size: int) -> None:
    for seed in range(10):
        painted = paint(np.full((90, 200, 3), 128, np.uint8), kind, size, contrast, seed)
        assert abs(painted.change - contrast) <= 1
        extent = pdist(np.argwhere(painted.mask)).max() + 1
        assert abs(extent - size) <= 1.6, (seed, extent)


@pytest.mark.parametrize("kind", ["hole", "foreign"])
@pytest.mark.parametrize("size", [5, 9, 20, 40])
def test_holes_and_foreign_structures_have_their_size_too(kind: str, size: int) -> None:
    painted = paint(textured(), kind, size, 10)
    assert abs(pdist(np.argwhere(painted.mask)).max() + 1 - size) <= 1.6


@pytest.mark.parametrize("kind", PAINTED_KINDS)
def test_images_of_more_than_8_bits_stay_what_they_are(kind: str) -> None:
    pixels = (textured() / 255 + 0.001).astype(np.float32)
    painted = paint(pixels, kind)
    assert painted.pixels.dtype == np.float32
    np.testing.assert_array_equal(painted.pixels[~painted.mask], pixels[~painted.mask])
    assert painted.change == pytest.approx(255 * np.abs(painted.pixels - pixels).max(), abs=1e-3)


@pytest.mark.parametrize("kind", PAINTED_KINDS)
def test_an_image_without_colours_gets_none(kind: str) -> None:
    painted = paint(np.repeat(textured()[:, :, :1], 3, axis=2), kind)
    assert (painted.pixels == painted.pixels[:, :, :1]).all()


def test_a_stain_has_a_colour() -> None:
    painted = paint(textured(), "stain", 20, 60)
    change = painted.pixels[painted.mask].astype(int) - textured()[painted.mask]
    assert np.ptp(change, axis=1).max() > 5


def test_a_scratch_is_brighter_or_darker_where_there_is_room() -> None:
    for level, sign in ((5, 1), (250, -1)):
        pixels = np.full((90, 200, 3), level, np.uint8)
        painted = paint(pixels, "scratch", 20, 60)
        assert (sign * (painted.pixels.astype(int) - pixels) >= 0).all()
        assert painted.change == 60


def test_a_dent_has_a_bright_and_a_dark_flank() -> None:
    pixels = np.full((90, 200, 3), 128, np.uint8)
    change = paint(pixels, "dent", 30, 60).pixels.astype(int) - pixels
    assert change.max() == -change.min() == 60


def test_the_surroundings_continue_over_a_hole() -> None:
    pixels = np.full((90, 200, 3), 200, np.uint8)
    pixels[43:48, 48:53] = 20  # a print that the hole takes away
    painted = paint(pixels, "hole", 20, 255)
    np.testing.assert_array_equal(painted.pixels[43:48, 48:53], 200)


def test_a_foreign_structure_is_what_lies_elsewhere() -> None:
    pixels = np.where(np.arange(200)[None, :, None] < 100, textured() // 8, 255 - textured() // 8).astype(np.uint8)
    painted = paint(pixels, "foreign", 20, 255)
    dx, dy = 140 - 50, 0
    inside = np.argwhere(painted.mask)
    middle = inside[np.hypot(*(inside - inside.mean(axis=0)).T) < 3]  # covered fully
    for y, x in middle:
        np.testing.assert_array_equal(painted.pixels[y, x], pixels[y + dy, x + dx])


def test_what_cannot_be_rendered_is_none() -> None:
    flat, random = np.full((90, 200, 3), 128, np.uint8), np.random.default_rng(0)
    assert paint(flat, "hole") is None  # its surroundings look the same
    assert paint(flat, "foreign") is None  # so does the rest of the part
    for source in ((55, 45), (199, 89), (0, 0)):  # too near; beyond the border
        assert paint_defect(textured(), "foreign", 30, 10, (50, 45), random, source) is None
    assert paint_defect(flat, "foreign", 10, 10, (50, 45), random) is None


@pytest.mark.parametrize("extent", [3, 40])
def test_the_line_is_the_nearest_of_many_points_of_its_curve(extent: int) -> None:
    shape = line((46, 46), (22.2, 23.7), extent, np.random.default_rng(3))
    random = np.random.default_rng(3)  # the same draws
    width = max(1.0, extent / 20)
    angle, bend = random.uniform(0, 2 * np.pi), random.uniform(-0.15, 0.15)
    half = max(0.0, (extent - width - 1) / 2)
    expected = np.zeros((46, 46))
    points = [
        (
            22.2 + half * (t * np.cos(angle) - 2 * bend * (1 - t**2) * np.sin(angle)),
            23.7 + half * (t * np.sin(angle) + 2 * bend * (1 - t**2) * np.cos(angle)),
        )
        for t in np.linspace(-1, 1, 150)
    ]
    for y in range(46):
        for x in range(46):
            distance = min(math.hypot(x - px, y - py) for px, py in points)
            expected[y, x] = min(1, max(0, width / 2 + 0.5 - distance))
    assert np.abs(shape.cover - expected).max() < 0.1  # 16 straight pieces


def test_the_shading_is_the_slope_of_the_dent() -> None:
    shape, shading = disc((200, 200), (100.0, 100.0), 160, np.random.default_rng(5))
    random = np.random.default_rng(5)
    angle, light = random.uniform(0, 2 * np.pi, 2)
    flat = random.uniform(0.6, 1.0)

    def depth(x: float, y: float) -> float:
        u = (x * np.cos(angle) + y * np.sin(angle)) / 80
        v = (y * np.cos(angle) - x * np.sin(angle)) / (flat * 80)
        return float(max(0.0, 1 - u**2 - v**2) ** 2)

    slopes = {}
    for y in range(-75, 76, 15):
        for x in range(-75, 76, 15):
            dx, dy = 1e-4 * np.cos(light), 1e-4 * np.sin(light)
            slopes[x, y] = (depth(x - dx, y - dy) - depth(x + dx, y + dy)) / 2e-4
    scale = max(abs(slope) for slope in slopes.values()) / np.abs(shading[25:176:15, 25:176:15]).max()
    for (x, y), slope in slopes.items():
        assert shading[100 + y, 100 + x] * scale == pytest.approx(slope, abs=1e-6)
        assert shape.mask[100 + y, 100 + x] == (depth(x, y) > 0)


def test_a_blob_is_wavy_and_convex_enough_to_be_one_piece() -> None:
    from scipy import ndimage

    for seed in range(20):
        shape = blob((60, 60), (30.0, 30.0), 40, np.random.default_rng(seed))
        assert ndimage.label(shape.mask)[1] == 1
        assert shape.cover.max() == 1
