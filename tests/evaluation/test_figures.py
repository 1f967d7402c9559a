"""The figures of the paper: what is drawn where, on which scale, and what is said when it cannot be drawn."""

import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from procon.cli import app
from procon.errors import ConfigError
from procon.evaluation.report import figures, pictures
from procon.evaluation.report.lineup import (
    layer_variants,
    operating_points,
    paper_columns,
    paper_variants,
)
from procon.evaluation.runs.run import Run
from procon.progress import no_progress
from tests.evaluation.sample_run import BASE, PROCON, add_variant, make_run

SIDE, GAP, MARGIN = 96, 8, 16
HEIGHT = round(SIDE * 96 / 80)  # of the pictures: parts keep their proportions
TOP = MARGIN + 2 * 18 + 10
LAYERS = (-3, -6, -8, -9)


def cell(picture: Image.Image, row: int, column: int) -> NDArray[np.uint8]:
    """The pixels of one picture of a grid."""
    left, top = MARGIN + column * (SIDE + GAP), TOP + row * (HEIGHT + 18 + GAP)
    return np.asarray(picture.crop((left, top, left + SIDE, top + HEIGHT)))


def resized(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).resize((SIDE, HEIGHT), Image.Resampling.BICUBIC))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Hard NN, SPM, ProCon and its single layers, made up."""
    concat: dict[str, Any] = {"layers": (-1, -3, -6, -9, -12), "layer_fusion": "concat", "coreset_ratio": 0.01}
    variants: list[dict[str, Any]] = [PROCON, concat, {**concat, "readout": "hard", "banks": 1}]
    variants += [{"layers": (layer,), "coreset_ratio": 0.01} for layer in LAYERS]
    return make_run(tmp_path_factory.mktemp("run"), variants=variants, categories=("flange",))


def test_the_columns_are_those_of_the_paper(run: Run) -> None:
    assert paper_columns(run, ["flange"]) == paper_variants(run, {"coreset_ratio": 0.01, "banks": 5})
    assert list(paper_columns(run, ["flange"])) == ["Hard NN", "SPM", "ProCon"]
    assert operating_points(run)[0] == {"coreset_ratio": 0.05, "banks": 5}


def test_a_grid_shows_input_truth_and_maps(run: Run) -> None:
    picture = figures.qualitative_grid(run, "flange", indices=[8, 3], side=SIDE)
    assert picture.width == 2 * MARGIN + 5 * SIDE + 4 * GAP
    raw = run.load("flange", "coreset_ratio=0.01")
    for row, index in enumerate((8, 3)):
        part = pictures.load_input(raw, index, SIDE)
        assert part is not None
        assert (cell(picture, row, 0) == resized(part)).all()
        mask = raw.mask(index)
        marked = np.zeros(raw.size, bool) if mask is None else mask
        white = np.repeat(np.where(marked, 255, 0).astype(np.uint8)[:, :, None], 3, axis=2)
        assert (cell(picture, row, 1) == resized(white)).all()
    assert cell(picture, 0, 1).any() and not cell(picture, 1, 1).any()


def test_each_column_of_a_grid_has_its_own_scale(run: Run) -> None:
    columns = paper_columns(run, ["flange"])
    picture = figures.qualitative_grid(run, "flange", [4, 7], side=SIDE)
    for place, variant in enumerate(columns.values()):
        raw = run.load("flange", variant)
        good = ~np.array(raw.labels)
        low, high = float(np.median(raw.maps[good])), max(float(raw.pixel_map(i).max()) for i in range(9))
        for row, index in enumerate((4, 7)):
            expected = resized(pictures.color_map(raw.pixel_map(index), low, high))
            assert (cell(picture, row, 2 + place) == expected).all()


def test_layer_maps_share_one_scale(run: Run) -> None:
    found = layer_variants(run, "flange")
    assert list(found) == ["S_-3", "S_-6", "S_-8", "S_-9", "S_map"]
    assert found["S_-8"] == "coreset_ratio=0.01+layers=-8" and found["S_map"] == "coreset_ratio=0.01"
    raws = [run.load("flange", variant) for variant in found.values()]
    low = min(float(np.median(raw.maps[~np.array(raw.labels)])) for raw in raws)
    high = max(float(raw.pixel_map(i).max()) for raw in raws for i in range(9))
    picture = figures.layer_maps(run, "flange", indices=[5], side=SIDE)
    for place, raw in enumerate(raws):
        assert (cell(picture, 0, 2 + place) == resized(pictures.color_map(raw.pixel_map(5), low, high))).all()


def test_without_single_layers_the_command_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    with pytest.raises(ConfigError) as error:
        figures.layer_maps(run, "flange")
    assert str(error.value) == (
        f"{run.folder}: not every single layer of the paper's recipe is stored on flange; make them with: procon "
        f"reproduce per-layer --root {run.dataset.root} -o {run.folder} --categories flange --backbone dinov2-small "
        "--image-size 56"
    )
    name = add_variant(run, replace(BASE, layers=(-3,)))
    with pytest.raises(
        ConfigError, match="layers=-3: has no maps of single layers; choose a variant that fuses several"
    ):
        figures.layer_maps(run, "flange", name)


def test_examples_that_are_not_there_are_refused(run: Run) -> None:
    for indices in ([], [9], [-1]):
        with pytest.raises(ConfigError) as error:
            figures.qualitative_grid(run, "flange", indices=indices)
        assert str(error.value) == f"indices must be of test images, 0 to 8, got {indices}"


def test_a_run_with_one_foreign_variant_has_a_grid(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[{"banks": 2}], categories=("flange",))
    picture = figures.qualitative_grid(run, "flange", side=SIDE)
    assert picture.width == 2 * MARGIN + 3 * SIDE + 2 * GAP
    assert picture.height > TOP + 5 * HEIGHT


def test_without_images_the_maps_are_left(run: Run, tmp_path: Path) -> None:
    lost = make_run(tmp_path, categories=("flange",))
    whole = figures.qualitative_grid(lost, "flange", indices=[4], side=SIDE)
    shutil.rmtree(tmp_path / "data")
    opened = Run.open_folder(lost.folder)
    picture = figures.qualitative_grid(opened, "flange", indices=[4], side=SIDE)
    square = picture.crop((MARGIN + 2 * (SIDE + GAP), TOP, MARGIN + 3 * SIDE + 2 * GAP, TOP + SIDE))
    assert picture.height == whole.height - HEIGHT + SIDE  # the proportions are gone with the images
    assert len(np.unique(np.asarray(square))) > 20


def test_plain_maps_get_brighter_with_the_value() -> None:
    ramp = pictures.color_map(np.linspace(0, 1, 64, dtype=np.float32)[None], 0.0, 1.0)[0].astype(float)
    light = ramp @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(light) > 0).all()
    assert (pictures.color_map(np.array([[-5.0, 9.0]], np.float32), 0.0, 1.0)[0] == ramp[[0, -1]]).all()


def test_all_figures_are_written(run: Run, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    written, problems = figures.write_figures(run, tmp_path, ["flange"], lambda *step: steps.append(step))
    assert problems == [] and steps == [("drawing figures", 1, 1)]
    names = {"qualitative.png", "layers.png", "histogram.svg", "roc.svg", "pr.svg", "pro.svg"}
    assert {path.name for path in written} == names == {path.name for path in (tmp_path / "flange").iterdir()}
    for path in written:
        if path.suffix == ".svg":
            root = ET.parse(path).getroot()
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert not re.search(r"href|<script|@import", path.read_text(encoding="utf-8"))
        else:
            with Image.open(path) as picture:
                picture.load()
                assert picture.format == "PNG"


def test_the_layers_are_those_of_the_variant_that_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    name = add_variant(run, replace(BASE, layers=(-3,)))
    _, problems = figures.write_figures(run, tmp_path / "out", ["flange"], no_progress, name)
    assert problems == [
        f"flange: layers.png was left out: {name}: has no maps of single layers; choose a variant that fuses several"
    ]


def test_the_command_draws_what_it_can(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    result = CliRunner().invoke(app, ["figures", str(run.folder), "--categories", "lid"])
    assert result.exit_code == 0, result.output
    assert "lid: layers.png was left out" in result.output and "procon reproduce per-layer" in result.output
    assert f"wrote 5 figures to {run.folder / 'figures'}" in result.output
    assert [path.name for path in (run.folder / "figures").iterdir()] == ["lid"]
    result = CliRunner().invoke(app, ["figures", str(run.folder), "--categories", "lid,cup"])
    assert result.exit_code != 0
    assert str(result.exception) == f"{run.folder}: categories must be among flange, lid, got cup"
