"""Run the notebooks of examples/ and write them to docs/start, also as pages: python docs/scripts/make_notebooks.py

The sources are Python files whose cells begin with ``# %%``. They run in an empty folder, and bring their own parts.
It needs nbclient and ipykernel (pip install '.[notebooks]') and the weights of `make demo`.
"""

import argparse
import base64
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES, PAGES, IMAGES = ROOT / "examples", ROOT / "docs" / "start", ROOT / "docs" / "images"
MOST_BYTES = 1_000_000  # of a notebook
SECONDS = 1800  # that a cell may take on a busy machine
_FIRST = "%matplotlib inline\n%config InlineBackend.figure_formats=['jpeg']"


class Cell(NamedTuple):
    """A cell of a source: Markdown or code."""

    is_code: bool
    text: str


def list_sources() -> list[Path]:
    """The notebooks, as sources."""
    return sorted(SOURCES.glob("*.py"))


def page_of(source: Path) -> Path:
    """The notebook that a source becomes; the page beside it ends in .md."""
    return PAGES / f"{source.stem.replace('_', '-')}.ipynb"


def read_cells(text: str) -> list[Cell]:
    """The cells of a source."""
    cells = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            cells.append(Cell(False, re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            cells.append(Cell(True, body.strip()))
    return cells


def build(source: Path) -> Any:
    """The notebook of a source, without outputs; ids of cells are their numbers, so that a new run changes little."""
    from nbformat import v4

    notebook = v4.new_notebook()
    for number, cell in enumerate(read_cells(source.read_text(encoding="utf-8"))):
        made = v4.new_code_cell(cell.text) if cell.is_code else v4.new_markdown_cell(cell.text)
        made["id"] = f"cell-{number}"
        notebook.cells.append(made)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def run(notebook: Any, folder: Path) -> None:
    """Run all cells in ``folder``; an error in one ends it."""
    from nbclient import NotebookClient
    from nbformat import v4

    notebook.cells.insert(0, v4.new_code_cell(_FIRST))
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()
    del notebook.cells[0]
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = join_printed([clean(output, folder) for output in cell.outputs if is_shown(output)])


def join_printed(outputs: list[Any]) -> list[Any]:
    """The outputs with what was printed in a row as one: how it is cut depends on the clock."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def is_shown(output: Any) -> bool:
    """Whether an output is for readers: not a progress bar or a warning."""
    return bool(output.output_type != "stream" or output.name == "stdout")


def clean(output: Any, folder: Path) -> Any:
    """An output without what differs from run to run: counts, and the folder it ran in."""
    if output.output_type == "execute_result":
        output.execution_count = None
    if "data" in output:
        for kind in [kind for kind in output.data if kind.startswith("text/")]:
            output.data[kind] = output.data[kind].replace(f"{folder}/", "")
        output.metadata = {}
    return output


def render_page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as a page, and its pictures by file name."""
    pictures: dict[str, bytes] = {}
    blocks = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            blocks.append(cell.source)
            continue
        blocks.append(f"```py\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/jpeg" in data:
                file = f"notebook-{name}-{len(pictures) + 1}.jpg"
                pictures[file] = base64.b64decode(data["image/jpeg"])
                blocks.append(f"![What the code above shows.](../images/{file})")
            else:
                text = data.get("text/plain", "") or output.get("text", "")
                blocks.append(f"```text\n{text.rstrip()}\n```")
    title, *rest = blocks[0].partition("\n")
    origin = (
        "`python docs/scripts/make_notebooks.py` ran this and wrote it down, with the weights of `make demo`; other "
        f"weights give other numbers. [As a notebook]({name}.ipynb)."
    )
    return "\n\n".join([title, origin, "".join(rest).strip(), *blocks[1:]]) + "\n", pictures


def main() -> None:
    """Run and write all notebooks, or those named."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="stems of sources; default: all")
    given = parser.parse_args()
    for source in list_sources():
        if given.names and source.stem not in given.names:
            continue
        notebook, target = build(source), page_of(source)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        text = nbformat.writes(notebook) + "\n"
        if len(text) > MOST_BYTES:
            raise SystemExit(f"{target.name} has {len(text):,} bytes, more than {MOST_BYTES:,}: show less")
        page, pictures = render_page(notebook, target.stem)
        for old in IMAGES.glob(f"notebook-{target.stem}-*.jpg"):
            old.unlink()
        for file, data in pictures.items():
            (IMAGES / file).write_bytes(data)
        target.write_text(text, encoding="utf-8")
        target.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
