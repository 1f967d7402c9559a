"""The folder layouts of datasets: where a category keeps its images, and which mask belongs to which image.

Folders are recognised by name alone; no file is opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.vision.folders import list_files, list_subfolders

GOOD = "good"
# The archives of the medical sets contain one more folder, named after the source of the images.
MEDICAL_INNER = ("BraTS2021_slice", "hist_DIY", "RESC")


@dataclass(frozen=True)
class Sample:
    """One test image."""

    path: Path
    kind: str  # "good", or the publisher's name of the defect
    mask: Path | None = None  # where the defect is; None for a good image, or if the publisher gives none

    @property
    def defective(self) -> bool:
        """Whether the image shows a defect."""
        return self.kind != GOOD


def with_pixels(samples: Sequence[Sample]) -> list[int]:
    """The places of the samples whose defective pixels are known: those with a mask, and good ones."""
    return [place for place, sample in enumerate(samples) if sample.mask is not None or not sample.defective]


@dataclass(frozen=True)
class Category:
    """One kind of object: good images to fit on, and test images of all kinds."""

    name: str
    train: tuple[Path, ...]
    test: tuple[Sample, ...]
    orphans: tuple[Path, ...] = ()  # mask files that belong to no test image


@dataclass(frozen=True)
class Group:
    """A folder of test images of one kind, and the folder of their masks."""

    kind: str
    images: Path
    masks: Path | None = None


@dataclass(frozen=True)
class Tree:
    """Where one category keeps its images."""

    form: str  # "mvtec", "ok-ko", "medical" or "good-bad"
    train: Path
    test: tuple[Group, ...]


def find_tree(folder: Path) -> Tree | None:
    """The category in ``folder``, in the first form that fits, or None."""
    medical = _find_medical(folder)
    if medical is not None:  # before the MVTec form, because it has train/good as well
        return medical
    for form, good in (("ok-ko", "ok"), ("mvtec", GOOD)):
        if (folder / "train" / good).is_dir():
            return Tree(form, folder / "train" / good, _list_groups(folder, good))
    if (folder / GOOD).is_dir():
        return Tree("good-bad", folder / GOOD, (Group("bad", folder / "bad", folder / "mask"),))
    return None


def child_trees(folder: Path) -> dict[str, Tree]:
    """The categories right below ``folder``, by the names of their folders.

    The form good/ bad/ mask/ does not count here: the train and test folders of one category would pass for it.
    """
    trees = {child.name: find_tree(child) for child in list_subfolders(folder)}
    return {name: tree for name, tree in trees.items() if tree is not None and tree.form != "good-bad"}


def list_category(trees: Mapping[str, Tree], name: str) -> Category:
    """List the images of one of ``trees`` and give each defective one its mask."""
    tree = trees[name]
    samples: list[Sample] = []
    orphans: list[Path] = []
    for group in tree.test:
        images, masks = list_files(group.images), list_files(group.masks)
        matched = match_masks(images, masks)
        samples += [Sample(image, group.kind, mask) for image, mask in zip(images, matched, strict=True)]
        used = set(matched)
        orphans += [mask for mask in masks if mask not in used]
    return Category(name, list_files(tree.train), tuple(samples), tuple(orphans))


def match_masks(images: Sequence[Path], masks: Sequence[Path]) -> list[Path | None]:
    """The mask of each image: the same name, or with ``_mask`` or ``_gt`` after it, with any file extension."""
    by_stem = {mask.stem: mask for mask in masks}
    stems = ([image.stem + suffix for suffix in ("", "_mask", "_gt")] for image in images)
    return [next((by_stem[stem] for stem in candidates if stem in by_stem), None) for candidates in stems]


def _list_groups(folder: Path, good: str) -> tuple[Group, ...]:
    """A group per folder in test, and per folder that exists only in ground_truth, so that its masks are not lost."""
    test, truth = folder / "test", folder / "ground_truth"
    kinds = {child.name for top in (test, truth) for child in list_subfolders(top)}
    return tuple(
        Group(GOOD, test / kind) if kind == good else Group(kind, test / kind, truth / kind) for kind in sorted(kinds)
    )


def _find_medical(folder: Path) -> Tree | None:
    """The trees of BMAD: ``test/Ungood/img``, ``test/img/Ungood`` or ``Test/test/Ungood``, in any case."""
    for base in (folder, *(folder / name for name in MEDICAL_INNER)):
        train, test = _child(base, "train"), _child(base, "test")
        train_good = _child(_child(train, "train") or train, GOOD)
        if train_good is None:
            continue
        good, ungood = _child(test, GOOD), _child(test, "ungood")
        images_good, images_bad = _child(good, "img"), _child(ungood, "img")
        if images_good is None and images_bad is None:
            images = _child(test, "img", "test")
            images_good, images_bad = _child(images, GOOD), _child(images, "ungood")
            masks = _child(_child(test, "label", "test_label"), "ungood")
        else:
            masks = _child(ungood, "label", "anomaly_mask")
        groups: tuple[Group, ...] = (Group(GOOD, images_good),) if images_good else ()
        groups += (Group("Ungood", images_bad, masks),) if images_bad else ()
        if groups:
            return Tree("medical", _child(train_good, "img") or train_good, groups)
    return None


def _child(folder: Path | None, *names: str) -> Path | None:
    """The folder in ``folder`` with one of ``names``, the first that is there; upper and lower case are equal."""
    if folder is None or not folder.is_dir():
        return None
    children = {path.name.casefold(): path for path in list_subfolders(folder)}
    return next((children[name] for name in names if name in children), None)
