"""What a folder holds and what is wrong with it, before any work starts."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.errors import ImageError
from procon.evaluation.data.datasets import BENCHMARKS, FOLDER, Category, Dataset, recognise
from procon.evaluation.data.layouts import find_tree
from procon.vision.folders import read_layout
from procon.vision.images import list_images, open_each

# What each form is in words, and the name of its training folder.
_FORMS = {
    "flat": ("a flat folder of good images", "good"),
    "mvtec": ("an MVTec tree (train/good, test/<kind>, ground_truth/<kind>)", "train/good"),
    "good-bad": ("a good/ bad/ mask/ tree", "good"),
    "ok-ko": ("a BTAD tree (train/ok, test/ok, test/ko, ground_truth/ko)", "train/ok"),
    "medical": ("a BMAD tree (train/good, test images and labels as good and Ungood)", "train/good"),
}
_ROW = "  {:<24} {:>7} {:>7} {:>10} {:>7}"


@dataclass(frozen=True)
class FolderReport:
    """The outcome of a check, ready to print."""

    heading: str
    """What the folder is."""
    lines: tuple[str, ...]
    """How many images and masks it has, and their sizes."""
    problems: tuple[str, ...]
    """Unreadable files, masks without image, images without mask, sizes that differ."""
    verdict: str
    """What to say if there are no problems."""
    next_step: str
    """The command to run then."""


def check_folder(folder: Path, progress: Callable[[int, int], None] | None = None, quick: bool = False) -> FolderReport:
    """Recognise ``folder`` and open every image and mask in it; with ``quick`` none is opened."""
    layout = read_layout(folder)
    dataset, tree = recognise(folder), find_tree(folder)
    if layout.name == "flat" and dataset is not None and dataset.name == FOLDER:
        dataset = None  # its own images count, as they do for procon fit, whatever lies in folders beside them
    if dataset is not None and (dataset.name != FOLDER or (tree is None and not dataset.split)):
        return _check_dataset(dataset, progress, quick)
    if dataset is not None:  # one category: a tree of its own, or a part of a split that is kept elsewhere
        category, form = dataset.category(dataset.categories[0]), tree.form if tree is not None else ""
        meaning, train = _FORMS.get(form, (f"a category, split {dataset.split}", "train"))
    else:
        category, form = Category(folder.name, layout.train, ()), layout.name
        meaning, train = _FORMS.get(form, ("no known layout", ""))
    if not category.train and not category.test:
        inside = list_images(folder, recursive=True)
        hint = f"{len(inside)} images in subfolders: name the folder of good parts" if inside else "no images at all"
        return FolderReport(meaning, (), (f"{folder}: {hint}",), "", "")
    return _check_category(folder, category, form, (meaning, train), progress, quick)


def _check_category(
    folder: Path,
    category: Category,
    form: str,
    words: tuple[str, str],
    progress: Callable[[int, int], None] | None,
    quick: bool,
) -> FolderReport:
    meaning, train = words
    images = Counter(sample.kind for sample in category.test)
    masks = Counter(sample.kind for sample in category.test if sample.mask is not None)
    counts = [(train, len(category.train), 0)] + [
        (f"test/{kind}", images[kind], masks[kind]) for kind in sorted(images)
    ]
    lines = [f"  {name:<24} {n:>6} images" + (f" {m:>6} masks" if m else "") for name, n, m in counts]
    sizes, problems = _look([category], progress, quick)
    if not category.train:
        problems.insert(0, f"{folder}: no good images to fit on")
    where = shlex.quote(str(folder))
    if form in ("ok-ko", "medical") and category.train:  # forms that procon fit does not look into
        command = f"procon fit {shlex.quote(str(category.train[0].parent))} -o part.procon"
    else:
        command = f"procon fit {where} -o part.procon" if form else f"procon eval {where}"
    return FolderReport(meaning, (*lines, *_size_lines(sizes)), tuple(problems), _verdict(quick), command)


def _check_dataset(dataset: Dataset, progress: Callable[[int, int], None] | None, quick: bool) -> FolderReport:
    """A table line per category; of a published set also what is missing of it."""
    categories = [dataset.category(name) for name in dataset.categories]
    rows = [_counts(category) for category in categories]
    total = tuple(sum(column) for column in zip(*rows, strict=True))
    lines = [_ROW.format("category", "train", "good", "defective", "masks")]
    lines += [_ROW.format(category.name, *row) for category, row in zip(categories, rows, strict=True)]
    lines.append(_ROW.format("total", *total))
    benchmark = BENCHMARKS.get(dataset.name)
    if benchmark is None:
        heading = f"{len(categories)} categor{'y' if len(categories) == 1 else 'ies'}, no published dataset"
        command = f"procon eval {shlex.quote(str(dataset.root))}"
    else:
        heading = f"{dataset.title}, {len(categories)} of {len(benchmark.categories)} categories"
        heading += f", split {dataset.split}" if dataset.split else ""
        command = f"procon bench {dataset.name} --root {shlex.quote(str(dataset.root))}"
        if dataset.missing:
            lines.append(f"  missing: {', '.join(dataset.missing)}")
        else:
            lines.append(_ROW.format("as published", *benchmark.counts, benchmark.counts[2]))
    sizes, problems = _look(categories, progress, quick)
    for category in categories:
        for what, images in (("good images to fit on", category.train), ("test images", category.test)):
            if not images:
                problems.insert(0, f"{dataset.root}: {category.name} has no {what}")
    return FolderReport(heading, (*lines, *_size_lines(sizes)), tuple(problems), _verdict(quick), command)


def _counts(category: Category) -> tuple[int, int, int, int]:
    """(train, test good, test defective, masks)."""
    defective = sum(sample.defective for sample in category.test)
    masks = sum(sample.mask is not None for sample in category.test)
    return len(category.train), len(category.test) - defective, defective, masks


def _verdict(quick: bool) -> str:
    return "nothing wrong with the names; no file was opened" if quick else "nothing wrong"


def _size_lines(sizes: Counter[tuple[int, int]]) -> list[str]:
    return [
        f"  {count} image{'s' if count > 1 else ''} of {width} x {height} pixels"
        for (height, width), count in sizes.most_common(5)
    ]


def _look(
    categories: Sequence[Category], progress: Callable[[int, int], None] | None, quick: bool
) -> tuple[Counter[tuple[int, int]], list[str]]:
    """Open every image and mask: how many images have each (height, width), and what is wrong.

    With ``quick`` files are only looked for: those of a split file may not be there.
    """
    images = [path for one in categories for path in (*one.train, *(sample.path for sample in one.test))]
    masks = [path for one in categories for path in (*(s.mask for s in one.test if s.mask is not None), *one.orphans)]
    paths = images + masks
    if quick:
        problems = [f"{path}: no such file; get it again" for path in paths if not path.is_file()]
        return Counter(), problems + [text for category in categories for text in _mask_problems(category, {})]
    shapes: dict[Path, tuple[int, int]] = {}
    problems = []
    for path, picture in zip(paths, open_each(paths), strict=True):
        if isinstance(picture, ImageError):
            problems.append(str(picture))
        else:
            shapes[path] = picture.size
        if progress is not None:
            progress(len(shapes) + len(problems), len(paths))
    for category in categories:
        problems += _mask_problems(category, shapes)
    return Counter(shapes[path] for path in images if path in shapes), problems


def _mask_problems(category: Category, shapes: dict[Path, tuple[int, int]]) -> list[str]:
    problems = []
    masked = bool(category.orphans) or any(sample.mask is not None for sample in category.test)
    for sample in category.test:
        if sample.mask is None:
            if masked and sample.defective:  # a category without any mask is fine: not all publishers give them
                problems.append(f"{sample.path}: has no mask")
            continue
        image, mask = shapes.get(sample.path), shapes.get(sample.mask)
        if image and mask and image != mask:
            sizes = f"is {mask[1]} x {mask[0]} pixels, its image {image[1]} x {image[0]}"
            problems.append(f"{sample.mask}: {sizes}; make them equal")
    return problems + [f"{mask}: is a mask without an image" for mask in category.orphans]
