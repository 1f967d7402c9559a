"""A real Chromium for tests marked ``browser``, and file names that attack pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]

HOSTILE = (
    "<img src=x onerror=window.hit=1>.png",
    '"><svg onload=window.hit=1>.png',
    "' onmouseover='window.hit=1' x='.png",
    "--><script>window.hit=1<script>.png",
    "</title><script>window.hit=1</script>.png".replace("/", "\u2215"),
    "javascript:window.hit=1.png",
    "&lt;b&gt;&amp;&#x3c;.png",
    "%TITLE% %BODY% {{7*7}} ${7*7}.png",
    "line\nbreak\rreturn.png",
    "tab\tbell\x07esc\x1b[31m.png",
    "right\u202eto left gnp.png",
    "zero\u200bwidth\u2066 isolate.png",
    "next\x85 line\u2028 separator.png",
    os.fsdecode(b"\xff\xfe.png"),
)
"""Names that a file system allows; the last is not UTF-8."""

_INVISIBLE = (
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufffe\\uffff]"
)
# Elements and handlers that only a name can have brought here, and characters that nobody sees.
_SCAN = f"""() => {{
  const all = [...document.querySelectorAll("*")];
  const handlers = all.filter((element) => [...element.attributes].some((it) => it.name.startsWith("on")));
  const foreign = [...document.querySelectorAll("img[src=x], svg[onload], body script")];
  const text = document.body.innerText + all.map((element) => (element.title ?? "") + (element.alt ?? "")).join();
  return [window.hit ?? null, handlers.length, foreign.length, text.match(/{_INVISIBLE}/g) ?? []];
}}"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def watch_page(page: Any) -> list[str]:
    """What a page does that no page of ours should: dialogs, errors, and requests to anywhere else."""
    problems: list[str] = []
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("pageerror", lambda error: problems.append(str(error)))
    return problems


def assert_harmless(page: Any) -> None:
    """No name has become markup, run, or turned the text around it."""
    for element in page.locator("[tabindex], img, [title]").all()[:20]:
        if element.is_visible():
            element.hover(force=True)
    assert page.evaluate(_SCAN) == [None, 0, 0, []]
