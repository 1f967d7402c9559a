"""The method, top to bottom: fit builds a memory of normal patches, predict asks it to explain new ones."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.config import Config
from procon.errors import BatchError, ConfigError, ImageError, ModelFileError, NotFittedError
from procon.method.consensus import median, top_mean
from procon.method.cuda.graphs import Recorded
from procon.method.maps import pixel_map, resize_map
from procon.method.residual import fused_neighbors
from procon.method.score import fuse_layers, in_scope, layer_maps, read_patches, score_patches
from procon.model import file as model_file
from procon.model.calibration import Calibration
from procon.model.explanation import contributions, layer_evidence, peak_of
from procon.model.features import Extractor
from procon.model.history import Change
from procon.model.living import Gauge, LivingMemory, without_path
from procon.model.measuring import measured, needs_measuring
from procon.model.memory import FeatureStore, LayerMemory, Memory, build_layer, coreset_size, selectable
from procon.model.suspects import LIMIT, Suspect, find_outliers
from procon.model.training import Progress, TrainingImage, good_images
from procon.prediction import Explanation, Prediction, Region
from procon.results.regions import find_regions, peak_region
from procon.vision.backbone import Backbone, rebuild
from procon.vision.folders import inspection_images
from procon.vision.framing import frame_of, patch_at, patch_box
from procon.vision.images import ImageLike, Picture, as_list, in_order, is_batch, open_image
from procon.vision.scope import RoiLike, Scope, region_mask, scope_of


class Detector(LivingMemory):
    """Anomaly detector fitted on good images alone.

    ::

        detector = Detector(Config()).fit("parts/good")
        result = detector.predict("parts/new/0001.png")
        result.score, result.is_anomalous, result.heatmap
        detector.explain("parts/new/0001.png").normal_patches()

    What was fitted can be changed: ``calibrate``, ``set_threshold``, ``partial_fit``, ``forget`` and ``merge``.
    """

    def __init__(self, config: Config | None = None, *, device: str = "auto") -> None:
        """Store the settings; weights are looked for when they are first needed.

        ``device`` is ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        """
        self.config = config or Config()
        self.device = resolve_device(device)
        self.memory: Memory | None = None
        self.calibration: Calibration | None = None
        self.history: tuple[Change, ...] = ()
        self.training_folder: Path | None = None
        self._held: dict[str, ImageLike] = {}
        self._embeds_backbone = False
        self._extractor: Extractor | None = None
        self._recorded = Recorded(self._score)
        self._scopes: dict[tuple[int, int], tuple[NDArray[np.bool_] | None, Scope | None]] = {}

    @property
    def extractor(self) -> Extractor:
        """Backbone and projections; weights are found and loaded on first use."""
        if self._extractor is None:
            self._extractor = Extractor(Backbone.load(self.config, self.device), self.config)
        return self._extractor

    # ------------------------------------------------------------------------------------------------------- fit

    def fit(
        self,
        images: ImageLike | Iterable[ImageLike],
        *,
        progress: Progress | None = None,
        skip_bad: bool = False,
        thumbnails: bool = False,
        roi: RoiLike | None = None,
    ) -> "Detector":
        """Build the memory from good images: a folder (any layout ``procon check`` knows), or a list of images.

        Unreadable images raise :class:`BatchError` before any work; ``skip_bad`` leaves them out instead.
        ``thumbnails`` keeps a small copy of each, so that :meth:`explain` can show them when the folder is gone.
        ``roi`` says where the part is, in every image: a mask image, white on the part, or the corners (x, y) of a
        polygon (:func:`procon.vision.scope.region_mask`). What lies outside enters neither memory, score nor threshold.
        """
        report = progress or _silent
        items, training = good_images(images, report, skip_bad=skip_bad, thumbnails=thumbnails)
        mask = None if roi is None else region_mask(roi, (image.size for image in training), self.config.input_size)
        with self._embedded(items, training, mask, report) as store:
            if selectable(store) < self.config.num_neighbors:
                raise ConfigError(
                    f"num_neighbors must be at most the {selectable(store)} patches of the training images, "
                    f"got {self.config.num_neighbors}"
                )
            layers = tuple(self._select_anchors(store, report))
            memory = self._measured(Memory(layers, training, store.patches, mask), store, report)
            calibration = self._calibrate(memory, store, report)
        self._commit(memory, calibration)
        self.history, self._held = (), without_path(training, items)
        return self

    @contextmanager
    def _embedded(
        self,
        items: Sequence[ImageLike],
        images: Sequence[TrainingImage],
        roi: NDArray[np.bool_] | None,
        report: Progress,
    ) -> Iterator[FeatureStore]:
        """The embedded patches of ``items``, which ``images`` describe, while the block runs."""
        patches = self.config.grid[0] * self.config.grid[1]
        counted = self._counted(images, roi)
        with FeatureStore(len(items), patches, self.extractor.dims, counted=counted) as store:
            done = 0
            for group, pixels in self.extractor.batches(items):
                for picture in group:
                    if isinstance(picture, ImageError):  # readable a moment ago
                        raise picture
                store.put(done, self.extractor.features(pixels))
                done += len(group)
                report("reading images", done, len(items))
            yield store

    def _scope(self, size: tuple[int, int], roi: NDArray[np.bool_] | None) -> Scope | None:
        """The patches that count in an image of ``size`` (height, width).

        They are the same for all images unless these are padded; a line's cameras have few sizes, so those are kept.
        """
        key = size if self.config.aspect == "pad" else self.config.input_size
        known = self._scopes.get(key)
        if known is None or known[0] is not roi:
            if len(self._scopes) >= 64:
                self._scopes = {}
            known = self._scopes[key] = (roi, scope_of(self.config, roi, key, self.device))
        return known[1]

    def _counted(self, images: Sequence[TrainingImage], roi: NDArray[np.bool_] | None) -> Tensor | None:
        """The patches of all ``images`` that count, as rows of a store; None: all."""
        patches = self.config.grid[0] * self.config.grid[1]
        scopes = {image.size: self._scope(image.size, roi) for image in images}
        if all(scope is None for scope in scopes.values()):
            return None
        rows = [
            number * patches + (torch.arange(patches) if (scope := scopes[image.size]) is None else scope.rows.cpu())
            for number, image in enumerate(images)
        ]
        return torch.cat(rows)

    def _commit(self, memory: Memory, calibration: Calibration | None, change: Change | None = None) -> None:
        """Memory and threshold change together: never a new memory with an old threshold."""
        self._recorded = Recorded(self._score)
        self.memory, self.calibration = memory, calibration
        if calibration is not None:
            self.config = replace(self.config, false_alarm_rate=calibration.false_alarm_rate)
        if change is not None:
            self.history += (change,)

    def _select_anchors(self, store: FeatureStore, report: Progress) -> Iterator[LayerMemory]:
        """B seed-perturbed k-center banks per layer."""
        config = self.config
        for index, selection in enumerate(self.extractor.selections):
            size = coreset_size(selectable(store), config.coreset_ratio, config.num_neighbors, config.max_anchors)

            def picked(done: int, before: int = index * config.banks * size, size: int = size) -> None:
                report("selecting anchors", before + done, len(store) * config.banks * size)

            layer = build_layer(
                store, index, selection, size, config.bank_seeds, self.device, picked, coreset=config.coreset
            )
            yield layer.compressed(config.compression).to(self.device)

    def _measured(self, memory: Memory, store: FeatureStore, report: Progress) -> Memory:
        """The memory with what scoring needs to know of good images, from the training images scored as if new."""
        if not needs_measuring(self.config):
            return memory

        def read(number: int) -> tuple[list[Tensor], Scope | None]:
            return self._at(store, number), self._scope(memory.images[number].size, memory.roi)

        def heard(done: int) -> None:
            report("measuring good images", done, len(memory.images))

        return measured(memory, read, self.config, heard)

    def _calibrate(self, memory: Memory, store: FeatureStore, report: Progress) -> Calibration | None:
        """Score every training image against the memory without its own anchors, as if it were new."""

        def gauges() -> Iterator[Gauge]:
            for image in range(len(memory.images)):
                yield self._gauge(store.image(image), memory.images[image].size, memory, image)
                report("calibrating", image + 1, len(memory.images))

        return self._leave_one_out(memory, gauges(), self.config.false_alarm_rate)

    def _gauge(self, features: list[Tensor], size: tuple[int, int], memory: Memory, own: int | None) -> Gauge:
        """Score, largest pixel and median patch score of an image [1, P, D] per memory, without anchors of ``own``."""
        scope = self._scope(size, memory.roi)
        patches = [layer.to(self.device) for layer in features]
        found = read_patches(patches, memory, self.config, own, scope)
        score, peak = top_mean(found.image, self.config.top_ratio), self.input_maps(found.map, scope).max()
        return float(score), float(peak), float(median(found.scores[0], dim=0))

    def _at(self, store: FeatureStore, number: int) -> list[Tensor]:
        """The embedded patches [1, P, D] of image ``number`` on the device."""
        return [layer.to(self.device) for layer in store.image(number)]

    def suspects(self, *, limit: float = LIMIT, progress: Progress | None = None) -> list[Suspect]:
        """Every training image by how little the others explain it, worst first; those above ``limit`` are flagged.

        If some "good" images hide defects, look at these first (see :mod:`procon.model.suspects`). The images are
        read again from their paths.
        """
        memory, report, config = self._fitted(), progress or _silent, self.config
        count = len(memory.images)
        if count < 4:
            raise ConfigError(f"suspects can be told from at least 4 training images, got {count}")
        sources, scopes = self._sources(memory.images), [self._scope(one.size, memory.roi) for one in memory.images]
        with self._embedded(sources, memory.images, memory.roi, report) as store, torch.inference_mode():

            def read(number: int, hidden: frozenset[int]) -> Tensor:
                report("looking for suspects", number + 1, count)
                return score_patches(self._at(store, number), memory, config, hidden, scopes[number])[0]

            maps, excess, found = find_outliers(memory, read, config, limit)
        grids = [_everywhere(one, scope).view(config.grid) for one, scope in zip(maps, scopes, strict=True)]
        ranked = sorted(range(count), key=lambda number: -excess[number])
        return [
            Suspect(
                memory.images[number].name,
                number,
                float(top_mean(maps[number], config.top_ratio)),
                excess[number],
                number in found,
                patch_box(config, int(grids[number].argmax()), memory.images[number].size),
                grids[number].cpu().numpy(),
            )
            for number in ranked
        ]

    # ---------------------------------------------------------------------------------------------------- predict

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Any:
        """Score one image (gives a :class:`Prediction`), or a folder or list of images (gives a list of them).

        If some images cannot be used, :class:`BatchError` carries the predictions of the others.
        """
        self._fitted()
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
        self._fitted()
        for group, pixels in self.extractor.batches(images):
            opened = [picture for picture in group if isinstance(picture, Picture)]
            judged = iter(self._judge_all(opened, pixels) if opened else ())
            for picture in group:
                yield picture if isinstance(picture, ImageError) else next(judged)

    def _judge_all(self, pictures: list[Picture], pixels: Tensor) -> Iterator[Prediction]:
        """Predictions for pictures and their pixels [N, 3, H, W]; what follows the device is shared among threads."""
        found = (values.cpu() for values in self.read(pixels, pictures[0].size))
        readings = zip(pictures, *found, strict=True)
        if len(pictures) == 1:
            return (self.judge(*reading) for reading in readings)
        return in_order(lambda reading: self.judge(*reading), readings, self.extractor.workers, ahead=len(pictures))

    def score(self, pixels: Tensor, size: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """Preprocessed images [N, 3, H, W] to S_img [N] and pixel maps [N, H, W], both on the device.

        ``size`` (height, width) is that of the images before; it matters with ``aspect="pad"`` only.
        """
        scores, maps, _ = self.read(pixels, size or self.config.input_size)
        return scores, maps

    def read(self, pixels: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:
        """S_img [N], pixel maps [N, H, W] and median patch scores [N] of images [N, 3, H, W] that had one ``size``.

        On CUDA a single image runs as a recorded graph, as its cost is otherwise that of a few hundred launches, and
        so do groups for which :meth:`record` was asked.
        """
        pixels, scope = pixels.to(self.device), self._scope(size, self._fitted().roi)
        if len(pixels) == 1:
            self.record(1)
        found = self._recorded(pixels) if scope is None else None
        return self._score(pixels, scope) if found is None else found

    def record(self, count: int) -> None:
        """Record the work for groups of up to ``count`` images, where the device and the settings allow it."""
        if self._recordable():
            self._recorded.record(torch.zeros(count, 3, *self.config.input_size, device=self.device))

    def _recordable(self) -> bool:
        """Whether scoring never waits for the device: true of the fused kernels, not of the general search."""
        config = self.config
        if self.device.type != "cuda" or self._fitted().roi is not None or config.aspect == "pad":
            return False
        fused = fused_neighbors(self.extractor.dims[0], config.num_neighbors)
        plain = config.readout == "soft" and config.tau is None and config.tau_patches is None and config.tile is None
        return fused and plain and config.compression != "approximate" and config.score_relative_to == "nothing"

    @torch.inference_mode()
    def _score(self, pixels: Tensor, scope: Scope | None = None) -> tuple[Tensor, ...]:
        found = read_patches(self.extractor.features(pixels), self._fitted(), self.config, scope=scope)
        maps = self.input_maps(found.map, scope)
        return top_mean(found.image, self.config.top_ratio), maps, median(found.scores, dim=1)

    def input_maps(self, patch_scores: Tensor, scope: Scope | None = None) -> Tensor:
        """Patch scores [N, P] to pixels of the backbone's input [N, H, W]: bilinear, then blurred.

        Of the K patches in ``scope`` [N, K] likewise; beyond it they repeat their nearest, and pixels there are 0.
        """
        grid = _everywhere(patch_scores, scope).view(-1, *self.config.grid)
        maps = pixel_map(grid, self.config.input_size, self.config.blur_sigma)
        return maps if scope is None else maps * scope.pixels

    @torch.inference_mode()
    def judge(self, picture: Picture, image_score: Tensor, input_map: Tensor, middle: Tensor) -> Prediction:
        """What :meth:`read` found in one picture as a prediction: heat map at its size, verdict and regions."""
        score, typical = float(image_score), float(middle)
        heatmap = self._place(input_map, picture.size).cpu().numpy()
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

    def _place(self, input_map: Tensor, size: tuple[int, int]) -> Tensor:
        """The map of the backbone's input at the ``size`` (height, width) of the user's image.

        What a centre crop never looked at is 0; what lies in the padding is cut off.
        """
        (top, left), scaled = (frame := frame_of(self.config, size)).origin, frame.scaled
        height, width = input_map.shape
        if min(top, left) < 0 or (height, width) != scaled:
            whole = input_map.new_zeros(scaled)
            there = whole[max(top, 0) : top + height, max(left, 0) : left + width]
            there.copy_(input_map[max(-top, 0) :, max(-left, 0) :][: there.shape[0], : there.shape[1]])
            input_map = whole
        return resize_map(input_map.unsqueeze(0), size)[0]

    @torch.inference_mode()
    def explain(
        self,
        image: ImageLike,
        xy: tuple[float, float] | None = None,
        region: Region | tuple[int, int, int, int] | None = None,
    ) -> Explanation:
        """The normal patches that pixel ``xy`` of an image was compared with, by layer and bank, with their origin.

        With a ``region`` (or its box) the pixel is the peak of the heat map in it; with neither, the peak of the image.
        """
        memory, config, picture = self._fitted(), self.config, open_image(image)
        ((_, pixels),) = self.extractor.batches([picture])
        scope = self._scope(picture.size, memory.roi)
        features = in_scope(self.extractor.features(pixels), scope)
        maps = layer_maps(features, memory, config)
        scales = [layer.scale for layer in memory.layers]
        if xy is None:
            heatmap = self._place(self.input_maps(fuse_layers(maps, scales, config), scope)[0], picture.size)
            xy = peak_of(heatmap, region.box if isinstance(region, Region) else region)
        patch = patch_at(config, xy, picture.size)
        place = patch if scope is None else scope.place(patch)
        count = len(memory.layers)
        values = [float(fuse_layers(maps[:, i : i + 1], scales[i : i + 1], config)[0, place]) for i in range(count)]
        blocks = [config.layers] if config.layer_fusion == "concat" else [(block,) for block in config.layers]
        parts = contributions(values, config.layer_fusion)
        layers = tuple(
            layer_evidence(features[i][0], place, memory.layers[i], memory, config, blocks[i], parts[i])
            for i in range(count)
        )
        row, column = divmod(patch, config.grid[1])
        box = patch_box(config, patch, picture.size)
        return Explanation(picture.source, (int(xy[0]), int(xy[1])), (row, column), box, sum(parts), layers)

    # ------------------------------------------------------------------------------------------------- the model file

    def save(self, path: str | Path, *, embed_backbone: bool | None = None) -> Path:
        """Write one ``.procon`` file, atomically; with ``embed_backbone`` it carries the weights too.

        The default is what the model was loaded from: False for one just fitted.
        """
        memory, backbone = self._fitted(), self.extractor.backbone
        embed = self._embeds_backbone if embed_backbone is None else embed_backbone
        weights = backbone.state() if embed else {}
        contents = model_file.Contents(
            self.config, memory, self.calibration, self.history, backbone.identity(), weights
        )
        model_file.write(Path(path), contents)
        return Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        weights: str | Path | None = None,
        training: str | Path | None = None,
        device: str = "auto",
    ) -> "Detector":
        """Read a ``.procon`` file.

        ``weights`` says where the backbone's weights are if they have moved; they must be those the model was fitted
        with, and are recognised by their values, not their file. ``training`` says where the training images are if
        they have moved: evidence shows them, and a changed memory is calibrated on them again.
        """
        contents = model_file.read(Path(path))
        config = contents.config if weights is None else replace(contents.config, weights=str(weights))
        detector = cls(config, device=device)
        if contents.backbone and weights is None:
            backbone = rebuild(dict(contents.backbone), dict(contents.identity), config, detector.device)
        else:
            backbone = Backbone.load(config, detector.device, contents.identity["source"])
        if backbone.fingerprint != contents.identity["fingerprint"]:
            source, sha256 = contents.identity["source"], contents.identity["sha256"]
            raise ModelFileError(
                f"{path}: was fitted with other backbone weights ({source}, sha256 {sha256[:12]}...) than those found "
                f"({backbone.source}, {backbone.sha256[:12]}...); pass the original ones as weights"
            )
        detector._extractor = Extractor(backbone, config)
        dims = [layer.anchors.shape[1] for layer in contents.memory.layers]
        if dims != detector._extractor.dims:
            raise ModelFileError(
                f"{path}: its content does not fit together (anchors of {dims} dimensions, the settings call for "
                f"{detector._extractor.dims}); fit again"
            )
        detector._commit(contents.memory.to(detector.device), contents.calibration)
        detector.history = contents.history
        detector.training_folder = None if training is None else Path(training)
        detector._embeds_backbone = bool(contents.backbone)
        return detector

    def describe(self) -> list[str]:
        """The fitted detector in a few lines for people."""
        memory, config, known = self._fitted(), self.config, self.calibration
        anchors = sum(len(layer.anchors) for layer in memory.layers)
        tiles = f", in tiles of {config.tile}" if config.tile else ""
        region = "" if memory.roi is None else f", {memory.roi.mean():.0%} of each as region of interest"
        return [
            f"backbone {config.backbone} from {self.extractor.backbone.source}",
            f"fitted on {len(memory.images)} good images at {config.input_size[1]} x {config.input_size[0]} pixels"
            f"{tiles}{region}",
            f"{len(memory.layers)} layers x {config.banks} banks of {memory.layers[0].banks.shape[1]:,} anchors "
            f"({anchors:,} distinct)",
            *(known.describe(memory.names) if known else ["no threshold: fit on more images to get one"]),
        ]

    def _fitted(self) -> Memory:
        if self.memory is None:
            raise NotFittedError("this detector has no memory yet; call fit(images) or Detector.load(path) first")
        return self.memory


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU; anything else is taken at its word or refused."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device must be one this machine has, got {device!r}; use 'cpu' or 'auto'")
    return chosen


def _everywhere(patch_scores: Tensor, scope: Scope | None) -> Tensor:
    return patch_scores if scope is None else scope.everywhere(patch_scores)


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass
