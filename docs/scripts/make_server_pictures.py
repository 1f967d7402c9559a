"""Draw docs/images/server-*.png: the page of procon serve with rendered parts, in a real Chromium.

    python docs/scripts/make_server_pictures.py --models FOLDER --parts FOLDER [--weights FILE]

FOLDER of models holds flange.procon, fitted on the parts of ``procon demo``; FOLDER of parts is its tree.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "images"
SECONDS = 600  # a busy machine takes long
PROGRAM = "from procon.cli import main; main()"


def until(page: Any, script: str, seconds: float = SECONDS) -> None:
    """Until ``script`` is true in the page, whose policy forbids Playwright's own way to wait."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        if time.monotonic() > end:
            raise TimeoutError(script)
        time.sleep(0.1)


def scored(page: Any) -> None:
    """Until the part on the stage has a verdict and nothing is on its way."""
    until(page, "document.querySelector('#verdict .facts').textContent.includes('score')")
    page.wait_for_timeout(400)


def explained(page: Any) -> None:
    """The peak of the first region, clicked."""
    page.click("#regions li button")
    page.wait_for_selector(".tile")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)


def take(browser: Any, url: str, parts: Path) -> None:
    """All pictures."""
    test = parts / "test"
    page = browser.new_page(viewport={"width": 1280, "height": 1210}, device_scale_factor=1)
    page.set_default_timeout(SECONDS * 1000)
    page.goto(url)
    until(page, "document.querySelector('#model').value === 'flange'")
    names = ["good/000", "rust/000", "good/001", "chipped_edge/001", "good/002", "scratch/002", "good/003", "rust/001"]
    for name in [*names, "good/004", "scratch/000"]:
        page.set_input_files("#files", str(test / f"{name}.png"))
        page.wait_for_timeout(300)
        scored(page)
    page.wait_for_timeout(600)
    page.set_input_files("#files", str(test / "chipped_edge/000.png"))
    page.wait_for_timeout(300)
    scored(page)
    explained(page)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=IMAGES / "server-inspect.png")
    page.click("nav [data-view=review]")
    page.wait_for_timeout(300)
    scored(page)
    page.keyboard.press("j")
    page.wait_for_timeout(300)
    scored(page)
    page.screenshot(path=IMAGES / "server-review.png", clip={"x": 0, "y": 0, "width": 1280, "height": 880})
    page.click("nav [data-view=threshold]")
    page.wait_for_selector("#plot circle")
    page.locator("#move").evaluate("e => { e.value = 800; e.dispatchEvent(new Event('input')); }")
    page.wait_for_timeout(600)
    page.screenshot(path=IMAGES / "server-threshold.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1130})
    page.click("nav [data-view=models]")
    page.set_input_files("#good", [str(path) for path in sorted((parts / "train" / "good").glob("*.png"))])
    page.fill("#name", "flange line 2")
    page.click("#start")
    until(page, "/selecting|reading|calibrating/.test(document.querySelector('#jobs').textContent)", 1500)
    page.screenshot(path=IMAGES / "server-fit.png", clip={"x": 0, "y": 0, "width": 1280, "height": 880})
    page.click("#jobs li button")
    page.close()
    for scheme in ("dark",):
        context = browser.new_context(
            viewport={"width": 390, "height": 844}, device_scale_factor=2, color_scheme=scheme, has_touch=True
        )
        phone = context.new_page()
        phone.goto(url)
        until(phone, "document.querySelector('#model').value === 'flange'")
        phone.set_input_files("#files", str(test / "rust/002.png"))
        phone.wait_for_timeout(300)
        scored(phone)
        phone.evaluate("scrollTo(0, 0)")
        phone.screenshot(path=IMAGES / "server-phone.png")
        context.close()


def main() -> None:
    """Start a server, take the pictures, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--weights", default=None)
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    weights = ["--weights", given.weights] if given.weights else []
    with tempfile.TemporaryDirectory() as state, sync_playwright() as driver:
        command = [sys.executable, "-c", PROGRAM, "serve", str(given.models), "--port", "0", "--state", state]
        command += ["--backbone", "dinov2-small", *weights]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        url = server.stdout.readline().rsplit(" at ", 1)[1].strip()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=chromium, args=flags)
        try:
            take(browser, url, given.parts)
        finally:
            browser.close()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
