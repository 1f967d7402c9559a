"""What MkDocs needs to show the pages of this repository as GitHub does; called by ``mkdocs.yml``.

Links may lead to any file of the repository, formulas are TeX between dollars, and two pages lie outside of ``docs``.
"""

import html
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"CONTRIBUTING.md": "develop/contributing.md", "CHANGELOG.md": "develop/changelog.md"}
ELSEWHERE = {"README.md": "index.md", "src/procon": "develop/architecture.md"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside of ``docs``, and every file of the repository that a page links to."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = [("docs/" + file.src_uri, file.content_string) for file in files.documentation_pages()]
    pages += [(source, (ROOT / source).read_text(encoding="utf-8")) for source in PAGES]
    linked = {path for page, text in pages for path in list_links(page, text)}
    for path in sorted(linked):
        if not path.startswith("docs/") and path not in PAGES | ELSEWHERE and (ROOT / path).is_file():
            files.append(_source_file(path, config))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places of their files on the site, and give every block the blank line it needs."""
    markdown = re.sub(r"(-->)\n(?=\S)", r"\1\n\n", markdown)
    source = page_source(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        name, hash_sign, anchor = target.partition("#")
        uri = site_place(posixpath.normpath(posixpath.join(posixpath.dirname(source), name)))
        return before + os.path.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + hash_sign + anchor + after

    return _outside_fences(markdown, lambda text: LINK.sub(replace, text))


def on_page_content(html_text: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a script."""
    html_text = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline_formula, html_text, flags=re.DOTALL)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', _formula_block, html_text, flags=re.DOTALL)


def list_links(page: str, text: str) -> set[str]:
    """The files of the repository that a page links to; all paths from the root of the repository."""
    targets = [match.group(2).partition("#")[0] for match in LINK.finditer(FENCE.sub("", text))]
    local = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in local}


def site_place(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES | ELSEWHERE:
        return (PAGES | ELSEWHERE)[path]
    return f"source/{path}" if path.endswith((".md", ".csv", ".json")) else f"source/{path}.md"


def page_source(uri: str) -> str:
    """The file of the repository behind a page of the site."""
    sources = {place: path for path, place in PAGES.items()}
    return sources.get(uri) or (uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}")


def _source_file(path: str, config: Any) -> File:
    text, uri = (ROOT / path).read_text(encoding="utf-8"), site_place(path)
    if not path.endswith((".md", ".csv", ".json")):
        text = f"# {path}\n\n```{path.rpartition('.')[2]}\n{text}```\n"
    if path.endswith((".csv", ".json")):
        return File.generated(config, uri, content=text)
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    return File.generated(config, uri, content=hidden + text, inclusion=InclusionLevel.NOT_IN_NAV)


def _outside_fences(markdown: str, change: Any) -> str:
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _inline_formula(match: re.Match[str]) -> str:
    return draw_formula(match.group(1))


def _formula_block(match: re.Match[str]) -> str:
    return f'<div class="formula" tabindex="0">{draw_formula(match.group(1), display="block")}</div>'


def draw_formula(tex: str, display: str = "inline") -> str:
    """MathML of a formula; bars keep their height, and a minus behind a bracket or comma is a sign."""
    formula = convert(html.unescape(tex).strip(), display=display)
    formula = re.sub(r"<mo>(&#x02016;|&#x0007C;)</mo>", r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', formula)
    sign = r"(<mo[^>]*>(?:&#x0002C;|&#x0007B;|&#x00028;)</mo>)<mo>&#x02212;</mo>"
    return re.sub(sign, r'\1<mo form="prefix" lspace="0" rspace="0">&#x02212;</mo>', formula)
