"""Check a folder before any work starts: what it holds, and what is wrong with it."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.amounts import count_of
from procon.config import AUTO, Config
from procon.errors import ImageError
from procon.evaluation.data.datasets import BENCHMARKS, FOLDER, Category, Dataset, recognise
from procon.evaluation.data.layouts import find_tree
from procon.progress import Progress, no_progress
from procon.vision.folders import list_images, read_layout
from procon.vision.images import open_each
from procon.vision.shape import shape_for, stretch_of

# The description of each form, and the name of its training folder.
_FORMS = {
    "flat": ("a flat folder of good images", "good"),
    "mvtec": ("an MVTec tree (train/good, test/<kind>, ground_truth/<kind>)", "train/good"),
    "good-bad": ("a good/ bad/ mask/ tree", "good"),
    "ok-ko": ("a BTAD tree (train/ok, test/ok, test/ko, ground_truth/ko)", "train/ok"),
    "medical": ("a BMAD tree (train/good, test images and labels as good and Ungood)", "train/good"),
}
_SQUEEZED = 1.4  # longer sides this much beyond the shorter ones change the shape of parts visibly
_ROW = "  {:<24} {:>7} {:>7} {:>10} {:>7}"


@dataclass(frozen=True)
class FolderReport:
    """The outcome of a check, ready to print."""

    heading: str  # what the folder is
    lines: tuple[str, ...]  # how many images and masks it has, and their sizes
    problems: tuple[str, ...]  # unreadable files, masks without image, images without mask, sizes that differ
    verdict: str  # what to say if there are no problems
    next_step: str  # the command to run then
    advice: tuple[str, ...] = ()  # the input of the command, what it sets and why, and what is lost


def check_folder(folder: Path, on_progress: Progress = no_progress, quick: bool = False) -> FolderReport:
    """Recognise ``folder`` and open every image and mask in it; with ``quick``, open none."""
    layout, dataset, tree = read_layout(folder), recognise(folder), find_tree(folder)
    if layout.name == "flat" and dataset is not None and dataset.name == FOLDER:
        dataset = None  # the images in the folder itself count, as for procon fit, and not those of its subfolders
    if dataset is not None and (dataset.name != FOLDER or (tree is None and not dataset.split)):
        categories = [dataset.category(name) for name in dataset.categories]
        heading, lines, problems, next_step = _describe_dataset(dataset, categories)
    else:
        if dataset is not None:  # one category: its own tree, or a category whose split file is elsewhere
            category, form = dataset.category(dataset.categories[0]), tree.form if tree is not None else ""
            heading, train = _FORMS.get(form, (f"a category, split {dataset.split}", "train"))
        else:
            category, form = Category(folder.name, layout.train, ()), layout.name
            heading, train = _FORMS.get(form, ("no known layout", ""))
        if not category.train and not category.test:
            nested = len(list_images(folder, recursive=True))
            hint = (
                f"{count_of(nested, 'image')} in subfolders: name the folder of good parts"
                if nested
                else "no images at all"
            )
            return FolderReport(heading, (), (f"{folder}: {hint}",), "", "")
        categories = [category]
        lines, problems, next_step = _describe_category(folder, category, form, train)
    shapes, file_problems = _check_files(categories, on_progress, quick)
    sizes = Counter(shapes[path] for path in _images_of(categories) if path in shapes)
    for (height, width), count in sizes.most_common(5):
        lines.append(f"  {count_of(count, 'image')} of {width} x {height} pixels")
    good = Counter(shapes[path] for category in categories for path in category.train if path in shapes)
    keep_shape, advice = _describe_shape(good, next_step)
    verdict = "nothing wrong with the names; no file was opened" if quick else "nothing wrong"
    return FolderReport(heading, tuple(lines), (*problems, *file_problems), verdict, next_step + keep_shape, advice)


def _describe_shape(sizes: Counter[tuple[int, int]], next_step: str) -> tuple[str, tuple[str, ...]]:
    """Flags that keep good images of these ``sizes`` in shape; the input of the next command and what it loses."""
    if not sizes or next_step.startswith("procon bench"):  # published results are those of a square
        return "", ()
    square = shape_for(Config(), sizes)
    changes = [stretch_of(square.config, size) for size in sizes]
    if max(changes) <= _SQUEEZED:
        return "", tuple(square.describe())
    height, width = square.middle_size
    reason = f"images of {width} x {height} pixels would be squeezed into a square of {Config().input_size[0]} pixels"
    shape = shape_for(Config(image_size=AUTO), sizes)
    flags = " --image-size auto"
    remains = max(stretch_of(shape.config, size) for size in sizes) > _SQUEEZED
    if remains and next_step.startswith("procon fit"):  # benchmark runs take no padding
        shape, flags = shape_for(Config(image_size=AUTO, aspect="pad"), sizes), f"{flags} --set aspect=pad"
    return flags, (f"{reason};{flags} keeps their proportions at about the same cost", *shape.describe())


def _noun(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _describe_category(folder: Path, category: Category, form: str, train: str) -> tuple[list[str], list[str], str]:
    """Lines with the numbers of images, problems, and the next command."""
    images = Counter(sample.kind for sample in category.test)
    masks = Counter(sample.kind for sample in category.test if sample.mask is not None)
    counts = [(train, len(category.train), 0)]
    counts += [(f"test/{kind}", images[kind], masks[kind]) for kind in sorted(images)]
    lines = [
        f"  {name:<24} {n:>6} {_noun(n, 'image'):<6}" + (f" {m:>6} {_noun(m, 'mask')}" if m else "")
        for name, n, m in counts
    ]
    lines = [line.rstrip() for line in lines]
    problems = [] if category.train else [f"{folder}: no good images to fit on"]
    # procon fit does not know the last two forms: it gets the folder of the good images.
    good = category.train[0].parent if form in ("ok-ko", "medical") and category.train else folder
    path = shlex.quote(str(good))
    return lines, problems, f"procon fit {path} -o part.procon" if form else f"procon eval {path}"


def _describe_dataset(dataset: Dataset, categories: Sequence[Category]) -> tuple[str, list[str], list[str], str]:
    """Heading, a table line per category, problems, and the next command; for a published set also what is missing."""
    rows = [_count_images(category) for category in categories]
    lines = [_ROW.format("category", "train", "good", "defective", "masks")]
    lines += [_ROW.format(category.name, *row) for category, row in zip(categories, rows, strict=True)]
    lines.append(_ROW.format("total", *(sum(column) for column in zip(*rows, strict=True))))
    root, benchmark = shlex.quote(str(dataset.root)), BENCHMARKS.get(dataset.name)
    if benchmark is None:
        heading = f"{len(categories)} categor{'y' if len(categories) == 1 else 'ies'}, no published dataset"
        next_step = f"procon eval {root}"
    else:
        heading = f"{dataset.title}, {len(categories)} of {len(benchmark.categories)} categories"
        heading += f", split {dataset.split}" if dataset.split else ""
        next_step = f"procon bench {dataset.name} --root {root}"
        if dataset.missing:
            lines.append(f"  missing: {', '.join(dataset.missing)}")
        else:
            lines.append(_ROW.format("as published", *benchmark.counts, benchmark.counts[2]))
    problems = [
        f"{dataset.root}: {category.name} has no {what}"
        for category in categories
        for what, images in (("test images", category.test), ("good images to fit on", category.train))
        if not images
    ]
    return heading, lines, problems, next_step


def _count_images(category: Category) -> tuple[int, int, int, int]:
    """(train, test good, test defective, masks)."""
    defective = sum(sample.defective for sample in category.test)
    masks = sum(sample.mask is not None for sample in category.test)
    return len(category.train), len(category.test) - defective, defective, masks


def _check_files(
    categories: Sequence[Category], on_progress: Progress, quick: bool
) -> tuple[dict[Path, tuple[int, int]], list[str]]:
    """Open every image and mask: the (height, width) of each, and what is wrong.

    With ``quick``, only the existence of files is checked: a split file may list files that are missing.
    """
    images = _images_of(categories)
    masks = [path for c in categories for path in (*(s.mask for s in c.test if s.mask is not None), *c.orphans)]
    paths = images + masks
    shapes: dict[Path, tuple[int, int]] = {}
    problems = []
    if quick:
        problems = [f"{path}: no such file; get it again" for path in paths if not path.is_file()]
    else:
        for count, (path, picture) in enumerate(zip(paths, open_each(paths), strict=True)):
            if isinstance(picture, ImageError):
                problems.append(str(picture))
            else:
                shapes[path] = picture.size
            on_progress("opening images", count + 1, len(paths))
    for category in categories:
        problems += _check_masks(category, shapes)
    return shapes, problems


def _images_of(categories: Sequence[Category]) -> list[Path]:
    return [path for c in categories for path in (*c.train, *(sample.path for sample in c.test))]


def _check_masks(category: Category, shapes: dict[Path, tuple[int, int]]) -> list[str]:
    problems = []
    has_masks = bool(category.orphans) or any(sample.mask is not None for sample in category.test)
    for sample in category.test:
        if sample.mask is None:
            if has_masks and sample.defective:  # some publishers give no masks at all, which is fine
                problems.append(f"{sample.path}: has no mask")
            continue
        image, mask = shapes.get(sample.path), shapes.get(sample.mask)
        if image and mask and image != mask:
            sizes = f"is {mask[1]} x {mask[0]} pixels, its image {image[1]} x {image[0]}"
            problems.append(f"{sample.mask}: {sizes}; make them equal")
    return problems + [f"{mask}: is a mask without an image" for mask in category.orphans]
