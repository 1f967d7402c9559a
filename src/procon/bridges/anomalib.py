"""ProCon as a model of anomalib: its Engine, data modules and command line use our detector.

::

    from anomalib.data import Folder
    from anomalib.engine import Engine
    from procon.bridges.anomalib import Procon

    Engine().fit(Procon({"backbone": "dinov2-small"}), datamodule=Folder(name="part", root="part", normal_dir="good"))

On the command line it is ``--model procon.bridges.anomalib.Procon``. Scores and maps equal those of ``Detector`` on the
same pixels: images have the size at which anomalib decoded them, and the detector scales them. Maps have the size of
the image. A checkpoint holds the model file.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from anomalib import LearningType
from anomalib.data import InferenceBatch
from anomalib.models.components import AnomalibModule, MemoryBankMixin
from anomalib.pre_processing import PreProcessor
from torch import Tensor, nn

from procon.config import Config
from procon.detector import Detector


class ProconModel(nn.Module):
    """A detector as a torch module: in training it collects images, afterwards it scores images."""

    def __init__(self, config: Config, device: str = "auto") -> None:
        super().__init__()
        self.detector = Detector(config, device=device)
        self._seen: list[Tensor] = []

    def forward(self, images: Tensor) -> InferenceBatch | None:
        """Images [N, 3, H, W] in 0..1 to scores [N] and maps [N, 1, H, W]; in training they are stored for the fit."""
        pixels = (images * 255).round().to(torch.uint8).cpu()  # 8 bits per channel, as decoded
        if self.training:
            self._seen.extend(pixels)
            return None
        predictions = self.detector.predict(list(pixels))
        scores = torch.tensor([prediction.score for prediction in predictions], device=images.device)
        maps = torch.stack([torch.from_numpy(prediction.heatmap) for prediction in predictions])
        maps = maps.unsqueeze(1).to(images.device)
        return InferenceBatch(pred_score=scores, anomaly_map=maps)

    def fit(self) -> None:
        """Build the memory from the images seen in training."""
        self.detector.fit(self._seen)
        self._seen = []

    def get_extra_state(self) -> Tensor:
        """The model file as bytes, uint8; empty before the fit."""
        if self.detector.memory is None:
            return torch.empty(0, dtype=torch.uint8)
        with tempfile.TemporaryDirectory() as folder:
            stored = self.detector.save(Path(folder) / "part.procon").read_bytes()
        return torch.frombuffer(bytearray(stored), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """The inverse of :meth:`get_extra_state`."""
        if not len(state):
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.procon"
            path.write_bytes(state.cpu().numpy().tobytes())
            self.detector = Detector.load(path, device=str(self.detector.device))


class Procon(MemoryBankMixin, AnomalibModule):  # type: ignore[misc]  # anomalib has a separate environment
    """The detector as a Lightning module. ``settings`` are those of :class:`procon.Config`, by name."""

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        pre_processor: nn.Module | bool = True,
        post_processor: nn.Module | bool = True,
        evaluator: Any = True,
        visualizer: Any = True,
    ) -> None:
        super().__init__(
            pre_processor=pre_processor, post_processor=post_processor, evaluator=evaluator, visualizer=visualizer
        )
        self.model = ProconModel(Config.from_dict(settings or {}), device)

    @classmethod
    def configure_pre_processor(cls, image_size: tuple[int, int] | None = None) -> PreProcessor:
        """No transform: the detector scales and normalises, and maps then have the size of the image."""
        if image_size is not None:
            raise ValueError(f"image_size is a setting of the detector: settings={{'image_size': {image_size}}}")
        return PreProcessor(transform=None)

    @staticmethod
    def configure_optimizers() -> None:
        """Nothing is trained."""

    def training_step(self, batch: Any, *_arguments: Any, **_named: Any) -> Tensor:
        """Store the images of a batch."""
        self.model(batch.image)
        return torch.tensor(0.0, requires_grad=True, device=self.device)

    def fit(self) -> None:
        """Called by Lightning once all batches were seen."""
        self.model.fit()

    def validation_step(self, batch: Any, *_arguments: Any, **_named: Any) -> Any:
        """Score the images of a batch."""
        return batch.update(**self.model(batch.image)._asdict())

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """One pass over the images."""
        return {"max_epochs": 1, "num_sanity_val_steps": 0, "gradient_clip_val": 0, "devices": 1}

    @property
    def learning_type(self) -> LearningType:
        """Only good images are needed."""
        return LearningType.ONE_CLASS
