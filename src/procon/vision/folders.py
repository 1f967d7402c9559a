"""The folder layouts people have, and which images in them are good."""

from dataclasses import dataclass, field
from pathlib import Path

from procon.errors import ImageError
from procon.vision.images import EXTENSIONS, list_images


@dataclass(frozen=True)
class Layout:
    """What a folder holds, recognised by its names alone."""

    name: str
    """``flat``, ``mvtec`` (train/good, test/*, ground_truth/*), ``good-bad`` (good, bad, mask) or ``nested``."""
    root: Path
    train: tuple[Path, ...]
    """Images to fit on."""
    test: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Test images by kind; ``good`` is the kind without defects."""
    masks: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Masks by kind."""


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(list_images(folder)) if folder.is_dir() else ()


def _kinds(folder: Path) -> dict[str, tuple[Path, ...]]:
    if not folder.is_dir():
        return {}
    kinds = (kind for kind in sorted(folder.iterdir()) if kind.is_dir() and not kind.name.startswith("."))
    return {kind.name: _files(kind) for kind in kinds}


def read_layout(folder: Path) -> Layout:
    """Recognise ``folder``; nothing is opened."""
    if not folder.exists():
        raise ImageError(f"{folder}: no such folder; check the path")
    if not folder.is_dir():
        raise ImageError(f"{folder}: is a file where a folder of images was expected")
    if (folder / "train" / "good").is_dir():
        return Layout(
            "mvtec",
            folder,
            _files(folder / "train" / "good"),
            _kinds(folder / "test"),
            {kind: files for kind, files in _kinds(folder / "ground_truth").items() if files},
        )
    if (folder / "good").is_dir():
        bad, masks = _files(folder / "bad"), _files(folder / "mask")
        return Layout(
            "good-bad",
            folder,
            _files(folder / "good"),
            {"bad": bad} if bad else {},
            {"bad": masks} if masks else {},
        )
    flat = _files(folder)
    if flat:
        return Layout("flat", folder, flat)
    return Layout("nested", folder, ())


def training_images(folder: Path) -> tuple[Path, ...]:
    """The good images to fit on, or an error that says what the folder holds instead."""
    layout = read_layout(folder)
    if layout.train:
        return layout.train
    inside = list_images(folder, recursive=True)
    if inside:
        places = sorted({str(path.parent.relative_to(folder)) for path in inside})
        raise ImageError(
            f"{folder}: has no images of its own, but {len(inside)} in subfolders ({', '.join(places[:5])}"
            f"{', ...' if len(places) > 5 else ''}); name the one with the good parts"
        )
    raise ImageError(f"{folder}: holds no images; put good parts there as one of {', '.join(sorted(EXTENSIONS))}")


def inspection_images(path: Path) -> tuple[Path, ...]:
    """The images to score at ``path``: a file itself; of a recognised tree its test images; else all below a folder."""
    if not path.is_dir():
        return (path,)
    layout = read_layout(path)
    found = tuple(image for images in layout.test.values() for image in images)
    if not found:
        found = tuple(list_images(path, recursive=True))
    if not found:
        raise ImageError(f"{path}: holds no images; expected files ending in one of {', '.join(sorted(EXTENSIONS))}")
    return found
