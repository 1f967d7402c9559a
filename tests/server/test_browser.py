"""What an operator does, in a real Chromium against a real server process."""

import io
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from procon import Detector
from procon.showing import painting
from tests.accessibility import assert_accessible
from tests.chromium import watch_page
from tests.conftest import part_pixels
from tests.server.process import ServerProcess, serving, tiny_settings, wait_for
from tests.server.test_api import png, with_odd_image

pytestmark = pytest.mark.browser

# Sums what moved without the user having asked for it, as browsers measure it.
_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, detector: Detector) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    detector.save(folder / "disc.procon")
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tiny_backbone: Path) -> Iterator[ServerProcess]:
    with serving(models, *tiny_settings(tiny_backbone)) as server:
        yield server


@pytest.fixture
def page(browser: Any, server: ServerProcess) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["camera"])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if _is_problem(message) else None)
    page.add_init_script(_SHIFTS)
    page.goto(server.url)
    connected(page)
    yield page
    context.close()
    assert problems == []


def _is_problem(message: Any) -> bool:
    """An error in the console, other than the browser's note that a request was refused: tests refuse some."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def until(page: Any, script: str, arg: Any = None) -> None:
    """Until ``script`` is true in the page; Playwright's own way to wait evaluates strings, which the page forbids."""
    wait_for(lambda: page.evaluate(script, arg))


def connected(page: Any) -> None:
    page.wait_for_selector("#link.on")
    until(page, "document.querySelector('#model').value === 'disc'")


def file(seed: int, defect: bool = False) -> dict[str, Any]:
    return {"name": f"part-{seed}.png", "mimeType": "image/png", "buffer": png(seed, defect)}


def choose(page: Any, seed: int, defect: bool = False) -> None:
    page.set_input_files("#files", [file(seed, defect)])


def verdict(page: Any, word: str) -> str:
    until(page, "word => document.querySelector('#verdict .word').textContent.includes(word)", arg=word)
    return str(page.inner_text("#verdict .facts"))


def heat_alpha(page: Any) -> Any:
    """The opacity of every pixel of the heat map [H, W]."""
    flat, width = page.evaluate(
        "() => { const c = document.querySelector('#heat'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; return [[...d].filter((_, i) => i % 4 === 3), c.width]; }"
    )
    return np.array(flat).reshape(-1, width)


def expected_alpha(server: ServerProcess, data: bytes) -> Any:
    """The opacity [H, W] that reports would give the heat map of an image, the strongest being opaque."""
    with server.client() as client:
        scale = client.get("/v1/models/disc").json()["threshold"]
        content = client.post("/v1/models/disc/predict?output=map&keep=false", content=data).content
    level = (np.load(io.BytesIO(content)) - scale["typical"]) / (scale["usual_peak"] - scale["typical"])
    return 255 * np.interp(level, painting._STOPS, painting._OPACITY) / painting._OPACITY[-1]


def test_a_part_is_scored_and_its_heat_map_lies_over_it(page: Any, server: ServerProcess) -> None:
    choose(page, 3, defect=True)
    assert "score 1.1" in verdict(page, "Anomalous")
    alpha = heat_alpha(page)
    assert alpha.shape == (96, 80) and alpha[45:55, 35:45].mean() > 128
    np.testing.assert_allclose(alpha, expected_alpha(server, png(3, defect=True)), atol=2)
    assert page.locator("#regions li").count() >= 1
    assert "this part 1.1" in page.inner_text("#axis") and "threshold 0." in page.inner_text("#axis")
    frame, photo = page.locator("#frame").bounding_box(), page.locator("#heat").bounding_box()
    assert frame == photo
    choose(page, 50)
    verdict(page, "Good")
    np.testing.assert_allclose(heat_alpha(page), expected_alpha(server, png(50)), atol=2)


