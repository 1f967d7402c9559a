"""Regions as COCO annotations: boxes and masks that labelling tools read."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from procon.arrays import Bools
from procon.names import show_name
from procon.prediction import Prediction
from procon.showing.painting import region_mask


@dataclass
class CocoFile:
    """The regions of images as COCO entries; images and annotations are numbered from 1."""

    images: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, prediction: Prediction) -> None:
        """Add the regions of one prediction; its heat map is needed for the masks."""
        height, width = prediction.heatmap.shape
        number = len(self.images) + 1
        self.images.append({"id": number, "file_name": show_name(name), "width": width, "height": height})
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
        """Append the images and regions of ``later``, renumbered."""
        images, annotations = len(self.images), len(self.annotations)
        self.images += [{**image, "id": image["id"] + images} for image in later.images]
        self.annotations += [
            {**entry, "id": entry["id"] + annotations, "image_id": entry["image_id"] + images}
            for entry in later.annotations
        ]

    def to_json(self) -> str:
        """The content of the file."""
        document = {
            "info": {"description": "regions above the pixel threshold, found by ProCon"},
            "categories": [{"id": 1, "name": "anomaly"}],
            "images": self.images,
            "annotations": self.annotations,
        }
        return json.dumps(document)


def encode_rle(mask: Bools) -> dict[str, Any]:
    """A mask [H, W] as COCO's uncompressed run lengths: column by column, starting with the zeros."""
    flat = mask.flatten(order="F")
    ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return {"size": list(mask.shape), "counts": [0, *runs] if flat[0] else runs}
