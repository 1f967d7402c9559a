"""A fitted model that measures images, and names the normal patches behind a score, on one device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from procon.arrays import Box, Floats
from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import median, top_mean
from procon.method.cuda.graphs import Recorded
from procon.method.lessons import LessonReading
from procon.method.regions import Region
from procon.method.score import LayerReading, Reading, fuse_layers, is_fused, neighbors_of, score_patches
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.model.reader import Reader, in_scope
from procon.model.verdict import Measurement, make_prediction
from procon.prediction import Anchor, Explanation, LayerEvidence, LessonEvidence
from procon.vision.framing import patch_at, patch_box
from procon.vision.images import Picture
from procon.vision.scope import Scope


class ModelScorer:
    """The torch form of :class:`procon.model.verdict.Scorer`: a model, and a reader with its backbone."""

    def __init__(self, model: Model, reader: Reader) -> None:
        self.model, self.reader = model, reader
        self.config, self.calibration = model.config, model.calibration
        self.group_size, self.workers = reader.extractor.group_size, reader.extractor.workers
        self._recorded = Recorded(self._measure)

    def prepare(self, picture: Picture) -> Tensor:
        """What :meth:`measure` takes: the input [3, H, W] of the backbone, or bytes that a GPU resizes."""
        return self.reader.extractor.prepare_group(picture)

    def measure(self, inputs: Sequence[Tensor], size: tuple[int, int]) -> list[Measurement]:
        """Measure prepared images that had one ``size`` (height, width); it matters with ``aspect="pad"`` only."""
        return _measurements(self.measure_pixels(self.reader.extractor.stack(inputs), size))

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
        return self._summarize(self._score_pixels(pixels, scope), scope)

    def _score_pixels(self, pixels: Tensor, scope: Scope | None) -> Reading:
        features = in_scope(self.reader.extractor.features(pixels), scope)
        return score_patches(features, self.model.memory, self.config, marked=self.model.marked)

    def _summarize(self, reading: Reading, scope: Scope | None) -> tuple[Tensor, ...]:
        maps = self.reader.input_maps(reading.heat, scope)
        return top_mean(reading.ranked, self.config.top_ratio), maps, median(reading.scores, dim=1)

    def record(self, count: int) -> None:
        """Record the work for groups of up to ``count`` images, where the device and the settings allow it."""
        config = self.config
        complete = self.model.memory.roi is None and config.aspect == "stretch" and config.tile is None
        fused = is_fused(self.reader.extractor.dims[0], neighbors_of(config)) and config.compression != "approximate"
        fused = fused and config.normalization == "none" and not self.model.lessons
        if self.reader.device.type == "cuda" and complete and fused:  # everything else waits for the device
            self._recorded.record(torch.zeros(count, 3, *config.input_size, device=self.reader.device))

    @torch.inference_mode()
    def explain(self, picture: Picture, xy: tuple[float, float] | None, region: Region | Box | None) -> Explanation:
        """The normal patches that a pixel of a picture was compared with, from one pass of backbone and search."""
        memory, config = self.model.memory, self.config
        scope = self.reader.scope(picture.size, memory.roi)
        reading = self._score_pixels(self.reader.extractor.prepare(picture).unsqueeze(0), scope)
        measured = _measurements(self._summarize(reading, scope))[0]
        prediction = make_prediction(self, picture, measured)
        if xy is None:
            xy = peak_of(prediction.heatmap, region.box if isinstance(region, Region) else region)
        patch = patch_at(config, xy, picture.size)
        place = patch if scope is None else scope.place(patch)
        layers = tuple(layer_evidence(reading, place, memory, config))
        return Explanation(
            picture.source,
            (int(xy[0]), int(xy[1])),
            divmod(patch, config.grid[1]),
            patch_box(config, patch, picture.size),
            sum(layer.contribution for layer in layers),
            layers,
            prediction,
            lesson_evidence(reading.lessons, place, self.model),
        )


def _measurements(parts: Sequence[Tensor]) -> list[Measurement]:
    """Scores [N], maps [N, H, W] and medians [N] image by image, on the CPU."""
    scores, maps, middles = (part.cpu().numpy() for part in parts)
    # A map of its own for each image: a result that is kept must not keep those of its group.
    rows = zip(scores.tolist(), maps if len(maps) == 1 else map(np.copy, maps), middles.tolist(), strict=True)
    return [Measurement(*row) for row in rows]


def layer_evidence(reading: Reading, place: int, memory: Memory, config: Config) -> list[LayerEvidence]:
    """What every layer says about the patch at ``place`` of the one image behind ``reading``."""
    scales = [layer.scale for layer in memory.layers]
    count = len(memory.layers)
    values = [float(fuse_layers(reading.maps[:, i : i + 1], scales[i : i + 1], config)[0, place]) for i in range(count)]
    parts = contributions(values, config.layer_fusion)
    blocks = [config.layers] if config.layer_fusion == "concat" else [(block,) for block in config.layers]
    evidence = []
    for layer, stored, block, part in zip(reading.layers, memory.layers, blocks, parts, strict=True):
        residuals = layer.residuals[0, :, place]
        anchors = tuple(_anchors(layer, place, stored, memory, config))
        evidence.append(LayerEvidence(block, float(median(residuals, dim=0)), tuple(residuals.tolist()), part, anchors))
    return evidence


def lesson_evidence(reading: LessonReading | None, place: int, model: Model) -> LessonEvidence | None:
    """The defect anchor that raised the score of the patch at ``place`` of the one image, if one did."""
    if reading is None or float(reading.gain[0, place]) == 1:
        return None
    row = int(reading.rows[0, place])
    for lesson in model.lessons:
        if row < len(lesson.patches):
            box = patch_box(model.config, lesson.patches[row], lesson.image.size)
            values = (float(part[0, place]) for part in (reading.defect, reading.normal, reading.gain))
            return LessonEvidence(lesson.name, lesson.image.name, box, *values)
        row -= len(lesson.patches)
    raise AssertionError("a defect anchor belongs to a lesson")


def _anchors(layer: LayerReading, place: int, stored: LayerMemory, memory: Memory, config: Config) -> list[Anchor]:
    """The nearest anchors of every bank, by bank, nearest first."""
    rows, weights, distances = (part[0, :, place] for part in (layer.rows, layer.weights, layer.distances.sqrt()))
    anchors = []
    for bank in range(len(rows)):
        for row, weight, distance in zip(rows[bank], weights[bank], distances[bank], strict=True):
            number, patch = divmod(int(stored.origin[row]), memory.patches)
            image = memory.images[number]
            box = patch_box(config, patch, image.size)
            anchors.append(Anchor(image.name, number, box, bank + 1, float(weight), float(distance)))
    return anchors


def contributions(values: Sequence[float], fusion: str) -> list[float]:
    """What each layer's value adds to the fused one; the parts sum to it."""
    count = len(values)
    if fusion not in ("median", "max"):
        return [value / count for value in values]
    order = sorted(range(count), key=lambda index: values[index])
    chosen = {order[-1]} if fusion == "max" else {order[(count - 1) // 2], order[count // 2]}
    return [values[index] / len(chosen) if index in chosen else 0.0 for index in range(count)]


def peak_of(heatmap: Floats, box: Box | None = None) -> tuple[int, int]:
    """(x, y) of the largest value of a heat map [H, W], in ``box`` if one is given."""
    left, top, right, bottom = box or (0, 0, heatmap.shape[1], heatmap.shape[0])
    inside = heatmap[max(top, 0) : bottom, max(left, 0) : right]
    if not inside.size:
        raise ConfigError(f"region must overlap the image of {heatmap.shape[1]} x {heatmap.shape[0]} pixels, got {box}")
    row, column = np.unravel_index(inside.argmax(), inside.shape)
    return max(left, 0) + int(column), max(top, 0) + int(row)
