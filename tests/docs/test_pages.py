"""The documents say what the package does: generated pages, links, code, commands, flags and settings."""

import ast
import csv
import dataclasses
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from PIL import Image

from procon import Config, Detector, Prediction
from procon.cli import app
from procon.model.storage import read_model
from procon.vision.weights import Weights, read_path
from tests.conftest import part_pixels, tiny_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEX, ARCHITECTURE = ROOT / "docs" / "index.md", ROOT / "docs" / "develop" / "architecture.md"
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FLAGS = {
    name: {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
    for name, command in COMMANDS.items()
}

page = pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])


def load_script(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:  # as when it is run: its neighbours can be imported
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """A page without its fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The link targets that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ------------------------------------------------------------------------------------------------- generated pages


def test_the_command_line_page_is_up_to_date() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_cli.py")
    assert (ROOT / "docs" / "use" / "cli.md").read_text(encoding="utf-8") == script.render(), "run: make docs"


def test_the_command_line_page_fits_its_width() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_cli.py")
    lines = "\n".join(blocks(ROOT / "docs" / "use" / "cli.md", "text")).splitlines()
    assert max(map(len, lines)) <= script.WIDTH
    assert script.render() == script.render()


def test_the_numbers_are_those_of_the_results() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    page_text = script.PAGE.read_text(encoding="utf-8")
    assert page_text == script.render_page(), "run: python docs/scripts/generate_benchmarks.py"
    growth = script.read_growth(script.read_rows("cpu"))
    assert script.PLOT.is_file() == bool(growth), "run: python docs/scripts/generate_benchmarks.py"
    if growth:
        drawn = script.PLOT.read_text(encoding="utf-8")
        assert script.describe_growth(growth) in drawn, "run: python docs/scripts/generate_benchmarks.py"


HERE = {"device": "cpu", "cpu": "Made Up x2", "threads": 2, "torch": "0.0", "python": "0.0", "commit": "abc1234"}


def store(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*rows[0], *HERE])
        writer.writeheader()
        writer.writerows(row | HERE for row in rows)


def test_what_is_not_measured_is_said_with_its_command(tmp_path: Path) -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    text = script.render_page(tmp_path, tmp_path / "none.json")
    for command in script.COMMANDS.values():
        assert f"\nNot measured yet: `{command}`\n" in text


def test_misses_and_a_better_baseline_are_said_in_words(tmp_path: Path) -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    rows = []
    for readout in ("hard", "soft"):
        expected = script.read_expected()["bracket_white", 0.01, readout]
        figures = dict(zip(script.METRICS, expected, strict=True))
        if readout == "soft":
            figures["p_ap"] -= 4
        rows.append(
            {"category": "bracket_white", "ratio": 0.01, "readout": readout, **figures, "train": 110, "test": 60}
            | {"fit_s": 12.3, "score_ms": 45, "limit": 3.0, "ok": readout == "hard", "backbone": "ViT-S/14 (made up)"}
        )
    store(tmp_path, "mpdd", rows)
    text = " ".join(script.render_page(tmp_path).split())
    assert "1 of 2 rows is NOT within the limit: - bracket_white, 1 %, soft, limit 3.0 points: P-AP 6.99 inst" in text
    assert "P-AP 6.99 instead of 10.99" in text
    assert "bracket_white, 1 %: hard beats ProCon on P-AUROC (99.28 against 99.18), P-AP (14.28 against 6.99)" in text
    assert "equal: I-AUROC, I-AP, I-F1." in text
    assert text.count("cpu Made Up x2, threads 2") == 1


def test_the_papers_form_is_compared_at_the_same_batch(tmp_path: Path) -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    times = {"scoring, batch 64": 0.5, "scoring, batch 1": 1.0, "scoring, the paper's form": 10.0}
    rows = [{"measure": name, "value": value, "spread": 0, "unit": "ms/image"} for name, value in times.items()]
    store(tmp_path, "gpu", [row | {"note": ""} for row in rows])
    text = " ".join(script.render_page(tmp_path).split())
    assert "takes 20.0 times as long as ours at batch 64 and 10.0 times as long as ours at batch 1." in text


def test_settings_of_a_row_are_read() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    assert script.parse_settings("N=25000 d=192 picks=1,000 banks=1") == {
        "N": 25000,
        "d": 192,
        "picks": 1000,
        "banks": 1,
    }
    assert script.parse_settings("ViT-S D=384 20 banks of 3000, 62% distinct x=y") == {"D": 384}
    row = {"measure": script.GROWTH, "settings": "N=7 d=192 picks=3 banks=1", "seconds": "0.5"}
    assert script.read_growth([row, row | {"measure": "k-center, ours"}]) == [(7, 3, 0.5)]
    with pytest.raises(ValueError, match="needs N= and picks="):
        script.read_growth([row | {"settings": "d=192 picks=3"}])


def test_the_plot_is_the_same_for_the_same_numbers() -> None:
    pytest.importorskip("matplotlib")
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    growth = [script.Growth(n, m, n * m * 1e-8) for n in (25_000, 50_000) for m in (1_000, 2_000)]
    drawn = script.render_plot(growth)
    assert drawn == script.render_plot(growth)
    assert script.describe_growth(growth) in drawn
    assert "<dc:date>" not in drawn


def test_planned_memory_and_compression_are_compared(tmp_path: Path) -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_benchmarks.py")
    shape = {"images": 10, "patches": 784, "layers": 4, "dims": 384, "banks": 5, "max_anchors": ""}
    store(tmp_path, "memory", [shape | {"planned_gib": 2.0, "peak_gib": 1.5, "ratio": 0.75, "seconds": 60}])
    metrics = dict.fromkeys(["i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro"], 90.0)
    exact = {"category": "metal_plate", "compression": "none", **metrics, "model_mib": 40.0, "score_ms": 100.0}
    small = exact | {"compression": "int8", "p_ap": 89.5, "p_f1": 90.25, "model_mib": 10.0, "score_ms": 120.0}
    store(tmp_path, "compression", [exact, small])
    text = " ".join(script.render_page(tmp_path).split())
    assert "The peak was 0.75 times the estimate; none of 1 exceeded it." in text
    assert "`int8`: the model has 0.25 times the size, scoring takes 1.20 times as long; 2 of the 7" in text
    assert "the largest loss is 0.50 points (P-AP of metal_plate), the largest gain is 0.25 points (P-F1 of" in text


# ----------------------------------------------------------------------------------------------------------- links


@page
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path.name} links to {target}, which does not exist"
        assert ROOT in file.parents, f"{path.name} links to {target}, outside the repository"
        if anchor:
            assert anchor in anchors(file), f"{path.name} links to {target}, but {file.name} has no such heading"


@page
def test_no_paragraph_is_on_a_page_twice(path: Path) -> None:
    """Generators replace what lies between their markers; a copy outside of them would stay."""
    paragraphs = [text.strip() for text in prose(path).split("\n\n") if len(text) > 150 and "|" not in text]
    twice = {text for text in paragraphs if paragraphs.count(text) > 1 and "python benchmarks/" not in text}
    assert not twice


def test_pictures_are_small_enough_for_a_repository() -> None:
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size <= 900 * 1024, picture.name


@page
def test_no_page_names_a_place_of_its_author(path: Path) -> None:
    for place in ("/home/", "/root/", "/tmp/", "/work/", "../shared"):
        assert place not in path.read_text(encoding="utf-8"), f"{path.name} mentions {place}"


# ------------------------------------------------------------------------------------------------ commands and flags


@page
def test_commands_and_flags_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = re.findall(r"`([^`\n]+)`", prose(path)) + re.sub(r"\\\n\s*", " ", text).splitlines()
    for line in code:
        for command, rest in re.findall(r"(?:^|[\s`(:])procon ([a-z]+)\b([^`#|&]*)", line):
            if command not in COMMANDS and not _is_command_line(line, command):
                continue
            assert command in COMMANDS, f"{path.name}: no such command: procon {command}"
            for flag in re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z]\b)", rest):
                assert flag in FLAGS[command], f"{path.name}: procon {command} has no flag {flag}"


def _is_command_line(line: str, command: str) -> bool:
    """Whether ``procon word`` is meant to be typed: alone in code, or at the start of a line."""
    return line.strip().startswith((f"procon {command}", f"$ procon {command}"))


FOREIGN_FLAGS = {"--check", "--strict", "--local-dir", "--data", "--ratios", "--readouts", "--categories"}
FOREIGN_FLAGS |= {"--category", "--json"}
FOREIGN_FLAGS |= {"--lite", "--run", "--part", "--head", "--address", "--num-cpus"}  # of benchmarks, and of ray
FOREIGN_FLAGS |= {"--rounds", "--limit", "--systems", "--candidates", "--processes"}
FOREIGN_FLAGS |= {"--scope", "--few", "--side", "--parts"}
FOREIGN_FLAGS |= {"--seconds", "--keep"}  # of the fuzzer


@page
def test_flags_mentioned_alone_exist(path: Path) -> None:
    of_all = {flag for option in typer.main.get_command(app).params for flag in option.opts}
    known = set().union(*FLAGS.values()) | of_all | FOREIGN_FLAGS
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", path.read_text(encoding="utf-8")):
        assert flag in known, f"{path.name}: no command has the flag {flag}"


def test_every_command_is_in_the_quickstart() -> None:
    text = (ROOT / "docs" / "start" / "quickstart.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"procon {name}" in text, f"quickstart.md does not mention procon {name}"


# ------------------------------------------------------------------------------------------------------------- names


def package_names() -> set[str]:
    """``module.name`` of every function, class and method that a module of the package defines."""
    names = set()
    for path in (ROOT / "src" / "procon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names |= {node.name, f"{path.stem}.{node.name}"}
            if isinstance(node, ast.ClassDef):
                fields = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]  # type: ignore[union-attr]
                methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                names |= {f"{node.name}.{part}" for part in fields + methods}
    inherited = {name.removeprefix("DetectorState.") for name in names if name.startswith("DetectorState.")}
    return names | {f"{detector}.{name}" for detector in ("Detector", "detector") for name in inherited}


def test_functions_and_modules_on_the_pages_exist() -> None:
    names = package_names()
    modules = {path.stem for path in (ROOT / "src" / "procon").rglob("*.py")}
    packages = {path.parent.name for path in (ROOT / "src" / "procon").rglob("__init__.py")}
    for path in PAGES:
        text = prose(path).partition("## The model file")[0]  # its fields are checked below
        for first, rest in re.findall(r"`(\w+)\.(\w+)(?:\(.*?\))?`", text):
            if first in modules | packages and rest not in {
                "md",
                "json",
                "csv",
                "html",
                "py",
                "toml",
                "onnx",
                "xml",
                "bin",
                "data",
            }:
                exists = f"{first}.{rest}" in names or (first in packages and rest in modules | packages)
                assert exists, f"{path.name}: there is no {first}.{rest}"
            if first in {name for name in names if name[0].isupper()}:
                assert f"{first}.{rest}" in names, f"{path.name}: there is no {first}.{rest}"


def test_equations_name_functions_that_exist_in_their_modules() -> None:
    rows = re.findall(
        r"\| ((?:`[\w.]+`(?:, )?)+) \| \[`[\w.]+`\]\(\.\./(src/[^)]+)\) \|", INDEX.read_text(encoding="utf-8")
    )
    assert len(rows) == 13
    for functions, module in rows:
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", functions):
            assert f"def {name}(" in (ROOT / module).read_text(encoding="utf-8"), f"index.md: {module} has no {name}"


def test_files_on_the_architecture_page_exist() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text.partition("## To change X, open Y")[2].partition("\n## ")[0]
    places = re.findall(r"`((?:[\w*]+/)+(?:[\w*]+\.py)?|\w+\.py)`", table)
    assert len(places) > 40
    for place in places:
        root = ROOT if place.startswith(("docs/", "tests/", "benchmarks/", "release/")) else ROOT / "src" / "procon"
        assert list(root.glob(place)), f"architecture.md: there is no {place}"


def test_every_entry_of_a_model_file_is_on_the_architecture_page(
    tiny_backbone: Path, good_folder: Path, tmp_path: Path
) -> None:
    config = tiny_config(tiny_backbone, compression="int8", score_relative_to="anchors", map_offset=1.0)
    corners = [(0, 0), (70, 0), (70, 70), (0, 70)]
    detector = Detector(config).fit(good_folder, thumbnails=True, roi=corners)
    detector.teach(part_pixels(100, defect=True), (30, 40, 50, 60))
    detector.limits(count=1)
    tensors, document = read_model(detector.save(tmp_path / "m", embed_backbone=True))
    own = [name for name in tensors if not name.startswith("backbone.")]
    entries = {re.sub(r"^(memory|lessons)\.\d+", r"\1.<i>", name) for name in own}
    entries |= {"backbone.<name>"} | {f"backbone.{name}" for name in document["backbone"]}
    entries |= document.keys() - {"backbone"}
    text = ARCHITECTURE.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([^`]+)` \|", text.partition("## The model file")[2], re.MULTILINE))
    assert documented == entries
    for name in [*document["calibration"], *document["images"][0], *document["backbone"]["architecture"]]:
        assert f"`{name}`" in text, f"architecture.md does not mention {name}"


# ---------------------------------------------------------------------------------------------------------- settings


def test_every_setting_is_in_one_table_with_its_default() -> None:
    row = re.compile(r"^\| `(\w+)` \| `([^`]+)` \|", re.MULTILINE)
    rows = [found for path in PAGES for found in row.findall(path.read_text(encoding="utf-8"))]
    names = [name for name, _ in rows]
    fields = {field.name: field.default for field in dataclasses.fields(Config)}
    assert names == list(fields), "the settings table must list the fields of Config once, in their order"
    for name, default in rows:
        assert default.replace('"', "'") == repr(fields[name]), f"the default of {name} is {fields[name]!r}"


# -------------------------------------------------------------------------------------------------------------- code


@pytest.fixture(scope="module")
def deep_weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """A tiny random DINOv2 with the 12 blocks that the default layers count on."""
    from transformers import Dinov2Config, Dinov2Model

    folder = tmp_path_factory.mktemp("deep") / "backbone"
    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=16, num_hidden_layers=12, num_attention_heads=2, image_size=70, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    return read_path(folder, "dinov2-custom")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the parts that the documents speak of."""
    for name, count in (("good", 4), ("new", 2)):
        (tmp_path / "parts" / name).mkdir(parents=True)
        for index in range(count):
            pixels = part_pixels(index, defect=name == "new" and index == 1)
            Image.fromarray(pixels).save(tmp_path / "parts" / name / f"{index:04d}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_readme_runs(
    parts: Path, deep_weights: Weights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("procon.vision.backbone.find_weights", lambda *_: deep_weights)
    code = blocks(ROOT / "README.md", "python")
    assert code, "README.md has no Python block"
    namespace: dict[str, Any] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), namespace)
    assert isinstance(namespace["result"], Prediction)
    assert namespace["result"].heatmap.shape == (96, 80)
    assert (parts / "part.procon").is_file()
    assert "0001.png" in capsys.readouterr().out


def test_the_python_of_the_documents_runs(parts: Path) -> None:
    for path in PAGES[1:]:
        for block in blocks(path, "python"):
            exec(compile(block, path.name, "exec"), {})
