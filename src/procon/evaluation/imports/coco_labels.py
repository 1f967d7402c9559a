"""Labels in a COCO file: images without annotations are good; defects are polygons, run lengths or boxes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from procon.arrays import Bools
from procon.documents import parse_json
from procon.errors import ImageError
from procon.evaluation.imports.folder import LabelledImage, Labels, find_files
from procon.names import original_name, show_name
from procon.vision.images import MAX_PIXELS, MAX_SIDE

GOOD_CATEGORIES = ("good", "normal", "ok")


def read_coco(file: Path, root: Path) -> Labels:
    """The labelled images of a COCO ``file``; the images are below ``root``.

    An image is good if it has no annotations, or only annotations of a category called good, normal or ok.
    """
    try:
        document = parse_json(file.read_text(encoding="utf-8-sig"))
        categories = {entry["id"]: str(entry["name"]) for entry in document["categories"]}
        images = {entry["id"]: (str(entry["file_name"]), _size(entry)) for entry in document["images"]}
        annotations: dict[Any, list[tuple[str, dict[str, Any]]]] = {number: [] for number in images}
        for entry in document["annotations"]:
            name = categories[entry["category_id"]]
            if name.casefold() not in GOOD_CATEGORIES:
                annotations[entry["image_id"]].append((name, entry))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else error
        raise ImageError(
            f"{show_name(file)}: must be a COCO file with images, annotations and categories ({problem}); export it "
            "again"
        ) from None
    if not images:
        raise ImageError(f"{show_name(file)}: lists no images")
    paths = find_files(root, [original_name(name) for name, _ in images.values()], file)
    return Labels(
        tuple(
            LabelledImage(path, bool(annotations[number]), partial(_draw, file, path, size, annotations[number]))
            for path, (number, (_, size)) in zip(paths, images.items(), strict=True)
        )
    )


def _size(entry: dict[str, Any]) -> tuple[int, int]:
    height, width = int(entry["height"]), int(entry["width"])
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise ValueError(f"an image of {width} x {height} pixels")
    return height, width


def _draw(
    file: Path, path: Path, size: tuple[int, int], annotations: list[tuple[str, dict[str, Any]]]
) -> tuple[str, Bools]:
    """The category with the most pixels, and the pixels of all categories."""
    mask, areas = np.zeros(size, np.bool_), dict[str, int]()
    for name, annotation in annotations:
        try:
            pixels = annotation_mask(annotation, size)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise ImageError(
                f"{show_name(file)}: annotation {annotation.get('id')} of {show_name(path)} cannot be drawn ({error}); "
                "expected a polygon, run lengths or a bbox inside the image"
            ) from None
        mask |= pixels
        areas[name] = areas.get(name, 0) + int(np.count_nonzero(pixels))
    return max(areas, key=lambda name: areas[name]), mask


def annotation_mask(annotation: dict[str, Any], size: tuple[int, int]) -> Bools:
    """The pixels of an annotation as a mask [height, width]: its segmentation, or its box where it has none."""
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict):
        return decode_rle(segmentation, size)
    if segmentation:
        polygons = [[(x, y) for x, y in zip(ring[::2], ring[1::2], strict=True)] for ring in segmentation]
    else:
        left, top, width, height = annotation["bbox"]
        right, bottom = left + max(width - 1, 0), top + max(height - 1, 0)
        polygons = [[(left, top), (right, top), (right, bottom), (left, bottom)]]
    canvas = Image.new("1", (size[1], size[0]))
    for polygon in polygons:
        ImageDraw.Draw(canvas).polygon(polygon, fill=1)
    return np.array(canvas, np.bool_)


def decode_rle(segmentation: dict[str, Any], size: tuple[int, int]) -> Bools:
    """Run lengths as a mask [height, width]: a list of numbers, or the text that pycocotools writes."""
    counts = segmentation["counts"]
    runs = _parse_counts(counts) if isinstance(counts, str) else [int(run) for run in counts]
    # Python's integers: a sum of numpy's could overflow to the right one, and the repetition would write beyond memory
    if list(segmentation["size"]) != list(size) or sum(runs) != size[0] * size[1] or min(runs, default=0) < 0:
        raise ValueError(f"its run lengths do not fill an image of {size[1]}x{size[0]}")
    return np.repeat(np.arange(len(runs)) % 2 == 1, np.array(runs, np.int64)).reshape(size, order="F")


def _parse_counts(text: str) -> list[int]:
    """Run lengths from text: 5 bits per character, lowest first; from the fourth on, differences to the second last."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    return counts
