"""Manifests of Amazon Lookout for Vision: a JSON line per image, with its label and a mask in colours."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from procon.arrays import Bools
from procon.documents import parse_json
from procon.errors import ImageError
from procon.evaluation.imports.folder import ANOMALY, LabelledImage, Labels, find_files
from procon.names import show_name
from procon.vision.images import open_image

_META = "-metadata"
_CLASSIFICATION, _SEGMENTATION = "groundtruth/image-classification", "groundtruth/semantic-segmentation"
_BACKGROUND = "background"


def read_lookout(manifest: Path, root: Path) -> Labels:
    """The labelled images of ``manifest``; the files are below ``root``. Images without a label are counted."""
    entries = _read_lines(manifest)
    labelled = [(where, entry, label) for where, entry in entries if (label := _label(where, entry)) is not None]
    paths = find_files(root, [entry["source-ref"] for _, entry, _ in labelled], manifest)
    masks = [_mask_reference(where, entry) if label == ANOMALY else None for where, entry, label in labelled]
    with_mask = [mask for mask in masks if mask is not None]
    mask_paths = iter(find_files(root, [reference for reference, _ in with_mask], manifest))
    images = []
    for path, (_, _, label), mask in zip(paths, labelled, masks, strict=True):
        read_label = _no_mask if mask is None else partial(_read_mask, next(mask_paths), mask[1])
        images.append(LabelledImage(path, label == ANOMALY, read_label))
    return Labels(tuple(images), len(entries) - len(labelled))


def _read_lines(manifest: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every entry, with the place that errors name."""
    entries = []
    try:
        lines = manifest.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ImageError(f"{show_name(manifest)}: must be a manifest of JSON lines, got another kind of file") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{show_name(manifest)}, line {number}"
        try:
            entry = parse_json(line)
        except ValueError:
            raise ImageError(f"{where}: must be JSON, got {line[:40]!r}; export the manifest again") from None
        if not isinstance(entry, dict) or not isinstance(entry.get("source-ref"), str):
            raise ImageError(f"{where}: must be an object with source-ref, the path of an image; export it again")
        entries.append((where, entry))
    if not entries:
        raise ImageError(f"{show_name(manifest)}: is empty; a manifest has a line for each image")
    return entries


def _metadata(entry: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The metadata of every attribute of a ``kind``, by the name of the attribute."""
    return {
        key.removesuffix(_META): value
        for key, value in entry.items()
        if key.endswith(_META) and isinstance(value, dict) and value.get("type") == kind
    }


def _label(where: str, entry: dict[str, Any]) -> str | None:
    """``normal`` or ``anomaly``, or None if the image has no label."""
    labels = {str(meta.get("class-name")).casefold() for meta in _metadata(entry, _CLASSIFICATION).values()}
    if len(labels) > 1 or not labels <= {"normal", ANOMALY}:
        raise ImageError(f"{where}: class-name must be normal or anomaly, got {', '.join(sorted(labels))}; correct it")
    return next(iter(labels), None)


def _mask_reference(where: str, entry: dict[str, Any]) -> tuple[str, dict[str, tuple[int, int, int]]] | None:
    """The path of the mask and the colour of each class in it; None if the image has no mask."""
    for name, meta in _metadata(entry, _SEGMENTATION).items():
        reference, color_map = entry.get(name), meta.get("internal-color-map")
        if not isinstance(reference, str) or not isinstance(color_map, dict):
            raise ImageError(f"{where}: {name} must be a path with an internal-color-map; export the manifest again")
        try:
            return reference, {str(c["class-name"]): _parse_color(c["hex-color"]) for c in color_map.values()}
        except (KeyError, TypeError, ValueError):
            raise ImageError(
                f"{where}: each entry of internal-color-map must have a class-name and a hex-color such as #2ca02c; "
                "correct it"
            ) from None
    return None


def _parse_color(text: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def _no_mask() -> tuple[str, None]:
    return ANOMALY, None


def _read_mask(path: Path, colors: dict[str, tuple[int, int, int]]) -> tuple[str, Bools | None]:
    """The class with the most pixels, and the pixels of all classes but the background."""
    pixels = open_image(path).rgb8()
    areas = {name: (pixels == np.array(color, np.uint8)).all(axis=2) for name, color in colors.items()}
    unknown = ~np.logical_or.reduce(list(areas.values()))
    if unknown.any():
        red, green, blue = pixels[unknown][0]
        listed = ", ".join(f"#{r:02x}{g:02x}{b:02x} ({name})" for name, (r, g, b) in colors.items())
        raise ImageError(
            f"{show_name(path)}: has the colour #{red:02x}{green:02x}{blue:02x}, but its internal-color-map lists "
            f"{listed}; correct the map, or save the mask without smoothing or JPEG"
        )
    defects = {name: area for name, area in areas.items() if name.casefold() != _BACKGROUND and area.any()}
    if not defects:
        return _no_mask()
    largest = max(defects, key=lambda name: int(np.count_nonzero(defects[name])))
    return largest, np.logical_or.reduce(list(defects.values()))
