"""What a detector has: settings, backbone, model, and its file on disk or on the hub."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from procon import hub
from procon.config import AUTO, Config, change_settings
from procon.errors import NotFittedError
from procon.model.calibration import Calibration
from procon.model.file import find_extractor, load_model, save_model
from procon.model.history import Change
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.reader import Extractor, Reader
from procon.model.scorer import ModelScorer
from procon.model.training import TrainingSources
from procon.vision.backbone import Backbone, resolve_device
from procon.vision.images import ImageLike
from procon.vision.shape import resolve_shape


class DetectorState:
    """Settings, and once it is fitted a model."""

    def __init__(self, config: Config | None = None, *, device: str = "auto", **settings: Any) -> None:
        """Store the settings: a ``config``, single settings such as ``backbone="dinov2-small"``, or both.

        ``device`` is ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``. Weights are loaded when they are
        first needed.
        """
        self.config = self._asked = change_settings(config or Config(), settings)  # what a fit starts from
        self.device = resolve_device(device)
        self.sources = TrainingSources()  # Where the training images can be read again
        self._reader: Reader | None = None
        self._scorer: ModelScorer | None = None
        self._embeds_backbone = False

    @property
    def model(self) -> Model:
        """What was fitted, as one immutable value. Setting it replaces memory and threshold together."""
        return self.scorer.model

    @model.setter
    def model(self, model: Model) -> None:
        self.config, self._scorer = model.config, ModelScorer(model, self.reader)

    @property
    def scorer(self) -> ModelScorer:
        """The model and its backbone as what measures images."""
        if self._scorer is None:
            raise NotFittedError("this detector has no memory yet; call fit(images) or Detector.load(path) first")
        return self._scorer

    @property
    def reader(self) -> Reader:
        """Backbone, embedding and recipe; weights are found and loaded on first use."""
        if self._reader is None:
            self._reader = Reader(Extractor(Backbone.load(self.config, self.device), self.config), self.config)
        return self._reader

    def _reader_for(self, items: Sequence[ImageLike]) -> Reader:
        """The reader of a fit on ``items``, whose shape is that of its input where ``image_size`` is ``auto``."""
        config = resolve_shape(self._asked, items)
        if self._asked.image_size != AUTO or (self._reader and self._reader.config == config):
            return self.reader
        return Reader(Extractor(Backbone.load(config, self.device), config), config)

    @property
    def memory(self) -> Memory | None:
        """The anchors of normal patches; None before :meth:`fit`."""
        return None if self._scorer is None else self.model.memory

    @property
    def calibration(self) -> Calibration | None:
        """Scores of good images, and the threshold that follows from them."""
        return None if self._scorer is None else self.model.calibration

    @property
    def history(self) -> tuple[Change, ...]:
        """What was added, removed and set since the fit, oldest first."""
        return () if self._scorer is None else self.model.history

    def describe(self) -> list[str]:
        """The fitted model in a few lines for people."""
        return self.model.describe()

    def __repr__(self) -> str:
        if self._scorer is None:
            return f"Detector({self.config.backbone}, not fitted)"
        return f"Detector({self.model.summarize()})"

    def _repr_html_(self) -> str:
        from procon.showing.cards import detector_html

        lines, calibration = self.describe() if self._scorer else ["call fit(images) first"], self.calibration
        scores, threshold = (calibration.scores, calibration.threshold) if calibration else ((), None)
        return detector_html(repr(self), lines, scores, threshold)

    def save(self, path: str | Path, *, embed_backbone: bool | None = None) -> Path:
        """Write one ``.procon`` file, atomically; with ``embed_backbone`` (default: as loaded) with the weights."""
        embed = self._embeds_backbone if embed_backbone is None else embed_backbone
        save_model(Path(path), self.model, self.reader.extractor.backbone.state() if embed else None)
        return Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        weights: str | Path | None = None,
        training: str | Path | None = None,
        device: str = "auto",
    ) -> Self:
        """Read a ``.procon`` file.

        ``weights`` says where the backbone's weights are if they have moved. They must be those the model was fitted
        with, and are recognised by their values, not their file. ``training`` says where the training images are if
        they have moved: evidence shows them, and a changed memory is calibrated on them again.
        """
        model, embedded = load_model(Path(path), weights)
        detector = cls(model.config, device=device)
        detector._reader = Reader(find_extractor(Path(path), model, embedded, detector.device), model.config)
        detector.model = replace(model, memory=model.memory.to(detector.device))
        detector.sources.folder = None if training is None else Path(training)
        detector._embeds_backbone = bool(embedded)
        return detector

    @classmethod
    def from_pretrained(
        cls,
        repo: str,
        filename: str | None = None,
        *,
        revision: str | None = None,
        token: str | None = None,
        weights: str | Path | None = None,
        device: str = "auto",
    ) -> Self:
        """Load a ``.procon`` file from the Hugging Face hub; ``filename`` is needed where ``repo`` has several."""
        return cls.load(hub.download(repo, filename, revision, token), weights=weights, device=device)

    def push_to_hub(
        self,
        repo: str,
        filename: str = "part.procon",
        *,
        private: bool = True,
        token: str | None = None,
        embed_backbone: bool | None = None,
    ) -> str:
        """Save as ``filename`` in ``repo`` on the Hugging Face hub, made if it is not there; returns its address.

        The file holds the names of the training images, and their thumbnails if there are any, so a new repository is
        private unless you say otherwise.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(Path(folder) / "part.procon", embed_backbone=embed_backbone)
            return hub.upload(path, repo, filename, private, token)
