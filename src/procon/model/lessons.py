"""Lessons of a model: patches that a person marked as defects, and the image they come from."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from procon.arrays import Box, Bytes
from procon.model.history import describe_lesson
from procon.model.training import pack_thumbnails, unpack_thumbnails
from procon.model.training_image import TrainingImage

_PREFIX = "lessons."


@dataclass(frozen=True, eq=False)
class Lesson:
    """One marked region: its patches become defect anchors."""

    name: str  # "lesson 1", or as the person called it
    image: TrainingImage  # where it was marked, with a thumbnail
    box: Box  # around the marked region, in pixels of that image
    patches: tuple[int, ...]  # numbers of the patches that are kept
    anchors: tuple[Tensor, ...]  # per layer [A, D] float32: the embedded patches

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the anchors."""
        return {"name": self.name, "image": self.image.to_dict(), "box": list(self.box), "patches": list(self.patches)}

    def describe(self) -> str:
        """The lesson in a line for people."""
        return describe_lesson(self.to_dict())


def joined_anchors(lessons: Sequence[Lesson]) -> tuple[Tensor, ...] | None:
    """The defect anchors of all lessons, [A, D] per layer; None without a lesson."""
    if not lessons:
        return None
    return tuple(torch.cat(layers) for layers in zip(*(lesson.anchors for lesson in lessons), strict=True))


def lesson_pixels(lesson: Lesson) -> Bytes:
    """The thumbnail of the image in which the lesson was marked, [h, w, 3]."""
    with Image.open(io.BytesIO(lesson.image.thumbnail)) as thumbnail:
        return np.asarray(thumbnail.convert("RGB"))


def join_lessons(first: Sequence[Lesson], second: Sequence[Lesson]) -> tuple[Lesson, ...]:
    """The lessons of two models: one that both have counts once, and one whose name is taken gets another."""
    joined = list(first)
    for lesson in second:
        same = (lesson.image.digest, lesson.box, lesson.patches)
        if any((other.image.digest, other.box, other.patches) == same for other in joined):
            continue
        taken = [other.name for other in joined]
        joined.append(replace(lesson, name=free_name(taken)) if lesson.name in taken else lesson)
    return tuple(joined)


def free_name(taken: Sequence[str]) -> str:
    """The first of "lesson 1", "lesson 2" and so on that is not taken."""
    number = 1
    while f"lesson {number}" in taken:
        number += 1
    return f"lesson {number}"


def pack_lessons(lessons: Sequence[Lesson]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a model file stores of lessons: tensors, and entries of its document; nothing without a lesson."""
    anchors = joined_anchors(lessons)
    if anchors is None:
        return {}, {}
    tensors = {f"{_PREFIX}{index}.anchors": layer for index, layer in enumerate(anchors)}
    pictures = pack_thumbnails([lesson.image for lesson in lessons])
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in pictures.items()}
    return tensors, {"lessons": [lesson.to_dict() for lesson in lessons]}


def unpack_lessons(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], dims: Sequence[int], patches: int
) -> tuple[Lesson, ...]:
    """The inverse of :func:`pack_lessons` for memories of ``dims`` dimensions and so many ``patches`` an image.

    A KeyError, TypeError or ValueError says what does not fit.
    """
    stored = metadata.get("lessons", [])
    counts = [len(entry["patches"]) for entry in stored]
    if not stored:
        return ()
    layers = [tensors[f"{_PREFIX}{index}.anchors"].float() for index in range(len(dims))]
    shapes, wanted = [list(layer.shape) for layer in layers], [[sum(counts), dim] for dim in dims]
    if shapes != wanted:
        raise ValueError(f"the lessons call for defect anchors of shapes {wanted}, the file has {shapes}")
    if not all(bool(layer.isfinite().all()) for layer in layers):
        raise ValueError("the lessons hold NaN or infinite anchors")
    own = {name.removeprefix(_PREFIX): value for name, value in tensors.items() if name.startswith(_PREFIX)}
    lessons = []
    thumbnails = unpack_thumbnails(own, len(stored))
    for entry, thumbnail, *anchors in zip(stored, thumbnails, *(layer.split(counts) for layer in layers), strict=True):
        numbers = tuple(int(number) for number in entry["patches"])
        if not numbers or not all(0 <= number < patches for number in numbers):
            raise ValueError(f"lesson {entry['name']!r} must have patches from 0 to {patches - 1}, got {numbers}")
        left, top, right, bottom = (int(side) for side in entry["box"])
        image = TrainingImage.from_dict(entry["image"], thumbnail)
        lessons.append(Lesson(str(entry["name"]), image, (left, top, right, bottom), numbers, tuple(anchors)))
    return tuple(lessons)
