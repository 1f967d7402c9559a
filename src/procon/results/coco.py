"""Regions as COCO annotations: boxes and masks that labelling tools read."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procon.files import atomic_text
from procon.prediction import Prediction
from procon.results.regions import encode_rle, region_mask


@dataclass
class CocoFile:
    """Collects the regions of images, one after the other."""

    images: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, prediction: Prediction) -> None:
        """Take over the regions of one prediction; its heat map is needed for the masks."""
        height, width = prediction.heatmap.shape
        number = len(self.images) + 1
        self.images.append({"id": number, "file_name": name, "width": width, "height": height})
        for region in prediction.regions:
            left, top, right, bottom = region.box
            self.annotations.append(
                {
                    "id": len(self.annotations) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": region.area,
                    "segmentation": encode_rle(region_mask(prediction.heatmap, region)),
                    "iscrowd": 0,
                    "score": region.peak,
                    "mean": region.mean,
                    "level": region.level,
                }
            )

    def join(self, later: "CocoFile") -> None:
        """Take over the images and regions of ``later``, numbered on."""
        images, annotations = len(self.images), len(self.annotations)
        self.images += [{**one, "id": one["id"] + images} for one in later.images]
        self.annotations += [
            {**one, "id": one["id"] + annotations, "image_id": one["image_id"] + images} for one in later.annotations
        ]

    def write(self, path: Path) -> None:
        """Write one JSON file, at once."""
        document = {
            "info": {"description": "regions above the pixel threshold, found by ProCon"},
            "categories": [{"id": 1, "name": "anomaly"}],
            "images": self.images,
            "annotations": self.annotations,
        }
        with atomic_text(path) as stream:
            json.dump(document, stream)
