"""Score images and open the results in FiftyOne: scores, verdicts, heat maps and regions as fields of a dataset.

    pip install . fiftyone    # in a checkout
    python build_dataset.py part.procon parts/new --name brackets --output brackets-maps
    fiftyone app launch brackets

The model is a .procon file or an exported folder. Heat maps are written to the folder of --output, as FiftyOne reads
them from files: 0 is no anomaly, 128 the pixel threshold, 255 twice the threshold and above. A dataset that is there
already is not replaced. An image that cannot be read becomes a sample with an ``error`` and no verdict.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import fiftyone as fo
import numpy as np
from PIL import Image

from procon.deploy import load_any
from procon.errors import ProconError
from procon.results.inspection import find_images


def main() -> int:
    """Build the dataset."""
    parser = argparse.ArgumentParser(description="Score images and build a FiftyOne dataset of the results.")
    parser.add_argument("model", type=Path, help="model file or exported folder")
    parser.add_argument("images", type=Path, nargs="+", help="images and folders")
    parser.add_argument("--name", required=True, help="name of the dataset")
    parser.add_argument("--output", "-o", type=Path, required=True, help="folder for the heat maps")
    arguments = parser.parse_args()
    if fo.dataset_exists(arguments.name):
        parser.error(f"--name {arguments.name}: is there already; choose another, or delete it in FiftyOne first")
    try:
        named = find_images(arguments.images)
        detector = load_any(arguments.model)
    except ProconError as error:
        parser.error(str(error))
    arguments.output.mkdir(parents=True, exist_ok=True)
    samples = []
    for number, ((_, path), result) in enumerate(
        zip(named, detector.predict_each(path for _, path in named), strict=True)
    ):
        map_path = arguments.output.absolute() / f"{number:06}-{path.stem[:100]}.png"
        samples.append(make_sample(path, result, map_path))
    dataset = fo.Dataset(arguments.name, persistent=True)
    dataset.info = {"model": str(arguments.model.absolute()), "facts": list(detector.describe())}
    dataset.add_samples(samples)
    print(f"{arguments.name}: {len(dataset)} images, heat maps in {arguments.output}")
    return 0


def make_sample(path: Path, result: Any, map_path: Path) -> fo.Sample:
    """One image with its result, or with the error why there is none."""
    if isinstance(result, ProconError):
        return fo.Sample(filepath=str(path.absolute()), error=str(result), verdict=fo.Classification(label="none"))
    verdict = {True: "anomalous", False: "good", None: "none"}[result.is_anomalous]
    sample = fo.Sample(filepath=str(path.absolute()), verdict=fo.Classification(label=verdict))
    for name in ("score", "threshold", "p_value"):
        sample[name] = getattr(result, name)
    if result.pixel_threshold is not None:
        write_map(map_path, result.heatmap, result.pixel_threshold)
        sample["heatmap"] = fo.Heatmap(map_path=str(map_path), range=[0, 255])
    height, width = result.heatmap.shape
    sample["regions"] = fo.Detections(detections=[make_detection(region, width, height) for region in result.regions])
    return sample


def make_detection(region: Any, width: int, height: int) -> fo.Detection:
    """A region as a box in shares of the image, with its size and strength."""
    left, top, right, bottom = region.box
    box = [left / width, top / height, (right - left) / width, (bottom - top) / height]
    return fo.Detection(label="anomaly", bounding_box=box, area=int(region.area), peak=float(region.peak))


def write_map(path: Path, heatmap: np.ndarray, pixel_threshold: float) -> None:
    """A heat map as bytes: 128 is the pixel threshold."""
    values = np.clip(np.round(heatmap * (128 / pixel_threshold)), 0, 255)
    Image.fromarray(values.astype(np.uint8)).save(path)


if __name__ == "__main__":
    sys.exit(main())
