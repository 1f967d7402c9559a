"""Teach a model a defect that it missed, and tell what that costs before it is accepted.

The patches of a marked region become defect anchors, which lie next to the normal memory and never in it; see
:mod:`procon.method.lessons` for the rule. A marked region also holds patches that look as good parts do, so every
patch that would be evidence on a training image is left out. The price is what the rest would still do on good parts:
each training image is scored without its own anchors, and with the patches that no *other* training image leaves out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from procon.arrays import Bools, Box
from procon.config import refuse
from procon.errors import ConfigError, ImageError
from procon.method.consensus import top_mean
from procon.method.lessons import REACH, gain_of, marked_distances, normal_distances
from procon.method.regions import Region
from procon.model.editor import Editor
from procon.model.fitting import measure_images, read_as_new
from procon.model.history import Change, utc
from procon.model.lessons import Lesson, free_name
from procon.model.model import Model
from procon.model.training import THUMBNAIL_SIDE, name_image, open_with_digest
from procon.model.training_image import TrainingImage
from procon.names import show_name
from procon.vision.framing import patch_box
from procon.vision.images import ImageLike, open_image
from procon.vision.pictures import jpeg, shrink
from procon.vision.scope import patch_shares

RegionLike = Region | Box | ImageLike
"""A region of a prediction, a box (left, top, right, bottom) in pixels, or a mask of the size of the image."""

MARKED_SHARE = 0.5  # of the share of the patch that the region covers most


@dataclass(frozen=True)
class Price:
    """What a lesson costs: training images, each scored without its own anchors, before it and with it."""

    names: tuple[str, ...]  # of the training images
    before: tuple[float, ...]  # their scores
    after: tuple[float, ...]
    boxes: tuple[Box | None, ...]  # of the patch that the lesson raised most, in pixels of each image
    threshold: float
    rate: float  # the false-alarm rate that the model aims at or promises

    @property
    def flagged_before(self) -> tuple[int, ...]:
        """Positions of the training images above the threshold without the lesson."""
        return tuple(place for place, score in enumerate(self.before) if score > self.threshold)

    @property
    def added(self) -> tuple[int, ...]:
        """Positions of the training images that only the lesson flags, highest score first."""
        places = [n for n, score in enumerate(self.after) if score > self.threshold >= self.before[n]]
        return tuple(sorted(places, key=lambda place: -self.after[place]))

    @property
    def is_too_high(self) -> bool:
        """Whether the lesson flags more good images, and with them more than the rate allows."""
        flagged = len(self.flagged_before) + len(self.added)
        return bool(self.added) and flagged > self.rate * len(self.names)

    def describe(self) -> str:
        """The price in a sentence."""
        count, more = len(self.names), len(self.added)
        shown = ", ".join(show_name(self.names[place]) for place in self.added[:3]) + (", ..." if more > 3 else "")
        before = len(self.flagged_before)
        which = f" ({shown})" if more else ""
        return (
            f"{more or 'none'} of {count} training images more would be flagged{which}, each scored without its own "
            f"anchors; {before} {'is' if before == 1 else 'are'} flagged today, the rate in force is {self.rate:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "images": len(self.names),
            "flagged_before": [show_name(self.names[place]) for place in self.flagged_before],
            "added": [show_name(self.names[place]) for place in self.added],
            "false_alarm_rate": self.rate,
            "is_too_high": self.is_too_high,
        }


@dataclass(frozen=True)
class Proposal:
    """A lesson that is not accepted yet."""

    base: Model  # that it was made for
    model: Model  # as it would be
    lesson: Lesson
    left_out: int  # patches of the region that training images have too
    score: tuple[float, float]  # of the image, before and after
    price: Price | None  # None where it cannot be told
    reason: str = ""  # why not

    def describe(self) -> list[str]:
        """The lesson and its price, in sentences for people."""
        out = f"; {self.left_out} more look as on training images and are left out" if self.left_out else ""
        calibration = self.model.calibration
        limit = f", threshold {calibration.threshold:.4f}" if calibration is not None else ""
        return [
            f"{self.lesson.describe()}{out}",
            f"the image scores {self.score[0]:.4f} today and {self.score[1]:.4f} with the lesson{limit}",
            f"price: {self.reason if self.price is None else self.price.describe()}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "lesson": self.lesson.to_dict(),
            "left_out": self.left_out,
            "score_before": self.score[0],
            "score_after": self.score[1],
            "price": None if self.price is None else self.price.to_dict(),
            "reason": self.reason,
        }


@torch.inference_mode()
def propose(
    model: Model, editor: Editor, image: ImageLike, region: RegionLike, name: str | None = None, force: bool = False
) -> Proposal:
    """The model with the marked ``region`` of ``image`` as one more lesson, and what that costs.

    The training images are read again for it. Where they are gone the price cannot be told; that is an error unless
    ``force`` is given.
    """
    refuse(model.config, "teaching")
    taken = [lesson.name for lesson in model.lessons]
    if name is not None and (not name.strip() or name in (*taken, *model.memory.names)):
        raise ConfigError(f"the name of a lesson must be new and not empty, got {name!r}")
    picture, digest = open_with_digest(image)
    mask = mark_region(region, picture.size)
    reader, memory = editor.reader, model.memory
    scope = reader.scope(picture.size, memory.roi)
    every = reader.extractor.features(reader.extractor.prepare(picture).unsqueeze(0))
    numbers = marked_patches(model, mask, None if scope is None else scope.rows.cpu().numpy())
    anchors = tuple(layer[0, numbers].float().cpu() for layer in every)
    rows, columns = np.nonzero(mask)
    box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
    thumbnail = jpeg(shrink(picture.rgb8(), THUMBNAIL_SIDE), quality=85)
    source = TrainingImage(name_image(image, 0, model.names_in_use), picture.size, digest, thumbnail)
    lesson = Lesson(name or free_name(taken), source, box, tuple(numbers), anchors)
    reduced, price, reason = _price(model, editor, lesson, force)
    change = Change(utc(), "taught", (source.name,), reduced.name)
    history = (*model.history, change)
    taught = replace(model, lessons=(*model.lessons, reduced), history=history, renderings=None)
    scores = [
        reader.good_scores(reader.score_features(every, picture.size, memory, marked), scope)[0].score
        for marked in (model.marked, taught.marked)
    ]
    left_out = len(lesson.patches) - len(reduced.patches)
    return Proposal(model, taught, reduced, left_out, (scores[0], scores[1]), price, reason)


def accept(proposal: Proposal, force: bool = False) -> Model:
    """The model with the lesson; refused where its price is too high, unless ``force`` is given."""
    price = proposal.price
    if price is not None and price.is_too_high and not force:
        raise ConfigError(
            f"the lesson must not raise false alarms above {price.rate:.1%}, got: {price.describe()}; mark a region "
            "that holds the defect alone, or accept the price with force (--force)"
        )
    return proposal.model


def forget_lessons(model: Model, names: Iterable[str]) -> Model:
    """The model without the lessons of these names."""
    gone = set(names)
    rest = tuple(lesson for lesson in model.lessons if lesson.name not in gone)
    images = tuple(lesson.image.name for lesson in model.lessons if lesson.name in gone)
    note = ", ".join(lesson.name for lesson in model.lessons if lesson.name in gone)
    history = (*model.history, Change(utc(), "forgot", images, note))
    return replace(model, lessons=rest, history=history, renderings=None)


def mark_region(region: RegionLike, size: tuple[int, int]) -> Bools:
    """A marked region as a mask of ``size`` (height, width) of the image."""
    height, width = size
    box = region.box if isinstance(region, Region) else region
    mask = np.zeros(size, np.bool_)
    if isinstance(box, Sequence) and not isinstance(box, str | bytes):
        if len(box) != 4:
            raise ConfigError(f"a box must be four numbers (left, top, right, bottom), got {tuple(box)!r}")
        left, top, right, bottom = (int(side) for side in box)
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise ConfigError(
                f"the marked box must lie in the image of {width} x {height} pixels and hold at least one, got columns "
                f"{left} to {right}, rows {top} to {bottom}"
            )
        mask[top:bottom, left:right] = True
        return mask
    flags = isinstance(box, np.ndarray) and box.dtype == np.bool_
    picture = open_image(np.where(box, 255, 0).astype(np.uint8) if flags else box)
    if picture.size != size:
        raise ConfigError(
            f"the mask must have the size of the image, {width} x {height} pixels, got {picture.size[1]} x "
            f"{picture.size[0]}"
        )
    mask = picture.rgb8().mean(axis=2) > 127
    if not mask.any():
        raise ConfigError("the mask marks nothing: its white pixels are the defect, and it has none")
    return np.asarray(mask, np.bool_)


def marked_patches(model: Model, mask: Bools, inside: Any) -> list[int]:
    """The numbers of the patches that a mask [height, width] of the image marks; only those ``inside``, or all.

    They are covered at least half as much as the patch that is covered most, so that a thin scratch marks patches too.
    """
    shares = patch_shares(model.config, mask)
    if inside is not None:
        outside = np.ones(len(shares), np.bool_)
        outside[inside] = False
        shares[outside] = 0
    most = float(shares.max())
    if most == 0:
        raise ConfigError("the marked region must lie where the model looks: in its region of interest and its crop")
    return [int(number) for number in np.flatnonzero(shares >= MARKED_SHARE * most)]


@dataclass(frozen=True)
class _Seen:
    """One training image without its own anchors, and how far its patches that count are from defect anchors."""

    ranked: Tensor  # [P]: what the image score is made of, without lessons
    normal: Tensor  # [P]: distance to the nearest normal anchor
    earlier: Tensor  # [P]: distance to the nearest anchor of earlier lessons; infinite without one
    new: Tensor  # [P, A]: distances to the anchors of the new lesson

    def hits(self) -> Tensor:
        """[A] bool: which anchors of the new lesson are evidence here."""
        return (self.new < REACH * self.normal.unsqueeze(1)).any(dim=0)

    def gain(self, active: Tensor) -> Tensor:
        """[P]: the gain by the earlier lessons, and by those anchors of the new one that are ``active`` [A]."""
        defect = self.earlier
        if active.any():
            defect = torch.minimum(defect, self.new[:, active].amin(dim=1))
        return gain_of(defect, self.normal)


def _price(model: Model, editor: Editor, lesson: Lesson, force: bool) -> tuple[Lesson, Price | None, str]:
    """The lesson without patches that training images have too, and its price, or why that cannot be told."""
    memory, calibration = model.memory, model.calibration
    unknown = "what the lesson costs cannot be told: "
    try:
        sources = editor.sources.find_all(memory.images, "training images cannot be read again")
    except ImageError as error:
        if not force:
            raise ImageError(f"{unknown}{error}; or accept an unknown price with force (--force)") from None
        return lesson, None, f"{unknown}{error}"
    if any(memory.fewest_without(number) < model.config.num_neighbors for number in range(len(memory.images))):
        reason = f"{unknown}leave-one-out needs more training images"
        if not force:
            raise ConfigError(f"{reason}; add good images, or accept an unknown price with force (--force)")
        return lesson, None, reason
    seen = list(_read_training(model, editor, sources, lesson))
    hits = torch.stack([image.hits() for image in seen])  # [I, A]
    keep = ~hits.any(dim=0)
    if not keep.any():
        raise ConfigError(
            f"the marked region must look different from good parts, got {len(lesson.patches)} patches that all look "
            "as on training images; mark the defect more closely, or fit with a higher image_size"
        )
    numbers = tuple(number for number, stays in zip(lesson.patches, keep.tolist(), strict=True) if stays)
    reduced = replace(lesson, patches=numbers, anchors=tuple(layer[keep.cpu()] for layer in lesson.anchors))
    if calibration is None:
        return reduced, None, f"{unknown}the model has no threshold"
    count, none_active, parts = hits.sum(dim=0), torch.zeros_like(keep), []
    for number, (image, own) in enumerate(zip(seen, hits, strict=True)):
        gains = [image.gain(active) for active in (none_active, count - own.long() == 0)]
        scores = [float(top_mean(image.ranked * gain, model.config.top_ratio)) for gain in gains]
        raised = int((gains[1] - gains[0]).argmax()) if bool((gains[1] > gains[0]).any()) else None
        parts.append((scores[0], scores[1], _box_of(model, editor, number, raised)))
    before, after, boxes = zip(*parts, strict=True)
    return reduced, Price(memory.names, before, after, boxes, calibration.threshold, calibration.false_alarm_rate), ""


def _box_of(model: Model, editor: Editor, number: int, place: int | None) -> Box | None:
    """The box of the patch at ``place``, among those that count, in training image ``number``."""
    if place is None:
        return None
    size = model.memory.images[number].size
    scope = editor.reader.scope(size, model.memory.roi)
    return patch_box(model.config, place if scope is None else int(scope.rows[place]), size)


def _read_training(model: Model, editor: Editor, sources: Sequence[ImageLike], lesson: Lesson) -> Iterator[_Seen]:
    """Every training image, read once by the backbone."""
    reader, memory, config = editor.reader, model.memory, model.config
    new = tuple(layer.to(reader.device) for layer in lesson.anchors)
    with reader.store_embedded(editor.embed(sources), len(sources)) as images:
        _, stand_ins, readings = measure_images(reader, memory, images, editor.on_progress)
        for number, image in enumerate(images()):
            assert image is not None
            features, _ = reader.counted(image, memory.roi)
            layers = None if readings is None else readings[number]
            reading = read_as_new(memory, config, stand_ins, [number], features, layers)
            patches = [layer[0] for layer in features]
            nearest = [layer.distances[:, :, :, 0] for layer in reading.layers]
            normal = normal_distances(nearest)[0]
            earlier = torch.full_like(normal, torch.inf)
            if model.marked is not None:
                earlier = marked_distances(patches, model.marked).amin(dim=1)
            yield _Seen(reading.ranked[0], normal, earlier, marked_distances(patches, new))
            editor.on_progress("scoring training images", number + 1, len(sources))
