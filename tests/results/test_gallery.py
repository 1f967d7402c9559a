"""The page of results: outlines, sizes, words, and what a person does on it in a real Chromium."""

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from procon import Prediction
from procon.results.contours import outline_path, trace_outlines
from procon.results.gallery import MOST_CARDS, Card, Failure, Wording, make_card, picture_side, render_gallery
from procon.results.score_axis import render_axis
from procon.showing.painting import ColorScale, color_tables, paint
from tests.accessibility import assert_accessible
from tests.chromium import assert_harmless, watch_page

SCALE = ColorScale(0.4, 0.8)


def card(name: str, score: float, size: tuple[int, int] = (60, 80), side: int = 448) -> Card:
    """A grey part with a peak of height ``score`` in its middle; above 0.8 it is anomalous."""
    height, width = size
    heatmap = np.full(size, 0.4, np.float32)
    heatmap[height // 3 : height // 2, width // 3 : width // 2] = score
    prediction = Prediction(score, heatmap, score > 0.8, 0.8, 0.1, (), name, 0.7)
    return make_card(name, prediction, np.full((*size, 3), 128, np.uint8), SCALE, side, f"overlays/{name}.png")


def make_page(*cards: Card, **words: Any) -> str:
    return render_gallery("parts", cards, cards, 0.8, ["a fact"], good=(0.5, 0.6), **words)


# ------------------------------------------------------------------------------------------------------------ outlines


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)))
@settings(deadline=None)
def test_outlines_enclose_the_pixels_of_the_mask(mask: NDArray[np.bool_]) -> None:
    """Filled with the even-odd rule, the middle of a pixel is inside exactly if the pixel is in the mask."""
    zoom = 8
    height, width = mask.shape
    filled = np.zeros((zoom * height, zoom * width), bool)
    for outline in trace_outlines(mask):
        area = Image.new("1", (zoom * width, zoom * height))
        ImageDraw.Draw(area).polygon([(x * zoom // 2, y * zoom // 2) for x, y in outline], fill=1)
        filled ^= np.asarray(area)
    assert np.array_equal(filled[zoom // 2 :: zoom, zoom // 2 :: zoom], mask)


def test_the_outline_of_a_pixel_is_a_diamond_and_that_of_nothing_is_empty() -> None:
    mask = np.zeros((3, 3), bool)
    assert outline_path(mask) == ""
    mask[1, 1] = True
    assert sorted(trace_outlines(mask)[0]) == [(2, 3), (3, 2), (3, 4), (4, 3)]


@given(st.floats(0, 2.5))
def test_the_filters_of_the_page_colour_as_reports_do(level: float) -> None:
    red, green, blue, opacity = color_tables(2.5, 50)
    at = [float(np.interp(level, np.linspace(0, 2.5, 51), table)) for table in (red, green, blue, opacity)]
    value = np.full((1, 1), SCALE.typical + level * (SCALE.threshold - SCALE.typical), np.float32)
    for ground in (0, 200):
        painted = paint(np.full((1, 1, 3), ground, np.uint8), value, SCALE)[0, 0]
        expected = [255 * channel * at[3] + ground * (1 - at[3]) for channel in at[:3]]
        np.testing.assert_allclose(painted, expected, atol=2)


def test_weak_evidence_is_visible_below_the_threshold_only_on_request() -> None:
    usual, weak = color_tables(2.5, 50)[3], color_tables(2.5, 50, weak=True)[3]
    assert usual[6] == 0 and weak[6] > 0.3, "at a level of 0.3"
    assert (np.diff(weak) >= 0).all() and weak[0] == 0


# ---------------------------------------------------------------------------------------------------------------- page


def test_pages_of_many_images_stay_small() -> None:
    assert [picture_side(count) for count in (1, 200, 800, 2000, 10**6)] == [448, 448, 224, 160, 160]
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)  # noise is the worst a JPEG can get
    heatmap = np.full((480, 640), 0.4, np.float32)
    made = make_card("a.png", Prediction(0.4, heatmap, False, 0.8, 1.0), pixels, SCALE, picture_side(MOST_CARDS))
    assert (len(made.part) + len(made.levels)) * 4 / 3 * MOST_CARDS < 60 * 2**20
    assert max(Image.open(io.BytesIO(made.part)).size) < 200


def test_a_long_image_is_laid_out_long() -> None:
    page = make_page(card("long.png", 0.9, (20, 200)), card("tall.png", 0.5, (200, 20)), card("both.png", 0.6))
    assert re.findall(r"<li class='([^']*)'", page) == ["wide bad", "ok", "tall ok"]
    assert "aspect-ratio:200/20" in page


def test_a_picture_below_the_threshold_keeps_its_map() -> None:
    weak = card("weak.png", 0.6)
    assert weak.outline == "" and np.asarray(Image.open(io.BytesIO(weak.levels))).max() == 51


def test_the_size_is_told_and_the_script_is_the_only_one_allowed() -> None:
    page = make_page(card("a.png", 0.9))
    (told,) = re.findall(r"This page is one file of (\d+) KiB", page)
    body = page[page.index("<body") :]
    assert abs(int(told) - len(body) / 1024) < 2
    (digest,) = re.findall(r"script-src 'sha256-([^']+)'", page)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, flags=re.S)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == digest


def test_pages_of_training_images_speak_of_them() -> None:
    unit = "spreads above the median"
    wording = Wording("training image", "suspected", "like the others", "suspected above", unit, 1)
    page = make_page(card("a.png", 17.5), wording=wording)
    assert "1 training image, 1 suspected" in page and "<b>17.5</b> spreads above the median" in page
    assert "suspected above 0.8" in page and "anomalous" not in page.partition("</style>")[2].partition("Outlined")[0]


def test_the_axis_shows_the_good_images_behind_the_threshold() -> None:
    cards = [card("a.png", 0.9), card("b.png", 0.5)]
    drawn = render_axis(cards, ("threshold", 0.8), (0.45, 0.6, 0.6), 3)
    assert drawn.count("class=known") == 2, "two of three are at one place"
    assert "threshold 0.800" in drawn and "0.450" in drawn and "0.900" in drawn


# ------------------------------------------------------------------------------------------------------------- browser


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Twelve images of two folders, three of them anomalous, one long, and two that could not be read."""
    cards = [card(f"lot {n % 2}/part-{n}.png", 0.5 + 0.04 * n, (30, 200) if n == 11 else (60, 80)) for n in range(12)]
    failures = [Failure("lot 0/broken.png", "broken.png: is truncated"), Failure("lot 1/x.tif", "x.tif: is no image")]
    path = tmp_path / "index.html"
    path.write_text(make_page(*cards, failures=failures), encoding="utf-8")
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    problems = watch_page(opened)
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.goto(path.as_uri())
    opened.wait_for_selector("#controls:not([hidden])")
    yield opened
    assert problems == []
    opened.close()


def names(page: Any) -> list[str]:
    return [text for text in page.locator(".cards li:not([hidden]) small").all_inner_texts() if text]


def choose(page: Any, name: str, value: str) -> None:
    page.locator(f"label:has([name={name}][value={value}])").click()


@pytest.mark.browser
def test_images_are_filtered_and_counted(page: Any) -> None:
    assert len(names(page)) == 14 and names(page)[0] == "lot 0/broken.png"
    choose(page, "kind", "bad")
    assert names(page) == ["lot 1/part-11.png", "lot 0/part-10.png", "lot 1/part-9.png", "lot 0/part-8.png"]
    choose(page, "kind", "ok")
    assert len(names(page)) == 8
    choose(page, "kind", "error")
    assert names(page) == ["lot 0/broken.png", "lot 1/x.tif"]
    assert "is truncated" in page.inner_text(".cards")


@pytest.mark.browser
def test_images_are_sorted_and_grouped(page: Any) -> None:
    choose(page, "kind", "ok")
    page.select_option("[name=order]", "low")
    assert names(page)[:3] == ["lot 0/part-0.png", "lot 1/part-1.png", "lot 0/part-2.png"]
    page.check("[name=group]")
    assert page.locator(".cards h3").all_inner_texts() == ["lot 0", "lot 1"]
    assert names(page)[:3] == ["lot 0/part-0.png", "lot 0/part-2.png", "lot 0/part-4.png"]
    choose(page, "kind", "all")
    page.select_option("[name=order]", "name")
    assert [name for name in names(page) if name.startswith("lot 1")][-3:] == [
        "lot 1/part-9.png",
        "lot 1/part-11.png",
        "lot 1/x.tif",
    ], "numbers in names count"


@pytest.mark.browser
def test_the_map_is_painted_and_can_be_taken_off(page: Any) -> None:
    choose(page, "kind", "bad")
    picture = page.locator(".cards li:not([hidden]) .picture").nth(1)

    def middle() -> tuple[int, ...]:
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
        return tuple(shot.getpixel((round(shot.width * 0.42), round(shot.height * 0.42))))  # type: ignore[arg-type]

    red, green, _ = middle()
    assert red > green + 40, "a strong colour over grey"
    choose(page, "view", "outline")
    assert max(middle()) - min(middle()) < 12
    page.keyboard.press("m")
    assert page.evaluate("document.body.dataset.view") == "plain"
    assert not picture.locator("svg").is_visible()


@pytest.mark.browser
def test_weak_evidence_is_shown_on_request(page: Any) -> None:
    choose(page, "kind", "ok")
    page.select_option("[name=order]", "low")
    weak = page.locator(".cards li:not([hidden]) .picture").nth(1)  # its peak is at 0.54: a level of 0.35
    before = weak.screenshot()
    page.check("[name=weak]")
    assert weak.screenshot() != before
    page.keyboard.press("w")
    assert weak.screenshot() == before
    choose(page, "view", "plain")
    page.keyboard.press("w")
    assert page.evaluate("document.body.dataset.view") == "map", "weak evidence is seen on the map alone"


@pytest.mark.browser
def test_the_enlarged_view_follows_the_keyboard(page: Any) -> None:
    choose(page, "kind", "bad")
    page.locator(".cards li:not([hidden]) button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open]").count() == 1
    assert "lot 1/part-11.png" in page.inner_text(".caption")
    assert page.get_attribute("dialog [value=back]", "aria-disabled") == "true"
    assert page.get_attribute("dialog a", "href") == "overlays/lot%201/part-11.png.png"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "lot 1/part-9.png" in page.inner_text(".caption")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("dialog [value=back]", "aria-disabled") == "false"
    assert "lot 0/part-10.png" in page.inner_text(".caption")
    stage, picture = page.locator(".stage").bounding_box(), page.locator(".stage .picture").bounding_box()
    assert stage["y"] <= picture["y"] and picture["y"] + picture["height"] <= stage["y"] + stage["height"] + 1
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.closest('li').querySelector('small').textContent").endswith("-10.png")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".cards button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_the_page_is_accessible_and_harmless(page: Any) -> None:
    assert_harmless(page)
    assert_accessible(page)
    page.locator(".cards button").first.click()
    assert_accessible(page)


@pytest.mark.browser
def test_two_thousand_images_open_and_filter_quickly(browser: Any, tmp_path: Path) -> None:
    made = card("a.png", 0.5, side=picture_side(2000))
    page = make_page(*(Card(**{**vars(made), "name": f"{n}.png", "score": n / 2000}) for n in range(2000)))
    (tmp_path / "many.html").write_text(page, encoding="utf-8")
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.goto((tmp_path / "many.html").as_uri())
    opened.wait_for_selector("#controls:not([hidden])", timeout=20_000)
    opened.select_option("[name=order]", "low")
    assert opened.locator(".cards small").first.inner_text() == "0.png"
    opened.close()
