"""The exported model away from torch: the same predictions, the same errors, numpy in place of torch and scipy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from procon import BatchError, ConfigError, Detector, ImageError, ModelFileError
from procon.cli import app
from procon.deploy import Runtime, load_any
from procon.deploy.export import export
from procon.deploy.manifest import ExportedCalibration, read_manifest
from procon.method import maps
from procon.method.heatmap import HeatMap
from procon.method.regions import find_regions, peak_region
from procon.model.calibration import Calibration
from tests import reference
from tests.conftest import part_pixels, tiny_config

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def exported(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(detector, tmp_path_factory.mktemp("export") / "part", measure_memory=False).folder


@pytest.fixture(scope="module")
def runtime(exported: Path) -> Runtime:
    return Runtime(exported)


# ------------------------------------------------------------------------------------------------------- predictions


def assert_same(here: Any, there: Any) -> None:
    np.testing.assert_allclose(there.heatmap, here.heatmap, rtol=0, atol=1e-4)
    assert there.heatmap.dtype == np.float32
    assert there.score == pytest.approx(here.score, abs=1e-5)
    assert there.median_patch_score == pytest.approx(here.median_patch_score, abs=1e-5)
    assert (there.is_anomalous, there.threshold, there.p_value) == (here.is_anomalous, here.threshold, here.p_value)
    assert (there.source, there.pixel_threshold) == (here.source, here.pixel_threshold)
    assert [region.box for region in there.regions] == [region.box for region in here.regions]


@pytest.mark.parametrize("defect", [False, True])
def test_predictions_are_those_of_the_detector(
    detector: Detector, runtime: Runtime, tmp_path: Path, defect: bool
) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(part_pixels(77, defect)).save(path)
    assert_same(detector.predict(path), runtime.predict(path))
    assert runtime.predict(path).is_anomalous is defect


def test_a_list_gives_a_list_and_errors_carry_the_rest(detector: Detector, runtime: Runtime) -> None:
    images = [part_pixels(50), np.zeros((3, 3, 3), np.uint8), part_pixels(51, True)]
    with pytest.raises(BatchError) as there:
        runtime.predict(images)
    with pytest.raises(BatchError) as here:
        detector.predict(images)
    assert str(there.value) == str(here.value)
    assert there.value.results[1] is None
    assert_same(here.value.results[2], there.value.results[2])


@pytest.mark.parametrize("image", ["nothing.png", np.zeros((3, 3), np.uint8), 7])
def test_errors_are_those_of_the_detector(detector: Detector, runtime: Runtime, image: Any) -> None:
    with pytest.raises(ImageError) as here:
        detector.predict(image)
    with pytest.raises(ImageError) as there:
        runtime.predict(image)
    assert str(there.value) == str(here.value)


def test_a_folder_is_scored_in_order(detector: Detector, runtime: Runtime, good_folder: Path) -> None:
    here, there = detector.predict(good_folder), runtime.predict(good_folder)
    assert [result.source for result in there] == [result.source for result in here]


def test_a_batch_scores_as_its_images_do(runtime: Runtime) -> None:
    pixels = np.random.default_rng(0).normal(size=(3, 3, 70, 70)).astype(np.float32)
    scores, heat, _ = runtime.measure_pixels(pixels)
    for index in range(3):
        score, one, _ = runtime.measure_pixels(pixels[index : index + 1])
        assert scores[index] == pytest.approx(float(score[0]), abs=1e-5)
        np.testing.assert_allclose(heat[index], one[0], atol=1e-5)


def test_threads_and_device_are_checked(exported: Path) -> None:
    assert Runtime(exported, threads=1, device="cpu").predict(part_pixels(1)).score > 0
    with pytest.raises(ConfigError, match="threads must be None or an integer of at least 1, got 0"):
        Runtime(exported, threads=0)
    with pytest.raises(ConfigError, match="device must be 'auto', 'cpu' or 'cuda' for an ONNX model, got 'tpu'"):
        Runtime(exported, device="tpu")


# ------------------------------------------------------------------------------------------------------------ loading


def test_load_any_takes_both(detector: Detector, exported: Path, tmp_path: Path) -> None:
    file = detector.save(tmp_path / "a.procon")
    here, there = load_any(file, device="cpu"), load_any(exported)
    assert isinstance(here, Detector) and isinstance(there, Runtime)
    assert_same(here.predict(part_pixels(3)), there.predict(part_pixels(3)))
    with pytest.raises(ModelFileError, match="an exported model carries its backbone; leave out the weights"):
        load_any(exported, weights="w.safetensors")
    with pytest.raises(ModelFileError, match=r"is not an exported model \(no manifest.json\); make one with: procon"):
        load_any(tmp_path)
    with pytest.raises(ModelFileError, match="no such model file"):
        load_any(tmp_path / "none.procon")


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_a_changed_model_is_refused(copy: Path) -> None:
    data = bytearray((copy / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "model.onnx").write_bytes(data)
    with pytest.raises(ModelFileError, match=r"model.onnx: is corrupted: its checksum does not match"):
        Runtime(copy)


def test_a_truncated_model_is_refused(copy: Path) -> None:
    data = (copy / "model.onnx").read_bytes()
    (copy / "model.onnx").write_bytes(data[:-5])
    with pytest.raises(ModelFileError, match=f"has {len(data) - 5:,} of {len(data):,} bytes; copy the folder again"):
        Runtime(copy)


def test_a_missing_model_is_refused(copy: Path) -> None:
    (copy / "model.onnx").unlink()
    with pytest.raises(ModelFileError, match=r"model.onnx: is missing; copy the whole folder again or export again"):
        Runtime(copy)


def test_a_changed_threshold_is_refused(copy: Path) -> None:
    entries = json.loads((copy / "manifest.json").read_text())
    entries["threshold"]["threshold"] += 0.1
    (copy / "manifest.json").write_text(json.dumps(entries))
    with pytest.raises(ModelFileError, match=r"manifest.json: is corrupted: its checksum does not match"):
        Runtime(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a manifest or is damaged"),
        ("[]", "is not a manifest or is damaged"),
        ('{"format": 99}', "has format 99, this release reads up to 1; upgrade with: pip install -U procon"),
    ],
)
def test_a_strange_manifest_is_refused(copy: Path, text: str, message: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(ModelFileError, match=message):
        Runtime(copy)


def test_a_manifest_cannot_point_outside(copy: Path) -> None:
    from procon.documents import sealed

    entries = json.loads((copy / "manifest.json").read_text())
    entries["files"]["../evil"] = {"bytes": 1, "sha256": ""}
    (copy / "manifest.json").write_text(json.dumps(sealed(entries)))
    with pytest.raises(ModelFileError, match=r"names the file '../evil' outside the folder"):
        Runtime(copy)


def test_the_threshold_of_the_manifest_is_that_of_the_calibration(detector: Detector, exported: Path) -> None:
    known, stored = detector.calibration, read_manifest(exported).calibration
    assert known is not None and stored is not None
    assert ExportedCalibration.from_dict(vars(stored)) == stored
    assert (stored.threshold, stored.pixel_threshold) == (known.threshold, known.pixel_threshold)
    assert (stored.typical, stored.describe()) == (known.typical, known.describe())
    assert (stored.kind, stored.promised_rate) == (known.kind, known.promised_rate)
    whole = read_manifest(exported).entries["calibration"]
    assert Calibration.from_dict(whole) == known
    for score in (0.0, known.threshold, known.scores[0], 9.0):
        assert stored.p_value(score) == known.p_value(score)


def test_drift_is_that_of_the_detector(tiny_backbone: Path, tmp_path: Path) -> None:
    """Twenty-four images: as many as a calibration needs to tell drift."""
    for name, light in (("good", 0), ("new", 25)):
        (tmp_path / name).mkdir()
        for seed in range(24):
            pixels = part_pixels(seed + 100 * light).astype(int) + light
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / name / f"{seed:02d}.png")
    detector = Detector(tiny_config(tiny_backbone, coreset_ratio=0.1), device="cpu").fit(tmp_path / "good")
    detector.set_threshold(2.0)  # all parts are called good, so that all are compared
    detector.save(tmp_path / "a.procon")
    export(detector, tmp_path / "part", measure_memory=False)
    summaries = []
    for model in ("a.procon", "part"):
        out = tmp_path / f"{model}-out"
        done = CliRunner().invoke(app, ["predict", str(tmp_path / model), str(tmp_path / "new"), "-o", str(out)])
        assert done.exit_code == 0 and "DRIFT: new images have left the calibration" in done.stdout
        summaries.append(json.loads((out / "summary.json").read_text()))
    here, there = summaries
    assert here["drift"]["drifted"] is True and here["drift"]["images"] == 24
    assert there["drift"].pop("test") == here["drift"].pop("test")
    assert there["drift"] == pytest.approx(here["drift"], rel=1e-4)
    assert {**there, "drift": None} == {**here, "drift": None}
    assert here["promised_rate"] is not None and here["calibration"] == "leave-one-out"


def test_an_exported_folder_has_the_facts_of_its_model(detector: Detector, runtime: Runtime) -> None:

    assert runtime.describe() == detector.describe()
    assert runtime.config == detector.config


# -------------------------------------------------------------------------------------------- numpy in place of others


heat_maps = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.integers(0, 4).map(float),
)


@given(heat_maps, st.integers(-1, 4))
@settings(max_examples=200, deadline=None)
def test_regions_are_those_of_scipy(heatmap: Floats, threshold: int) -> None:
    assert find_regions(heatmap, threshold) == reference.find_regions(heatmap, threshold)
    assert peak_region(heatmap, 0.5) == reference.peak_region(heatmap, 0.5)


def test_regions_of_a_noisy_map_are_those_of_scipy() -> None:
    heatmap = np.random.default_rng(0).random((120, 90)).astype(np.float32)
    assert find_regions(heatmap, 0.7) == reference.find_regions(heatmap, 0.7)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), st.tuples(st.integers(1, 90), st.integers(1, 90)), st.integers()
)
@settings(max_examples=60, deadline=None)
def test_maps_are_resized_as_torch_does(shape: tuple[int, int], size: tuple[int, int], seed: int) -> None:
    heatmap = np.random.default_rng(abs(seed)).random(shape).astype(np.float32)
    expected = maps.resize_maps(torch.from_numpy(heatmap)[None], size)[0].numpy()
    # torch places pixels in fp32
    np.testing.assert_allclose(HeatMap(heatmap, size).whole(), expected, rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- no torch


NO_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "scipy", "typer", "rich", "onnx"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from procon.deploy import Runtime, load_any
from procon.errors import ModelFileError

result = load_any(sys.argv[1]).predict(sys.argv[2])
try:
    load_any("part.procon")
except ModelFileError as error:
    print(error)
print(result.score, result.is_anomalous, len(result.regions), result.heatmap.shape)
"""


