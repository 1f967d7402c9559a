"""A fitted model that measures images and explains them, on one device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.config import Config
from procon.method.consensus import median, top_mean
from procon.method.cuda.graphs import Recorded
from procon.method.maps import resize_map
from procon.method.score import Reading, is_fused, score
from procon.model.calibration import Calibration
from procon.model.explanation import layer_evidence, peak_of
from procon.model.model import Model
from procon.model.reader import Reader, in_scope
from procon.model.verdict import Measurement, judge
from procon.prediction import Explanation, Region
from procon.vision.framing import patch_at, patch_box
from procon.vision.images import Picture
from procon.vision.scope import Scope


class ModelScorer:
    """The torch form of :class:`procon.model.verdict.Scorer`: a model, and a reader with its backbone."""

    def __init__(self, model: Model, reader: Reader) -> None:
        self.model, self.reader = model, reader
        self.config: Config = model.config
        self.calibration: Calibration | None = model.calibration
        self.group_size, self.workers = reader.extractor.group_size, reader.extractor.workers
        self._recorded = Recorded(self._measure)

    def prepare(self, picture: Picture) -> Tensor:
        """The picture as the input [3, H, W] of the backbone."""
        return self.reader.extractor.prepare(picture)

    def measure(self, inputs: Sequence[Tensor], size: tuple[int, int]) -> list[Measurement]:
        """Measure prepared images that had one ``size`` (height, width); it matters with ``aspect="pad"`` only."""
        return _measurements(self.measure_pixels(torch.stack(list(inputs)), size))

    def measure_pixels(self, pixels: Tensor, size: tuple[int, int] | None = None) -> tuple[Tensor, ...]:
        """S_img [N], pixel maps [N, H, W] and median patch scores [N] of inputs [N, 3, H, W], on the device.

        On CUDA a single image runs as a recorded graph, as its cost is otherwise that of a few hundred launches, and
        so do groups for which :meth:`record` was called.
        """
        scope = self.reader.scope(size or self.config.input_size, self.model.memory.roi)
        pixels = pixels.to(self.reader.device)
        if len(pixels) == 1:
            self.record(1)
        recorded = self._recorded(pixels) if scope is None else None
        return self._measure(pixels, scope) if recorded is None else recorded

    @torch.inference_mode()
    def _measure(self, pixels: Tensor, scope: Scope | None = None) -> tuple[Tensor, ...]:
        return self._summarize(self._read(pixels, scope), scope)

    def _read(self, pixels: Tensor, scope: Scope | None, *, neighbors: bool = False) -> Reading:
        features = in_scope(self.reader.extractor.features(pixels), scope)
        return score(features, self.model.memory, self.config, neighbors=neighbors)

    def _summarize(self, reading: Reading, scope: Scope | None) -> tuple[Tensor, ...]:
        maps = self.reader.input_maps(reading.heat, scope)
        return top_mean(reading.ranked, self.config.top_ratio), maps, median(reading.scores, dim=1)

    def record(self, count: int) -> None:
        """Record the work for groups of up to ``count`` images, where the device and the settings allow it."""
        config = self.config
        whole = self.model.memory.roi is None and config.aspect == "stretch" and config.tile is None
        fused = is_fused(self.reader.extractor.dims[0], config) and config.compression != "approximate"
        if self.reader.device.type == "cuda" and whole and fused:  # the general search waits for the device
            self._recorded.record(torch.zeros(count, 3, *config.input_size, device=self.reader.device))

    def resize_map(self, input_map: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
        """A map [h, w] at (height, width): bilinear, pixel centres aligned."""
        return resize_map(torch.from_numpy(input_map).unsqueeze(0), size)[0].numpy()

    @torch.inference_mode()
    def explain(
        self, picture: Picture, xy: tuple[float, float] | None, region: Region | tuple[int, int, int, int] | None
    ) -> Explanation:
        """The normal patches that a pixel of a picture was compared with, from one pass of backbone and search."""
        memory, config = self.model.memory, self.config
        scope = self.reader.scope(picture.size, memory.roi)
        reading = self._read(self.prepare(picture).unsqueeze(0), scope, neighbors=True)
        measured = _measurements(self._summarize(reading, scope))[0]
        prediction = judge(self, picture, measured)
        if xy is None:
            xy = peak_of(prediction.heatmap, region.box if isinstance(region, Region) else region)
        patch = patch_at(config, xy, picture.size)
        layers = tuple(layer_evidence(reading, patch if scope is None else scope.place(patch), memory, config))
        return Explanation(
            picture.source,
            (int(xy[0]), int(xy[1])),
            divmod(patch, config.grid[1]),
            patch_box(config, patch, picture.size),
            sum(layer.contribution for layer in layers),
            layers,
            prediction,
        )


def _measurements(parts: Sequence[Tensor]) -> list[Measurement]:
    """Scores [N], maps [N, H, W] and medians [N] image by image, on the CPU."""
    rows = zip(*(part.cpu() for part in parts), strict=True)
    return [Measurement(float(score), input_map.numpy(), float(middle)) for score, input_map, middle in rows]
