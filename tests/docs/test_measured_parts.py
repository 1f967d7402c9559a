"""The measured parts of pages are those of the results."""

from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT, load_script

SCRIPTS = {name: load_script(ROOT / "docs" / "scripts" / name) for name in ("generate_line.py", "generate_scale.py")}


@pytest.mark.parametrize(("name", "page"), [(name, page) for name in SCRIPTS for page in sorted(SCRIPTS[name].PLACES)])
def test_the_numbers_are_those_of_the_results(name: str, page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == SCRIPTS[name].render(page), f"run: python docs/scripts/{name}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_not_measured_is_said_with_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SCRIPTS[name]
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    for section, command in script.COMMANDS.items():
        assert script.section(section) == f"Not measured yet: `{command}`"
