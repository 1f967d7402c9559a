"""Score images with an exported model: the same predictions as :class:`procon.Detector`, without torch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from procon.config import Config
from procon.deploy.manifest import Threshold, is_exported, read_manifest
from procon.deploy.numeric import find_regions, peak_region, resize_map
from procon.deploy.sessions import Session, open_session
from procon.errors import BatchError, ImageError, ModelFileError
from procon.prediction import Prediction
from procon.vision.folders import inspection_images
from procon.vision.images import ImageLike, Picture, as_list, crop_origin, is_batch, open_each, to_input

Floats = NDArray[np.float32]


class Judge(Protocol):
    """What a threshold is asked, whether it is a :class:`Threshold` or a ``procon.model.calibration.Calibration``."""

    @property
    def threshold(self) -> float:
        """Image score above which a part is called anomalous."""

    @property
    def pixel_threshold(self) -> float:
        """Heat-map value above which a pixel belongs to a region."""

    @property
    def typical(self) -> float:
        """Median patch score of good images."""

    def p_value(self, score: float) -> float:
        """Share of good images at least as strange."""

    def describe(self) -> list[str]:
        """What the threshold can promise."""


class Scorer(Protocol):
    """What scores images: a :class:`Runtime` or a ``procon.Detector``."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def calibration(self) -> Judge | None:
        """The threshold, if there is one."""

    def describe(self) -> list[str]:
        """The model in a few lines for people."""

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Any:
        """One image in, one prediction out; several in, a list out."""

    def predict_each(self, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
        """Predictions one by one."""


class Runtime:
    """An exported model.

    ::

        runtime = Runtime("part-onnx")
        result = runtime.predict("parts/new/0001.png")
        result.score, result.is_anomalous, result.heatmap
    """

    def __init__(self, folder: str | Path, *, device: str = "auto", threads: int | None = None) -> None:
        """Check the checksums of the folder and load the model.

        ``device`` is ``auto`` (the processor), ``cpu``, or one that the runtime knows (``cuda`` for onnxruntime,
        ``gpu`` for openvino). ``threads`` limits the cores; None takes all.
        """
        self.manifest = read_manifest(Path(folder))
        self._session: Session = open_session(
            self.manifest.model, self.manifest.runtime, device=device, threads=threads
        )

    @property
    def config(self) -> Config:
        """The settings it was fitted with."""
        return self.manifest.config

    @property
    def calibration(self) -> Threshold | None:
        """The threshold that travels with the model."""
        return self.manifest.calibration

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        return self.manifest.describe()

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Any:
        """Score one image (gives a :class:`Prediction`), or a folder or list of images (gives a list of them).

        If some images cannot be used, :class:`BatchError` carries the predictions of the others.
        """
        several = is_batch(images)
        if several and isinstance(images, str | Path):
            items: list[ImageLike] = list(inspection_images(Path(images)))
        else:
            items = as_list(images)
        results = list(self.predict_each(items))
        errors = {index: result for index, result in enumerate(results) if isinstance(result, ImageError)}
        if errors and several:
            raise BatchError(errors, [None if index in errors else result for index, result in enumerate(results)])
        if errors:
            raise errors[0]
        return results if several else results[0]

    def predict_each(self, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
        """Predictions one by one, in order; an image that cannot be used yields its error and the rest goes on."""
        for picture in open_each(images):
            if isinstance(picture, ImageError):
                yield picture
                continue
            (score,), (input_map,), (middle,) = self.read(self.prepare(picture)[None])
            yield self.judge(picture, float(score), input_map, float(middle))

    def score(self, pixels: Floats) -> tuple[Floats, Floats]:
        """Preprocessed images [N, 3, H, W] float32 to image scores [N] and pixel maps [N, H, W]."""
        scores, maps, _ = self.read(pixels)
        return scores, maps

    def prepare(self, picture: Picture) -> Floats:
        """The picture as the input [3, H, W] of the model."""
        return to_input(picture, self.config.input_size, self.config.resize)

    def read(self, pixels: Floats) -> tuple[Floats, Floats, Floats]:
        """Image scores [N], pixel maps [N, H, W] and median patch scores [N] of images [N, 3, H, W]."""
        found = self._session(np.ascontiguousarray(pixels, np.float32))
        patches, counted = found["patches"].reshape(len(pixels), -1), self.manifest.entries.get("counted")
        middles = np.median(patches if counted is None else patches[:, counted], axis=1)
        return found["score"], found["map"], np.asarray(middles, np.float32)

    def judge(self, picture: Picture, score: float, input_map: Floats, typical: float) -> Prediction:
        """Heat map, verdict and regions of a picture from what :meth:`read` says about it."""
        heatmap = self._place(input_map, picture.size)
        known = self.calibration
        if known is None:
            return Prediction(score, heatmap, None, None, None, (), picture.source, None, typical)
        verdict = score > known.threshold
        regions = find_regions(heatmap, known.pixel_threshold)
        if verdict and not regions:
            regions = peak_region(heatmap, known.typical)
        return Prediction(
            score,
            heatmap,
            verdict,
            known.threshold,
            known.p_value(score),
            regions,
            picture.source,
            known.pixel_threshold,
            typical,
        )

    def _place(self, input_map: Floats, size: tuple[int, int]) -> Floats:
        """The map of the backbone's input at the ``size`` of the image; what a centre crop cut off is 0."""
        if self.config.resize is not None:
            top, left = crop_origin(self.config.input_size, self.config.resize)
            whole = np.zeros((self.config.resize, self.config.resize), np.float32)
            whole[top : top + input_map.shape[0], left : left + input_map.shape[1]] = input_map
            input_map = whole
        return resize_map(input_map, size)


def load_any(
    path: str | Path, *, weights: str | Path | None = None, device: str = "auto", threads: int | None = None
) -> Scorer:
    """A ``.procon`` file (needs torch) or an exported folder (does not), ready to predict.

    ``weights`` says where the backbone of a ``.procon`` file is; an exported folder carries its own.
    """
    place = Path(path)
    if not place.is_dir():
        try:
            from procon.detector import Detector
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("torch", "transformers", "safetensors"):
                raise
            raise ModelFileError(
                f"{place}: a .procon file needs {error.name}, which is not installed here; where torch is, make a "
                f"folder that does without: procon export {place.name} --to onnx -o {place.stem}"
            ) from None
        return Detector.load(place, weights=weights, device=device)
    if weights is not None and is_exported(place):
        raise ModelFileError(f"{place}: an exported model carries its backbone; leave out the weights")
    return Runtime(place, device=device, threads=threads)
