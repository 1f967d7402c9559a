"""Images to readings: the backbone, the embedding and the method's recipe on one device."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.config import Config
from procon.errors import BatchError, ImageError
from procon.method.consensus import median, top_mean
from procon.method.maps import pixel_map
from procon.method.score import Reading, score
from procon.model.calibration import GoodScore
from procon.model.features import Extractor
from procon.model.memory import Memory
from procon.model.store import FeatureStore
from procon.model.training import TrainingImage, open_good
from procon.progress import Progress
from procon.vision.images import ImageLike, Picture
from procon.vision.scope import Scope, scope_of

Mask = NDArray[np.bool_]
EmbeddedImage = tuple[list[Tensor], tuple[int, int]]
"""The embedded patches [1, P, D] per layer of one image, and its (height, width)."""


@dataclass
class Reader:
    """What turns images into features, and features into readings of a memory."""

    extractor: Extractor
    config: Config
    _scopes: dict[tuple[int, int], tuple[Mask | None, Scope | None]] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the work is done."""
        return self.extractor.backbone.device

    @property
    def _patches(self) -> int:
        return self.config.grid[0] * self.config.grid[1]

    def scope(self, size: tuple[int, int], roi: Mask | None) -> Scope | None:
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

    def selectable_rows(self, images: Sequence[TrainingImage], roi: Mask | None) -> Tensor | None:
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

    def embed_groups(self, items: Sequence[ImageLike]) -> Iterator[tuple[list[tuple[int, int]], list[Tensor]]]:
        """Sizes and embedded patches [N, P, D] per layer of groups of images; an unreadable image raises its error."""
        for group, pixels in self.extractor.batches(items):
            for picture in group:
                if isinstance(picture, ImageError):
                    raise picture
            yield [picture.size for picture in group if isinstance(picture, Picture)], self.extractor.features(pixels)

    def embed_each(self, items: Sequence[ImageLike]) -> Iterator[EmbeddedImage]:
        """The embedded patches and the size of one image after another."""
        for sizes, features in self.embed_groups(items):
            for size, *image in zip(sizes, *features, strict=True):
                yield [layer.unsqueeze(0) for layer in image], size

    @contextmanager
    def embedded(
        self, items: Sequence[ImageLike], images: Sequence[TrainingImage], roi: Mask | None, on_progress: Progress
    ) -> Iterator[FeatureStore]:
        """The embedded patches of ``items``, which ``images`` describe, while the block runs."""
        with FeatureStore(len(items), self._patches, self.extractor.dims) as store:
            done = 0
            for sizes, features in self.embed_groups(items):
                store.put(done, features)
                done += len(sizes)
                on_progress("reading images", done, len(items))
            store.counted = self.selectable_rows(images, roi)
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
        """Good images, read once: their embedded patches, those that were readable, and what to keep of each.

        An unreadable image ends the embedding; the others are still opened, so that the error names all that are bad.
        """
        opened = open_good(items, self.extractor.prepare, self.extractor.workers, thumbnails=thumbnails, taken=taken)
        errors: dict[int, ImageError] = {}
        good: list[tuple[ImageLike, TrainingImage]] = []
        waiting: list[Tensor] = []
        with FeatureStore(len(items), self._patches, self.extractor.dims) as store:
            for index, one in enumerate(opened):
                if isinstance(one, ImageError):
                    errors[index] = one
                else:
                    good.append((items[index], one.image))
                    waiting.append(one.prepared)
                if errors and not skip_bad:
                    waiting.clear()
                if waiting and (len(waiting) == self.extractor.group_size or index + 1 == len(items)):
                    store.put(len(good) - len(waiting), self.extractor.features(torch.stack(waiting)))
                    waiting.clear()
                on_progress("reading images", index + 1, len(items))
            if errors and (not skip_bad or not good):
                raise BatchError(errors)
            store.keep(len(good))
            yield store, [item for item, _ in good], tuple(image for _, image in good)

    def stream(self, store: FeatureStore, images: Sequence[TrainingImage]) -> Callable[[], Iterator[EmbeddedImage]]:
        """A way to go through the embedded images of a ``store`` again and again, on the device."""

        def embedded_images() -> Iterator[EmbeddedImage]:
            for number, image in enumerate(images):
                yield [layer.to(self.device) for layer in store.image(number)], image.size

        return embedded_images

    def read(self, features: Sequence[Tensor], size: tuple[int, int], memory: Memory) -> Reading:
        """Compare embedded patches [N, P, D] per layer of images of one ``size`` with a memory."""
        return score(in_scope(features, self.scope(size, memory.roi)), memory, self.config)

    def input_maps(self, heat: Tensor, scope: Scope | None = None) -> Tensor:
        """Patch scores [N, P] to pixels of the backbone's input [N, H, W]: bilinear, then blurred.

        With a ``scope`` they are those of its K patches [N, K]; patches outside repeat their nearest, and pixels
        outside are 0.
        """
        grid = everywhere(heat, scope).view(-1, *self.config.grid)
        maps = pixel_map(grid, self.config.input_size, self.config.blur_sigma)
        return maps if scope is None else maps * scope.pixels

    def good_score(self, reading: Reading, scope: Scope | None) -> GoodScore:
        """What a calibration keeps of the reading of one image."""
        image_score = top_mean(reading.ranked, self.config.top_ratio)
        peak = self.input_maps(reading.heat, scope).max()
        return GoodScore(float(image_score), float(peak), float(median(reading.scores[0], dim=0)))


def in_scope(features: Sequence[Tensor], scope: Scope | None) -> list[Tensor]:
    """Of embedded patches [N, P, D] per layer those that count [N, K, D]: others do not set the temperature either."""
    return list(features) if scope is None else [layer[:, scope.rows] for layer in features]


def everywhere(patch_scores: Tensor, scope: Scope | None) -> Tensor:
    """Scores of the patches in ``scope`` [N, K] for all patches [N, P]."""
    return patch_scores if scope is None else scope.everywhere(patch_scores)
