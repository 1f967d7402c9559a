"""examples/fiftyone builds a dataset that the real FiftyOne reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from procon import Detector
from procon.deploy import Runtime
from procon.deploy.export import export
from tests.deploy.test_node import write_images

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "fiftyone" / "build_dataset.py"
# A Python with fiftyone and what Runtime needs; it needs a database, see FIFTYONE_DATABASE_URI in its documentation.
PYTHON = os.environ.get("PROCON_FIFTYONE_PYTHON", sys.executable)
READ = """
import json, sys
import fiftyone as fo
for sample in fo.load_dataset(sys.argv[1]):
    regions = sample.regions.detections if sample.has_field("regions") and sample.regions else []
    print(json.dumps({
        "path": sample.filepath, "verdict": sample.verdict.label, "score": sample["score"], "error": sample["error"],
        "threshold": sample["threshold"], "map": sample.heatmap and sample.heatmap.map_path,
        "range": sample.heatmap and sample.heatmap.range,
        "regions": [[region.bounding_box, region.area, region.peak] for region in regions],
    }))
fo.delete_dataset(sys.argv[1])
"""


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_dataset_has_scores_maps_and_regions(detector: Detector, tmp_path: Path) -> None:
    if call("-c", "import fiftyone; fiftyone.list_datasets()").returncode != 0:
        pytest.skip("needs fiftyone and its database; PROCON_FIFTYONE_PYTHON may name a Python that has them")
    folder = export(detector, tmp_path / "part", measure_memory=False).folder
    (tmp_path / "new").mkdir()
    images = write_images(tmp_path / "new")
    (tmp_path / "new" / "broken.png").write_bytes(b"no image")
    name = f"procon-test-{os.getpid()}"
    arguments = (SCRIPT, folder, tmp_path / "new", "--name", name, "--output", tmp_path / "maps")
    built = call(*arguments)
    assert built.returncode == 0 and f"{name}: 5 images" in built.stdout, built.stderr
    again = call(*arguments)
    assert again.returncode == 2 and "is there already; choose another" in again.stderr
    read = call("-c", READ, name)
    assert read.returncode == 0, read.stderr
    printed = [
        json.loads(line) for line in read.stdout.splitlines() if line.startswith("{")
    ]  # among notices of FiftyOne
    samples = {Path(sample["path"]): sample for sample in printed}
    broken = samples.pop(tmp_path / "new" / "broken.png")
    assert (broken["verdict"], broken["score"], broken["map"]) == ("none", None, None) and broken["error"]
    runtime = Runtime(folder)
    assert sorted(samples) == sorted(images)
    for path, sample in samples.items():
        expected = runtime.predict(path)
        assert (sample["score"], sample["threshold"]) == pytest.approx((expected.score, expected.threshold), rel=1e-5)
        assert sample["verdict"] == ("anomalous" if expected.is_anomalous else "good")
        height, width = expected.heatmap.shape
        boxes = [np.multiply(box, [width, height, width, height]).round().tolist() for box, _, _ in sample["regions"]]
        assert boxes == [[x, y, right - x, bottom - y] for x, y, right, bottom in (r.box for r in expected.regions)]
        assert [area for _, area, _ in sample["regions"]] == [region.area for region in expected.regions]
        assert expected.pixel_threshold is not None and sample["range"] == [0, 255]
        shown = np.asarray(Image.open(sample["map"]), np.float64) * (expected.pixel_threshold / 128)
        clear = expected.heatmap < 1.9 * expected.pixel_threshold  # above twice the threshold all are 255
        assert np.abs(shown - expected.heatmap)[clear].max() <= 0.51 * expected.pixel_threshold / 128
    assert {sample["verdict"] for sample in samples.values()} == {"good", "anomalous"}
    assert any(sample["regions"] for sample in samples.values())
