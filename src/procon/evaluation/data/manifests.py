"""Datasets whose split is a file, not folders: the CSV of VisA and the JSON files of Real-IAD."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.documents import parse_json
from procon.errors import ImageError
from procon.evaluation.data.layouts import GOOD, Category, Sample
from procon.vision.folders import list_files, list_subfolders

VISA_SPLIT = "split_csv/1cls.csv"
_VISA_COLUMNS = {"object", "split", "label", "image", "mask"}
REALIAD_SPLIT = "realiad_jsons"
# The authors' own experiments read 1024 pixels; the last is the dataset's own folder.
_REALIAD_IMAGES = ("realiad_1024", "realiad_512", "realiad_256", "realiad_raw", "")


def find_visa(root: Path, categories: tuple[str, ...]) -> tuple[str, ...]:
    """The ``categories`` of VisA in ``root``, if it has the published layout; an error if the split is missing."""
    present = tuple(name for name in categories if (root / name / "Data" / "Images").is_dir())
    if present and not (root / VISA_SPLIT).is_file():
        raise ImageError(f"{root}: is VisA without its split; expected {VISA_SPLIT}, unpack the archive again")
    return present


def read_visa(root: Path, name: str) -> Category:
    """The images of category ``name``, from its rows of ``split_csv/1cls.csv``."""
    path = root / VISA_SPLIT
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            missing = sorted(_VISA_COLUMNS - set(reader.fieldnames or ()))
            rows = [] if missing else [row for row in reader if row["object"] == name and row["image"]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImageError(f"{path}: cannot be read ({error}); unpack the archive again") from None
    if missing:
        raise ImageError(f"{path}: must have the columns object, split, label, image, mask; lacks {', '.join(missing)}")
    train = tuple(root / row["image"] for row in rows if row["split"] == "train")
    test = tuple(
        _make_sample(root, row["image"], row["label"], "normal", row["mask"]) for row in rows if row["split"] == "test"
    )
    used = {sample.mask for sample in test}
    masks = list_files(root / name / "Data" / "Masks" / "Anomaly")
    return Category(name, train, test, tuple(mask for mask in masks if mask not in used))


@dataclass(frozen=True)
class RealIad:
    """Where Real-IAD keeps its split files and its images."""

    jsons: Path
    images: Path
    categories: tuple[str, ...]

    @property
    def split(self) -> str:
        """Which of the published splits, and which of the published sizes."""
        return f"{REALIAD_SPLIT}, images of {self.images.name}"


def find_realiad(root: Path, categories: tuple[str, ...]) -> RealIad | None:
    """Real-IAD in ``root``, None if it is something else, an error if the split or the images are missing."""
    if not any((root / name).is_dir() for name in (REALIAD_SPLIT, f"{REALIAD_SPLIT}_sv", *_REALIAD_IMAGES[:-1])):
        return None
    places = (root / REALIAD_SPLIT / REALIAD_SPLIT, root / REALIAD_SPLIT)
    split = {place: [name for name in categories if (place / f"{name}.json").is_file()] for place in places}
    jsons = max(places, key=lambda place: len(split[place]))
    if not split[jsons]:
        raise ImageError(
            f"{root}: is Real-IAD without its split; expected {REALIAD_SPLIT}/<category>.json from realiad_jsons.zip, "
            f"found {_folder_names(root, root / REALIAD_SPLIT)}"
        )
    present = {
        root / name: tuple(category for category in split[jsons] if (root / name / category).is_dir())
        for name in _REALIAD_IMAGES
    }
    images = max(present, key=lambda place: len(present[place]))  # the first of equals
    if not present[images]:
        raise ImageError(
            f"{root}: is Real-IAD without images; expected realiad_1024/<category>, realiad_512/<category> or "
            f"realiad_256/<category>, found {_folder_names(root)}"
        )
    return RealIad(jsons, images, present[images])


def _folder_names(*folders: Path) -> str:
    return ", ".join(sorted({path.name for folder in folders for path in list_subfolders(folder)}))


def read_realiad(place: RealIad, name: str) -> Category:
    """The images of category ``name``, in the order of ``<name>.json``; each view is an image."""
    path = place.jsons / f"{name}.json"
    try:
        content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        meta = content["meta"]
        prefix = place.images / (meta.get("prefix") or name)
        base = prefix if prefix.is_dir() else place.images / name
        normal = meta.get("normal_class", "OK")
        train = tuple(base / item["image_path"] for item in content["train"])
        test = tuple(
            _make_sample(base, item["image_path"], item["anomaly_class"], normal, item.get("mask_path"))
            for item in content["test"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageError(
            f"{path}: must be a split file of Real-IAD with meta, train and test ({type(error).__name__}: {error}); "
            "unpack realiad_jsons.zip again"
        ) from None
    return Category(name, train, test)


def _make_sample(base: Path, image: str, kind: str, normal: str, mask: str | None) -> Sample:
    """A test image of the split file; ``normal`` is its word for a good image, and a good image has no mask."""
    if kind == normal:
        return Sample(base / image, GOOD)
    return Sample(base / image, kind, base / mask if mask else None)
