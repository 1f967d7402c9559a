"""Names that attack the pages of results, opened in a real Chromium: the gallery, the suspects, the report."""

from pathlib import Path
from typing import Any

import pytest

from procon import Detector
from procon.progress import no_progress
from tests.chromium import HOSTILE, assert_harmless, watch_page
from tests.conftest import Run, tiny_config
from tests.server.test_api import png

pytestmark = pytest.mark.browser


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """A folder with a hostile name of images with hostile names."""
    folder = tmp_path / HOSTILE[0] / HOSTILE[-1]
    folder.mkdir(parents=True)
    for number, name in enumerate(HOSTILE):
        (folder / name).write_bytes(png(number, defect=number % 3 == 0))
    return folder


def open_page(browser: Any, path: Path) -> tuple[str, str]:
    """Title and text of a page that did nothing but show itself."""
    page = browser.new_page()
    problems = watch_page(page)
    page.goto(path.as_uri())
    assert_harmless(page)
    text = str(page.inner_text("body"))
    title = str(page.title())
    page.close()
    assert problems == []
    return title, text


def test_the_gallery_shows_hostile_names(
    browser: Any, run: Run, hostile_folder: Path, tmp_path: Path, detector: Detector
) -> None:
    model = tmp_path / "\u202e%BODY%<title><b>.procon"
    detector.save(model)
    code, _, error = run("predict", model, hostile_folder, "-o", tmp_path / "out", "--device", "cpu")
    assert code in (0, 1), error
    title, text = open_page(browser, tmp_path / "out" / "index.html")
    assert title == "\\u202e%BODY%<title><b>.procon: 14 images"
    for shown in ("<img src=x onerror=window.hit=1>.png", "\\xff\\xfe.png", "right\\u202eto left gnp.png", title):
        assert shown in text
    (tmp_path / "out" / "scores.csv").read_text(encoding="utf-8")


def test_the_page_of_suspects_shows_hostile_names(
    browser: Any, run: Run, hostile_folder: Path, tmp_path: Path, tiny_backbone: Path
) -> None:
    from procon.results.suspect_page import write_suspects

    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(hostile_folder)
    write_suspects(tmp_path / "suspects.html", detector, detector.suspects(limit=3.0), 3.0)
    _, text = open_page(browser, tmp_path / "suspects.html")
    assert "<img src=x onerror=window.hit=1>.png" in text and "\\xff\\xfe.png" in text


def test_the_report_of_an_evaluation_shows_hostile_names(browser: Any, tmp_path: Path) -> None:
    from procon.evaluation.report.build import write_report
    from tests.evaluation.sample_run import make_run

    names = [name for name in HOSTILE if "\n" not in name]
    for start in range(0, len(names), 9):  # the cases of a run are few
        folder = tmp_path / str(start)
        chosen = dict(enumerate(names[start : start + 9]))
        write_report(make_run(folder, names=chosen, categories=("<b onclick=x>",)), folder / "report.html", no_progress)
        _, text = open_page(browser, folder / "report.html")
        assert "<b onclick=x>" in text