def test_the_opacity_slider_fades_the_map(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    page.locator("#opacity").fill("0")
    assert page.evaluate("getComputedStyle(document.querySelector('#heat')).opacity") == "0"
    page.locator("#opacity").fill("100")
    assert page.evaluate("getComputedStyle(document.querySelector('#heat')).opacity") == "1"


def test_a_click_on_a_patch_shows_the_normal_patches(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    box = page.locator("#frame").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.52)
    page.wait_for_selector(".tile")
    assert page.locator(".tile img").count() == 6  # the patch and five normal ones
    assert "weight" in page.inner_text("#why-body")
    assert page.locator("#marks .patch").count() == 1
    assert "It was compared with" in page.inner_text("#why-words")
    choose(page, 50)
    verdict(page, "Good")
    assert page.is_hidden("#why"), "the panel takes no room before it is used"


def test_the_keyboard_reaches_a_patch_too(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    page.focus("#stage")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert page.locator("#marks .cursor").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile")


def drop(page: Any, kind: str, data: bytes) -> None:
    """Drop or paste an image on the page."""
    page.evaluate(
        """([kind, bytes]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: "image/png" }));
          const event = kind === "drop"
            ? new DragEvent("drop", { dataTransfer: data, bubbles: true })
            : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
          document.body.dispatchEvent(event);
        }""",
        [kind, list(data)],
    )


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_part_can_be_dropped_and_pasted(page: Any, kind: str) -> None:
    drop(page, kind, png(3, defect=True))
    until(page, f"document.querySelector('#photo').alt === '{kind}.png'")
    verdict(page, "Anomalous")


def test_the_camera_of_the_browser(page: Any) -> None:
    page.click("#camera")
    until(page, "document.querySelector('#video').videoWidth > 0")
    page.click("#shoot")
    until(page, "document.querySelector('#photo').alt.startsWith('camera')")
    until(page, "document.querySelector('#verdict .facts').textContent.includes('score')")
    assert page.evaluate("document.querySelector('#video').srcObject") is None  # the lamp is off


def test_a_region_explains_its_peak(page: Any, server: ServerProcess) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    with server.client() as client:
        answer = client.post("/v1/models/disc/predict?keep=false", content=png(3, defect=True)).json()
    box = ",".join(map(str, answer["regions"][0]["box"]))
    with page.expect_request(lambda request: "/explain?" in request.url) as asked:
        page.click("#regions li button")
    assert asked.value.url.endswith(f"/explain?region={box}")


def test_regions_are_contours_with_the_numbers_of_the_list(page: Any, server: ServerProcess) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    with server.client() as client:
        regions = client.post("/v1/models/disc/predict?keep=false", content=png(3, defect=True)).json()["regions"]
    count = len(regions)
    assert page.locator("#marks .region").count() == count
    assert page.locator("#marks .number").all_text_contents() == [str(number + 1) for number in range(count)]
    assert page.locator("#regions .dot").all_text_contents() == [str(number + 1) for number in range(count)]
    for region, path in zip(regions, page.locator("#marks .region").all(), strict=True):
        drawn = path.evaluate("e => { const b = e.getBBox(); return [b.x, b.y, b.x + b.width, b.y + b.height]; }")
        np.testing.assert_allclose(drawn, region["box"], atol=1.0)
    assert page.locator("#marks .region").first.get_attribute("d").count("L") > 8, "a contour, not a box"
    for path, disc in zip(page.locator("#marks .region").all(), page.locator("#marks .disc").all(), strict=True):
        outline = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get_attribute("d")), float)
        center, radius = [float(disc.get_attribute(name)) for name in ("cx", "cy")], float(disc.get_attribute("r"))
        assert np.hypot(*(outline - center).T).min() <= 1.5 * radius, "its number lies at the contour"
    page.uncheck("#outlines")
    assert page.locator("#marks *").count() == 0


def test_contours_are_where_the_map_crosses_the_level(page: Any) -> None:
    lines = page.evaluate(
        """async () => (await import("/static/contour.js")).contour(
          new Float32Array([0, 0, 0, 0,  0, 4, 0, 0,  0, 0, 0, 0]), 4, 3, 1)"""
    )
    ends = sorted(tuple(point) for line in lines for point in line)
    assert ends == sorted(2 * [(0.25, 1), (1.75, 1), (1, 0.25), (1, 1.75)])
    edge = page.evaluate(
        "async () => (await import('/static/contour.js')).contour(new Float32Array([2, 2, 2, 2]), 2, 2, 1)"
    )
    assert len(edge) == 8, "an area that fills the map has an outline along its edge"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", ["inspect", "review", "threshold", "models"])
