"""Benchmark datasets as their authors publish them, and other folders of the same form.

A dataset is recognised by its folder names and listed one category at a time. It is never copied or changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from procon.arrays import Bools, Bytes
from procon.errors import ConfigError, ImageError
from procon.evaluation.data.layouts import Category, Sample, child_trees, find_tree, list_category
from procon.evaluation.data.manifests import (
    REALIAD_SPLIT,
    VISA_SPLIT,
    find_realiad,
    find_visa,
    read_realiad,
    read_visa,
)
from procon.evaluation.data.published import BENCHMARKS, Benchmark
from procon.vision.folders import list_images, list_subfolders
from procon.vision.images import open_image

__all__ = ["BENCHMARKS", "FOLDER", "Category", "Dataset", "Sample", "open_category", "open_dataset", "read_mask"]

FOLDER = "folder"


@dataclass(frozen=True)
class Dataset:
    """A dataset on disk: its categories, and their images on demand."""

    name: str  # "mvtec", "visa", "realiad", "mpdd", "btad", "medical", or "folder" for anything else
    title: str  # the common name, such as MVTec-AD, or that of the folder
    root: Path
    categories: tuple[str, ...]  # those on disk, in the published order
    missing: tuple[str, ...]  # published categories that are not on disk
    split: str = ""  # which published split was read, if there are several
    reader: Callable[[str], Category] = field(kw_only=True, repr=False, compare=False)  # lists one category

    def category(self, name: str) -> Category:
        """List the images of one category; nothing is opened."""
        if name in self.missing:
            raise ConfigError(f"category {name} of {self.title} is not in {self.root}; get it, or leave it out")
        if name not in self.categories:
            raise ConfigError(f"category must be one of {', '.join(self.categories)}, got {name!r}")
        return self.reader(name)


def open_dataset(root: Path, name: str | None = None) -> Dataset:
    """Open the dataset in folder ``root``: recognised by its folder names, or the one called ``name``.

    ``root`` may also be one category, or hold several categories that are no published set; both are a ``folder``.
    A root with categories of a published set *and* others is a ``folder`` too, unless ``name`` says which set to read.
    """
    root = Path(root)
    if not root.exists():
        raise ImageError(f"{root}: no such folder; check the path")
    if not root.is_dir():
        raise ImageError(f"{root}: is a file where the folder of a dataset was expected")
    if name is not None and name not in (*BENCHMARKS, FOLDER):
        raise ConfigError(f"dataset must be one of {', '.join((*BENCHMARKS, FOLDER))}, got {name!r}")
    if name is None:
        dataset = recognise(root)
    else:
        dataset = _open_folder(root) if name == FOLDER else _open_benchmark(root, BENCHMARKS[name], strict=False)
    if dataset is not None:
        return dataset
    content = _describe_content(root)
    if name in BENCHMARKS:
        raise ImageError(f"{root}: is not {BENCHMARKS[name].title}; expected {_describe_layout(name)}, {content}")
    titles = ", ".join(benchmark.title for benchmark in BENCHMARKS.values())
    raise ImageError(
        f"{root}: is no dataset; expected {titles}, a category with train/good and test/<kind> in it, "
        f"good/ bad/ mask/, or a folder of such categories, {content}"
    )


def open_category(folder: Path) -> Category:
    """The one category of labelled images in ``folder``, which must have test images."""
    dataset = open_dataset(folder)
    if len(dataset.categories) != 1:
        raise ConfigError(f"{folder}: expected one part, got {', '.join(dataset.categories)}; pass one of its folders")
    category = dataset.category(dataset.categories[0])
    if not category.test:
        raise ConfigError(f"{folder}: has no test images; expected test/KIND/ or bad/ with images in it")
    return category


def recognise(root: Path) -> Dataset | None:
    """The dataset in the folder ``root``; None if there is none, an error if a published one is incomplete."""
    published = (_open_benchmark(root, benchmark, strict=True) for benchmark in BENCHMARKS.values())
    return next((dataset for dataset in published if dataset is not None), None) or _open_folder(root)


def _open_benchmark(root: Path, benchmark: Benchmark, strict: bool) -> Dataset | None:
    """The dataset of ``benchmark`` in ``root``, or None; with ``strict``, None too if there are other categories."""

    def make_dataset(present: tuple[str, ...], reader: Callable[[str], Category], split: str) -> Dataset:
        ordered = tuple(name for name in benchmark.categories if name in present)
        missing = tuple(name for name in benchmark.categories if name not in present)
        return Dataset(benchmark.name, benchmark.title, root, ordered, missing, split, reader=reader)

    if benchmark.name == "realiad":
        place = find_realiad(root, benchmark.categories)
        return make_dataset(place.categories, partial(read_realiad, place), place.split) if place is not None else None
    if benchmark.name == "visa":
        present = find_visa(root, benchmark.categories)
        if present:
            return make_dataset(present, partial(read_visa, root), VISA_SPLIT)
    # Uni-Medical is also passed on in the MVTec form; the others have one form.
    forms = {benchmark.form, "mvtec"} if benchmark.spellings else {benchmark.form}
    for top in (root, root / benchmark.inner) if benchmark.inner else (root,):
        trees = child_trees(top)
        spelled = {benchmark.spellings.get(folder.casefold(), folder): tree for folder, tree in trees.items()}
        published = {n: tree for n, tree in spelled.items() if n in benchmark.categories and tree.form in forms}
        if published and not (strict and len(published) < len(trees)):
            split = "1cls, converted" if benchmark.name == "visa" else ""
            return make_dataset(tuple(published), partial(list_category, published), split)
    return None


def _open_folder(root: Path) -> Dataset | None:
    """One or several categories that are no published set; also a single category of VisA or Real-IAD."""
    folder = root.resolve()
    tree = find_tree(root)
    trees = {folder.name: tree} if tree is not None else child_trees(root)
    if trees:
        return Dataset(FOLDER, folder.name, root, tuple(trees), (), reader=partial(list_category, trees))
    name = (folder.name,)
    if folder.name in BENCHMARKS["visa"].categories and find_visa(folder.parent, name):
        return Dataset(FOLDER, *name, folder, name, (), VISA_SPLIT, reader=partial(read_visa, folder.parent))
    for above in folder.parents[:2] if folder.name in BENCHMARKS["realiad"].categories else ():
        place = find_realiad(above, name)
        if place is not None:
            place = replace(place, images=folder.parent)  # the size of the given folder, which may be another
            return Dataset(FOLDER, *name, folder, name, (), place.split, reader=partial(read_realiad, place))
    return None


def _describe_layout(name: str) -> str:
    """The layout expected of a benchmark, for an error."""
    first = BENCHMARKS[name].categories[0]
    return {
        "visa": f"{VISA_SPLIT} and {first}/Data/Images, or {first}/train/good",
        "realiad": f"{REALIAD_SPLIT}/{first}.json and realiad_1024/{first}",
        "btad": f"{first}/train/ok",
        "medical": "Brain_AD/train/good and Brain_AD/test/Ungood/img",
    }.get(name, f"{first}/train/good") + ", or others of its categories"


def _describe_content(root: Path) -> str:
    """What is in ``root``, for an error."""
    folders = [path.name for path in list_subfolders(root)]
    if folders:
        return f"found the folders {', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}"
    images = len(list_images(root))
    return f"found {images} images and no folders" if images else "found neither folders nor images"


def read_mask(path: Path, size: tuple[int, int]) -> Bools:
    """The mask at ``path``, [height, width] of ``size``, True where the defect is; resized by nearest neighbour.

    A pixel above half of the range (127 of 255) is a defect. If no pixel is, the values are class numbers, as in VisA,
    and every pixel but 0 is a defect. In a coloured palette every pixel with an index other than 0 is a defect.
    """
    pixels = open_image(path).pixels
    grey = bool((pixels == pixels[:, :, :1]).all())
    classes = None if grey else _read_palette(path)
    if classes is not None:
        defect = classes != 0
    else:
        values = pixels.max(axis=2)
        if values.dtype != np.uint8:  # 16-bit images are decoded to fractions of 65,535
            values = np.rint(values * 65_535)
        half = 127 if values.max() <= 255 else 32_767
        defect = values > (half if values.max() > half else 0)
    height, width = size
    resized = Image.fromarray(defect).resize((width, height), Image.Resampling.NEAREST)
    return np.array(resized, np.bool_)


def _read_palette(path: Path) -> Bytes | None:
    """The palette indices [height, width] of an image file, or None if it has no palette."""
    with Image.open(path) as image:
        return np.array(ImageOps.exif_transpose(image), np.uint8) if image.mode == "P" else None
