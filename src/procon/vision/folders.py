"""Lists of images: what a folder, a pattern or a list stands for, the folder layouts people have, and good images."""

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from procon.errors import ImageError
from procon.files import is_file, is_folder
from procon.names import show_name
from procon.vision.images import ImageLike, Picture

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".ppm", ".pgm"})
_ENDINGS = ", ".join(sorted(EXTENSIONS))


def is_batch(images: object) -> bool:
    """Whether ``images`` stands for several images: a folder, a pattern, or a list, tuple or iterator of images."""
    if isinstance(images, str | Path):
        return is_folder(images) or is_pattern(images)
    return not isinstance(images, np.ndarray | Image.Image | Picture) and not hasattr(images, "detach")


def is_pattern(path: str | Path) -> bool:
    """Whether ``path`` is a pattern such as parts/new/*.png; a file of that very name is no pattern."""
    return glob.has_magic(str(path)) and not is_folder(path) and not is_file(path)


def match_pattern(pattern: str | Path) -> list[Path]:
    """The image files that match ``pattern``, in natural order; ** stands for any folders."""
    paths = [Path(name) for name in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207  Path.glob needs a folder
    images = [path for path in paths if path.suffix.lower() in EXTENSIONS and not path.is_dir()]
    if not images:
        raise ImageError(
            f"{show_name(pattern)}: no image matches this pattern; expected files ending in one of {_ENDINGS}"
        )
    return sorted(images, key=lambda path: (_natural_key(str(path)), str(path)))


def as_list(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """A folder, a pattern, one image or several, as a list of single images."""
    if isinstance(images, str | Path) and is_pattern(images):
        return list(match_pattern(images))
    if isinstance(images, str | Path):
        return list(list_images(Path(images))) if is_folder(images) else [Path(images)]
    if not is_batch(images):
        return [images]
    if not isinstance(images, Iterable):
        raise ImageError(f"images must be a folder, an image or a list of images, got {type(images).__name__}")
    return list(images)


def list_images(folder: Path, recursive: bool = False) -> Sequence[Path]:
    """Image files in ``folder`` in natural order (2 before 10), without hidden ones."""
    if not is_folder(folder):
        raise ImageError(f"{show_name(folder)}: no such folder; check the path")
    names = {path: path.relative_to(folder) for path in (folder.rglob("*") if recursive else folder.iterdir())}
    images = (
        path
        for path, name in names.items()
        if path.suffix.lower() in EXTENSIONS
        and not any(part.startswith(".") for part in name.parts)
        and not path.is_dir()  # a pipe or a broken link is listed, so that it is reported
    )
    # 1 and 01 are equal numbers but not equal names
    return sorted(images, key=lambda path: (_natural_key(str(names[path])), str(names[path])))


def _natural_key(text: str) -> list[tuple[int, str]]:
    runs = re.split(r"(\d+)", text)  # \d matches what int() accepts
    return [(int(run), "") if run.isdecimal() else (-1, run) for run in runs if run]


@dataclass(frozen=True)
class Layout:
    """What a folder holds, recognised by its names alone."""

    name: str  # flat, mvtec (train/good, test/*, ground_truth/*), good-bad (good, bad, mask) or nested
    train: tuple[Path, ...]  # images to fit on
    test: dict[str, tuple[Path, ...]] = field(default_factory=dict)  # by kind; "good" is the kind without defects


def read_layout(folder: Path) -> Layout:
    """Recognise ``folder``; no image is opened."""
    if not is_folder(folder):
        is_there = is_file(folder)
        problem = "is a file where a folder of images was expected" if is_there else "no such folder; check the path"
        raise ImageError(f"{show_name(folder)}: {problem}")
    if (folder / "train" / "good").is_dir():
        test = {kind.name: list_files(kind) for kind in list_subfolders(folder / "test")}
        return Layout("mvtec", list_files(folder / "train" / "good"), test)
    if (folder / "good").is_dir():
        bad = list_files(folder / "bad")
        return Layout("good-bad", list_files(folder / "good"), {"bad": bad} if bad else {})
    files = list_files(folder)
    return Layout("flat" if files else "nested", files)


def list_files(folder: Path | None) -> tuple[Path, ...]:
    """The images in ``folder`` in natural order; none if there is no such folder."""
    return tuple(list_images(folder)) if folder is not None and folder.is_dir() else ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def list_subfolders(folder: Path) -> list[Path]:
    """The folders in ``folder`` by name, without hidden ones; none if it is no folder, or may not be read."""
    if not is_folder(folder):
        return []
    try:
        with os.scandir(folder) as entries:  # unlike iterdir, it does not query each of many thousand files again
            return sorted(Path(entry) for entry in entries if _is_folder(entry) and not entry.name.startswith("."))
    except PermissionError:  # a folder of another user next to the data is not an error
        return []


def training_images(folder: Path) -> tuple[Path, ...]:
    """The good images to fit on, or an error that says what the folder holds instead."""
    layout = read_layout(folder)
    if layout.train:
        return layout.train
    inside = list_images(folder, recursive=True)
    if inside:
        places = sorted({show_name(path.parent.relative_to(folder)) for path in inside})
        raise ImageError(
            f"{show_name(folder)}: has no images of its own, but {len(inside)} in subfolders ({', '.join(places[:5])}"
            f"{', ...' if len(places) > 5 else ''}); name the one with the good parts"
        )
    raise ImageError(f"{show_name(folder)}: holds no images; put good parts there as one of {_ENDINGS}")


def inspection_images(path: Path) -> tuple[Path, ...]:
    """The images to score at ``path``: a file itself; of a recognised tree its test images; else all below a folder."""
    if is_pattern(path):
        return tuple(match_pattern(path))
    if not is_folder(path):
        return (path,)
    images = tuple(image for kind in read_layout(path).test.values() for image in kind)
    images = images or tuple(list_images(path, recursive=True))
    if not images:
        raise ImageError(f"{show_name(path)}: holds no images; expected files ending in one of {_ENDINGS}")
    return images
