"""What a folder holds and what is wrong with it, before any work starts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from procon.errors import ImageError
from procon.folders import Layout, read_layout
from procon.images import list_images, open_each

_MEANING = {
    "flat": "a flat folder of good images",
    "mvtec": "an MVTec tree (train/good, test/<kind>, ground_truth/<kind>)",
    "good-bad": "a good/ bad/ mask/ tree",
    "nested": "no known layout",
}


@dataclass(frozen=True)
class FolderReport:
    """The outcome of a check."""

    layout: Layout
    counts: list[tuple[str, int, int]]
    """(split, images, masks) in the order people read them."""
    sizes: dict[tuple[int, int], int]
    """How many images have each (height, width)."""
    problems: list[str]
    """Unreadable files, masks without image, images without mask, sizes that differ."""

    @property
    def meaning(self) -> str:
        """The layout in words."""
        return _MEANING[self.layout.name]


def check_folder(folder: Path, progress: Callable[[int, int], None] | None = None) -> FolderReport:
    """Recognise ``folder`` and open every image and mask in it."""
    layout = read_layout(folder)
    if not layout.train and not layout.test:
        inside = list_images(folder, recursive=True)
        hint = f"{len(inside)} images in subfolders: name the folder of good parts" if inside else "no images at all"
        return FolderReport(layout, [], {}, [f"{folder}: {hint}"])
    counts = [("train/good" if layout.name == "mvtec" else "good", len(layout.train), 0)]
    for kind, tests in layout.test.items():
        counts.append((f"test/{kind}", len(tests), len(layout.masks.get(kind, ()))))
    images = [*layout.train, *(path for group in layout.test.values() for path in group)]
    masks = [path for group in layout.masks.values() for path in group]
    sizes: dict[tuple[int, int], int] = {}
    shapes: dict[Path, tuple[int, int]] = {}
    problems: list[str] = []
    paths = images + masks
    for index, (path, picture) in enumerate(zip(paths, open_each(paths), strict=True)):
        if isinstance(picture, ImageError):
            problems.append(str(picture))
        else:
            shapes[path] = picture.size
            if index < len(images):
                sizes[picture.size] = sizes.get(picture.size, 0) + 1
        if progress is not None:
            progress(index + 1, len(paths))
    if not layout.train:
        problems.insert(0, f"{folder}: no good images to fit on")
    return FolderReport(layout, counts, sizes, problems + _mask_problems(layout, shapes))


def _mask_problems(layout: Layout, shapes: dict[Path, tuple[int, int]]) -> list[str]:
    """Masks and images are matched by stem; ``NNN_mask`` and ``NNN`` both belong to ``NNN``."""
    problems = []
    for kind in sorted(set(layout.test) | set(layout.masks)):
        if kind == "good" or not layout.masks:
            continue
        images = {path.stem: path for path in layout.test.get(kind, ())}
        masks = {path.stem.removesuffix("_mask"): path for path in layout.masks.get(kind, ())}
        problems += [f"{images[stem]}: has no mask" for stem in sorted(images.keys() - masks.keys())]
        problems += [f"{masks[stem]}: is a mask without an image" for stem in sorted(masks.keys() - images.keys())]
        for stem in sorted(images.keys() & masks.keys()):
            image, mask = shapes.get(images[stem]), shapes.get(masks[stem])
            if image and mask and image != mask:
                sizes = f"is {mask[1]} x {mask[0]} pixels, its image {image[1]} x {image[0]}"
                problems.append(f"{masks[stem]}: {sizes}; make them equal")
    return problems
