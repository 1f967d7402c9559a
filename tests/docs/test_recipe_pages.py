"""The measured parts of the pages about recipes and shapes are those of the results."""

from pathlib import Path

import pytest

from procon.config import RECIPES
from tests.docs.test_pages import ROOT, load_script

script = load_script(ROOT / "docs" / "scripts" / "generate_recipes.py")


@pytest.mark.parametrize("page", sorted(script.PLACES))
def test_the_numbers_are_those_of_the_results(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == script.render(page), "run: python docs/scripts/generate_recipes.py"


def test_what_is_not_measured_is_said_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    for name, command in script.COMMANDS.items():
        assert script.section(name) == f"Not measured yet: `{command}`"


def test_every_recipe_has_its_settings_on_the_page() -> None:
    text = (ROOT / "docs" / "understand" / "recipes.md").read_text(encoding="utf-8")
    assert list(RECIPES) == list(script.NAMES)
    for name, value in RECIPES["fast"].items():
        assert f"| `{name}={value}` |" in text, f"recipes.md must say {name}={value}"
