"""Score many variants of one category for little more than the cost of one.

A variant is a :class:`Config`. What variants share is computed once: the tokens of a block, the coreset of a
memory (a smaller bank of the same seed is the beginning of a larger one), the residuals of a bank. Only the fusion, a
few operations on small arrays, is computed for each variant. A variant whose scores depend on how its memory reads good
images shares tokens and coresets alone. The scores are those of ``Detector(config).fit(...).predict(...)``, bit for bit
on a CPU, and so are the scores of its training images.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.arrays import Floats, Reals
from procon.config import Config
from procon.evaluation.runs.plan import ResidualPart, ResidualPlan
from procon.evaluation.runs.tokens import TokenCache
from procon.files import atomic_path
from procon.method.consensus import bank_consensus, top_mean
from procon.method.score import find_neighbors, fuse_layers, neighbors_of, read_neighbors, score_patches
from procon.model.calibration import Calibration
from procon.model.fitting import EmbeddedImages, calibrate_memory, check_measurable, measure_images, needs_measuring
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
        self._tests = range(train, len(tokens.images))

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
        waiting = {config: self._shared(config) for config in variants}
        missing = self._missing(waiting)
        tick = self._ticks(missing.values(), on_progress)

        def finish_variants() -> None:
            for config in [config for config, parts in waiting.items() if all(map(self._is_complete, parts))]:
                parts = waiting.pop(config)
                scored = self._fuse(config, parts) if parts else self._score_whole(config, verdicts, on_progress)
                if parts and verdicts:
                    scored = replace(scored, good=self._score_training(config, on_progress))
                on_variant(config, scored)

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

    def _shared(self, config: Config) -> list[ResidualPart]:
        """The residuals that a variant is fused from; none where it depends on how good images are read."""
        return [] if needs_measuring(config) else self._plan.parts(config)

    def _missing(self, variants: Iterable[Config]) -> dict[str, list[ResidualPart]]:
        """The residuals that ``variants`` need and that are not complete on disk, by memory."""
        merged: dict[str, ResidualPart] = {}
        for part in (part for config in variants for part in self._shared(config)):
            if part.key not in merged or part.banks > merged[part.key].banks:
                merged[part.key] = part
        return _group_by([part for part in merged.values() if not self._is_complete(part)], lambda part: part.memory)

    def _ticks(self, groups: Iterable[list[ResidualPart]], on_progress: Progress) -> Callable[[], None]:
        """A function to call after each image that is embedded for a memory or scored by it."""
        total = sum(self._train + len(self._tests) * len(group) for group in groups)
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
        with (
            FeatureStore(self._train, patches, [embedding.dims[index]], self._plan.ram_limit(config)) as store,
            torch.inference_mode(),
        ):
            for image, features in enumerate(self._embed(embedding, index, range(self._train))):
                store.put(image, [features])
                tick()
            picks = self._picks(store, 0, parts)
            for alike in _group_by(parts, self._plan.search_key).values():
                layer = self._gather(store, 0, picks[: max(part.banks for part in alike)], alike[0].config)
                residuals: dict[str, list[NDArray[Any]]] = {part.key: [] for part in alike}
                for features in self._embed(embedding, index, self._tests):
                    for part, values in zip(alike, self._score_image(features, layer, alike), strict=True):
                        residuals[part.key].append(values[: part.banks].cpu().numpy())
                        tick()
                for part in alike:
                    self._save(part.key, np.stack(residuals[part.key]))

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

    def _score_whole(self, config: Config, verdicts: bool, on_progress: Progress) -> VariantScores:
        """The scores of a variant whose maps depend on how its whole memory reads good images."""
        with self._fitted(config) as (reader, selected, good, paths):
            if verdicts:
                memory, calibration = calibrate_memory(reader, selected, good, paths, on_progress)
            else:
                check_measurable(config, selected)
                memory, calibration = measure_images(reader, selected, good, on_progress)[0], None
            readings = []
            for tokens in self._tokens.load_tokens(reader.extractor.layers, self._tests):
                features = reader.extractor.embed([layer.to(self._device) for layer in tokens])
                reading = score_patches(features, memory, config)
                readings.append((top_mean(reading.ranked, config.top_ratio), reading.heat.view(-1, *config.grid)))
        scores, maps = (torch.cat(parts).cpu().numpy() for parts in zip(*readings, strict=True))
        return VariantScores(scores, maps, _good_rows(calibration) if verdicts else None)

    def _score_training(self, config: Config, on_progress: Progress) -> Reals:
        """The leave-one-out scores [T, 3] of the training images, as a detector has them; [0, 3] if too few."""
        with self._fitted(config) as (reader, memory, good, paths):
            return _good_rows(calibrate_memory(reader, memory, good, paths, on_progress)[1])

    @contextmanager
    def _fitted(self, config: Config) -> Iterator[tuple[Reader, Memory, EmbeddedImages, Sequence[Path]]]:
        """A reader, the memory of a variant, its embedded training images and their paths."""
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
            reader = Reader(Extractor(backbone, config), config)
            embedded = reader.stream(store, [image.size for image in images])
            yield reader, Memory(layers, images, patches), embedded, paths[: self._train]

    def _fuse(self, config: Config, parts: list[ResidualPart]) -> VariantScores:
        residuals = [torch.from_numpy(self._load(part.key))[:, : config.banks] for part in parts]
        maps = torch.stack([bank_consensus(values) for values in residuals], dim=1)
        fused = fuse_layers(maps, [(0.0, 1.0)] * len(parts), config)
        return VariantScores(top_mean(fused, config.top_ratio).numpy(), fused.view(-1, *config.grid).numpy())

    # ------------------------------------------------------------------------------------------------ files

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def _is_complete(self, part: ResidualPart) -> bool:
        """Whether the residuals are stored for enough banks."""
        path = self._path(part.key)
        return path.exists() and np.load(path, mmap_mode="r", allow_pickle=False).shape[1] >= part.banks

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


def _good_rows(calibration: Calibration | None) -> Reals:
    return np.array([] if calibration is None else calibration.good_scores, np.float64).reshape(-1, 3)