def test_views_are_accessible_and_nothing_hides_under_the_header(
    browser: Any, server: ServerProcess, view: str, width: int
) -> None:
    with server.client() as client:
        client.post("/v1/models/disc/predict", content=png(7, defect=True))
    context = browser.new_context(viewport={"width": width, "height": 700})
    page = context.new_page()
    page.goto(f"{server.url}/#{view}")
    connected(page)
    if view == "inspect":
        choose(page, 3, defect=True)
        verdict(page, "Anomalous")
        page.click("#regions li button")
        page.wait_for_selector(".tile")
    page.wait_for_timeout(900)
    assert page.title() == f"{view.capitalize()} · disc · ProCon"

    def hidden() -> float:
        """How many pixels of the heading lie under the header."""
        heading, bar = page.locator("h1:visible").bounding_box(), page.locator(".bar").bounding_box()
        return float(bar["y"] + bar["height"] - heading["y"])

    page.evaluate("scrollTo(0, 0)") if view == "inspect" else None  # the panel that was asked for came into view
    assert hidden() <= 0
    page.evaluate("scrollTo(0, 9999)")
    page.click(f"nav [data-view={'models' if view != 'models' else 'review'}]")
    until(page, "scrollY === 0")
    page.click(f"nav [data-view={view}]")
    page.wait_for_timeout(300)
    assert hidden() <= 0 and page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_accessible(page)
    context.close()


def test_nothing_moves_while_results_arrive(page: Any) -> None:
    before = page.evaluate("window.shifts")
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    page.click("#regions li button")
    page.wait_for_selector(".tile")
    page.wait_for_timeout(700)
    assert page.evaluate("window.shifts") - before < 0.01


def test_the_threshold_moves_and_shows_which_past_parts_change(page: Any, server: ServerProcess) -> None:
    with server.client() as client:
        start = client.get("/v1/models/disc").json()["threshold"]["score"]
        client.post("/v1/models/disc/predict", content=png(3, defect=True))
    page.click("nav [data-view=threshold]")
    page.wait_for_selector("#plot circle")
    page.locator("#move").evaluate("e => { e.value = 990; e.dispatchEvent(new Event('input')); }")
    page.wait_for_selector("#changes li")
    assert "becomes good" in page.inner_text("#changes")
    assert "in review would become good" in page.inner_text("#preview")
    page.click("#apply")
    until(page, "document.querySelector('#promise').textContent.includes('set by hand')")
    with server.client() as client:
        assert client.get("/v1/models/disc").json()["threshold"]["score"] > start
        client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.01})
    until(page, "!document.querySelector('#promise').textContent.includes('set by hand')")


@pytest.fixture
def odd_page(browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path) -> Iterator[tuple[Any, Any]]:
    """The threshold view of a model with an odd image and one flagged part, and a client of its server."""
    odd = with_odd_image(detector)
    odd.limits(count=30, sizes=(3, 30))
    odd.save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        client.post("/v1/models/disc/predict", content=png(3, defect=True))
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(f"{server.url}/#threshold")
        connected(page)
        page.wait_for_selector("#plot circle")
        yield page, client
        page.context.close()


def test_a_rate_is_chosen_with_the_slider_and_set_with_one_click(odd_page: tuple[Any, Any]) -> None:
    page, client = odd_page
    before = client.get("/v1/models/disc").json()["threshold"]
    offers = [offer for offer in before["offers"] if offer["rule"] == "robust"]
    assert "7 of 8 good images" in page.inner_text("#robust-words")
    assert page.inner_text("#offer-value") == "1.0%" and page.is_disabled("#apply")
    assert "1 part in review" in page.inner_text("#preview")
    seen = before["rendered"]
    assert f"of {seen['total']} rendered defects" in page.inner_text("#preview")
    page.focus("#offer")
    page.keyboard.press("End")
    seen = offers[-1]["rendered"]
    assert f"of {seen['total']} rendered defects" in page.inner_text("#preview")
    assert page.inner_text("#offer-value") == "10%"
    assert f"{offers[-1]['above']} of 8 good images" in page.inner_text("#preview")
    assert "None of 1 part in review" in page.inner_text("#preview")
    assert page.locator("#above li").count() == offers[-1]["above"] > 1
    until(page, "[...document.querySelectorAll('#above img')].every((image) => image.naturalWidth === 80)")
    page.click("#apply")
    until(page, "document.querySelector('#promise').textContent.includes('aims at 10.0%')")
    model = client.get("/v1/models/disc").json()
    assert model["threshold"]["score"] == offers[-1]["score"] and "robust at rate 0.1" in model["history"][-1]["note"]
    assert page.is_disabled("#apply") and page.input_value("#offer") == str(len(offers) - 1)


