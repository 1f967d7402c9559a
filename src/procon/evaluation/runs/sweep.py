"""Score many variants of one category for little more than the cost of one.

A variant is a :class:`Config`. What variants share is computed once: the tokens of a block, the coreset of a
memory (a smaller bank of the same seed is the beginning of a larger one), the residuals of a bank. Only the fusion, a
few operations on small arrays, is computed for each variant. The scores are those of
``Detector(config).fit(...).predict(...)``, bit for bit on a CPU, and so are the scores of its training images.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.arrays import Floats, Reals
from procon.config import Config
from procon.errors import ConfigError
from procon.evaluation.runs.plan import ResidualPart, ResidualPlan
from procon.evaluation.runs.tokens import TokenCache
from procon.files import atomic_path
from procon.method.consensus import bank_consensus, lower_quartile, median, top_mean
from procon.method.score import (
    find_neighbors,
    fuse_layers,
    layer_scales,
    neighbors_of,
    read_layer,
    read_neighbors,
    shift_maps,
)
from procon.model.fitting import calibrate_memory, needs_measuring
from procon.model.memory import LayerMemory, Memory
from procon.model.reader import Embedding, Extractor, Reader
from procon.model.selection import FeatureStore, gather_layer, select_anchors, selection_grid
from procon.model.training_image import TrainingImage
from procon.progress import Progress
from procon.vision.backbone import Backbone


@dataclass(frozen=True)
class VariantScores:
    """The scores and maps of a variant on the test images of a category."""

    scores: Floats  # [N]
    maps: Floats  # [N, rows, columns]: patch scores
    good: Reals | None = None  # [T, 3]: GoodScore of each training image; [0, 3]: too few; None: not asked for


class Sweep:
    """The variants of one category: ``tokens`` hold its ``train`` good images first, then its test images."""

    def __init__(self, folder: Path, tokens: TokenCache, train: int, backbone: Backbone) -> None:
        self._folder, self._tokens, self._train = folder, tokens, train
        self._backbone, self._device = backbone, backbone.device
        self._plan = ResidualPlan(train, backbone)

    def run(
        self,
        variants: Iterable[Config],
        on_variant: Callable[[Config, VariantScores], None],
        on_progress: Progress,
        *,
        verdicts: bool = False,
    ) -> None:
        """Score the test images under every variant; ``on_variant`` is called as soon as one is complete.

        With ``verdicts`` the training images are scored too, for the threshold: about one more search for each.
        """
        waiting = {config: self._plan.parts(config) for config in variants}
        missing = self._missing(waiting)
        tick = self._ticks(missing.values(), on_progress)

        def finish_variants() -> None:
            for config in [config for config, parts in waiting.items() if all(map(self._is_complete, parts))]:
                scored = self._fuse(config, waiting.pop(config))
                on_variant(
                    config, replace(scored, good=self._score_training(config, on_progress)) if verdicts else scored
                )

        finish_variants()
        for parts in missing.values():
            self._score_memory(parts, tick)
            finish_variants()

    def list_memories(self, variants: Iterable[Config]) -> list[str]:
        """Memories with missing residuals; these can be scored in any order, or at the same time."""
        return list(self._missing(variants))

    def score_memory(self, variants: Iterable[Config], memory: str, on_progress: Progress) -> None:
        """Compute the residuals of one of :meth:`list_memories`, so that :meth:`run` finds them."""
        parts = self._missing(variants).get(memory)
        if parts:
            self._score_memory(parts, self._ticks([parts], on_progress))

    def _missing(self, variants: Iterable[Config]) -> dict[str, list[ResidualPart]]:
        """The residuals that ``variants`` need and that are not complete on disk, by memory."""
        merged: dict[str, ResidualPart] = {}
        for part in (part for config in variants for part in self._plan.parts(config)):
            if part.key not in merged or part.banks > merged[part.key].banks:
                merged[part.key] = part
        return _group_by([part for part in merged.values() if not self._is_complete(part)], lambda part: part.memory)

    def _ticks(self, groups: Iterable[list[ResidualPart]], on_progress: Progress) -> Callable[[], None]:
        """A function to call after each image that is embedded for a memory or scored by it."""
        test = len(self._tokens.images) - self._train
        total = sum(self._train + test * len(group) for group in groups)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            on_progress("scoring", ticks, total)

        return tick

    # ------------------------------------------------------------------------------------------------ the work

    def _score_memory(self, parts: list[ResidualPart], tick: Callable[[], None]) -> None:
        """All residuals of one memory: its training patches are embedded once."""
        config, index = parts[0].config, parts[0].index
        embedding, patches = self._plan.embedding(config), config.grid[0] * config.grid[1]
        test = range(self._train, len(self._tokens.images))
        with (
            FeatureStore(self._train, patches, [embedding.dims[index]], self._plan.ram_limit(config)) as store,
            torch.inference_mode(),
        ):
            for image, features in enumerate(self._embed(embedding, index, range(self._train))):
                store.put(image, [features])
                tick()
            picks = self._picks(store, 0, parts)

            def make_layer(banks: int, part: ResidualPart) -> LayerMemory:
                return self._gather(store, 0, picks[:banks], part.config)

            for alike in _group_by(parts, self._plan.search_key).values():
                layer = make_layer(max(part.banks for part in alike), alike[0])
                residuals: dict[str, list[NDArray[Any]]] = {part.key: [] for part in alike}
                for features in self._embed(embedding, index, test):
                    for part, values in zip(alike, self._score_image(features, layer, alike), strict=True):
                        residuals[part.key].append(values[: part.banks].cpu().numpy())
                        tick()
                for part in alike:
                    self._save(part.key, np.stack(residuals[part.key]))
                    if part.extras:
                        tested = self._embed(embedding, index, test)
                        self._score_good(part, make_layer(part.banks, part), store, tested)

    def _score_image(self, features: Tensor, layer: LayerMemory, parts: list[ResidualPart]) -> list[Tensor]:
        """Residuals [B, P] of one image [1, P, D] for each of ``parts``, with one search for neighbours."""
        k = max(neighbors_of(part.config) for part in parts)
        anchors, nearest = layer.index.anchors, find_neighbors(features, layer.index, k)
        return [read_neighbors(features, anchors, nearest, part.config).residuals[0] for part in parts]

    def _embed(self, embedding: Embedding, index: int, images: range) -> Iterable[Tensor]:
        for tokens in self._tokens.load_tokens(embedding.blocks(index), images):
            yield embedding.embed_memory(index, [layer.to(self._device) for layer in tokens])

    def _gather(self, store: FeatureStore, layer: int, picks: Tensor, config: Config) -> LayerMemory:
        """The banks of ``config`` from the ``picks`` of banks that are at least as large."""
        gathered = gather_layer(store, layer, picks[:, : self._plan.size(config)])
        return gathered.compressed(config.compression).to(self._device)

    def _picks(self, store: FeatureStore, layer: int, parts: list[ResidualPart]) -> Tensor:
        """The patches of the largest bank that any of the parts needs, [banks, size]; stored for the next command."""
        config, name = parts[0].config, parts[0].memory + "-picks"
        size = max(self._plan.size(part.config) for part in parts)
        banks = max(part.banks for part in parts)
        if self._path(name).exists():
            stored = torch.from_numpy(self._load(name))
            if stored.shape[0] >= banks and stored.shape[1] >= size:
                return stored
        selection = self._plan.embedding(config).selections[parts[0].index]
        grid = selection_grid(store, layer, selection, self._device)
        picks = select_anchors(grid, size, replace(config, banks=banks).bank_seeds, config.coreset).cpu()
        self._save(name, picks.numpy())
        return picks

    def _score_good(
        self, part: ResidualPart, layer: LayerMemory, store: FeatureStore, tested: Iterable[Tensor]
    ) -> None:
        """Score the good images, each without its own anchors, and the test images relative to the levels of these."""
        config, source = part.config, layer.origin // store.patches  # the training image of each anchor
        maps: list[Tensor] = []
        sums: list[Tensor] = []
        for image in range(self._train):
            if int((source[layer.banks] != image).sum(dim=1).min()) < config.num_neighbors:
                settings = " and ".join(needs_measuring(config))
                raise ConfigError(f"{settings} needs more training images: each is scored without its own anchors")
            features = store.image(image)[0].to(self._device)
            reading = read_layer(features, layer, config, source == image)
            maps.append(bank_consensus(reading.residuals))
            if "-relative" in part.extras:
                sums.append(reading.sums(len(layer.anchors))[0])
        if "-scale" in part.extras:
            self._save(part.key + "-scale", np.array(layer_scales(values.unsqueeze(1) for values in maps)))
        if "-good" in part.extras:
            self._save(part.key + "-good", torch.cat(maps).cpu().numpy())
        if sums:
            levels = replace(layer, sums=sum(sums[1:], sums[0])).levels
            readings = (read_layer(features, layer, config) for features in tested)
            relative = [reading.relative_to(levels)[0].cpu().numpy() for reading in readings]
            self._save(part.key + "-relative", np.stack(relative))

    def _score_training(self, config: Config, on_progress: Progress) -> Reals:
        """The leave-one-out scores [T, 3] of the training images, as a detector has them; [0, 3] if too few."""
        embedding, patches, paths = self._plan.embedding(config), config.grid[0] * config.grid[1], self._tokens.images
        images = tuple(TrainingImage(str(path), config.input_size, "") for path in paths[: self._train])
        with FeatureStore(self._train, patches, embedding.dims) as store, torch.inference_mode():
            for image, tokens in enumerate(self._tokens.load_tokens(embedding.layers, range(self._train))):
                store.put(image, embedding.embed([layer.to(self._device) for layer in tokens]))
            layers = tuple(
                self._gather(store, part.index, self._picks(store, part.index, [part])[: part.banks], config)
                for part in self._plan.parts(config)
            )
            # The backbone in use returns the blocks of all variants; a single image has to pass that of this one.
            backbone = self._backbone if self._train > 1 else Backbone.load(config, self._device)
            reader, memory = Reader(Extractor(backbone, config), config), Memory(layers, images, patches)
            good = reader.stream(store, images)
            calibration = calibrate_memory(reader, memory, good, paths[: self._train], on_progress)[1]
        return np.array([] if calibration is None else calibration.good_scores, np.float64).reshape(-1, 3)

    def _fuse(self, config: Config, parts: list[ResidualPart]) -> VariantScores:
        def load_all(extra: str) -> list[Tensor]:
            return [torch.from_numpy(self._load(part.key + extra)) for part in parts]

        def consensus(residuals: list[Tensor]) -> Tensor:
            return torch.stack([bank_consensus(values[:, : config.banks]) for values in residuals], dim=1)

        scales = [(0.0, 1.0)] * len(parts)
        if config.normalization == "train":
            scales = [(float(center), float(spread)) for scale in load_all("-scale") for center, spread in scale]
        fused = fuse_layers(consensus(load_all("")), scales, config)
        quartile, ranked = None, fused
        if config.map_offset == "quartile":
            good = fuse_layers(torch.stack(load_all("-good"), dim=1), scales, config)
            quartile = float(median(lower_quartile(good), dim=0))
        if config.score_relative_to == "anchors":
            ranked = fuse_layers(consensus(load_all("-relative")), scales, config)
        scores = top_mean(ranked, config.top_ratio)
        return VariantScores(scores.numpy(), shift_maps(fused, quartile, config).view(-1, *config.grid).numpy())

    # ------------------------------------------------------------------------------------------------ files

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def _is_complete(self, part: ResidualPart) -> bool:
        """Whether the residuals are stored for enough banks, with everything in ``extras``."""
        if not all(self._path(part.key + extra).exists() for extra in ("", *part.extras)):
            return False
        return bool(np.load(self._path(part.key), mmap_mode="r", allow_pickle=False).shape[1] >= part.banks)

    def _load(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = np.load(self._path(name), allow_pickle=False)
        return values

    def _save(self, name: str, values: NDArray[Any]) -> None:
        with atomic_path(self._path(name)) as temporary, temporary.open("wb") as stream:
            np.save(stream, values, allow_pickle=False)


def _group_by(parts: list[ResidualPart], key: Callable[[ResidualPart], Any]) -> dict[Any, list[ResidualPart]]:
    groups: dict[Any, list[ResidualPart]] = {}
    for part in parts:
        groups.setdefault(key(part), []).append(part)
    return groups
