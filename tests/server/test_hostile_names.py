"""Names that attack the page of the service: of uploads, of training images, of files in the folder of models."""

import os
from pathlib import Path
from typing import Any

import pytest

from procon import Detector
from tests.chromium import HOSTILE, assert_harmless, watch_page
from tests.conftest import tiny_config
from tests.server.process import serving, wait_for
from tests.server.test_api import png


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A model whose training images have hostile names, and files with hostile names that are no models."""
    folder = tmp_path_factory.mktemp("hostile")
    good, models = folder / "good", folder / "models"
    good.mkdir()
    models.mkdir()
    for number, name in enumerate(HOSTILE):
        (good / name).write_bytes(png(number))
        (models / name.replace(".png", ".procon")).write_bytes(b"no model")
    Detector(tiny_config(tiny_backbone), device="cpu").fit(good).save(models / "disc.procon")
    (models / "half.procon").write_bytes((models / "disc.procon").read_bytes()[:-50])
    return models


def form(name: bytes, data: bytes) -> tuple[bytes, dict[str, str]]:
    """A form as a client writes it that escapes nothing."""
    head = b'--b\r\ncontent-disposition: form-data; name="image"; filename="' + name + b'"\r\n\r\n'
    return head + data + b"\r\n--b--\r\n", {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.browser
def test_hostile_names_are_shown_and_never_run(browser: Any, models: Path) -> None:
    with serving(models) as server, server.client() as client:
        page = browser.new_page()
        problems = watch_page(page)
        for number, name in enumerate(HOSTILE):
            body, headers = form(os.fsencode(name.replace('"', "'")), png(number, defect=True))
            answer = client.post("/v1/models/disc/predict", content=body, headers=headers)
            assert answer.status_code in (200, 400), answer.text  # a line break ends a header: no form
        page.goto(server.url)
        page.wait_for_selector("#link.on")
        page.wait_for_selector("#recent li")
        assert_harmless(page)
        for name in HOSTILE[:-1]:  # a browser holds no name that is not Unicode
            page.set_input_files("#files", [{"name": name, "mimeType": "image/png", "buffer": png(3, defect=True)}])
            wait_for(lambda: "score" in page.inner_text("#verdict .facts"))
            page.set_input_files("#files", [{"name": name, "mimeType": "image/png", "buffer": b"damaged"}])
            wait_for(lambda: page.inner_text("#verdict .word") == "Not scored")
        assert_harmless(page)
        assert 1 <= page.locator("#toasts > div").count() <= 4  # they leave by themselves
        page.evaluate("document.querySelector('#toasts').replaceChildren()")
        page.set_input_files("#files", [{"name": "a.png", "mimeType": "image/png", "buffer": png(3, defect=True)}])
        wait_for(lambda: "score" in page.inner_text("#verdict .facts"))
        page.click("#regions li button")
        page.wait_for_selector(".tile")
        assert_harmless(page)
        for view in ("review", "threshold", "models"):
            page.click(f"nav [data-view={view}]")
            page.wait_for_timeout(300)
            assert_harmless(page)
        assert "the model half cannot be loaded: half.procon: is truncated" in page.inner_text("#problems")
        assert [option.inner_text() for option in page.locator("#model option").all()] == ["disc"]
        page.close()
    assert problems == []


def test_every_training_image_can_be_named_in_an_answer(models: Path) -> None:
    """Also one whose name is not UTF-8, which JSON cannot hold."""
    with serving(models) as server, server.client() as client:
        names = set()
        for number in range(len(HOSTILE)):
            for xy in ("20,20", "40,50", "60,80"):
                answer = client.post(f"/v1/models/disc/explain?xy={xy}", content=png(number))
                assert answer.status_code == 200, answer.text
                names |= {patch["image"] for patch in answer.json()["normal_patches"]}
        assert "\\xff\\xfe.png" in names and "right\\u202eto left gnp.png" in names