def test_the_guarantee_is_another_choice_that_counts_odd_images(odd_page: tuple[Any, Any]) -> None:
    page, client = odd_page
    page.check("[name=rule][value=guarantee]")
    assert "cannot promise less than 11" in page.inner_text("#guarantee-words")
    assert page.inner_text("#offer-value") == "11%"
    assert "1 of 1 part in review would become good" in page.inner_text("#preview")
    assert "becomes good" in page.inner_text("#changes")
    page.click("#undo")
    until(page, "document.querySelector('[name=rule]').checked && document.querySelector('#apply').disabled")
    page.check("[name=rule][value=guarantee]")
    page.click("#apply")
    until(page, "!document.querySelector('#promise').textContent.includes('aims at')")
    assert client.get("/v1/models/disc").json()["threshold"]["rule"] == "guarantee"
    assert page.is_checked("[name=rule][value=guarantee]")


def test_odd_images_are_shown_with_what_to_do(odd_page: tuple[Any, Any]) -> None:
    page, client = odd_page
    odd = client.get("/v1/models/disc").json()["threshold"]
    for place in ("#odd", "#list"):
        page.wait_for_selector(f"{place} .cards img")
        words = page.inner_text(place)
        assert "1 odd image was set aside" in words and "005.png" in words and "procon forget" in words
        assert f"{odd['set_aside'][0]['deviations']:.1f} robust deviations above the median" in words
        assert f"{odd['score_without_odd']:.3f} without it, and would be {odd['score_with_odd']:.1f} with it" in words
        until(page, f"document.querySelector('{place} img').naturalWidth === 80")
        page.click("nav [data-view=models]")
    page.set_input_files("#good", [file(seed) for seed in range(301, 310)] + [file(3, defect=True)])
    page.fill("#name", "washer")
    page.click("#start")
    until(page, "document.querySelector('#fit-words').textContent.includes('1 odd image was set aside')")


def test_the_images_that_decide_are_shown(odd_page: tuple[Any, Any]) -> None:
    page, client = odd_page
    deciding = client.get("/v1/models/disc").json()["threshold"]["decided_by"]
    assert deciding
    assert page.locator("#decide li").count() == len(deciding)
    first = page.inner_text("#decide li:first-child")
    assert Path(deciding[0]["name"]).name in first
    assert f"without it: threshold {deciding[0]['threshold_without']:.3f}" in first
    until(page, "document.querySelector('#decide img').naturalWidth === 80")


