"""image_size="auto": the grid that is chosen, what is said of it, and models fitted with it."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from procon import Config, ConfigError, Detector
from procon.config import PATCH
from procon.vision.images import open_image, read_size
from procon.vision.shape import choose_grid, median_size, resolve_shape, shape_for, shape_of, stretch_of
from tests.conftest import part_pixels, tiny_config

SIDES = st.integers(14, 3000)


def slow_grid(size: tuple[int, int], budget: int, scale: int) -> tuple[int, int]:
    """Of all grids within the budget and the image: the finest in its coarser direction, then the smallest."""
    height, width = size
    grids = [
        (rows, columns)
        for rows in range(1, 293)
        for columns in range(1, 293)
        if rows * columns <= budget and rows * PATCH <= scale * height and columns * PATCH <= scale * width
    ]
    return max(grids, key=lambda grid: (min(grid[0] * width, grid[1] * height), -grid[0] * grid[1], -grid[0]))


@given(SIDES, SIDES, st.sampled_from([1, 7, 100, 784]), st.sampled_from([1, 2]))
def test_the_grid_is_that_of_the_slow_search(height: int, width: int, budget: int, scale: int) -> None:
    assert choose_grid((height, width), budget, scale) == slow_grid((height, width), budget, scale)


@given(SIDES, SIDES, st.sampled_from([1, 50, 784, 2304]))
def test_a_grid_turns_with_the_image_and_never_exceeds_it_or_the_budget(height: int, width: int, budget: int) -> None:
    rows, columns = choose_grid((height, width), budget)
    assert rows * columns <= budget and rows * PATCH <= height and columns * PATCH <= width
    turned = choose_grid((width, height), budget)
    assert sorted(turned) == sorted((rows, columns)) and min(turned) * max(turned) == rows * columns


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((1000, 1000), {}, 392),  # squares: the recipe's own size
        ((700, 700), {"patch_budget": 2304}, 672),
        ((448, 448), {"patch_budget": 2304}, 448),
        ((448, 448), {"patch_budget": 2304, "max_scale": 2.0}, 672),
        ((640, 230), {"patch_budget": 2304, "max_scale": 2.0}, (1106, 406)),
        ((640, 230), {}, (630, 224)),  # KolektorSDD2, no larger than the image
        ((100, 1600), {}, (98, 1568)),
        ((3000, 1000), {}, (672, 224)),
    ],
)
def test_what_sizes_become(size: tuple[int, int], settings: dict[str, Any], expected: Any) -> None:
    assert shape_for(Config(image_size="auto", **settings), Counter([size])).config.image_size == expected


def test_mixed_sizes_take_the_median_of_the_proportions() -> None:
    wide, tall, square = (400, 800), (800, 400), (600, 600)
    assert median_size(Counter([wide, tall])) == pytest.approx((math.sqrt(320000),) * 2)
    assert median_size(Counter([wide, wide, tall])) == pytest.approx(wide)
    assert median_size(Counter([wide, square, tall])) == pytest.approx((math.sqrt(320000),) * 2)
    shape = shape_for(Config(image_size="auto"), Counter([wide, wide, tall]))
    assert shape.config.grid == (20, 39)
    assert shape.middle_size == wide
    said = "\n".join(shape.describe())
    assert "lost: the proportions of 1 of 3 images, stretched in one direction up to 3.9 times as much" in said
    assert "fit parts of different shapes apart, or use --set aspect=pad" in said
    padded = shape_for(Config(image_size="auto", aspect="pad"), Counter([wide, wide, tall]))
    assert "proportions" not in "".join(padded.describe()[1:])


def test_what_is_said_of_a_square_input_for_long_images() -> None:
    lines = shape_for(Config(), Counter({(640, 230): 5})).describe()
    assert lines == [
        "input of 392 x 392 pixels, 28 x 28 patches, as set by image_size",
        "images of 230 x 640 pixels: scale 1.70 across and 0.61 down, so a patch covers 8.2 x 22.9 of their pixels",
        "lost: detail finer than the scale; a larger image_size or patch_budget keeps more, for more time",
        "lost: the proportions of 5 of 5 images, stretched in one direction up to 2.8 times as much as in the other; "
        "--image-size auto keeps them",
    ]
    cropped = shape_for(Config(image_size=224, resize=448), Counter({(500, 500): 1})).describe()
    assert cropped[-1] == "lost: the edges; 25% of each image is used (resize)"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_headers_have_the_size_of_the_decoded_image(tmp_path: Path, form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"image.{form.lower()}"
    Image.fromarray(part_pixels(0)).save(path, form, **({} if form == "BMP" else {"exif": exif}))
    assert read_size(path) == open_image(path).size
    with Image.open(path) as image:
        assert read_size(image) == read_size(path)


def test_sizes_of_images_in_memory_and_of_what_is_no_image(tmp_path: Path) -> None:
    pixels = part_pixels(0)
    assert read_size(pixels) == read_size(Image.fromarray(pixels)) == (96, 80)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    assert read_size(broken) is read_size(tmp_path / "gone.png") is read_size(tmp_path) is None


def test_a_settled_size_opens_no_image() -> None:
    config = Config(image_size=392)
    assert resolve_shape(config, iter(lambda: pytest.fail("an image was opened"), None)) is config


# ----------------------------------------------------------------------------------------------------------- fits


@pytest.fixture
def long_folder(tmp_path: Path) -> Path:
    """Eight parts, 224 pixels wide and 70 high; one is wider."""
    folder = tmp_path / "long"
    folder.mkdir()
    for seed in range(8):
        size = (300 if seed == 3 else 224, 70)
        Image.fromarray(part_pixels(seed)).resize(size).save(folder / f"{seed}.png")
    return folder


def auto(weights: Path, **settings: Any) -> Config:
    return tiny_config(weights, **{"image_size": "auto", "patch_budget": 36, **settings})


def test_square_images_give_the_model_of_today_to_the_last_bit(tiny_backbone: Path, tmp_path: Path) -> None:
    images = [np.ascontiguousarray(part_pixels(seed)[:80]) for seed in range(6)]
    here = Detector(auto(tiny_backbone, patch_budget=25), device="cpu").fit(images)
    square = Detector(tiny_config(tiny_backbone, image_size=70, patch_budget=25), device="cpu").fit(images)
    assert here.config == square.config
    assert here.config.image_size == 70
    one, other = (detector.save(tmp_path / name).read_bytes() for detector, name in ((here, "a"), (square, "b")))
    assert one == other


def test_a_fit_resolves_and_keeps_the_shape(tiny_backbone: Path, long_folder: Path, tmp_path: Path) -> None:
    detector = Detector(auto(tiny_backbone), device="cpu")
    with pytest.raises(ConfigError, match="call fit"):
        detector.reader  # noqa: B018
    detector.fit(long_folder)
    assert detector.config.image_size == (42, 140) and detector.config.grid == (3, 10)
    assert len(detector.model.memory.images) == 8, "the wider image is stretched, not left out"
    again = Detector.load(detector.save(tmp_path / "part.procon"), device="cpu")
    assert again.config == detector.config
    images = sorted(long_folder.iterdir())
    assert [one.score for one in again.predict(images)] == [one.score for one in detector.predict(images)]
    assert again.predict(images[0]).heatmap.shape == (70, 224)
    again.partial_fit([part_pixels(20)])
    again.forget(images[0])
    again.calibrate()
    assert again.config.image_size == (42, 140)
    explicit = Detector(tiny_config(tiny_backbone, image_size=(42, 140), patch_budget=36), device="cpu").fit(
        long_folder
    )
    assert explicit.predict(images[0]).score == detector.predict(images[0]).score


def test_the_next_fit_chooses_again(tiny_backbone: Path, long_folder: Path) -> None:
    detector = Detector(auto(tiny_backbone), device="cpu").fit(long_folder)
    detector.fit([np.rot90(part_pixels(seed)[:60]).copy() for seed in range(6)])
    assert detector.config.image_size == (70, 56)
    detector.fit([part_pixels(seed)[:80] for seed in range(6)])
    assert detector.config.grid == (5, 5)


def test_a_failed_fit_changes_nothing(tiny_backbone: Path, long_folder: Path) -> None:
    detector = Detector(auto(tiny_backbone), device="cpu").fit(long_folder)
    before = detector.predict(part_pixels(30)).score
    with pytest.raises(Exception, match="no such file"):
        detector.fit([*([part_pixels(0)[:60]] * 3), Path("gone.png")])
    assert detector.config.image_size == (42, 140) and detector.predict(part_pixels(30)).score == before


def test_unreadable_images_have_no_say(tiny_backbone: Path, long_folder: Path) -> None:
    (long_folder / "broken.png").write_bytes(b"no image")
    detector = Detector(auto(tiny_backbone), device="cpu").fit(long_folder, skip_bad=True)
    assert detector.config.image_size == (42, 140)
    with pytest.raises(Exception, match=r"broken\.png"):
        Detector(auto(tiny_backbone), device="cpu").fit([long_folder / "broken.png"])


def test_padding_and_tiles_take_the_chosen_shape(tiny_backbone: Path, long_folder: Path) -> None:
    padded = Detector(auto(tiny_backbone, aspect="pad"), device="cpu").fit(long_folder)
    assert padded.config.image_size == (42, 140)
    tiled = Detector(auto(tiny_backbone, patch_budget=64, tile=56), device="cpu").fit(long_folder)
    assert tiled.config.grid == (4, 13) and tiled.config.view == (4, 4)
    with pytest.raises(ConfigError, match="tile must be None or a multiple of 14 from 56 to image_size = 42"):
        Detector(auto(tiny_backbone, tile=56), device="cpu").fit(long_folder)


def test_a_crop_is_refused() -> None:
    with pytest.raises(ConfigError, match="resize must be None where image_size is 'auto'"):
        Config(image_size="auto", resize=448)


def test_the_shape_of_a_folder(long_folder: Path) -> None:
    shape = shape_of(Config(image_size="auto"), sorted(long_folder.iterdir()))
    assert shape.sizes == Counter({(70, 224): 7, (70, 300): 1}) and shape.chosen
    assert stretch_of(shape.config, (70, 224)) == pytest.approx(1.0)
