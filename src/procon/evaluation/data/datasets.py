"""Benchmark datasets as their authors publish them, and anyone's folders in the same form.

A dataset is recognised by the names in it, listed a category at a time, and never copied or changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from procon.errors import ConfigError, ImageError
from procon.evaluation.data.layouts import Category, Sample, Tree, child_trees, find_tree, list_tree, subfolders
from procon.evaluation.data.manifests import (
    REALIAD_SPLIT,
    VISA_SPLIT,
    find_realiad,
    is_visa,
    read_realiad,
    read_visa,
    visa_categories,
)
from procon.evaluation.data.published import BENCHMARKS, Benchmark
from procon.vision.images import list_images, open_image

__all__ = ["BENCHMARKS", "FOLDER", "Category", "Dataset", "Sample", "open_dataset", "read_mask", "recognise"]

FOLDER = "folder"


@dataclass(frozen=True)
class Dataset:
    """A dataset on disk: which categories it has, and their images when asked for."""

    name: str
    """``mvtec``, ``visa``, ``realiad``, ``mpdd``, ``btad``, ``medical``, or ``folder`` for anything else."""
    title: str
    """The name people know: ``MVTec-AD``, or that of the folder."""
    root: Path
    categories: tuple[str, ...]
    """Those that are there, in the order they are published in."""
    missing: tuple[str, ...]
    """Published categories that are not there."""
    split: str = ""
    """Which of several published splits was read, where there are several."""
    reader: Callable[[str], Category] = field(kw_only=True, repr=False, compare=False)
    """Lists one category."""

    def category(self, name: str) -> Category:
        """List the images of one category; nothing is opened."""
        if name in self.missing:
            raise ConfigError(f"category {name} of {self.title} is not in {self.root}; get it, or leave it out")
        if name not in self.categories:
            raise ConfigError(f"category must be one of {', '.join(self.categories)}, got {name!r}")
        return self.reader(name)


def open_dataset(root: Path, name: str | None = None) -> Dataset:
    """Open the dataset in folder ``root``: recognised by its names, or the one called ``name``.

    ``root`` may also be one category, or hold several categories that are no published set; both are a ``folder``.
    A root with categories of a published set *and* others is a ``folder`` too, unless ``name`` says which.
    """
    root = Path(root)
    if not root.exists():
        raise ImageError(f"{root}: no such folder; check the path")
    if not root.is_dir():
        raise ImageError(f"{root}: is a file where the folder of a dataset was expected")
    if name is not None and name not in (*BENCHMARKS, FOLDER):
        raise ConfigError(f"dataset must be one of {', '.join((*BENCHMARKS, FOLDER))}, got {name!r}")
    found = recognise(root) if name is None else _open_named(root, name)
    if found is not None:
        return found
    titles = ", ".join(benchmark.title for benchmark in BENCHMARKS.values())
    raise ImageError(
        f"{root}: is no dataset; expected {titles}, a category with train/good and test/<kind> in it, "
        f"good/ bad/ mask/, or a folder of such categories, {_found(root)}"
    )


def recognise(root: Path) -> Dataset | None:
    """The dataset in the folder ``root``, None if it is none, an error if a part of a published one is not there."""
    for benchmark in BENCHMARKS.values():
        found = _open_benchmark(root, benchmark, strict=True)
        if found is not None:
            return found
    return _open_folder(root)


def _open_named(root: Path, name: str) -> Dataset | None:
    if name == FOLDER:
        return _open_folder(root)
    benchmark = BENCHMARKS[name]
    found = _open_benchmark(root, benchmark, strict=False)
    if found is None:
        raise ImageError(f"{root}: is not {benchmark.title}; expected {_expected(benchmark)}, {_found(root)}")
    return found


def _open_benchmark(root: Path, benchmark: Benchmark, strict: bool) -> Dataset | None:
    """``benchmark`` in ``root`` or None; with ``strict`` a category of any other name means that it is not."""
    found = _open_manifest(root, benchmark)
    if found is not None or benchmark.name == "realiad":
        return found
    for top in (root, root / benchmark.inner) if benchmark.inner else (root,):
        trees = child_trees(top) if top.is_dir() else {}
        known = _known(trees, benchmark)
        if known and not (strict and len(known) < len(trees)):
            split = "1cls, converted" if benchmark.name == "visa" else ""
            return _dataset(root, benchmark, tuple(known), partial(_read_tree, known), split)
    return None


def _open_manifest(root: Path, benchmark: Benchmark) -> Dataset | None:
    """The benchmarks whose split is a file."""
    if benchmark.name == "visa" and is_visa(root, benchmark.categories):
        present = visa_categories(root, benchmark.categories)
        return _dataset(root, benchmark, present, partial(read_visa, root), VISA_SPLIT)
    place = find_realiad(root, benchmark.categories) if benchmark.name == "realiad" else None
    if place is not None:
        reader = partial(read_realiad, place.jsons, place.images)
        return _dataset(root, benchmark, place.categories, reader, place.split)
    return None


def _known(trees: Mapping[str, Tree], benchmark: Benchmark) -> dict[str, Tree]:
    """The trees that are categories of ``benchmark``, by the names of the categories."""
    # Uni-Medical is also passed on in the MVTec form; the others have one form.
    forms = {benchmark.form, "mvtec"} if benchmark.spellings else {benchmark.form}
    spelled = {benchmark.spellings.get(folder.casefold(), folder): tree for folder, tree in trees.items()}
    return {name: tree for name, tree in spelled.items() if name in benchmark.categories and tree.form in forms}


def _dataset(
    root: Path, benchmark: Benchmark, present: tuple[str, ...], reader: Callable[[str], Category], split: str
) -> Dataset:
    ordered = tuple(name for name in benchmark.categories if name in present)
    missing = tuple(name for name in benchmark.categories if name not in present)
    return Dataset(benchmark.name, benchmark.title, root, ordered, missing, split, reader=reader)


def _open_folder(root: Path) -> Dataset | None:
    title = root.resolve().name
    tree = find_tree(root)
    trees = {title: tree} if tree is not None else child_trees(root)
    if trees:
        return Dataset(FOLDER, title, root, tuple(trees), (), reader=partial(_read_tree, trees))
    folder = root.resolve()
    return next((part for above in folder.parents[:2] if (part := _open_part(folder, above))), None)


def _open_part(folder: Path, above: Path) -> Dataset | None:
    """``folder`` as one category of VisA or Real-IAD, whose split is kept outside of it, in ``above``."""
    name = folder.name
    if name in BENCHMARKS["visa"].categories and folder.parent == above and is_visa(above, (name,)):
        visa_categories(above, (name,))
        return Dataset(FOLDER, name, folder, (name,), (), VISA_SPLIT, reader=partial(read_visa, above))
    place = find_realiad(above, (name,)) if name in BENCHMARKS["realiad"].categories else None
    if place is None:
        return None
    place = replace(place, images=folder.parent)  # the size that was asked for, which may be another
    return Dataset(
        FOLDER, name, folder, (name,), (), place.split, reader=partial(read_realiad, place.jsons, place.images)
    )


def _read_tree(trees: Mapping[str, Tree], name: str) -> Category:
    return list_tree(name, trees[name])


def _expected(benchmark: Benchmark) -> str:
    first = benchmark.categories[0]
    return {
        "visa": f"{VISA_SPLIT} and {first}/Data/Images, or {first}/train/good",
        "realiad": f"{REALIAD_SPLIT}/{first}.json and realiad_1024/{first}",
        "btad": f"{first}/train/ok",
        "medical": "Brain_AD/train/good and Brain_AD/test/Ungood/img",
    }.get(benchmark.name, f"{first}/train/good") + ", or others of its categories"


def _found(root: Path) -> str:
    """What is in ``root``, in words for an error."""
    folders = [path.name for path in subfolders(root)]
    if folders:
        return f"found the folders {', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}"
    images = len(list_images(root))
    return f"found {images} images and no folders" if images else "found neither folders nor images"


def read_mask(path: Path, size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask at ``path`` as bool [height, width] of ``size``, True where the defect is; nearest neighbour.

    A pixel above half of the range (127 of 255) is a defect. Where none is, the values are class numbers, as in VisA,
    and every pixel but 0 is a defect. So is every pixel of a coloured palette that has another index than 0.
    """
    pixels = open_image(path).pixels
    grey = bool((pixels == pixels[:, :, :1]).all())
    classes = None if grey else _palette_indices(path)
    if classes is not None:
        defect = classes != 0
    else:
        values = pixels.max(axis=2)
        if values.dtype != np.uint8:  # 16 bits come as fractions of 65,535
            values = np.rint(values * 65_535)
        half = 127 if values.max() <= 255 else 32_767
        defect = values > (half if values.max() > half else 0)
    height, width = size
    resized = Image.fromarray(defect).resize((width, height), Image.Resampling.NEAREST)
    return np.array(resized, np.bool_)


def _palette_indices(path: Path) -> NDArray[np.uint8] | None:
    """The palette indices [height, width] of a file that was decoded before, or None if it has no palette."""
    with Image.open(path) as image:
        return np.array(ImageOps.exif_transpose(image), np.uint8) if image.mode == "P" else None