def test_a_score_is_told_in_units_of_the_threshold(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    score, limit = page.evaluate(
        "import('/static/viewer.js').then((m) => [m.shown().answer.score, m.shown().answer.threshold])"
    )
    assert f"{score / limit:.2f} × the threshold" in page.inner_text("#verdict .facts")


def test_flagged_parts_are_reviewed_with_the_keyboard_and_a_false_alarm_is_learned(
    page: Any, server: ServerProcess
) -> None:
    with server.client() as client:
        for row in client.get("/v1/models/disc/verdicts?waiting=true&limit=1000").json()["verdicts"]:
            client.post(f"/v1/verdicts/{row['id']}/feedback", json={"label": "defect"})
        for seed in (200, 201, 202):
            client.post("/v1/models/disc/predict", content=png(seed, defect=True))
    page.click("nav [data-view=review]")
    until(page, "document.querySelectorAll('#queue li').length === 3")
    verdict(page, "Anomalous")
    page.keyboard.press("j")
    assert page.inner_text("#told") == "Part 2 of 3"
    until(page, "document.querySelectorAll('#queue [aria-current]').length === 1")
    until(page, "document.querySelector('#queue li:nth-child(2) button').hasAttribute('aria-current')")
    until(page, "!document.querySelector('#was-defect').disabled")
    page.keyboard.press("u")
    assert page.inner_text("#told") == "There is nothing to take back"
    page.keyboard.press("d")
    until(page, "document.querySelector('#told').textContent.startsWith('Defect: ')")
    until(page, "document.querySelectorAll('#queue li').length === 2")
    until(page, "!document.querySelector('#was-good').disabled")
    page.keyboard.press("g")
    until(page, "document.querySelector('#told').textContent.startsWith('Good: ')")
    until(page, "document.querySelector('#learned').textContent.includes('learning')")
    until(page, "document.querySelector('#learned').textContent.startsWith('Learned. The score was')")
    assert "is 0." in page.inner_text("#learned")
    with server.client() as client:
        assert client.get("/v1/models/disc").json()["images"] == 9
        left = client.get("/v1/models/disc").json()["waiting"]  # the threshold was computed anew
    until(page, "left => document.querySelectorAll('#queue li').length === left", arg=left)
    page.keyboard.press("u")  # it was not good after all
    until(page, "document.querySelector('#learned').textContent.includes('forgetting')")
    until(page, "!document.querySelector('#was-good').disabled")
    assert page.is_hidden("#take-back") and verdict(page, "Anomalous")
    with server.client() as client:
        assert client.get("/v1/models/disc").json()["images"] == 8
    until(page, "document.querySelectorAll('#queue li').length === 2")
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('#queue li').length === 1")


def test_a_missed_defect_is_marked_priced_taught_and_taken_back(
    browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    score = detector.predict(part_pixels(3, True)).score
    detector.save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        client.put("/v1/models/disc/threshold", json={"score": 1.2 * score})
        client.post("/v1/models/disc/predict", content=png(3, defect=True), headers={"content-type": "image/png"})
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        problems = watch_page(page)
        page.goto(f"{server.url}/#review")
        connected(page)
        until(page, "document.querySelector('#queue-count').textContent === 'Nothing to review'")
        page.check("#passed")
        verdict(page, "Good")
        assert page.inner_text("#queue-count") == "1 part that passed, latest first"
        page.click("#mark")
        assert page.is_disabled("#ask-price") and page.is_hidden("#why")
        frame = page.locator("#frame").bounding_box()

        def at(x: float, y: float) -> tuple[float, float]:
            """Where a pixel of the part (80 x 96) is on the page."""
            return frame["x"] + x / 80 * frame["width"], frame["y"] + y / 96 * frame["height"]

        page.mouse.move(*at(30, 40))
        page.mouse.down()
        page.mouse.move(*at(50, 60), steps=4)
        page.mouse.up()
        assert page.inner_text("#teach-words").startswith("Marked: 2"), page.inner_text("#teach-words")
        assert page.is_hidden("#why"), "marking does not explain"
        assert page.locator("#lesson-marks .marked").count() == 1
        page.click("#ask-price")
        wait_for(lambda: page.locator("#teach-actions button").count() == 2, 240)
        assert "with the lesson, above the threshold" in page.inner_text("#teach-words")
        assert "none of 8 training images more would be flagged" in page.inner_text("#price")
        page.wait_for_timeout(300)
        assert_accessible(page)
        page.click("#teach-actions .main")
        verdict(page, "Anomalous")
        assert page.is_hidden("#teach") and page.locator("#lesson-marks .marked").count() == 0
        assert page.is_disabled("#mark"), "what is flagged is not missed"
        page.click("#regions li button")
        page.wait_for_selector(".tile")
        assert "lesson 1 decided" in page.inner_text("#why-body") and "by lesson 1" in page.inner_text("#why-words")
        page.click("nav [data-view=models]")
        assert "lesson 1: " in page.inner_text("#list .lessons")
        page.click("#list .lessons button")
        until(page, "!document.querySelector('#list .lessons')")
        assert client.get("/v1/models/disc").json()["lessons"] == []
        assert problems == []


def test_a_defect_is_marked_with_the_keyboard(
    browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(server.url)
        connected(page)
        choose(page, 50)
        verdict(page, "Good")
        page.click("#mark")
        for key in ("ArrowLeft", "ArrowUp", "Enter", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        assert page.inner_text("#teach-words") == "Marked: 6 × 8 px at 37, 44." and page.is_enabled("#ask-price")
        page.keyboard.press("Escape")
        assert page.is_hidden("#teach") and page.locator("#lesson-marks rect").count() == 0


def test_what_was_said_is_taken_back_with_a_button(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    assert page.is_hidden("#take-back")
    page.click("#was-defect")
    until(page, "document.querySelector('#learned').textContent.startsWith('Noted as a defect')")
    page.click("#take-back")
    until(page, "document.querySelector('#learned').textContent.trim() === ''")
    assert page.is_hidden("#take-back") and page.is_enabled("#was-defect")


def test_a_model_is_fitted_while_one_watches(page: Any, models: Path) -> None:
    page.click("nav [data-view=models]")
    drop(page, "drop", png(300))
    assert "1 good image" in page.inner_text("#good-count")
    page.set_input_files("#good", [file(seed) for seed in range(301, 306)])
    assert "6 good images" in page.inner_text("#good-count")
    page.fill("#name", "washer")
    page.click("#start")
    page.wait_for_selector("#jobs progress")
    until(page, "document.querySelector('#fit-words').textContent.includes('washer is ready')")
    assert (models / "washer.procon").exists()
    assert page.input_value("#model") == "washer"
    page.fill("#name", "washer")
    page.set_input_files("#good", [file(1)])
    page.click("#start")
    until(page, "document.querySelector('#fit-words').textContent.includes('there is a model called washer')")


def test_a_folder_is_chosen_and_the_fit_says_first_what_it_can_promise(page: Any, models: Path, tmp_path: Path) -> None:
    for place in ("train/good", "test/hole"):
        (tmp_path / "part" / place).mkdir(parents=True)
        for seed in range(9):
            (tmp_path / "part" / place / f"{seed}.png").write_bytes(png(seed))
    page.click("nav [data-view=models]")
    page.set_input_files("#good-folder", tmp_path / "part")
    assert "9 good images" in page.inner_text("#good-count")
    assert "9 images outside train/good were left out" in page.inner_text("#fit-words")
    until(page, "document.querySelector('#fit-promise').textContent.includes('9 images could guarantee is 10.0%')")
    page.fill("#fit-rate", "5")
    until(page, "document.querySelector('#fit-promise').textContent.includes('aim at 5.0% false alarms')")
    page.click("#good-clear")
    assert page.inner_text("#fit-promise").strip() == ""
    page.fill("#name", "left disc")
    page.click("#start")
    until(page, "document.querySelector('#fit-words').className === 'note error'")
    page.set_input_files("#good", [file(seed) for seed in range(3)])
    page.click("#start")
    until(page, "document.querySelector('#fit-words').textContent.includes('left disc is ready')")
    assert (models / "left disc.procon").is_file()
    page.click("nav [data-view=inspect]")
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")


def test_models_are_renamed_downloaded_uploaded_exported_and_deleted(
    browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    pytest.importorskip("onnxruntime")
    with_odd_image(detector).save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        client.post("/v1/models/disc/predict", content=png(3, defect=True))
        client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.05})
        page = browser.new_context().new_page()
        page.goto(f"{server.url}/#models")
        connected(page)
        page.click("#list summary")
        assert "threshold" in page.inner_text("#list tbody tr")
        assert "1 part scored" in page.inner_text("#list .counts")
        page.click("text=Rename")
        page.fill("#sure-value", "left disc")
        page.click("#sure-yes")
        until(page, "document.querySelector('#list strong').textContent === 'left disc'")
        assert page.inner_text("#told") == "disc is called left disc now"
        assert page.input_value("#model") == "left disc"
        with page.expect_download() as download:
            page.click("text=Download")
        assert download.value.suggested_filename == "left disc.procon"
        saved = tmp_path / "saved.procon"
        download.value.save_as(saved)
        assert saved.read_bytes() == (tmp_path / "left disc.procon").read_bytes()
        with page.expect_download() as download:
            page.click("text=Verdicts as CSV")
        assert "anomalous" in download.value.path().read_text()
        with page.expect_download(timeout=60_000) as download:
            page.click("text=Export to ONNX")
        assert download.value.suggested_filename == "left disc-onnx.zip"
        page.click("text=Delete")
        assert "its training images and 1 past part" in page.inner_text("#sure-words")
        page.keyboard.press("Enter")  # the answer in focus is no
        assert (tmp_path / "left disc.procon").is_file()
        page.click("text=Delete")
        page.click("#sure-yes")
        until(page, "document.querySelectorAll('#list > li').length === 1")  # what was saved beside it
        assert not (tmp_path / "left disc.procon").exists()
        back = {"name": "right disc.procon", "mimeType": "", "buffer": saved.read_bytes()}
        page.set_input_files("#upload", [back])
        until(page, "document.querySelector('#upload-words').textContent === 'right disc is ready.'")
        page.set_input_files("#upload", [back])
        page.click("#sure-yes")
        until(page, "document.querySelector('#upload-words').textContent === 'right disc is replaced.'")
        page.set_input_files("#upload", [{**back, "name": "x.procon", "buffer": b"no model"}])
        until(page, "document.querySelector('#upload-words').className === 'note error'")
        page.context.close()


def test_a_fit_is_cancelled(page: Any, models: Path) -> None:
    page.click("nav [data-view=models]")
    page.set_input_files("#good", [file(seed) for seed in range(400, 404)])
    page.fill("#name", "nothing")
    page.click("#start")
    page.click("#jobs li button")
    until(page, "document.querySelector('#jobs').textContent.includes('cancelled by request')")
    assert not (models / "nothing.procon").exists()


def test_a_truncated_upload_is_refused_in_words(page: Any) -> None:
    page.set_input_files("#files", [{"name": "half.png", "mimeType": "image/png", "buffer": png(3)[:3000]}])
    until(page, "document.querySelector('#verdict .word').textContent === 'Not scored'")
    assert "half.png" in page.inner_text("#toasts")
    assert page.get_attribute("#verdict", "class") == "verdict failed"
    assert page.locator("#toasts button").count() == 1, "to try a damaged image again cannot help"
    page.click("#toasts button")
    assert page.locator("#toasts > div").count() == 0
    choose(page, 50)
    verdict(page, "Good")


def test_a_failed_part_does_not_show_the_map_of_the_part_before(page: Any) -> None:
    choose(page, 3, defect=True)
    verdict(page, "Anomalous")
    assert heat_alpha(page).max() > 0
    page.set_input_files("#files", [{"name": "half.png", "mimeType": "image/png", "buffer": png(3)[:3000]}])
    until(page, "document.querySelector('#verdict .word').textContent === 'Not scored'")
    assert heat_alpha(page).max() == 0 and page.locator("#marks *").count() == 0


def test_a_sender_who_hangs_up_leaves_nothing_behind(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (b"", png(3)[:2000], png(3)):  # before the image, in it, and before the answer
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/models/disc/predict HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(png(3))}\r\n\r\n"
            connection.sendall(head.encode() + sent)
    with server.client() as client:
        wait_for(lambda: "procon_queue_images 0.0" in client.get("/metrics").text)
        assert client.post("/v1/models/disc/predict", content=png(3)).status_code == 200


def test_two_tabs_show_the_same(page: Any, server: ServerProcess) -> None:
    other = page.context.new_page()
    other.goto(server.url)
    connected(other)
    count = other.locator("#recent li").count()
    choose(page, 61)
    verdict(page, "Good")
    until(other, "count => document.querySelectorAll('#recent li').length > count", arg=min(count, 23))
    assert "part-61.png" in (other.locator("#recent button").first.get_attribute("title") or "")
    other.close()


def test_the_page_at_phone_width_in_both_themes(browser: Any, server: ServerProcess) -> None:
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 375, "height": 740}, color_scheme=scheme, has_touch=True)
        page = context.new_page()
        page.goto(server.url)
        connected(page)
        choose(page, 3, defect=True)
        until(page, "document.querySelector('#verdict .facts').textContent.includes('score')")
        for view in ("review", "threshold", "models", "inspect"):
            page.click(f"nav [data-view={view}]")
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(part) for part in ground[4:-1].split(",")) > 380
        assert light == (scheme == "light")
        context.close()


def test_everything_is_reached_with_tab_and_has_a_name(page: Any) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, [tabindex='0']")].filter((e) => {
          const label = e.getAttribute("aria-label") || e.textContent.trim() || e.title || e.labels?.[0]?.textContent;
          return !label;
        }).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    page.focus("#model")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.view"))
    assert {"inspect", "review", "threshold", "models", "files", "camera", "stage", "opacity", "outlines"} <= reached


