"""The folder trees datasets come in: where a category keeps its images, and which mask belongs to which image.

Names alone decide; nothing is opened.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.vision.images import list_images

GOOD = "good"
# Between the archive's own folder and the images, the medical sets have one more, named after where they came from.
MEDICAL_INNER = ("BraTS2021_slice", "hist_DIY", "RESC")


@dataclass(frozen=True)
class Sample:
    """One test image."""

    path: Path
    kind: str
    """``good``, or the name of the defect as its publisher writes it."""
    mask: Path | None = None
    """Where the defect is; None for a good image, or where the publisher gives none."""

    @property
    def defective(self) -> bool:
        """Whether the image shows a defect."""
        return self.kind != GOOD


@dataclass(frozen=True)
class Category:
    """One kind of object: good images to fit on, and test images of all kinds."""

    name: str
    train: tuple[Path, ...]
    test: tuple[Sample, ...]
    orphans: tuple[Path, ...] = ()
    """Mask files that belong to none of the test images."""


@dataclass(frozen=True)
class Group:
    """A folder of test images of one kind, and the folder of their masks."""

    kind: str
    images: Path
    masks: Path | None = None


@dataclass(frozen=True)
class Tree:
    """Where one category keeps its images."""

    form: str
    """``mvtec``, ``ok-ko``, ``medical`` or ``good-bad``."""
    train: Path
    test: tuple[Group, ...]


def find_tree(folder: Path) -> Tree | None:
    """The category in ``folder``, in the first form that fits, or None."""
    # A medical tree has train/good as well, so the MVTec form is tried after it.
    return _medical(folder) or _ok_ko(folder) or _mvtec(folder) or _good_bad(folder)


def child_trees(folder: Path) -> dict[str, Tree]:
    """The categories right below ``folder``, by the names of their folders.

    ``good/ bad/ mask/`` does not count here: the train and test folders of one category would pass for it.
    """
    found = {child.name: find_tree(child) for child in subfolders(folder)}
    return {name: tree for name, tree in found.items() if tree is not None and tree.form != "good-bad"}


def list_tree(name: str, tree: Tree) -> Category:
    """List the images of ``tree`` and give each defective one its mask."""
    samples: list[Sample] = []
    orphans: list[Path] = []
    for group in tree.test:
        images, masks = files(group.images), files(group.masks)
        matched = match_masks(images, masks)
        samples += [Sample(image, group.kind, mask) for image, mask in zip(images, matched, strict=True)]
        used = set(matched)
        orphans += [mask for mask in masks if mask not in used]
    return Category(name, files(tree.train), tuple(samples), tuple(orphans))


def match_masks(images: Sequence[Path], masks: Sequence[Path]) -> list[Path | None]:
    """The mask of each image: the same name, or with ``_mask`` or ``_gt`` after it, whatever the ending."""
    named = {mask.stem: mask for mask in masks}
    stems = ([image.stem + suffix for suffix in ("", "_mask", "_gt")] for image in images)
    return [next((named[stem] for stem in candidates if stem in named), None) for candidates in stems]


def files(folder: Path | None) -> tuple[Path, ...]:
    """The images in ``folder`` in natural order; none where there is no such folder."""
    return tuple(list_images(folder)) if folder is not None and folder.is_dir() else ()


def subfolders(folder: Path) -> list[Path]:
    """The folders in ``folder`` by name, hidden ones left out; none where it may not be read."""
    try:
        with os.scandir(folder) as entries:  # unlike iterdir, it need not ask again about each of many thousand files
            return sorted(Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except PermissionError:  # another's folder beside the data must not stop anyone
        return []


def _mvtec(folder: Path) -> Tree | None:
    if not (folder / "train" / GOOD).is_dir():
        return None
    return Tree("mvtec", folder / "train" / GOOD, _groups(folder, GOOD))


def _ok_ko(folder: Path) -> Tree | None:
    if not (folder / "train" / "ok").is_dir():
        return None
    return Tree("ok-ko", folder / "train" / "ok", _groups(folder, "ok"))


def _groups(folder: Path, good: str) -> tuple[Group, ...]:
    """A group per folder in test; a folder in ground_truth alone makes one too, so that its masks are not lost."""
    test, truth = folder / "test", folder / "ground_truth"
    kinds = {child.name for top in (test, truth) if top.is_dir() for child in subfolders(top)}
    return tuple(
        Group(GOOD, test / kind) if kind == good else Group(kind, test / kind, truth / kind) for kind in sorted(kinds)
    )


def _good_bad(folder: Path) -> Tree | None:
    if not (folder / GOOD).is_dir():
        return None
    return Tree("good-bad", folder / GOOD, (Group("bad", folder / "bad", folder / "mask"),))


def _medical(folder: Path) -> Tree | None:
    """The trees of BMAD: ``test/Ungood/img``, ``test/img/Ungood`` or ``Test/test/Ungood``, in any case."""
    for base in (folder, *(folder / name for name in MEDICAL_INNER)):
        train = _child(base, "train")
        good = _child(_child(train, "train") or train, GOOD)
        test = _medical_groups(_child(base, "test"))
        if good is not None and test:
            return Tree("medical", _child(good, "img") or good, test)
    return None


def _medical_groups(test: Path | None) -> tuple[Group, ...]:
    good = _child(_child(test, GOOD), "img")
    bad = _child(_child(test, "ungood"), "img")
    masks = _child(_child(test, "ungood"), "label", "anomaly_mask")
    if good is None and bad is None:
        images = _child(test, "img", "test")
        good, bad = _child(images, GOOD), _child(images, "ungood")
        masks = _child(_child(test, "label", "test_label"), "ungood")
    groups = (Group(GOOD, good) if good else None, Group("Ungood", bad, masks) if bad else None)
    return tuple(group for group in groups if group is not None)


def _child(folder: Path | None, *names: str) -> Path | None:
    """The folder in ``folder`` with one of ``names``, the first that is there; upper and lower case are equal."""
    if folder is None or not folder.is_dir():
        return None
    found = {path.name.casefold(): path for path in subfolders(folder)}
    return next((found[name] for name in names if name in found), None)
