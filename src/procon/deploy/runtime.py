"""Score images with an exported model: the same predictions as :class:`procon.Detector`, without torch."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from procon.arrays import Floats
from procon.config import Config
from procon.deploy.manifest import ExportedCalibration, is_exported, read_manifest
from procon.deploy.sessions import open_session
from procon.errors import ImageError, ModelFileError
from procon.model.verdict import Measurement, Predictor, predict_each, predict_images
from procon.prediction import Prediction
from procon.vision.framing import to_input
from procon.vision.images import WORKERS, ImageLike, Picture


class Runtime:
    """An exported model.

    ::

        runtime = Runtime("part-onnx")
        result = runtime.predict("parts/new/0001.png")
        result.score, result.is_anomalous, result.heatmap
    """

    group_size = 1
    workers = WORKERS

    def __init__(self, folder: str | Path, *, device: str = "auto", threads: int | None = None) -> None:
        """Check the checksums of the folder and load the model.

        ``device`` is ``auto`` (the processor), ``cpu``, or one that the runtime knows (``cuda`` for onnxruntime,
        ``gpu`` for openvino). ``threads`` limits the cores; None takes all.
        """
        self.manifest = read_manifest(Path(folder))
        self._session = open_session(self.manifest.model, self.manifest.runtime, device=device, threads=threads)

    @property
    def config(self) -> Config:
        """The settings it was fitted with."""
        return self.manifest.config

    @property
    def calibration(self) -> ExportedCalibration | None:
        """The threshold that was exported with the model."""
        return self.manifest.calibration

    @property
    def scorer(self) -> "Runtime":
        """What measures images: this runtime."""
        return self

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        return self.manifest.describe()

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Any:
        """Score one image (gives a :class:`Prediction`), or a folder or list of images (gives a list of them).

        If some images cannot be used, :class:`BatchError` carries the predictions of the others.
        """
        return predict_images(self, images)

    def predict_each(self, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
        """Predictions one by one, in order; an image that cannot be used yields its error and the rest goes on."""
        return predict_each(self, images)

    def prepare(self, picture: Picture) -> Floats:
        """The picture as the input [3, H, W] of the model."""
        return to_input(picture, self.config)

    def measure(self, inputs: Sequence[Any], size: tuple[int, int] | None = None) -> list[Measurement]:
        """Measure prepared images [3, H, W]; their ``size`` does not matter, as padded models are not exported."""
        scores, maps, medians = self.measure_pixels(np.stack(inputs))
        return [Measurement(float(s), m, float(d)) for s, m, d in zip(scores, maps, medians, strict=True)]

    def measure_pixels(self, pixels: Floats) -> tuple[Floats, Floats, Floats]:
        """Image scores [N], pixel maps [N, H, W] and median patch scores [N] of images [N, 3, H, W]."""
        outputs = self._session(np.ascontiguousarray(pixels, np.float32))
        patches, counted = outputs["patches"].reshape(len(pixels), -1), self.manifest.entries.get("counted")
        medians = np.median(patches if counted is None else patches[:, counted], axis=1)
        return outputs["score"], outputs["map"], np.asarray(medians, np.float32)


def load_any(
    path: str | Path, *, weights: str | Path | None = None, device: str = "auto", threads: int | None = None
) -> Predictor:
    """A ``.procon`` file (needs torch) or an exported folder (does not), ready to predict.

    ``weights`` says where the backbone of a ``.procon`` file is; an exported folder contains its own.
    """
    path = Path(path)
    if path.is_dir():
        if weights is not None and is_exported(path):
            raise ModelFileError(f"{path}: an exported model carries its backbone; leave out the weights")
        return Runtime(path, device=device, threads=threads)
    try:
        from procon.detector import Detector
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "transformers", "safetensors"):
            raise
        raise ModelFileError(
            f"{path}: a .procon file needs {error.name}, which is not installed here; where torch is, make a "
            f"folder that does without: procon export {path.name} --to onnx -o {path.stem}"
        ) from None
    return Detector.load(path, weights=weights, device=device)