def test_a_token_is_asked_for_once(browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    detector.save(tmp_path / "disc.procon")
    secret = tmp_path / "token"
    secret.write_text("a token of some length\n")
    arguments = (*tiny_settings(tiny_backbone), "--token-file", str(secret))
    with ServerProcess(tmp_path, *arguments) as server:
        page = browser.new_context().new_page()
        page.goto(server.url)
        page.fill("#token", "a token of some length")
        page.click("#ask button")
        connected(page)
        choose(page, 3, defect=True)
        verdict(page, "Anomalous")
        page.wait_for_selector("#recent img")
        until(page, "document.querySelector('#recent img').naturalWidth > 0")
        page.context.close()


def test_a_lost_connection_is_shown_and_restored(
    browser: Any, tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    server = ServerProcess(tmp_path, *tiny_settings(tiny_backbone))
    port = server.url.rsplit(":", 1)[1]
    page = browser.new_context().new_page()
    page.goto(server.url)
    connected(page)
    server.kill()
    page.wait_for_selector("#link.off")
    choose(page, 3, defect=True)
    until(page, "document.querySelector('#verdict .facts').textContent.includes('cannot be reached')")
    with ServerProcess(tmp_path, *tiny_settings(tiny_backbone), "--port", port) as server:
        server.wait_ready()
        page.wait_for_selector("#link.on")
        page.click("#toasts button")  # try again
        verdict(page, "Anomalous")
        page.context.close()


def test_the_colours_are_those_of_reports(browser: Any, server: ServerProcess) -> None:
    page = browser.new_context().new_page()
    page.goto(server.url)
    found = page.evaluate("import('/static/heat.js').then((m) => [m.STOPS, m.COLORS, m.OPACITY])")
    assert found == [painting._STOPS.tolist(), painting._COLORS.tolist(), painting._OPACITY.tolist()]
    page.context.close()


def test_what_an_exported_model_cannot_do_is_not_offered(browser: Any, tmp_path: Path, detector: Detector) -> None:
    pytest.importorskip("onnxruntime")
    from procon.deploy.export import export

    export(detector, tmp_path / "disc", measure_memory=False)
    with serving(tmp_path) as server:
        page = browser.new_context().new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        connected(page)
        choose(page, 3, defect=True)
        verdict(page, "Anomalous")
        assert heat_alpha(page)[45:55, 35:45].mean() > 128
        assert page.is_hidden("#why")
        page.click("#frame")
        page.click("#regions li button")
        page.click("#was-good")
        until(page, "document.querySelector('#learned').textContent.startsWith('Noted as good. An exported model')")
        page.click("nav [data-view=threshold]")
        page.wait_for_selector("#plot circle")
        assert page.is_hidden("#set-threshold") and page.is_visible("#fixed")
        page.click("nav [data-view=models]")
        assert "exported (onnx fp32)" in page.inner_text("#list")
        assert not [url for url in asked if url.endswith("explain") or "explain?" in url]
        page.context.close()


def test_an_empty_folder_leads_to_the_first_fit(browser: Any, tmp_path: Path, tiny_backbone: Path) -> None:
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server:
        page = browser.new_context().new_page()
        page.goto(server.url)
        page.wait_for_selector("#empty a")
        page.click("#empty a")
        page.wait_for_selector("#fit")
        page.context.close()
