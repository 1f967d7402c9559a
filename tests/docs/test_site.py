"""The site shows every page, asks no other host for anything, and fits a phone."""

import re
from pathlib import Path
from typing import Any

import pytest

import procon
from tests.chromium import chromium
from tests.docs.test_pages import ROOT, load_script

MENU = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2].partition("\ntheme:")[0]
GROUPS = ["Start", "Use", "Understand", "Measure", "Develop"]
OUTSIDE = {"develop/contributing.md", "develop/changelog.md"}  # pages from the root of the repository


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs", reason="pip install '.[docs-site]'")
    return load_script(ROOT / "docs" / "scripts" / "site_hooks.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install '.[docs-site]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))  # strict: raises on a broken link
    return folder


def test_every_page_is_in_one_of_five_groups() -> None:
    assert re.findall(r"^  - (\w+):$", MENU, re.MULTILINE) == GROUPS
    listed = re.findall(r"([\w/-]+\.md)$", MENU, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | OUTSIDE)


def test_every_public_name_is_on_the_reference_page() -> None:
    text = (ROOT / "docs" / "use" / "python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: procon\.(\w+)$", text, re.MULTILINE))
    assert "errors" in shown
    names = {name for name in procon.__all__ if not name.endswith("Error") and name != "__version__"}
    assert names <= shown, f"docs/use/python.md lacks {names - shown}"


def test_links_to_files_of_the_repository_stay_on_the_site(hooks: Any) -> None:
    assert hooks.site_place("docs/use/cli.md") == "use/cli.md"
    assert hooks.site_place("CONTRIBUTING.md") == "develop/contributing.md"
    assert hooks.site_place("src/procon/method/score.py") == "source/src/procon/method/score.py.md"
    assert hooks.page_source("develop/changelog.md") == "CHANGELOG.md"
    text = "[a](../src/procon/method/maps.py#top) [b](https://example.org) [c](#here)\n```\n[d](no.md)\n```\n"
    assert hooks.list_links("docs/index.md", text) == {"src/procon/method/maps.py"}


def test_formulas_become_mathml(hooks: Any) -> None:
    inline = hooks.on_page_content(r'<p>a <span class="arithmatex">\(\lVert -z \rVert &lt; \alpha\)</span> b</p>')
    assert inline.startswith("<p>a <math") and inline.endswith("</math> b</p>")
    assert inline.count('<mo stretchy="false" lspace="0" rspace="0">&#x02016;</mo>') == 2
    assert "&#x003B1;" in inline and "arithmatex" not in inline
    block = hooks.on_page_content('<div class="arithmatex">\n\\[\n\\frac{1}{2}\n\\]\n</div>')
    assert "<mfrac>" in block and 'display="block"' in block


def test_comments_of_fields_are_their_documentation() -> None:
    pytest.importorskip("griffe", reason="pip install '.[docs-site]'")
    read_comment = load_script(ROOT / "docs" / "scripts" / "site_docstrings.py").read_comment
    lines = [
        "    a: int  # how many",
        "    b: str  # the name,",
        "            # in full",
        "    c: int = 1",
        "    # not c",
    ]
    assert read_comment(lines, 1, 1) == "How many"
    assert read_comment(lines, 2, 2) == "The name, in full"
    assert read_comment(lines, 4, 4) == ""


@pytest.mark.slow
def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="?(?:https?:)?//', text), page.name
        assert not re.findall(r'<link[^>]* rel="?(?:stylesheet|preconnect)"?[^>]*https?://', text), page.name
        assert not re.search(r"\bclass=\"arithmatex\"", text), f"{page.name} has a formula that was not drawn"
    reference = (site / "use" / "python.html").read_text(encoding="utf-8")
    assert "Path of the image, where it had one" in reference  # the comment of Prediction.source
    assert ":class:" not in reference and ":meth:" not in reference


@pytest.mark.slow
@pytest.mark.browser
def test_pages_fit_the_screen_and_search_finds_them(site: Path) -> None:
    with chromium() as browser:
        view = browser.new_context(color_scheme="dark").new_page()
        view.set_default_timeout(10_000)
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        for page in sorted(site.rglob("*.html")):
            view.goto(page.as_uri())
            for width in (390, 1280):
                view.set_viewport_size({"width": width, "height": 844})
                excess = view.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert excess <= 0, f"{page.relative_to(site)} is {excess} px too wide at {width} px"
        view.goto((site / "index.html").as_uri())
        view.locator(".md-search__input").click()
        view.locator(".md-search__input").press_sequentially("conformal quantile")
        view.wait_for_selector(".md-search-result__item a")
        assert "threshold" in view.locator(".md-search-result__list").inner_text().lower()
        assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
