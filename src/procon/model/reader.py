"""From images to features and readings: backbone tokens through G_l, compared with a memory, on one device."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from procon.arrays import Bools
from procon.config import PATCH, Config
from procon.errors import BatchError, ImageError
from procon.method.consensus import median, top_mean
from procon.method.maps import pixel_map
from procon.method.projection import gaussian_matrix, project
from procon.method.score import Reading, score_patches
from procon.method.tiling import tiled_tokens
from procon.model.calibration import GoodScore
from procon.model.memory import Memory
from procon.model.selection import FeatureStore
from procon.model.training import open_good
from procon.model.training_image import TrainingImage
from procon.model.verdict import opened_groups
from procon.progress import Progress
from procon.vision.backbone import Backbone
from procon.vision.framing import frame_of, to_input
from procon.vision.images import AHEAD, WORKERS, ImageLike, Picture
from procon.vision.on_device import device_inputs
from procon.vision.scope import Scope, scope_of
from procon.vision.weights import Architecture

_SCORING, _SELECTION = 0, 1  # what a random projection is for: part of its seed
CUDA_BATCH = 64  # images of CUDA_PATCHES patches that are scored together on a GPU; fewer where they have more
CUDA_PATCHES = 784
CUDA_WORKERS = 12

EmbeddedImage = tuple[list[Tensor], tuple[int, int]]
"""The embedded patches [1, P, D] per layer of one image, and its (height, width)."""


class Embedding:
    """G_l for the memories of a configuration: one per layer, or one for all layers joined."""

    def __init__(self, architecture: Architecture, config: Config, device: torch.device) -> None:
        self.layers = config.resolve_layers(architecture.depth)  # 0-based blocks, in the order of the configuration
        self.joint = config.layer_fusion == "concat"
        width = architecture.hidden * (len(self.layers) if self.joint else 1)
        dim = min(width, config.projection_dim)
        # The seed of a matrix is (seed, block, purpose); the joint memory takes the number of blocks as its block.
        keys = [architecture.depth] if self.joint else list(self.layers)

        def matrices(rows: int, columns: int, purpose: int) -> list[Tensor | None]:
            if columns >= rows:
                return [None] * len(keys)
            return [gaussian_matrix(rows, columns, config.seed, key, purpose).to(device) for key in keys]

        self.dims = [dim] * len(keys)  # of the scoring space, per memory
        self.projections = matrices(width, dim, _SCORING)  # G_l after the normalisation: [C, D], or None: C is kept
        self.selections = matrices(dim, config.selection_dim, _SELECTION)  # to the space where coresets are selected

    def embed(self, tokens: list[Tensor]) -> list[Tensor]:
        """Tokens [N, P, C] per layer to features [N, P, D] per memory."""
        if self.joint:
            return [self.embed_memory(0, tokens)]
        return [self.embed_memory(index, [layer]) for index, layer in enumerate(tokens)]

    def blocks(self, index: int) -> tuple[int, ...]:
        """The blocks that memory ``index`` is made from."""
        return self.layers if self.joint else (self.layers[index],)

    def embed_memory(self, index: int, tokens: list[Tensor]) -> Tensor:
        """Tokens [N, P, C] of each of its blocks to the features [N, P, D] of memory ``index``."""
        joined = torch.cat([project(layer, None) for layer in tokens], dim=-1) if self.joint else tokens[0]
        return project(joined, self.projections[index])


class Extractor(Embedding):
    """Images to embedded patches: backbone, then embedding."""

    def __init__(self, backbone: Backbone, config: Config) -> None:
        super().__init__(backbone.architecture, config, backbone.device)
        self.backbone = backbone
        # Threads for what is done to single images before and after the backbone.
        self.workers = min(CUDA_WORKERS, os.cpu_count() or 1) if backbone.device.type == "cuda" else WORKERS
        self._config = config

    def tokens(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to raw block outputs [N, P, C] per layer; in tiles, if the configuration says so."""
        if self._config.tile is None:
            return self.backbone.tokens(pixels)
        return tiled_tokens(pixels, PATCH, self._config.tile // PATCH, self.backbone.tokens)

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to embedded patches [N, P, D], one tensor per memory."""
        return self.embed(self.tokens(pixels))

    def prepare(self, picture: Picture) -> Tensor:
        """The picture as the input [3, H, W] of the backbone."""
        return torch.from_numpy(to_input(picture, self._config))

    def prepare_group(self, picture: Picture) -> Tensor:
        """What :meth:`stack` makes inputs of: on a GPU, which resizes images itself, the decoded bytes [H, W, 3]."""
        if self.backbone.device.type != "cuda" or picture.pixels.dtype != np.uint8:
            return self.prepare(picture)
        pinned = torch.empty(picture.pixels.shape, dtype=torch.uint8, pin_memory=True)
        pinned.numpy()[:] = picture.pixels
        return pinned

    def stack(self, prepared: Sequence[Tensor]) -> Tensor:
        """Images of :meth:`prepare_group` as inputs [N, 3, H, W], on the device."""
        device, size = self.backbone.device, self._config.input_size
        bytes_of = {number: image for number, image in enumerate(prepared) if image.dtype == torch.uint8}
        if not bytes_of:
            return torch.stack(list(prepared)).to(device) if prepared else torch.empty(0, 3, *size, device=device)
        frames = [frame_of(self._config, (image.shape[0], image.shape[1])) for image in bytes_of.values()]
        resized = device_inputs(list(bytes_of.values()), frames, size, device)
        if len(bytes_of) == len(prepared):
            return resized
        inputs = torch.empty(len(prepared), 3, *size, device=device)
        inputs[list(bytes_of)] = resized
        for number, image in enumerate(prepared):
            if number not in bytes_of:
                inputs[number] = image.to(device)
        return inputs

    @property
    def group_size(self) -> int:
        """Images that pass the backbone together.

        On a CPU it is one: matrix sizes, and with them rounding, then never depend on the batch. The same holds where
        images are padded, as each then has patches of its own that count.
        """
        if self.backbone.device.type != "cuda" or self._config.aspect == "pad":
            return 1
        patches = self._config.grid[0] * self._config.grid[1]
        return max(1, CUDA_BATCH * CUDA_PATCHES // max(CUDA_PATCHES, patches))

    def batches(self, images: Iterable[ImageLike]) -> Iterator[tuple[list[Picture | ImageError], Tensor]]:
        """Images in groups, opened, with the pixels [N, 3, H, W] of those that could be, in order."""
        for group in opened_groups(images, self.prepare_group, self.group_size, self.workers):
            yield [picture for picture, _ in group], self.stack([image for _, image in group if image is not None])


@dataclass
class Reader:
    """Turns images into features, and compares features with a memory."""

    extractor: Extractor
    config: Config
    _scopes: dict[tuple[int, int], tuple[Bools | None, Scope | None]] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the work is done."""
        return self.extractor.backbone.device

    @property
    def _patches(self) -> int:
        return self.config.grid[0] * self.config.grid[1]

    def scope(self, size: tuple[int, int], roi: Bools | None) -> Scope | None:
        """The patches that count in an image of ``size`` (height, width); None: all.

        They are the same for all images unless these are padded. A line's cameras have few sizes, so scopes are cached.
        """
        key = size if self.config.aspect == "pad" else self.config.input_size
        cached = self._scopes.get(key)
        if cached is None or cached[0] is not roi:
            if len(self._scopes) >= 64:
                self._scopes.clear()
            cached = self._scopes[key] = (roi, scope_of(self.config, roi, key, self.device))
        return cached[1]

    def selectable_rows(self, images: Sequence[TrainingImage], roi: Bools | None) -> Tensor | None:
        """The patches of all ``images`` that may become anchors, as rows of a store; None: all."""
        patches = self._patches
        scopes = {image.size: self.scope(image.size, roi) for image in images}
        if all(scope is None for scope in scopes.values()):
            return None
        rows = [
            number * patches + (torch.arange(patches) if (scope := scopes[image.size]) is None else scope.rows.cpu())
            for number, image in enumerate(images)
        ]
        return torch.cat(rows)

    def embed_each(self, items: Sequence[ImageLike]) -> Iterator[EmbeddedImage]:
        """The embedded patches and the size of one image after another; an unreadable image raises its error."""
        for group, pixels in self.extractor.batches(items):
            for picture in group:
                if isinstance(picture, ImageError):
                    raise picture
            sizes = [picture.size for picture in group if isinstance(picture, Picture)]
            for size, *image in zip(sizes, *self.extractor.features(pixels), strict=True):
                yield [layer.unsqueeze(0) for layer in image], size

    @contextmanager
    def store_items(self, items: Sequence[ImageLike], on_progress: Progress) -> Iterator[FeatureStore]:
        """The embedded patches of ``items``, while the block runs."""
        with self._store(len(items)) as store:
            for number, (features, _) in enumerate(self.embed_each(items)):
                store.put(number, features)
                on_progress("reading images", number + 1, len(items))
            yield store

    @contextmanager
    def opened(
        self,
        items: Sequence[ImageLike],
        on_progress: Progress,
        *,
        skip_bad: bool = False,
        thumbnails: bool = False,
        taken: Iterable[str] = (),
    ) -> Iterator[tuple[FeatureStore, list[ImageLike], tuple[TrainingImage, ...]]]:
        """Good images, read once: their embedded patches, those that were readable, and what to store of each.

        An unreadable image ends the embedding; the others are still opened, so that the error names all that are bad.
        """
        size = self.extractor.group_size
        opened = open_good(
            items,
            self.extractor.prepare_group,
            self.extractor.workers,
            ahead=max(AHEAD, 2 * size if size > 1 else 0),
            thumbnails=thumbnails,
            taken=taken,
        )
        errors: dict[int, ImageError] = {}
        good: list[tuple[ImageLike, TrainingImage]] = []
        waiting: list[Tensor] = []
        with self._store(len(items)) as store:
            for index, image in enumerate(opened):
                if isinstance(image, ImageError):
                    errors[index] = image
                else:
                    good.append((items[index], image[0]))
                    waiting.append(image[1])
                if errors and not skip_bad:
                    waiting.clear()
                if waiting and (len(waiting) == size or index + 1 == len(items)):
                    store.put(len(good) - len(waiting), self.extractor.features(self.extractor.stack(waiting)))
                    waiting.clear()
                on_progress("reading images", index + 1, len(items))
            if errors and (not skip_bad or not good):
                raise BatchError(errors)
            store.keep(len(good))
            yield store, [item for item, _ in good], tuple(image for _, image in good)

    def stream(
        self, store: FeatureStore, sizes: Sequence[tuple[int, int] | None]
    ) -> Callable[[], Iterator[EmbeddedImage | None]]:
        """A way to go through the embedded images of a ``store`` again and again; None where there is no size."""

        def embedded_images() -> Iterator[EmbeddedImage | None]:
            for number, size in enumerate(sizes):
                yield None if size is None else ([layer.to(self.device) for layer in store.image(number)], size)

        return embedded_images

    @contextmanager
    def store_embedded(
        self, images: Iterable[EmbeddedImage | None], count: int
    ) -> Iterator[Callable[[], Iterator[EmbeddedImage | None]]]:
        """:meth:`stream` of ``count`` embedded images, each embedded once."""
        with self._store(count) as store:
            sizes: list[tuple[int, int] | None] = []
            for number, image in enumerate(images):
                if image is not None:
                    store.put(number, image[0])
                sizes.append(None if image is None else image[1])
            yield self.stream(store, sizes)

    def _store(self, images: int) -> FeatureStore:
        """Where the embedded patches of so many images go: the GPU if they leave it most of its memory."""
        dims, device = self.extractor.dims, self.device
        if device.type == "cuda" and 16 * images * self._patches * sum(dims) < torch.cuda.mem_get_info(device)[0]:
            return FeatureStore(images, self._patches, dims, device=device)
        return FeatureStore(images, self._patches, dims)

    def counted(self, image: EmbeddedImage, roi: Bools | None) -> tuple[list[Tensor], Scope | None]:
        """The patches [1, P, D] per layer of an embedded image that count, and which these are."""
        scope = self.scope(image[1], roi)
        return in_scope(image[0], scope), scope

    def score_features(
        self,
        features: Sequence[Tensor],
        size: tuple[int, int],
        memory: Memory,
        marked: Sequence[Tensor] | None = None,
    ) -> Reading:
        """Compare embedded patches [N, P, D] per layer of images of one ``size`` with a memory, and ``marked`` ones."""
        return score_patches(in_scope(features, self.scope(size, memory.roi)), memory, self.config, marked=marked)

    def input_maps(self, heat: Tensor, scope: Scope | None = None) -> Tensor:
        """Patch scores [N, P] to pixels of the backbone's input [N, H, W]: bilinear, then blurred.

        With a ``scope`` they are those of its K patches [N, K]; patches outside repeat their nearest, and pixels
        outside are 0.
        """
        grid = everywhere(heat, scope).view(-1, *self.config.grid)
        maps = pixel_map(grid, self.config.input_size, self.config.blur_sigma)
        return maps if scope is None else maps * scope.pixels

    def good_scores(self, reading: Reading, scope: Scope | None) -> list[GoodScore]:
        """What a calibration stores of the reading of each image."""
        image_scores = top_mean(reading.ranked, self.config.top_ratio)
        peaks = self.input_maps(reading.heat, scope).amax(dim=(1, 2))
        rows = torch.stack([image_scores, peaks, median(reading.scores, dim=1)], dim=1)
        return [GoodScore(*row) for row in rows.tolist()]


def in_scope(features: Sequence[Tensor], scope: Scope | None) -> list[Tensor]:
    """Of embedded patches [N, P, D] per layer those that count [N, K, D]: others do not set the temperature either."""
    return list(features) if scope is None else [layer[:, scope.rows] for layer in features]


def everywhere(patch_scores: Tensor, scope: Scope | None) -> Tensor:
    """Scores of the patches in ``scope`` [N, K] for all patches [N, P]."""
    return patch_scores if scope is None else scope.everywhere(patch_scores)
