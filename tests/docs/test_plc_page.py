"""The page for PLC programmers says what the code does."""

from pathlib import Path

import pytest

from procon.line.parts import CAUSES
from procon.line.registers import REGISTERS
from tests.docs.test_pages import load_script

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = load_script(ROOT / "docs" / "scripts" / "generate_plc.py")


@pytest.mark.parametrize("page", ["use/plc.md", "use/line.md"])
def test_tables_are_those_of_the_code(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == SCRIPT.render(page), "run: python docs/scripts/generate_plc.py"


def test_every_cause_and_register_is_explained() -> None:
    assert set(SCRIPT.MEANINGS) == set(CAUSES)
    text = (ROOT / "docs" / "use" / "plc.md").read_text(encoding="utf-8")
    assert all(f"| `{register.name}` | {register.writer} |" in text for register in REGISTERS)