def test_the_runtime_imports_neither_torch_nor_scipy(detector: Detector, exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(part_pixels(77, True)).save(path)
    command = [sys.executable, "-c", NO_TORCH, str(exported), str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].startswith("part.procon: a .procon file needs torch, which is not installed here; where torch is")
    score, verdict, regions, *shape = lines[1].split(maxsplit=3)
    expected = detector.predict(path)
    assert float(score) == pytest.approx(expected.score, abs=1e-5)
    assert (verdict, int(regions), shape) == ("True", len(expected.regions), ["(96, 80)"])


@pytest.mark.slow
def test_the_runtime_in_an_environment_without_torch(detector: Detector, exported: Path, tmp_path: Path) -> None:
    """A venv with numpy, Pillow and onnxruntime, and this package without its dependencies."""
    import venv

    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    root = Path(__file__).resolve().parents[2]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "numpy", "pillow", "onnxruntime", "hatchling"], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", str(root)], check=True)
    path = tmp_path / "a.png"
    Image.fromarray(part_pixels(77, True)).save(path)
    code = (
        "import importlib.util, sys; from procon.deploy import Runtime; "
        "assert not any(map(importlib.util.find_spec, ('torch', 'transformers', 'scipy'))); "
        "print(Runtime(sys.argv[1]).predict(sys.argv[2]).score)"
    )
    command = [python, "-c", code, str(exported), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(done.stdout) == pytest.approx(detector.predict(path).score, abs=1e-5)
