"""What axe-core finds on a page: the npm package is for tests only, and is not in the repository."""

import os
from pathlib import Path
from typing import Any

import pytest

_INSTALLED = Path(__file__).parent.parent / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


def assert_accessible(page: Any) -> None:
    """No serious or critical finding, one h1, and a title; the test is skipped where axe-core is missing."""
    script = Path(os.environ.get("PROCON_AXE", _INSTALLED))
    if not script.is_file():
        pytest.skip("axe-core is missing: make test-all installs it; or set PROCON_AXE to its axe.min.js")
    assert page.title().strip()
    assert page.locator("h1:visible").count() == 1
    page.evaluate(script.read_text(encoding="utf-8") + "; 0")
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    found = [
        f"{finding['id']} ({finding['impact']}): {node['html'][:200]} {node.get('failureSummary', '')}"
        for finding in result["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]
    assert found == []
    assert len(result["passes"]) > 5, "axe looked at the page"
