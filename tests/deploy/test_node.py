"""examples/node scores as the Runtime does."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from procon import Detector
from procon.deploy import Runtime
from procon.deploy.export import export
from procon.deploy.parity import TOLERANCE
from tests.conftest import part_pixels

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "node"


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its packages from npm, or from the folder that PROCON_NODE_MODULES names."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    if (given := os.environ.get("PROCON_NODE_MODULES")) is not None:
        (folder / "node_modules").symlink_to(given)
        return folder
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-node here: {done.stderr[-200:]}")
    return folder


def write_images(folder: Path) -> list[Path]:
    """Parts in four sizes as PNG, two with a defect."""
    images = []
    # Not taller than wide: Pillow 13 resizes the rows of some tall images first, which moves bytes by one.
    for number, size in enumerate([(96, 80), (70, 70), (200, 150), (40, 33)]):
        images.append(folder / f"{number}.png")
        Image.fromarray(part_pixels(number, number % 2 == 1)).resize(size).save(images[-1])
    return images


def assert_as_runtime(printed: str, folder: Path, images: list[Path]) -> None:
    """The printed lines have the scores of the Runtime within the tolerance of fp32, and its verdicts."""
    runtime = Runtime(folder)
    seen = [json.loads(line) for line in printed.splitlines()]
    expected = [runtime.predict(image) for image in images]
    median = sorted(prediction.score for prediction in expected)[len(expected) // 2]
    allowed = TOLERANCE["fp32"][0] * median
    for result, prediction in zip(seen, expected, strict=True):
        assert abs(result["score"] - prediction.score) <= allowed
        assert result["verdict"] == ("anomalous" if prediction.is_anomalous else "good")
    assert {result["verdict"] for result in seen} == {"good", "anomalous"}


@pytest.mark.slow
def test_node_scores_as_the_runtime_does(detector: Detector, node_modules: Path, tmp_path: Path) -> None:
    folder, images = export(detector, tmp_path / "part", measure_memory=False).folder, write_images(tmp_path)
    command = ["node", "score.mjs", str(folder), *map(str, images)]
    done = subprocess.run(command, cwd=node_modules, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_as_runtime(done.stdout, folder, images)
