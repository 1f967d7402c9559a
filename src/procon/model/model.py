"""A fitted model as one immutable value. Fitting makes one, editing makes another from it, a file stores it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from procon.config import Config
from procon.model.calibration import Calibration, GoodScore
from procon.model.history import Change
from procon.model.memory import Memory
from procon.model.training import TrainingImage


@dataclass(frozen=True)
class Model:
    """Settings, memory, threshold and log of a detector, and which backbone they belong to."""

    config: Config
    memory: Memory
    calibration: Calibration | None
    history: tuple[Change, ...] = ()
    """What was added, removed and set since the fit, oldest first."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """How the backbone's weights are recognised: see :meth:`procon.vision.backbone.Backbone.identity`."""

    def with_change(self, memory: Memory, calibration: Calibration | None, change: Change) -> "Model":
        """The model after an edit. Memory and threshold change together, and the log says what happened."""
        return replace(self, memory=memory, history=(*self.history, change)).calibrated(calibration)

    def calibrated(self, calibration: Calibration | None) -> "Model":
        """The model with another calibration, whose rate is then the configured one."""
        if calibration is None:
            return replace(self, calibration=None)
        config = replace(self.config, false_alarm_rate=calibration.false_alarm_rate)
        return replace(self, config=config, calibration=calibration)

    @property
    def calibration_images(self) -> tuple[TrainingImage, ...]:
        """The images that the calibration scores belong to."""
        held_out = self.calibration is not None and self.calibration.kind == "held-out"
        return self.calibration.images if self.calibration is not None and held_out else self.memory.images

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
        return [*self.memory.names, *(image.name for image in separate), *changed]

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        memory, config = self.memory, self.config
        anchors = sum(len(layer.anchors) for layer in memory.layers)
        tiles = f", in tiles of {config.tile}" if config.tile else ""
        region = "" if memory.roi is None else f", {memory.roi.mean():.0%} of each as region of interest"
        calibration = self.calibration
        return [
            f"backbone {config.backbone} from {self.identity['source']}",
            f"fitted on {len(memory.images)} good images at {config.input_size[1]} x {config.input_size[0]} pixels"
            f"{tiles}{region}",
            f"{len(memory.layers)} layers x {config.banks} banks of {memory.layers[0].banks.shape[1]:,} anchors "
            f"({anchors:,} distinct)",
            *(calibration.describe(memory.names) if calibration else ["no threshold: fit on more images to get one"]),
        ]
