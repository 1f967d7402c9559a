"""An export scores as the detector does, or is not left; every setting of the method survives it."""

import csv
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from procon import Config, ConfigError, Detector, MissingExtraError, ModelFileError, NotFittedError
from procon.arrays import Floats
from procon.cli import app
from procon.config import RESTRICTIONS
from procon.deploy import Runtime, graph, interpolation, scoring
from procon.deploy import export as module
from procon.deploy.assemble import build_graph
from procon.deploy.cost import measure_cost
from procon.deploy.export import export
from procon.deploy.parity import TOLERANCE, Difference, check_images, with_defect
from procon.evaluation.data.datasets import open_category
from procon.method import maps
from procon.vision.images import open_image
from tests.conftest import part_pixels, tiny_config, with_model, write_tiny_backbone

pytest.importorskip("onnxruntime")


def write(detector: Detector, folder: Path, **settings: Any) -> module.Exported:
    return export(detector, folder, measure_memory=False, **settings)


def fitted(weights: Path, good: Path, **settings: Any) -> Detector:
    return Detector(tiny_config(weights, **settings), device="cpu").fit(good)


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))


# -------------------------------------------------------------------------------------------------------- every setting


PAIR: dict[str, Any] = {"score_relative_to": "anchors", "map_offset": 1.0}
SETTINGS: list[dict[str, Any]] = [
    {"readout": "hard"},
    {"readout": "uniform"},
    {"tau": 0.3},
    {"tau_patches": 7},
    {"layer_fusion": "median", "layers": (-1, -2, -3, -4)},
    {"layer_fusion": "max"},
    {"layer_fusion": "concat", "projection_dim": 24},
    {"normalization": "train"},
    {"normalization": "robust"},
    {"compression": "int8"},
    {"projection_dim": 16},
    {"banks": 1},
    {"banks": 7, "coreset_ratio": 0.2},
    {"image_size": (70, 112)},
    {"image_size": 56, "resize": 84},
    {"blur_sigma": 0.0, "top_ratio": 0.2},
    {"layers": (-1,), "num_neighbors": 1},
    {"score_relative_to": "anchors"},
    {"map_offset": 1.0},
    {"map_offset": 0.25},
    {"score_relative_to": "anchors", "map_offset": 1.0, "banks": 1, "top_ratio": 0.2},
    {"score_relative_to": "anchors", "tau": 0.3, "layer_fusion": "max", "banks": 7},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ", ".join(f"{k}={v}" for k, v in settings.items()))
def test_every_setting_is_exported(
    tiny_backbone: Path, good_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    detector = fitted(tiny_backbone, good_folder, **settings)
    done = write(detector, tmp_path / "part", tolerance=1e-4, map_tolerance=1e-3)
    assert done.difference.map_share < 1e-3
    here, there = (model.predict(part_pixels(9, True)) for model in (detector, Runtime(tmp_path / "part")))
    np.testing.assert_allclose(there.heatmap, here.heatmap, rtol=0, atol=1e-3 * abs(here.heatmap).max())


def test_a_shape_that_the_images_chose_is_exported(tiny_backbone: Path, tmp_path: Path) -> None:
    images = [Image.fromarray(part_pixels(seed)).resize((240, 60)) for seed in range(8)]
    config = tiny_config(tiny_backbone, image_size="auto", patch_budget=36)
    detector = Detector(config, device="cpu").fit(images)
    write(detector, tmp_path / "part", tolerance=1e-4, map_tolerance=1e-3)
    runtime = Runtime(tmp_path / "part")
    assert runtime.config.image_size == detector.config.image_size == (42, 168)
    here, there = (model.predict(images[0]) for model in (detector, runtime))
    assert there.score == pytest.approx(here.score, rel=1e-4) and there.heatmap.shape == (60, 240)


@pytest.mark.parametrize("settings", [{}, {"map_offset": 1.0, "tau_patches": 5}, {"resize": 84, "image_size": 70}])
def test_a_region_of_interest_is_exported(
    tiny_backbone: Path, good_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    detector = Detector(tiny_config(tiny_backbone, top_ratio=0.2, **settings), device="cpu")
    detector.fit(good_folder, roi=[(0.1, 0.0), (0.7, 0.1), (0.6, 0.9)])
    write(detector, tmp_path / "part", tolerance=1e-4, map_tolerance=1e-3)
    runtime = Runtime(tmp_path / "part")
    for image in (part_pixels(9, True), part_pixels(10)):
        here, there = detector.predict(image), runtime.predict(image)
        assert there.score == pytest.approx(here.score, rel=1e-4) and there.median_patch_score == pytest.approx(
            here.median_patch_score, rel=1e-4
        )
        np.testing.assert_allclose(there.heatmap, here.heatmap, rtol=0, atol=1e-3 * abs(here.heatmap).max())
        assert (there.heatmap[:, -10:] == 0).all()


@pytest.mark.parametrize("shape", [{"registers": 4}, {"swiglu": True, "hidden": 32}])
def test_every_backbone_is_exported(tmp_path: Path, good_folder: Path, shape: dict[str, Any]) -> None:
    weights = write_tiny_backbone(tmp_path / "backbone", **shape)
    done = write(fitted(weights, good_folder), tmp_path / "part", tolerance=1e-4, map_tolerance=1e-3)
    assert done.difference.map_share < 1e-3


def test_many_banks_are_masks_and_few_are_runs(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = write(detector, tmp_path / "runs")
    monkeypatch.setattr(scoring, "MOST_RUNS", 1)
    masks = write(detector, tmp_path / "masks")
    names = [[node.op_type for node in onnx.load(done.folder / "model.onnx").graph.node] for done in (runs, masks)]
    assert "GatherElements" in names[0] and "GatherElements" not in names[1]
    assert masks.difference.map_share < 1e-4
    pixels = np.random.default_rng(0).normal(size=(2, 3, 70, 70)).astype(np.float32)
    for here, there in zip(*(Runtime(done.folder).measure_pixels(pixels) for done in (runs, masks)), strict=True):
        np.testing.assert_allclose(there, here, atol=1e-5)


@pytest.mark.parametrize(("cells", "size", "sigma"), [(5, 70, 4.0), (3, 42, 0.0), (2, 28, 9.0), (1, 14, 4.0)])
def test_the_map_is_two_matrix_products(cells: int, size: int, sigma: float) -> None:
    grid = np.random.default_rng(0).random((cells, 4)).astype(np.float32)
    expected = maps.pixel_map(torch.from_numpy(grid)[None], (size, 56), sigma)[0].numpy()
    found = interpolation.spread_matrix(cells, size, sigma) @ grid @ interpolation.spread_matrix(4, 56, sigma).T
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_the_median_of_the_graph_is_the_true_one(count: int, tmp_path: Path) -> None:
    from procon.deploy.sessions import open_session

    values = np.random.default_rng(count).random((3, count)).astype(np.float32)
    made = graph.Graph()
    made.op("Identity", made.median("pixels", count), name="score")
    (file, *_) = graph.save_onnx(made.model({"pixels": ["N", count]}, {"score": ["N", 1]}), tmp_path, 0)
    found = open_session(tmp_path / file, "onnx", outputs=["score"])(values)["score"]
    np.testing.assert_allclose(found[:, 0], np.median(values, axis=1), rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- the model file


def test_the_file_is_what_the_manifest_says(detector: Detector, tmp_path: Path) -> None:
    done = write(detector, tmp_path / "part")
    model, entries = onnx.load(done.folder / "model.onnx"), manifest(done.folder)
    onnx.checker.check_model(model, full_check=True)
    assert [opset.version for opset in model.opset_import] == [graph.OPSET] == [entries["opset"]]
    (takes,) = model.graph.input
    shape = [dim.dim_param or dim.dim_value for dim in takes.type.tensor_type.shape.dim]
    assert (takes.name, shape) == (entries["input"]["name"], entries["input"]["shape"]) == ("pixels", ["N", 3, 70, 70])
    assert [output.name for output in model.graph.output] == list(entries["outputs"]) == ["score", "map", "patches"]
    assert {path.name for path in done.folder.iterdir()} == {"manifest.json", *entries["files"]}
    assert entries["check"]["tolerance"] == {"score": 0.001, "map": 0.01}
    assert entries["check"]["difference"]["score_share"] < 0.001
    assert entries["check"]["difference"]["map_share"] < 0.01
    assert entries["calibration"]["scores"] == list(detector.calibration.scores)  # type: ignore[union-attr]
    assert entries["size"]["disk_bytes"] == (done.folder / "model.onnx").stat().st_size == done.bytes
    assert "Cdist" not in {node.op_type for node in model.graph.node}


def test_anchors_are_stored_once(detector: Detector, tmp_path: Path) -> None:
    done = write(detector, tmp_path / "part")
    stored = {one.name: one for one in onnx.load(done.folder / "model.onnx").graph.initializer}
    assert detector.memory is not None
    for index, layer in enumerate(detector.memory.layers):
        assert tuple(stored[f"memory/{index}/anchors"].dims) == tuple(layer.anchors.shape)
    held = sum(layer.anchors.numel() for layer in detector.memory.layers)
    assert sum(int(np.prod(one.dims)) for name, one in stored.items() if name.startswith("memory/")) == held


def test_the_same_model_gives_the_same_bytes(detector: Detector, tmp_path: Path) -> None:
    one, two = (write(detector, tmp_path / name) for name in ("one", "two"))
    assert (one.folder / "model.onnx").read_bytes() == (two.folder / "model.onnx").read_bytes()


def test_large_models_keep_their_weights_beside_them(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "PROTOBUF_LIMIT", 1000)
    done = write(detector, tmp_path / "part")
    assert set(manifest(done.folder)["files"]) == {"model.onnx", "model.data"}
    assert Runtime(done.folder).predict(part_pixels(1)).score > 0


def test_memory_is_measured_in_a_process_of_its_own(detector: Detector, tmp_path: Path) -> None:
    done = export(detector, tmp_path / "part")
    assert done.memory_bytes is not None and done.memory_bytes > 10 * 2**20
    assert manifest(done.folder)["size"]["peak_memory_bytes"] == done.memory_bytes
    Runtime(done.folder)


# ------------------------------------------------------------------------------------------------------------ precision


def test_fp16_halves_the_file(detector: Detector, tmp_path: Path) -> None:
    full, half = (write(detector, tmp_path / name, precision=name) for name in ("fp32", "fp16"))
    assert half.bytes < 0.65 * full.bytes
    assert 0 < half.difference.map_share < 0.02


def test_int8_quantises_the_backbone_and_the_search(detector: Detector, tmp_path: Path) -> None:
    done = write(detector, tmp_path / "part", precision="int8", tolerance=10.0, map_tolerance=10.0)
    model = onnx.load(done.folder / "model.onnx")
    stored = {one.name: one.data_type for one in model.graph.initializer}
    for name in ("qkv", "attention", "fc1", "fc2"):
        assert stored[f"backbone/3/{name}/weight"] == onnx.TensorProto.INT8
    assert stored["memory/0/search/weight"] == onnx.TensorProto.INT8
    assert stored["memory/0/anchors"] == onnx.TensorProto.FLOAT  # distances and residuals
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) == 4 * 4 + 2
    assert done.difference.map_share > 1e-4


def test_openvino_scores_the_same(detector: Detector, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    done = write(detector, tmp_path / "part", runtime="openvino", map_tolerance=1e-3)
    assert {path.name for path in done.folder.iterdir()} == {"manifest.json", "model.xml", "model.bin"}
    here, there = (model.predict(part_pixels(9, True)) for model in (detector, Runtime(done.folder, threads=1)))
    assert there.score == pytest.approx(here.score, abs=1e-5)
    np.testing.assert_allclose(there.heatmap, here.heatmap, rtol=0, atol=1e-4)
    with pytest.raises(ConfigError, match=r"device must be 'auto' or one that openvino finds here \(.*\), got 'tpu'"):
        Runtime(done.folder, device="tpu")


@pytest.mark.slow
def test_openvino_in_other_precisions(detector: Detector, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    done = write(detector, tmp_path / "part", runtime="openvino")
    half = write(detector, tmp_path / "half", runtime="openvino", precision="fp16")
    assert half.bytes < 0.8 * done.bytes
    small = write(
        detector, tmp_path / "small", runtime="openvino", precision="int8", tolerance=10.0, map_tolerance=10.0
    )
    assert small.bytes < done.bytes


def test_quantised_weights_are_within_half_a_step() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    made = graph.Graph(ranges={"a": (-1.0, 3.0)})
    made.linear("x", weight, np.zeros(5, np.float32), "a")
    stored = made._constants["a/weight"]
    scale = np.abs(weight).max(axis=0) / 127
    assert stored.dtype == np.int8
    assert (np.abs(stored * scale - weight) <= scale / 2 + 1e-7).all()


def test_int8_needs_real_images(tiny_backbone: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    for index in range(3):
        Image.fromarray(part_pixels(index)).save(good / f"{index}.png")
    file = fitted(tiny_backbone, good).save(tmp_path / "a.procon")
    for path in good.iterdir():
        path.unlink()
    detector = Detector.load(file, device="cpu")
    with pytest.raises(ConfigError, match=r"int8 needs real images of the part .* name a folder with --check-images"):
        write(detector, tmp_path / "part", precision="int8")
    done = write(detector, tmp_path / "part")
    assert "rendered parts, because the training images are no longer there" in manifest(done.folder)["check"]["images"]


# -------------------------------------------------------------------------------------------------------------- refusal


def test_a_model_that_differs_is_not_left(detector: Detector, tmp_path: Path) -> None:
    assert detector.memory is not None
    moved = tuple(replace(layer, anchors=layer.anchors + 0.1) for layer in detector.memory.layers)
    wrong = build_graph(with_model(detector, memory=replace(detector.memory, layers=moved)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "build_graph", lambda *_, **__: wrong)
        with pytest.raises(
            ModelFileError, match=r"part: was not written: on 8 images the fp32 model differs .* \(1.00% allowed"
        ):
            write(detector, tmp_path / "part")
    assert not list(tmp_path.iterdir())


def test_an_earlier_export_survives_a_refusal_and_is_replaced_by_success(detector: Detector, tmp_path: Path) -> None:
    write(detector, tmp_path / "part")
    before = (tmp_path / "part" / "manifest.json").read_text()
    with pytest.raises(ModelFileError, match="was not written"):
        write(detector, tmp_path / "part", precision="fp16", tolerance=1e-9)
    assert (tmp_path / "part" / "manifest.json").read_text() == before
    write(detector, tmp_path / "part", precision="fp16")
    assert Runtime(tmp_path / "part").manifest.precision == "fp16"
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_nan_is_a_difference() -> None:
    found = Difference(1, float("nan"), 0.0, 0.0, 1.0, None)
    with pytest.raises(ModelFileError, match="was not written"):
        module._refuse_difference(found, (0.01, 0.01), Path("part"), "fp32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runtime": "tflite"}, "the runtime must be one of onnx, openvino, got 'tflite'"),
        ({"precision": "int4"}, "precision must be one of fp32, fp16, int8, got 'int4'"),
        ({"tolerance": 0.0}, "tolerances must be numbers above 0, got 0.0"),
    ],
)
def test_settings_are_checked_before_any_work(
    detector: Detector, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write(detector, tmp_path / "part", **settings)


def test_what_cannot_be_exported_is_said(detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFittedError):
        write(Detector(Config(), device="cpu"), tmp_path / "part")
    for settings, message in (({"precision": "bf16"}, "'auto' or 'fp32'"), ({"compression": "approximate"}, "exactly")):
        with monkeypatch.context() as patch:
            patch.setattr(detector, "config", replace(detector.config, **settings))  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=message):
                write(detector, tmp_path / "part")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"needs onnx and onnxruntime; install with: pip install 'procon\[onnx\]'"
    ):
        write(detector, tmp_path / "part")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tile": 56}, "tile must be None in an exported model, .*, got 56; fit again"),
        ({"aspect": "pad"}, "aspect must be 'stretch' in an exported model, .*, got 'pad'; fit again"),
    ],
)
def test_a_setting_the_graph_does_not_compute_is_refused(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(detector, "config", replace(detector.config, **settings))
    with pytest.raises(ConfigError, match=message):
        write(detector, tmp_path / "part")


# The settings that the graph implements, or that only matter while a memory is made.
EXPORTED_SETTINGS = {
    *("backbone", "weights", "image_size", "resize", "layers", "projection_dim", "selection_dim", "seed", "banks"),
    *("bank_seed", "coreset", "coreset_ratio", "max_anchors", "num_neighbors", "readout", "tau", "tau_patches"),
    *("layer_fusion", "normalization", "score_relative_to", "map_offset", "top_ratio", "blur_sigma"),
    *("false_alarm_rate", "threshold_rule", "patch_budget", "max_scale"),
}


def test_every_setting_is_exported_or_refused() -> None:
    refused = {restriction.setting for restriction in RESTRICTIONS if restriction.context == "export"}
    assert EXPORTED_SETTINGS | refused == {field.name for field in fields(Config)}
    assert not EXPORTED_SETTINGS & refused


def test_folders_of_others_are_left_alone(detector: Detector, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="must be a folder that is empty, missing or an earlier export"):
        write(detector, tmp_path)
    with pytest.raises(ConfigError, match="must be a folder, got the file"):
        write(detector, tmp_path / "mine.txt")


# --------------------------------------------------------------------------------------------------------- check images


def test_training_images_are_compared_with_a_defect_too(detector: Detector) -> None:
    found = check_images(detector, None)
    assert found.origin == "4 training images, and the same with a square turned negative"
    assert len(found.pictures) == 8 and found.real
    changed = found.pictures[4].pixels != found.pictures[0].pixels
    assert 0.01 < changed.any(axis=2).mean() < 0.02


def test_deep_images_are_disturbed_in_their_range() -> None:
    picture = with_defect(open_image(np.full((80, 80), 0.25, np.float32)))
    assert set(np.unique(picture.pixels)) == {np.float32(0.25), np.float32(0.75)}


# --------------------------------------------------------------------------------------------------------- command line


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 2, str(result.exception)
    return result.exit_code, result.stdout


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """good/ bad/ mask/ with parts that no model has seen."""
    root = tmp_path / "labelled"
    for name, seeds in (("train/good", (90, 91)), ("test/good", (92, 93)), ("test/square", (94, 95))):
        (root / name).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(part_pixels(seed, name == "test/square")).save(root / name / f"{seed}.png")
    mask = np.zeros((96, 80), np.uint8)
    mask[40:60, 30:50] = 255
    (root / "ground_truth" / "square").mkdir(parents=True)
    for seed in (94, 95):
        Image.fromarray(mask).save(root / "ground_truth" / "square" / f"{seed}_mask.png")
    return root


def test_export_and_predict_on_the_command_line(detector: Detector, labelled: Path, tmp_path: Path) -> None:
    loose = ("--precision", "int8", "--tolerance", 10, "--map-tolerance", 10, "--evaluate", labelled)
    file, folder = detector.save(tmp_path / "a.procon"), tmp_path / "part"
    code, text = run("export", file, "--to", "onnx", "-o", folder, *loose)
    assert code == 0, text
    assert "largest difference on 4 training images" in text
    assert "4 test images       original  exported   change\ni_auroc" in text
    assert f"wrote {folder} (" in text and "of memory to score an image" in text
    cost = manifest(folder)["cost"]
    assert set(cost["original"]) == {"i_auroc", "i_ap", "p_auroc", "p_ap", "aupro"}
    assert cost["images"] == 4
    code, text = run("predict", folder, labelled / "test", "-o", tmp_path / "out")
    assert code == 0, text
    assert "4 images, 2 anomalous" in text
    with (tmp_path / "out" / "scores.csv").open() as stream:
        assert [row["is_anomalous"] for row in csv.DictReader(stream)] == ["False", "False", "True", "True"]


def test_the_metrics_of_a_cropped_model_include_those_over_pixels(tiny_backbone: Path, labelled: Path) -> None:
    detector = Detector(tiny_config(tiny_backbone, resize=84), device="cpu").fit(
        [part_pixels(seed) for seed in range(4)]
    )

    def score_pixels(pixels: Floats) -> tuple[Floats, Floats]:
        score, heatmap, _ = detector.scorer.measure_pixels(torch.from_numpy(pixels))
        return score.numpy(), heatmap.numpy()

    cost = measure_cost(detector, score_pixels, open_category(labelled).test)
    assert cost.original == cost.exported and cost.verdicts == 0
    assert not np.isnan(list(cost.original.values())).any()


def test_given_images_are_compared(detector: Detector, labelled: Path, tmp_path: Path) -> None:
    file, folder = detector.save(tmp_path / "a.procon"), tmp_path / "part"
    code, text = run("export", file, "--to", "onnx", "-o", folder, "--check-images", labelled)
    assert code == 0, text
    assert "largest difference on 4 given images" in text


def test_the_command_line_says_what_is_wrong(detector: Detector, labelled: Path, tmp_path: Path) -> None:
    start = ("export", detector.save(tmp_path / "a.procon"), "-o", tmp_path / "p", "--to")
    assert run(*start, "tvm")[1] == "the runtime must be one of onnx, openvino, got 'tvm'"
    (tmp_path / "empty").mkdir()
    assert "holds no images" in run(*start, "onnx", "--check-images", tmp_path / "empty")[1]
    assert "is no dataset" in run(*start, "onnx", "--evaluate", tmp_path / "empty")[1]
    assert run("predict", tmp_path, labelled)[1].startswith(f"{tmp_path}: is not an exported model")
    assert not (tmp_path / "p").exists()


# --------------------------------------------------------------------------------------------------------- the document

ROOT = Path(__file__).resolve().parents[2]


def load_benchmark() -> Any:
    import importlib.util
    import sys

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("deploy_benchmark", ROOT / "benchmarks" / "deploy.py")
        assert spec is not None and spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return script


def test_the_table_of_the_document_is_that_of_the_results() -> None:
    script, text = load_benchmark(), (ROOT / "docs" / "use" / "deploy.md").read_text(encoding="utf-8")
    assert script.put_table(text, script.read_results()) == text, "run: python benchmarks/deploy.py --table"
    assert "Not measured yet" in script.put_table(text, [])


def test_the_example_for_other_languages_gives_the_same_score(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "use" / "deploy.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 35
    (tmp_path / "parts" / "new").mkdir(parents=True)
    Image.fromarray(part_pixels(9, True)).save(tmp_path / "parts" / "new" / "0001.png")
    write(detector, tmp_path / "part-onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "deploy.md", "exec"), {})
    expected = detector.predict(tmp_path / "parts" / "new" / "0001.png")
    printed = capsys.readouterr().out
    assert f"anomalous: score {expected.score:.4f}, p {expected.p_value:.3f}, worst at" in printed
    x, y = map(int, re.findall(r"= (\d+)", printed))
    assert 25 < x < 55 and 35 < y < 65  # the red square


def test_the_tolerances_of_the_document_are_those_of_the_package() -> None:
    text = (ROOT / "docs" / "use" / "deploy.md").read_text(encoding="utf-8")
    for precision, (score, pixel) in TOLERANCE.items():
        assert re.search(rf"^\| `{precision}` \|.*\| {100 * score:g} % \| {100 * pixel:g} % \|", text, re.MULTILINE)


# -------------------------------------------------------------------------------------------------------------- lessons


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"layer_fusion": "concat", "projection_dim": 24}, {"readout": "hard"}, {"banks": 1, **PAIR}],
    ids=["default", "concat", "hard", "relative"],
)
def test_lessons_are_exported(
    tiny_backbone: Path, good_folder: Path, tmp_path: Path, settings: dict[str, Any], runtime: str
) -> None:
    pytest.importorskip(runtime if runtime == "openvino" else "onnxruntime")
    plain = fitted(tiny_backbone, good_folder, **settings)
    detector = with_model(plain)
    detector.teach(part_pixels(100, True), (30, 40, 50, 60))
    done = write(detector, tmp_path / "part", runtime=runtime, tolerance=1e-4, map_tolerance=1e-3)
    assert "lesson 1: " in done.entries["facts"][-1]
    image = part_pixels(101, True)
    here, there = (model.predict(image) for model in (detector, Runtime(tmp_path / "part")))
    assert here.score > plain.predict(image).score  # the lesson acts
    np.testing.assert_allclose(there.score, here.score, rtol=1e-4)
    np.testing.assert_allclose(there.heatmap, here.heatmap, rtol=0, atol=1e-3 * abs(here.heatmap).max())
