"""The notebooks of examples/: their code uses public names that exist, and the stored ones are what it gives."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from procon import Detector, Prediction
from tests.docs.test_pages import ROOT, load_script

SCRIPT = load_script(ROOT / "docs" / "scripts" / "make_notebooks.py")
SOURCES = SCRIPT.list_sources()
# What the variables of the notebooks hold, so that their attributes can be checked.
HOLDS = {"detector": Detector, "again": Detector, "result": Prediction, "worst": Prediction, "alarm": Prediction}

source = pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])


def code_of(path: Path) -> str:
    return "\n".join(cell.text for cell in SCRIPT.read_cells(path.read_text(encoding="utf-8")) if cell.is_code)


def test_there_are_two() -> None:
    assert [path.stem for path in SOURCES] == ["false_alarm", "first_steps"]


@source
def test_only_public_names_are_used(path: Path) -> None:
    tree = ast.parse(code_of(path))
    used = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("procon"):
            public = import_module(str(node.module)).__all__
            assert {alias.name for alias in node.names} <= set(public), ast.unparse(node)
            used += 1
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), ast.unparse(node)
            if isinstance(node.value, ast.Name) and node.value.id in HOLDS:
                held = HOLDS[node.value.id]
                known = hasattr(held, node.attr) or node.attr in getattr(held, "__dataclass_fields__", {})
                assert known, f"{held.__name__} has no {node.attr}"
                used += 1
    assert used > 5


@source
def test_stored_notebooks_have_the_code_of_their_source_and_no_error(path: Path) -> None:
    stored = SCRIPT.page_of(path)
    text = stored.read_text(encoding="utf-8")
    assert len(text) <= SCRIPT.MOST_BYTES
    cells = json.loads(text)["cells"]
    kept = [(cell["cell_type"] == "code", "".join(cell["source"])) for cell in cells]
    assert kept == [tuple(cell) for cell in SCRIPT.read_cells(path.read_text(encoding="utf-8"))], "run: make notebooks"
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert len(outputs) > 4 and all(output["output_type"] != "error" for output in outputs)
    assert not re.search(r"/(tmp|home|root)/", text)


@source
def test_pages_are_what_the_notebooks_show(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install '.[notebooks]'")
    stored = SCRIPT.page_of(path)
    page, pictures = SCRIPT.render_page(nbformat.read(stored, as_version=4), stored.stem)
    assert stored.with_suffix(".md").read_text(encoding="utf-8") == page
    assert pictures
    for name, data in pictures.items():
        assert (SCRIPT.IMAGES / name).read_bytes() == data


@pytest.mark.slow
@pytest.mark.real
@source
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="pip install '.[notebooks]'")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook: Any = SCRIPT.build(path)
    SCRIPT.run(notebook, tmp_path)
    assert len([cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]) > 3


def test_cells_are_read() -> None:
    cells = SCRIPT.read_cells("# %% [markdown]\n# # A\n#\n# b\n\n# %%\nx = 1\n# %%\ny\n")
    assert cells == [(False, "# A\n\nb"), (True, "x = 1"), (True, "y")]
