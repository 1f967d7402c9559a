"""What can be changed in a fitted detector: its threshold, and the images in its memory."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError, ImageError
from procon.model.admission import (
    listed,
    numbers_of,
    refuse_calibrated,
    refuse_known,
    refuse_other_region,
    refuse_other_settings,
    refuse_seen,
)
from procon.model.calibration import Calibration, FalseAlarms, change_note, false_alarms
from procon.model.editing import extended, growth, merged, without
from procon.model.features import Extractor
from procon.model.history import Change, utc
from procon.model.measuring import needs_measuring
from procon.model.memory import FeatureStore, Memory
from procon.model.training import Progress, TrainingImage, find_again, good_images
from procon.vision.images import ImageLike, Picture, try_open

Gauge = tuple[float, float, float]
"""Score, largest pixel of the heat map and median patch score of a good image."""


class LivingMemory(ABC):
    """The half of a detector that edits what it knows. Every change is made whole or not at all, and logged."""

    config: Config
    device: torch.device
    memory: Memory | None
    calibration: Calibration | None
    history: tuple[Change, ...]
    """What was added, removed and set since the fit, oldest first."""
    training_folder: Path | None
    """Where the training images are now, if they have moved."""
    _held: dict[str, ImageLike]

    @property
    @abstractmethod
    def extractor(self) -> Extractor:
        """Backbone and projections."""

    @abstractmethod
    def _fitted(self) -> Memory: ...

    @abstractmethod
    def _embedded(
        self,
        items: Sequence[ImageLike],
        images: Sequence[TrainingImage],
        roi: NDArray[np.bool_] | None,
        report: Progress,
    ) -> AbstractContextManager[FeatureStore]: ...

    @abstractmethod
    def _counted(self, images: Sequence[TrainingImage], roi: NDArray[np.bool_] | None) -> Tensor | None: ...

    @abstractmethod
    def _measured(self, memory: Memory, store: FeatureStore, report: Progress) -> Memory: ...

    @abstractmethod
    def _gauge(self, features: list[Tensor], size: tuple[int, int], memory: Memory, own: int | None) -> Gauge: ...

    @abstractmethod
    def _commit(self, memory: Memory, calibration: Calibration | None, change: Change) -> None: ...

    # -------------------------------------------------------------------------------------------------- threshold

    def calibrate(
        self,
        images: ImageLike | Iterable[ImageLike] | None = None,
        *,
        false_alarm_rate: float | None = None,
        progress: Progress | None = None,
        when: datetime | None = None,
    ) -> Self:
        """Set the threshold anew.

        With ``images``, good ones that the memory does not hold: a held-out calibration, whose rate is guaranteed.
        With ``false_alarm_rate`` alone: the scores already there, read at that rate. With neither: leave-one-out, from
        the training images, which are read again from their paths.
        """
        memory, report, known = self._fitted(), progress or _silent, self.calibration
        rate = self.config.false_alarm_rate if false_alarm_rate is None else false_alarm_rate
        replace(self.config, false_alarm_rate=rate)  # refuses what is no rate
        if images is not None:
            items, separate = good_images(images, report, taken=self._names_in_use(memory))
            refuse_seen(separate, memory.images)
            scores = _calibration(self._gauges(items, memory, report), rate)
            calibration = replace(scores, kind="held-out", images=separate)
            self._held |= without_path(separate, items)
        elif false_alarm_rate is not None:
            if known is None:
                raise ConfigError("there are no calibration scores to read at another rate; pass good images")
            calibration = known.at_rate(false_alarm_rate)
        else:
            sources = self._sources(memory.images)
            found = self._leave_one_out(memory, self._gauges(sources, memory, report, own=True), rate)
            if found is None:
                raise ConfigError("leave-one-out needs more training images; calibrate on separate good images instead")
            calibration = found
        self._commit(memory, calibration, Change(utc(when), "threshold", note=change_note(known, calibration)))
        return self

    def set_threshold(self, score: float, *, when: datetime | None = None) -> Self:
        """Call parts anomalous above ``score``, until the next :meth:`calibrate`."""
        memory = self._fitted()
        if self.calibration is None:
            raise ConfigError("a threshold needs calibration scores beside it; calibrate on good images first")
        chosen = self.calibration.at_score(score)
        self._commit(memory, chosen, Change(utc(when), "threshold", note=change_note(self.calibration, chosen)))
        return self

    def measure_false_alarms(
        self, images: ImageLike | Iterable[ImageLike], *, progress: Progress | None = None
    ) -> FalseAlarms:
        """How many good images exceed the threshold; none of them may be in the memory or behind the threshold."""
        memory, report = self._fitted(), progress or _silent
        if self.calibration is None:
            raise ConfigError("there is no threshold to measure; calibrate on good images first")
        items, separate = good_images(images, report)
        refuse_seen(separate, (*memory.images, *self.calibration.images))
        flagged = sum(score > self.calibration.threshold for score, _, _ in self._gauges(items, memory, report))
        return false_alarms(flagged, len(items))

    def _leave_one_out(self, memory: Memory, gauges: Iterable[Gauge], rate: float) -> Calibration | None:
        """Training images against the memory without their own anchors; None where too few others stand in."""
        if any(memory.fewest_without(number) < self.config.num_neighbors for number in range(len(memory.images))):
            return None
        return _calibration(gauges, rate)

    def _gauges(
        self,
        sources: Sequence[ImageLike],
        memory: Memory,
        report: Progress,
        *,
        own: bool = False,
        before: Sequence[Gauge | None] = (),
    ) -> Iterator[Gauge]:
        """The gauges of images; with ``own``, image i meets the memory without anchors of training image i.

        Where an image cannot be had there is an error in its place, and its gauge is the one from ``before``.
        """
        features = self._features([source for source in sources if not isinstance(source, ImageError)])
        for number, source in enumerate(sources):
            if isinstance(source, ImageError):
                kept = before[number]
                assert kept is not None
                yield kept
            else:
                yield self._gauge(*next(features), memory, number if own else None)
            report("calibrating", number + 1, len(sources))

    def _features(self, items: Sequence[ImageLike]) -> Iterator[tuple[list[Tensor], tuple[int, int]]]:
        """The embedded patches [1, P, D] per memory and the (height, width), image by image."""
        for group, pixels in self.extractor.batches(items):
            for picture in group:
                if isinstance(picture, ImageError):
                    raise picture
            sizes = [picture.size for picture in group if isinstance(picture, Picture)]
            for size, *image in zip(sizes, *self.extractor.features(pixels), strict=True):
                yield [layer.unsqueeze(0) for layer in image], size

    def _sources(self, images: Sequence[TrainingImage], keep_scores: bool = False) -> list[ImageLike]:
        """Images to calibrate on again. One that cannot be had is refused, or gives its error with ``keep_scores``."""
        sources = find_again(images, self._held, self.training_folder)
        missing = [source for source in sources if isinstance(source, ImageError)]
        if missing and not (keep_scores and self.calibration is not None):
            raise ImageError(
                f"{len(missing)} of {len(sources)} images behind the threshold cannot be read again, so it cannot "
                f"follow the memory: {missing[0]}; or keep the scores they had, which is approximate: keep_scores "
                "(--keep-scores)"
            )
        return sources

    def _to_measure(self, images: Sequence[TrainingImage]) -> list[ImageLike]:
        """Training images to read again, where scoring depends on how a memory reads them; else none."""
        if not needs_measuring(self.config):
            return []
        sources = find_again(images, self._held, self.training_folder)
        missing = [source for source in sources if isinstance(source, ImageError)]
        if missing:
            raise ImageError(
                f"{len(missing)} of {len(sources)} training images cannot be read again, and with these settings "
                f"scores depend on how the changed memory reads them: {missing[0]}"
            )
        return sources

    def _measured_again(self, memory: Memory, sources: Sequence[ImageLike], report: Progress) -> Memory:
        """A changed memory with what scoring needs to know of its images, which ``sources`` are."""
        if not needs_measuring(self.config):
            return memory
        with self._embedded(sources, memory.images, memory.roi, report) as store:
            return self._measured(memory, store, report)

    def _names_in_use(self, memory: Memory) -> list[str]:
        """Names that a new image without a path may not get: images held in memory are found again by theirs."""
        known = () if self.calibration is None else self.calibration.images
        changed = (name for change in self.history for name in change.images)
        return [*memory.names, *(image.name for image in known), *changed]

    def _behind(self, memory: Memory) -> tuple[TrainingImage, ...]:
        """The images that the calibration scores belong to."""
        known = self.calibration
        return known.images if known is not None and known.kind == "held-out" else memory.images

    def _recalibrated(
        self, memory: Memory, images: Sequence[TrainingImage], sources: Sequence[ImageLike], report: Progress
    ) -> Calibration | None:
        """The calibration for a changed ``memory``, of the same kind and rate as before."""
        known = self.calibration
        rate = known.false_alarm_rate if known is not None else self.config.false_alarm_rate
        held_out = known is not None and known.kind == "held-out"
        before: dict[str, Gauge] = {}
        if known is not None:
            rows = zip(known.scores, known.peaks, known.medians, strict=True)
            before = dict(zip((image.digest for image in self._behind(self._fitted())), rows, strict=True))
        kept = [before.get(image.digest) for image in images]
        gauges = self._gauges(sources, memory, report, own=not held_out, before=kept)
        found = _calibration(gauges, rate) if held_out else self._leave_one_out(memory, gauges, rate)
        if found is None or known is None:
            return found
        lost = sum(isinstance(source, ImageError) for source in sources)
        return replace(found, kind=known.kind, images=known.images, fixed=known.fixed, kept=lost)

    # -------------------------------------------------------------------------------------------------- memory

    def training_picture(self, number: int) -> Picture | ImageError:
        """Training image ``number`` of the memory: itself, else its thumbnail, else the reason why neither is there."""
        image = self._fitted().images[number]
        (source,) = find_again([image], self._held, self.training_folder)
        picture = source if isinstance(source, ImageError) else try_open(source)
        if isinstance(picture, ImageError) and image.thumbnail:
            with Image.open(io.BytesIO(image.thumbnail)) as thumbnail:
                return Picture(np.asarray(thumbnail.convert("RGB")), image.name)
        return picture

    def partial_fit(
        self,
        images: ImageLike | Iterable[ImageLike],
        *,
        progress: Progress | None = None,
        skip_bad: bool = False,
        thumbnails: bool | None = None,
        keep_scores: bool = False,
        when: datetime | None = None,
    ) -> Self:
        """Add good images: every bank continues its farthest-point traversal over their patches.

        The threshold is computed again, for which the training images are read from their paths; ``keep_scores``
        accepts the earlier score of one that is gone. ``thumbnails`` defaults to what the memory has.
        """
        memory, report = self._editable(), progress or _silent
        if thumbnails is None:
            thumbnails = any(image.thumbnail for image in memory.images)
        taken = self._names_in_use(memory)
        items, added = good_images(images, report, skip_bad=skip_bad, thumbnails=thumbnails, taken=taken)
        refuse_known(added, memory)
        if self.calibration is not None:
            refuse_calibrated(added, self.calibration)
        config, held = self.config, memory.layers[0].banks.shape[1]
        counted = self._counted(added, memory.roi)
        patches = len(items) * memory.patches if counted is None else len(counted)
        size = growth(patches, config.coreset_ratio, held, config.max_anchors)
        if size == 0:
            raise ConfigError(f"the banks are full: max_anchors is {config.max_anchors}; fit again with a higher one")
        behind = self._behind(memory)
        training, sources = self._to_measure(memory.images), self._sources(behind, keep_scores)
        total = len(memory.layers) * config.banks * size

        def picked(done: int) -> None:
            report("selecting anchors", done, total)

        with self._embedded(items, added, memory.roi, report) as store:
            grown = extended(memory, store, added, self.extractor.selections, size, self.device, picked)
        grown = self._measured_again(grown, [*training, *items], report)
        if behind is memory.images:
            behind, sources = grown.images, [*sources, *items]
        calibration = self._recalibrated(grown, behind, sources, report)
        self._commit(grown, calibration, Change(utc(when), "added", tuple(image.name for image in added)))
        self._held |= without_path(added, items)
        return self

    def forget(
        self,
        images: str | Path | Iterable[str | Path],
        *,
        progress: Progress | None = None,
        keep_scores: bool = False,
        when: datetime | None = None,
    ) -> Self:
        """Remove training images, by name, and everything that came from them: anchors, scores, thumbnails.

        A copy of the same content under another name goes with it. The threshold is computed again, as in
        :meth:`partial_fit`.
        """
        memory = self._editable()
        gone = numbers_of(images, memory)
        if len(gone) == len(memory.images):
            raise ConfigError("a memory must keep at least one image; fit a new one instead")
        rest = without(memory, gone)
        fewest = min(layer.banks.shape[1] for layer in rest.layers)
        if fewest < self.config.num_neighbors:
            raise ConfigError(
                f"without {listed([memory.images[number] for number in sorted(gone)])} a bank would have {fewest} "
                f"anchors, and num_neighbors is {self.config.num_neighbors}; add good images first, or fit again"
            )
        behind = self._behind(memory)
        behind = rest.images if behind is memory.images else behind
        training, sources = self._to_measure(rest.images), self._sources(behind, keep_scores)
        rest = self._measured_again(rest, training, progress or _silent)
        calibration = self._recalibrated(rest, behind, sources, progress or _silent)
        names = tuple(memory.images[number].name for number in sorted(gone))
        self._commit(rest, calibration, Change(utc(when), "forgot", names))
        for name in set(names) - set(rest.names):
            self._held.pop(name, None)
        return self

    def merge(
        self,
        other: "LivingMemory",
        *,
        progress: Progress | None = None,
        keep_scores: bool = False,
        when: datetime | None = None,
    ) -> Self:
        """Take over the memory of another detector of the same part, fitted with the same settings and weights.

        The threshold is leave-one-out over the images of both.
        """
        memory, theirs = self._editable(), other._editable()
        refuse_other_settings(self.config, other.config)
        if self.extractor.backbone.fingerprint != other.extractor.backbone.fingerprint:
            raise ConfigError("both models must have the same backbone weights; fit one of them again")
        refuse_other_region(memory, theirs)
        refuse_known(theirs.images, memory, "is in both models; forget it in one of them first")
        training = [*self._to_measure(memory.images), *other._to_measure(theirs.images)]
        both = merged(memory, theirs, self.extractor.selections, self.config.max_anchors)
        both = self._measured_again(both, training, progress or _silent)
        sources = [*self._sources(memory.images, keep_scores), *other._sources(theirs.images, keep_scores)]
        kept = {**self._scores_by_digest(), **other._scores_by_digest()}
        before = [kept.get(image.digest) for image in both.images]
        lost = [isinstance(source, ImageError) for source in sources]
        if any(missing and row is None for missing, row in zip(lost, before, strict=True)):
            raise ConfigError("a held-out calibration has no scores of training images to keep; put the images back")
        gauges = self._gauges(sources, both, progress or _silent, own=True, before=before)
        calibration = self._leave_one_out(both, gauges, self.config.false_alarm_rate)
        if calibration is not None:
            calibration = replace(calibration, kept=sum(lost))
        names = tuple(image.name for image in theirs.images)
        self.history = tuple(sorted((*self.history, *other.history), key=lambda change: change.when))
        self._commit(both, calibration, Change(utc(when), "merged", names))
        self._held |= other._held
        return self

    def _scores_by_digest(self) -> dict[str, Gauge]:
        known = self.calibration
        if known is None or known.kind == "held-out":
            return {}
        rows = zip(known.scores, known.peaks, known.medians, strict=True)
        return dict(zip((image.digest for image in self._fitted().images), rows, strict=True))

    def _editable(self) -> Memory:
        """The memory, if it is of a kind that can be continued."""
        memory = self._fitted()
        if self.config.coreset != "k-center":
            raise ConfigError(
                f"only a memory with coreset='k-center' can be edited, got {self.config.coreset!r}: there is no "
                "traversal to continue; fit again"
            )
        return memory


def _calibration(gauges: Iterable[Gauge], rate: float) -> Calibration:
    scores, peaks, medians = zip(*gauges, strict=True)
    return Calibration(scores, peaks, medians, rate)


def without_path(described: Sequence[TrainingImage], items: Sequence[ImageLike]) -> dict[str, ImageLike]:
    """Images that exist in memory only, by name: held on to, so that the threshold can follow the memory."""
    pairs = zip(described, items, strict=True)
    return {image.name: item for image, item in pairs if not isinstance(item, str | Path)}


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass
