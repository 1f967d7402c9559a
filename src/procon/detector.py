"""The method, top to bottom: fit builds a memory of normal patches, predict asks it to explain new ones."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from procon import storage
from procon.backbone import Backbone, rebuild
from procon.calibration import Calibration
from procon.config import Config
from procon.errors import BatchError, ConfigError, ImageError, ModelFileError, NotFittedError
from procon.features import Extractor
from procon.folders import inspection_images, training_images
from procon.images import ImageLike, Picture, as_list, crop_origin, is_batch, open_each
from procon.kernels.consensus import bank_consensus, layer_consensus, median, robust_normalize, top_mean
from procon.kernels.cuda_graph import capture
from procon.kernels.maps import pixel_map, resize_map
from procon.kernels.scoring import bank_distances, fused_neighbors, image_residuals
from procon.memory import FeatureStore, LayerMemory, Memory, build_layer, coreset_size
from procon.prediction import Prediction
from procon.regions import find_regions

Progress = Callable[[str, int, int], None]
"""Hears (stage, done, total) while long work runs."""


class Detector:
    """Anomaly detector fitted on good images alone.

    ::

        detector = Detector(Config()).fit("parts/good")
        result = detector.predict("parts/new/0001.png")
        result.score, result.is_anomalous, result.heatmap
    """

    def __init__(self, config: Config | None = None, *, device: str = "auto") -> None:
        """Store the settings; weights are looked for when they are first needed.

        ``device`` is ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        """
        self.config = config or Config()
        self.device = resolve_device(device)
        self.memory: Memory | None = None
        self.calibration: Calibration | None = None
        self._extractor: Extractor | None = None
        self._recorded: Callable[[Tensor], tuple[Tensor, ...]] | None = None

    @property
    def extractor(self) -> Extractor:
        """Backbone and projections; weights are found and loaded on first use."""
        if self._extractor is None:
            self._extractor = Extractor(Backbone.load(self.config, self.device), self.config)
        return self._extractor

    # ------------------------------------------------------------------------------------------------------- fit

    def fit(
        self, images: ImageLike | Iterable[ImageLike], *, progress: Progress | None = None, skip_bad: bool = False
    ) -> "Detector":
        """Build the memory from good images: a folder (any layout ``procon check`` knows), or a list of images.

        Unreadable images raise :class:`BatchError` before any work; ``skip_bad`` leaves them out instead.
        """
        report = progress or _silent
        items = _good_images(images, report, skip_bad)
        patches = self.config.grid[0] * self.config.grid[1]
        if len(items) * patches < self.config.num_neighbors:
            raise ConfigError(
                f"num_neighbors must be at most the {len(items) * patches} patches of the training images, "
                f"got {self.config.num_neighbors}"
            )
        with FeatureStore(len(items), patches, self.extractor.dims) as store:
            done = 0
            for group, pixels in self.extractor.batches(open_each(items)):
                for picture in group:
                    if isinstance(picture, ImageError):  # readable a moment ago
                        raise picture
                store.put(done, self.extractor.features(pixels))
                done += len(group)
                report("reading images", done, len(items))
            layers = tuple(self._select_anchors(store, report))
            memory = Memory(layers, tuple(_name(item, index) for index, item in enumerate(items)), patches)
            if self.config.normalization == "train":
                memory = self._scaled(memory, store)
            calibration = self._calibrate(memory, store, report)
        self._recorded = None
        self.memory, self.calibration = memory, calibration  # together: never a new memory with an old threshold
        return self

    def _select_anchors(self, store: FeatureStore, report: Progress) -> Iterator[LayerMemory]:
        """B seed-perturbed k-center banks per layer."""
        config = self.config
        for index, selection in enumerate(self.extractor.selections):
            size = coreset_size(store.rows, config.coreset_ratio, config.num_neighbors, config.max_anchors)

            def picked(done: int, before: int = index * config.banks * size, size: int = size) -> None:
                report("selecting anchors", before + done, len(store) * config.banks * size)

            layer = build_layer(
                store, index, selection, size, config.bank_seeds, self.device, picked, coreset=config.coreset
            )
            yield layer.compressed(config.compression).to(self.device)

    def _scaled(self, memory: Memory, store: FeatureStore) -> Memory:
        """The memory with the mean and deviation of each layer's map, from training images scored as if new."""
        if any(memory.fewest_without(image) < self.config.num_neighbors for image in range(len(memory.images))):
            raise ConfigError(
                "normalization='train' needs more training images: each is scored without its own anchors"
            )
        images = range(len(memory.images))
        maps = (layer_maps([f.to(self.device) for f in store.image(i)], memory, self.config, i) for i in images)
        scaled = zip(memory.layers, layer_scales(maps), strict=True)
        return replace(memory, layers=tuple(replace(layer, scale=scale) for layer, scale in scaled))

    def _calibrate(self, memory: Memory, store: FeatureStore, report: Progress) -> Calibration | None:
        """Score every training image against the memory without its own anchors, as if it were new."""
        scores, peaks, typical = [], [], []
        for image in range(len(memory.images)):
            if memory.fewest_without(image) < self.config.num_neighbors:
                return None  # too few other images to stand in: no honest threshold exists
            features = [layer.to(self.device) for layer in store.image(image)]
            patch_scores = score_patches(features, memory, self.config, without=image)
            scores.append(float(top_mean(patch_scores, self.config.top_ratio)))
            peaks.append(float(self.input_maps(patch_scores).max()))
            typical.append(float(median(patch_scores[0], dim=0)))
            report("calibrating", image + 1, len(memory.images))
        middle = float(median(torch.tensor(typical, dtype=torch.float64), dim=0))
        return Calibration(tuple(sorted(scores)), tuple(sorted(peaks)), middle, self.config.false_alarm_rate)

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
        for group, pixels in self.extractor.batches(open_each(images)):
            scored = zip(*self.score(pixels), strict=True) if len(pixels) else iter(())
            for picture in group:
                yield picture if isinstance(picture, ImageError) else self._judge(picture, *next(scored))

    def score(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Preprocessed images [N, 3, H, W] to S_img [N] and pixel maps [N, H, W], both on the device.

        On CUDA a single image runs as a recorded graph: its cost is otherwise that of a few hundred launches.
        """
        pixels = pixels.to(self.device)
        if self.device.type != "cuda" or len(pixels) != 1 or not self._recordable():
            return self._score(pixels)
        if self._recorded is None:
            self._recorded = capture(self._score, pixels)
        scores, maps = self._recorded(pixels)
        return scores, maps

    def _recordable(self) -> bool:
        """Whether scoring never waits for the device: true of the fused kernels, not of the general search."""
        config = self.config
        fused = fused_neighbors(self.extractor.dims[0], config.num_neighbors)
        plain = config.readout == "soft" and config.tau is None and config.tau_patches is None
        return fused and plain and config.compression != "approximate"

    @torch.inference_mode()
    def _score(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        patch_scores = score_patches(self.extractor.features(pixels), self._fitted(), self.config)
        return top_mean(patch_scores, self.config.top_ratio), self.input_maps(patch_scores)

    def input_maps(self, patch_scores: Tensor) -> Tensor:
        """Patch scores [N, P] to pixels of the backbone's input [N, H, W]: bilinear, then blurred."""
        grid = patch_scores.view(-1, *self.config.grid)
        return pixel_map(grid, self.config.input_size, self.config.blur_sigma)

    def _judge(self, picture: Picture, image_score: Tensor, input_map: Tensor) -> Prediction:
        score = float(image_score)
        heatmap = self._place(input_map, picture.size).cpu().numpy()
        known = self.calibration
        if known is None:
            return Prediction(score, heatmap, None, None, None, (), picture.source)
        regions = find_regions(heatmap, known.pixel_threshold)
        verdict = score > known.threshold
        return Prediction(score, heatmap, verdict, known.threshold, known.p_value(score), regions, picture.source)

    def _place(self, input_map: Tensor, size: tuple[int, int]) -> Tensor:
        """The map of the backbone's input at the ``size`` (height, width) of the user's image.

        With a centre crop, what was never looked at is 0.
        """
        if self.config.resize is not None:
            top, left = crop_origin(self.config.input_size, self.config.resize)
            whole = input_map.new_zeros(self.config.resize, self.config.resize)
            whole[top : top + input_map.shape[0], left : left + input_map.shape[1]] = input_map
            input_map = whole
        return resize_map(input_map.unsqueeze(0), size)[0]

    # ------------------------------------------------------------------------------------------------- the model file

    def save(self, path: str | Path, *, embed_backbone: bool = False) -> Path:
        """Write one ``.procon`` file, atomically; with ``embed_backbone`` it carries the weights too."""
        memory, backbone = self._fitted(), self.extractor.backbone
        tensors = memory.to_tensors()
        if embed_backbone:
            tensors |= {f"backbone.{name}": tensor for name, tensor in backbone.state().items()}
        metadata = {
            "config": self.config.to_dict(),
            "backbone": {**backbone.identity(), "embedded": embed_backbone},
            "images": list(memory.images),
            "patches": memory.patches,
            "calibration": vars(self.calibration) if self.calibration else None,
        }
        storage.write_model(Path(path), tensors, metadata)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, *, weights: str | Path | None = None, device: str = "auto") -> "Detector":
        """Read a ``.procon`` file. ``weights`` says where the backbone's weights are if they have moved.

        The weights must be those the model was fitted with; they are recognised by their values, not their file.
        """
        tensors, metadata = storage.read_model(Path(path))
        try:
            config = Config.from_dict(metadata["config"])
            memory = Memory.from_tensors(
                tensors, tuple(metadata["images"]), int(metadata["patches"]), config.compression
            )
            known = metadata["calibration"]
            identity = metadata["backbone"]
            calibration = known and Calibration(**{**known, **{k: tuple(known[k]) for k in ("scores", "peaks")}})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelFileError(f"{path}: its content does not fit together ({error}); fit again") from None
        if weights is not None:
            config = replace(config, weights=str(weights))
        detector = cls(config, device=device)
        if identity.get("embedded") and weights is None:
            inside = {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}
            backbone = rebuild(inside, identity, config, detector.device)
        else:
            backbone = Backbone.load(config, detector.device, identity["source"])
        if backbone.fingerprint != identity["fingerprint"]:
            raise ModelFileError(
                f"{path}: was fitted with other backbone weights ({identity['source']}, sha256 "
                f"{identity['sha256'][:12]}...) than those found ({backbone.source}, {backbone.sha256[:12]}...); "
                "pass the original ones as weights"
            )
        detector._extractor = Extractor(backbone, config)
        detector.memory = memory.to(detector.device)
        detector.calibration = calibration or None
        return detector

    def _fitted(self) -> Memory:
        if self.memory is None:
            raise NotFittedError("this detector has no memory yet; call fit(images) or Detector.load(path) first")
        return self.memory


def score_patches(features: list[Tensor], memory: Memory, config: Config, without: int | None = None) -> Tensor:
    """S_map: embedded patches [N, P, D] per memory to patch scores [N, P].

    ``without`` hides the anchors that came from that training image.
    """
    return fuse_layers(layer_maps(features, memory, config, without), [layer.scale for layer in memory.layers], config)


def layer_maps(features: list[Tensor], memory: Memory, config: Config, without: int | None = None) -> Tensor:
    """S_l of every layer: embedded patches [N, P, D] per memory to [N, L, P]."""
    read = zip(memory.layers, features, strict=True)
    maps = [bank_consensus(read_layer(p, layer, config, memory.own(layer, without))) for layer, p in read]
    return torch.stack(maps, dim=1)


def read_layer(patches: Tensor, layer: LayerMemory, config: Config, hidden: Tensor | None = None) -> Tensor:
    """r_{l,b,p} of every bank: embedded patches [N, P, D] to residuals [N, B, P]; ``hidden`` [U] masks anchors."""
    if config.readout == "hard":
        return torch.stack([bank_distances(image, layer.index, exclude=hidden) for image in patches])
    tau = math.inf if config.readout == "uniform" else config.tau
    return image_residuals(
        patches, layer.index, config.num_neighbors, tau, tau_patches=config.tau_patches, exclude=hidden
    )


def fuse_layers(maps: Tensor, scales: Sequence[tuple[float, float]], config: Config) -> Tensor:
    """S_map from the maps of the layers [N, L, P] -> [N, P]; ``scales`` are the mean and deviation on good images."""
    if config.normalization == "robust":
        maps = robust_normalize(maps)
    elif config.normalization == "train":
        centre, spread = torch.tensor(scales, dtype=maps.dtype, device=maps.device).unsqueeze(-1).unbind(1)
        maps = (maps - centre) / spread
    return layer_consensus(maps, "mean" if config.layer_fusion == "concat" else config.layer_fusion)


def layer_scales(maps: Iterable[Tensor]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each layer over the maps [1, L, P] of good images; a constant layer keeps 1."""
    spread, centre = torch.std_mean(torch.cat(list(maps)).double(), dim=(0, 2), correction=0)
    return [(float(c), float(s) or 1.0) for c, s in zip(centre, spread, strict=True)]


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


def _good_images(images: ImageLike | Iterable[ImageLike], report: Progress, skip_bad: bool) -> list[ImageLike]:
    """The training images as a list, every one of them opened once, so that no work is lost to a bad file later."""
    if isinstance(images, str | Path) and Path(images).is_dir():
        items: list[ImageLike] = list(training_images(Path(images)))
    else:
        items = as_list(images)
    if not items:
        raise ImageError("fit needs at least one good image, got an empty list")
    errors: dict[int, ImageError] = {}
    for index, picture in enumerate(open_each(items)):
        if isinstance(picture, ImageError):
            errors[index] = picture
        report("checking images", index + 1, len(items))
    if errors and (not skip_bad or len(errors) == len(items)):
        raise BatchError(errors)
    return [item for index, item in enumerate(items) if index not in errors]


def _name(image: ImageLike, index: int) -> str:
    """How a training image is called in the model: its path, or its position."""
    if isinstance(image, str | Path):
        return str(image)
    return str(getattr(image, "filename", "") or getattr(image, "source", None) or f"image {index}")


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass
