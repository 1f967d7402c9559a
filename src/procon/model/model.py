"""A fitted model as one immutable value: fitting makes it, editing makes another from it, a file stores it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from procon.amounts import count_of
from procon.config import Config
from procon.model.calibration import Calibration, GoodScore
from procon.model.history import Change
from procon.model.lessons import Lesson, joined_anchors
from procon.model.memory import Memory
from procon.model.renderings import Renderings
from procon.model.training_image import TrainingImage
from procon.names import show_name


@dataclass(frozen=True)
class Model:
    """Settings, memory, threshold and log of a detector, and which backbone they belong to."""

    config: Config
    memory: Memory
    calibration: Calibration | None
    history: tuple[Change, ...] = ()  # what was added, removed and set since the fit, oldest first
    identity: Mapping[str, Any] = field(default_factory=dict)  # of the backbone's weights, see Backbone.identity
    lessons: tuple[Lesson, ...] = ()  # marked defects, in the order in which they were taught
    renderings: Renderings | None = None  # scores of rendered defects, see procon.limits; dropped by every edit

    def with_change(self, memory: Memory, calibration: Calibration | None, change: Change) -> "Model":
        """The model after an edit: memory, threshold and log change together."""
        renderings = self.renderings if memory is self.memory else None
        changed = replace(self, memory=memory, history=(*self.history, change), renderings=renderings)
        return changed.calibrated(calibration)

    def calibrated(self, calibration: Calibration | None) -> "Model":
        """The model with another calibration, whose rate and rule are then the configured ones."""
        if calibration is None:
            return replace(self, calibration=None)
        rate, rule = calibration.false_alarm_rate, calibration.rule
        config = replace(self.config, false_alarm_rate=rate, threshold_rule=rule)
        return replace(self, config=config, calibration=calibration)

    @cached_property
    def marked(self) -> tuple[Tensor, ...] | None:
        """The defect anchors of all lessons, [A, D] per layer, where the memory is; None without a lesson."""
        joined, device = joined_anchors(self.lessons), self.memory.layers[0].anchors.device
        return None if joined is None else tuple(layer.to(device) for layer in joined)

    @property
    def held_out(self) -> Calibration | None:
        """The calibration if it is on separate good images."""
        return self.calibration if self.calibration is not None and self.calibration.kind == "held-out" else None

    @property
    def calibration_images(self) -> tuple[TrainingImage, ...]:
        """The images that the calibration scores belong to."""
        return self.held_out.images if self.held_out is not None else self.memory.images

    @property
    def scores_by_digest(self) -> dict[str, GoodScore]:
        """The calibration scores by the digest of their image."""
        if self.calibration is None:
            return {}
        digests = (image.digest for image in self.calibration_images)
        return dict(zip(digests, self.calibration.good_scores, strict=True))

    @property
    def names_in_use(self) -> list[str]:
        """Names that a new image without a path may not get: images held in memory are found by their name."""
        separate = () if self.calibration is None else self.calibration.images
        changed = (name for change in self.history for name in change.images)
        taught = (lesson.image.name for lesson in self.lessons)
        return [*self.memory.names, *(image.name for image in separate), *taught, *changed]

    def summarize(self) -> str:
        """The model in one line: backbone, size of input, training images, threshold."""
        names, (height, width) = self.memory.names, self.config.input_size
        folders = {str(Path(name).parent) for name in names}
        place = f" of {show_name(folders.pop())}" if len(folders) == 1 and Path(names[0]).parent.name else ""
        count = f"{len(names)} good image{'' if len(names) == 1 else 's'}{place}"
        threshold = "no threshold" if self.calibration is None else f"threshold {self.calibration.threshold:.4f}"
        return f"{self.config.backbone}, {width}x{height}, {count}, {threshold}"

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        memory, config = self.memory, self.config
        anchors = sum(len(layer.anchors) for layer in memory.layers)
        tiles = f", in tiles of {config.tile}" if config.tile else ""
        region = "" if memory.roi is None else f", {memory.roi.mean():.0%} of each as region of interest"
        threshold = self.calibration.describe(memory.names) if self.calibration else None
        images, (height, width) = count_of(len(memory.images), "good image"), config.input_size
        return [
            f"backbone {config.backbone} from {self.identity['source']}",
            f"fitted on {images} at {width} x {height} pixels{tiles}{region}",
            f"{len(memory.layers)} layers x {config.banks} banks of {memory.layers[0].banks.shape[1]:,} anchors "
            f"({anchors:,} distinct)",
            *(threshold or ["no threshold: fit on more images to get one"]),
            *(lesson.describe() for lesson in self.lessons),
        ]
