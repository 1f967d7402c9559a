"""Draw docs/images/results-*.png: the results page of ``procon demo`` in a real Chromium.

procon demo -o demo-output && python docs/scripts/make_page_pictures.py demo-output
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "images"


def main(folder: Path) -> None:
    """The page on a desk and on a phone, and one picture enlarged with its weak evidence."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 860})
        page.goto((folder / "results" / "index.html").resolve().as_uri())
        page.wait_for_selector("#controls:not([hidden])")
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "results-page.png")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(300)
        page.screenshot(path=IMAGES / "results-phone.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
