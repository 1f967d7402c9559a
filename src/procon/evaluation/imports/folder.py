"""Write the labelled images of another tool as a folder: train/good, test/<kind> and ground_truth/<kind>."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from procon.arrays import Bools
from procon.errors import ConfigError, ImageError
from procon.evaluation.data.layouts import GOOD
from procon.files import is_file
from procon.names import show_name
from procon.progress import Progress
from procon.vision.folders import EXTENSIONS
from procon.workspace import atomic_folder

ANOMALY = "anomaly"  # the kind of a defect that has no name
_SHOWN = 3  # files that an error names


@dataclass(frozen=True)
class LabelledImage:
    """One image of a file of labels."""

    path: Path
    anomalous: bool
    read_label: Callable[[], tuple[str, Bools | None]]
    """The kind of the defect and its mask [height, width] (None: no mask). Called for anomalous images only."""


@dataclass(frozen=True)
class Labels:
    """The images that a file of labels lists."""

    images: tuple[LabelledImage, ...]
    unlabelled: int = 0  # images without a label, which are left out


@dataclass
class ImportedFolder:
    """The folder that was written, with the number of its images and masks."""

    folder: Path
    images: Counter[str] = field(default_factory=Counter)  # by folder, such as train/good or test/scratch
    masks: Counter[str] = field(default_factory=Counter)  # by folder, such as ground_truth/scratch


def find_files(root: Path, references: Sequence[str], labels: Path) -> list[Path]:
    """The files below ``root`` that ``labels`` refers to. Of each path, the longest end that exists there is used.

    ``s3://bucket/line-3/a.png`` is found as ``bucket/line-3/a.png``, ``line-3/a.png`` or ``a.png``.
    """
    paths = [_find_file(root, reference, labels) for reference in references]
    missing = [reference for reference, path in zip(references, paths, strict=True) if path is None]
    if missing:
        shown = ", ".join(map(show_name, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        raise ImageError(
            f"{show_name(labels)}: {len(missing)} of {len(references)} files are not in {show_name(root)} ({shown}); "
            "download them with their folders, and name that folder with --images"
        )
    return [path for path in paths if path is not None]


def _find_file(root: Path, reference: str, labels: Path) -> Path | None:
    parts = [part for part in re.sub(r"^\w+://", "", reference.replace("\\", "/")).split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageError(f"{show_name(labels)}: paths must not lead upwards, got {show_name(reference)}; correct it")
    ends = (root.joinpath(*parts[start:]) for start in range(len(parts)))
    return next((path for path in ends if is_file(path)), None)


def write_category(
    target: Path,
    train: Labels,
    test: Labels | None = None,
    *,
    hold_out: float = 0.0,
    link: bool = False,
    on_progress: Progress,
) -> ImportedFolder:
    """Write the images to ``target``; if anything fails, nothing is written.

    Good images of ``train`` go to train/good, those of ``test`` to test/good, anomalous ones of both to test/<kind>.
    ``hold_out`` is the share of the good images of ``train`` that go to test/good instead, evenly spaced. ``link``
    makes hard links instead of copies.
    """
    if not 0 <= hold_out < 1:
        raise ConfigError(f"--hold-out must be a share from 0 to below 1, got {hold_out!r}")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(f"--output must be a folder that is empty or does not exist yet, got {show_name(target)}")
    images = [*train.images, *(test.images if test else ())]
    _refuse_duplicates([image.path for image in images])
    if not any(not image.anomalous for image in train.images):
        raise ImageError(
            f"{len(train.images)} images are labelled and none of them is good; a detector needs good ones"
        )
    written, names = ImportedFolder(target), dict[str, set[str]]()
    training = _training_numbers(train, hold_out)
    with atomic_folder(target) as work:
        for number, image in enumerate(images):
            label, mask = image.read_label() if image.anomalous else (GOOD, None)
            kind = _folder_name(label) if image.anomalous else GOOD
            place = f"train/{GOOD}" if number in training else f"test/{kind}"
            name = _free_name(image.path, names.setdefault(place, set()))
            _place_file(image.path, work / place / name, link)
            written.images[place] += 1
            if mask is not None:
                path = work / "ground_truth" / kind / f"{Path(name).stem}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(mask).save(path)
                written.masks[f"ground_truth/{kind}"] += 1
            on_progress("writing images", number + 1, len(images))
    return written


def _training_numbers(train: Labels, hold_out: float) -> set[int]:
    """The numbers of the good images of ``train``, without those that are held out, which are evenly spaced."""
    good = [number for number, image in enumerate(train.images) if not image.anomalous]
    return {number for place, number in enumerate(good) if int((place + 1) * hold_out) == int(place * hold_out)}


def _refuse_duplicates(paths: Sequence[Path]) -> None:
    repeated = [path for path, count in Counter(paths).items() if count > 1]
    if repeated:
        raise ImageError(
            f"{show_name(repeated[0])}: is listed {paths.count(repeated[0])} times; each image must be listed once, in "
            "the training images or in the test images, and images of the same name need their folders"
        )


def _folder_name(kind: str) -> str:
    name = re.sub(r"[^\w\- ]", "_", kind).strip()
    return "good_" if name.casefold() == GOOD else name or ANOMALY


def _free_name(path: Path, taken: set[str]) -> str:
    """The name of ``path``, with a number if another image of the folder has its stem: masks are matched by it."""
    if path.suffix.lower() not in EXTENSIONS:
        endings = ", ".join(sorted(EXTENSIONS))
        raise ImageError(f"{show_name(path)}: must be an image ending in one of {endings}; convert it")
    stem, number = path.stem, 1
    while stem.casefold() in taken:
        number += 1
        stem = f"{path.stem}-{number}"
    taken.add(stem.casefold())
    return stem + path.suffix


def _place_file(source: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not link:
        shutil.copyfile(source, target)
        return
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        raise ImageError(
            f"{show_name(source)}: cannot be linked into the new folder ({error.strerror}); leave out --link to copy"
        ) from None
