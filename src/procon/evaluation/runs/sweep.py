"""Many variants of one category for little more than the price of one.

A variant is a :class:`Config`. What variants have in common is computed once: the tokens of a block, the coreset of a
memory (a smaller bank of the same seed is the beginning of a larger one), the residuals of a bank. Only the fusion, a
few operations on small arrays, is a variant's own. The scores are those of ``Detector(config).fit(...).predict(...)``,
bit for bit on a CPU.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.arrays import Floats
from procon.config import Config
from procon.errors import ConfigError
from procon.evaluation.runs.tokens import TokenCache
from procon.files import atomic_path
from procon.method.consensus import bank_consensus, lower_quartile, median, top_mean
from procon.method.neighbors import nearest_in_banks
from procon.method.score import fuse_layers, layer_scales, read_layer, read_layers, read_neighbors, shift_maps
from procon.model.memory import LayerMemory, Memory
from procon.model.reader import Embedding
from procon.model.selection import (
    IN_RAM_BYTES,
    FeatureStore,
    coreset_size,
    gather_layer,
    select_anchors,
    selection_grid,
)
from procon.model.training import TrainingImage
from procon.progress import Progress
from procon.vision.weights import Architecture


@dataclass(frozen=True)
class VariantScores:
    """What a variant says about the test images of a category."""

    scores: Floats
    """[N]"""
    maps: Floats
    """[N, rows, columns]: patch scores, before they are brought to pixels."""


@dataclass(frozen=True)
class _Read:
    """The residuals of one memory under one readout, for as many banks as any variant asks for."""

    config: Config
    """The first variant that needs them."""
    index: int
    """Which of its memories."""
    banks: int
    memory: str
    """Key of the coresets."""
    key: str
    """Key of the residuals."""
    scaled: bool
    """Whether the mean and deviation on good images are needed too."""
    measured: bool
    """Whether what the memory leaves on good images is needed too."""


class Sweep:
    """The variants of one category: ``tokens`` hold its ``train`` good images first, then its test images."""

    def __init__(
        self, folder: Path, tokens: TokenCache, train: int, architecture: Architecture, device: torch.device
    ) -> None:
        self._folder, self._tokens, self._train = folder, tokens, train
        self._architecture, self._device = architecture, device
        self._embeddings: dict[Config, Embedding] = {}

    def run(
        self, variants: Iterable[Config], done: Callable[[Config, VariantScores], None], on_progress: Progress
    ) -> None:
        """Score the test images under every variant; ``done`` hears each as soon as its parts are there."""
        waiting = list(variants)
        reads, missing = self._missing(waiting)
        tick = self._ticks(missing.values(), on_progress)
        for group in missing.values():
            if group:
                self._read_memory(group, tick)
            ready = [config for config in waiting if all(self._complete(reads[key]) for key in self._keys(config))]
            for config in ready:
                done(config, self._fuse(config))
                waiting.remove(config)

    def memories(self, variants: Iterable[Config]) -> list[str]:
        """Memories whose residuals are not all there yet: they can be read in any order, or at the same time."""
        return [key for key, group in self._missing(list(variants))[1].items() if group]

    def read(self, variants: Iterable[Config], memory: str, on_progress: Progress) -> None:
        """Make the residuals of one of :meth:`memories`; :meth:`run` then finds them there."""
        group = self._missing(list(variants))[1].get(memory)
        if group:
            self._read_memory(group, self._ticks([group], on_progress))

    def _missing(self, variants: list[Config]) -> tuple[dict[str, _Read], dict[str, list[_Read]]]:
        """All residuals that ``variants`` are made of, and those that are not there, by memory."""
        reads = self._plan(variants)
        groups: dict[str, list[_Read]] = {}
        for read in reads.values():
            groups.setdefault(read.memory, []).append(read)
        return reads, {key: [read for read in group if not self._complete(read)] for key, group in groups.items()}

    def _ticks(self, groups: Iterable[list[_Read]], on_progress: Progress) -> Callable[[], None]:
        """Something to call after each image that a memory was made from or asked about."""
        test = len(self._tokens.images) - self._train
        total = sum(self._train + test * len(group) for group in groups if group)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            on_progress("scoring", ticks, total)

        return tick

    # ------------------------------------------------------------------------------------------------ what is needed

    def _plan(self, variants: list[Config]) -> dict[str, _Read]:
        reads: dict[str, _Read] = {}
        for config in variants:
            for index, key in enumerate(self._keys(config)):
                known = reads.get(key)
                banks = max(config.banks, known.banks if known else 0)
                scaled = config.normalization == "train" or (known is not None and known.scaled)
                measured = _is_measured(config) or (known is not None and known.measured)
                reads[key] = _Read(config, index, banks, self._memory_key(config, index), key, scaled, measured)
        return reads

    def _keys(self, config: Config) -> list[str]:
        """The residuals that a variant is made of, by what they depend on."""
        read: dict[str, Any] = {"readout": config.readout, "compression": config.compression}
        if config.readout != "hard":
            read |= {"k": config.num_neighbors}
        if config.readout == "soft":
            read |= {"tau": config.tau, "tau_patches": config.tau_patches}
        if config.normalization == "train" or _is_measured(config):  # from the consensus of just so many banks
            read |= {"banks": config.banks, "measured": config.score_relative_to if _is_measured(config) else None}
        keys = []
        for index in range(len(self._embedding(config).dims)):
            about = {"memory": self._memory_key(config, index), "size": self._size(config), **read}
            keys.append(_digest(about))
        return keys

    def _memory_key(self, config: Config, index: int) -> str:
        embedding = self._embedding(config)
        about: dict[str, Any] = {"blocks": embedding.blocks(index), "joint": embedding.joint, "seed": config.seed}
        about |= {"dims": config.projection_dim, "selection": config.selection_dim, "coreset": config.coreset}
        about |= {"bank_seed": config.bank_seed, "half": self._limit(config) == 0}
        if config.coreset == "dense":
            about["size"] = self._size(config)
        return _digest(about)

    def _embedding(self, config: Config) -> Embedding:
        if config not in self._embeddings:
            self._embeddings[config] = Embedding(self._architecture, config, self._device)
        return self._embeddings[config]

    def _size(self, config: Config) -> int:
        patches = self._train * config.grid[0] * config.grid[1]
        return coreset_size(patches, config.coreset_ratio, config.num_neighbors, config.max_anchors)

    def _limit(self, config: Config) -> int:
        """Features are held as a detector with this configuration holds them: as fp16 once they are many."""
        patches = self._train * config.grid[0] * config.grid[1]
        return 0 if 4 * patches * sum(self._embedding(config).dims) > IN_RAM_BYTES else IN_RAM_BYTES

    # ------------------------------------------------------------------------------------------------ the work

    def _read_memory(self, reads: list[_Read], tick: Callable[[], None]) -> None:
        """All residuals of one memory: its training patches are embedded once."""
        first = reads[0]
        embedding = self._embedding(first.config)
        patches = first.config.grid[0] * first.config.grid[1]
        test = range(self._train, len(self._tokens.images))
        with (
            FeatureStore(self._train, patches, [embedding.dims[first.index]], self._limit(first.config)) as store,
            torch.inference_mode(),
        ):
            for image, features in enumerate(self._embed(embedding, first.index, range(self._train))):
                store.put(image, [features])
                tick()
            picks = self._picks(store, embedding.selections[first.index], reads)
            for alike in _alike(reads, self._search_key):
                size, banks = self._size(alike[0].config), max(read.banks for read in alike)
                layer = gather_layer(store, 0, picks[:banks, :size])
                layer = layer.compressed(alike[0].config.compression).to(self._device)
                found: dict[str, list[NDArray[Any]]] = {read.key: [] for read in alike}
                for features in self._embed(embedding, first.index, test):
                    for read, residuals in zip(alike, self._read(features, layer, alike), strict=True):
                        found[read.key].append(residuals[: read.banks].cpu().numpy())
                        tick()
                for read in alike:
                    self._save(read.key, np.stack(found[read.key]))
                    if read.scaled or read.measured:
                        alone = gather_layer(store, 0, picks[: read.banks, :size])
                        alone = alone.compressed(read.config.compression).to(self._device)
                    if read.scaled:
                        self._save(read.key + "-scale", self._scale(alone, store, read.config))
                    if read.measured:
                        tested = self._embed(embedding, first.index, test)
                        self._measure(alone, store, tested, read)

    def _search_key(self, read: _Read) -> tuple[Any, ...]:
        """Reads with the same key share their neighbours. An approximate search finds others for another k."""
        config = read.config
        approximate = config.compression == "approximate"
        return self._size(config), config.compression, (config.num_neighbors, config.readout) if approximate else None

    def _read(self, features: Tensor, layer: LayerMemory, reads: list[_Read]) -> list[Tensor]:
        """Residuals [B, P] of one image [1, P, D] under every read of one memory, whose neighbours are found once."""
        if self._device.type == "cuda":  # where the search is fused with the readout
            return [read_layer(features, layer, read.config).residuals[0] for read in reads]
        most = max(1 if read.config.readout == "hard" else read.config.num_neighbors for read in reads)
        distances, indices = nearest_in_banks(features[0], layer.index, most)
        known = features[0], layer, distances, indices
        return [read_neighbors(*known, read.config).residuals[0] for read in reads]

    def _embed(self, embedding: Embedding, index: int, images: range) -> Iterable[Tensor]:
        for tokens in self._tokens.read(embedding.blocks(index), images):
            yield embedding.embed_memory(index, [layer.to(self._device) for layer in tokens])

    def _picks(self, store: FeatureStore, selection: Tensor | None, reads: list[_Read]) -> Tensor:
        """Picks of the largest bank that any of the reads wants, [banks, size]; kept for the next time."""
        config = reads[0].config
        size = max(self._size(read.config) for read in reads)
        banks = max(read.banks for read in reads)
        path = self._path(reads[0].memory + "-picks")
        if path.exists():
            known = torch.from_numpy(np.load(path, allow_pickle=False))
            if known.shape[0] >= banks and known.shape[1] >= size:
                return known
        seeds = replace(config, banks=banks).bank_seeds
        grid = selection_grid(store, 0, selection, self._device)
        picks = select_anchors(grid, size, seeds, config.coreset).cpu()
        self._save(reads[0].memory + "-picks", picks.numpy())
        return picks

    def _scale(self, layer: LayerMemory, store: FeatureStore, config: Config) -> NDArray[np.float64]:
        """Mean and deviation of this memory's map over training images, each scored without its own anchors: [1, 2]."""
        source = layer.origin // store.patches  # the training image of each anchor
        maps = []
        for image in range(self._train):
            if int((source[layer.banks] != image).sum(dim=1).min()) < config.num_neighbors:
                raise ConfigError(
                    "normalization='train' needs more training images: each is scored without its own anchors"
                )
            reading = read_layer(store.image(image)[0].to(self._device), layer, config, source == image)
            maps.append(bank_consensus(reading.residuals).unsqueeze(1))
        return np.array(layer_scales(maps))

    def _measure(self, layer: LayerMemory, store: FeatureStore, tested: Iterable[Tensor], read: _Read) -> None:
        """Maps of good images, each without its own anchors, and residuals relative to what they leave on anchors."""
        memory = Memory((layer,), (TrainingImage("", (0, 0), ""),) * self._train, store.patches)
        if any(memory.fewest_without(image) < read.config.num_neighbors for image in range(self._train)):
            raise ConfigError(
                "score_relative_to='anchors' and map_offset='quartile' need more training images: each is scored "
                "without its own anchors"
            )
        maps: list[NDArray[Any]] = []
        sums: list[Tensor] = []
        for image in range(self._train):
            features = [part.to(self._device) for part in store.image(image)]
            (reading,) = read_layers(features, memory, read.config, hidden=memory.own([image]))
            maps.append(bank_consensus(reading.residuals)[0].cpu().numpy())
            if read.config.score_relative_to == "anchors":
                sums.append(reading.sums(len(layer.anchors)))
        self._save(read.key + "-good", np.stack(maps))
        if sums:
            levels = replace(layer, sums=sum(sums[1:], sums[0])).levels
            readings = (read_layer(features, layer, read.config, neighbors=True) for features in tested)
            relative = [reading.relative_to(levels)[0].cpu().numpy() for reading in readings]
            self._save(read.key + "-relative", np.stack(relative))

    def _fuse(self, config: Config) -> VariantScores:
        keys = self._keys(config)
        parts = [torch.from_numpy(self._load(key))[:, : config.banks] for key in keys]
        maps = torch.stack([bank_consensus(part) for part in parts], dim=1)
        scales = [(0.0, 1.0)] * len(keys)
        if config.normalization == "train":
            scales = [(float(centre), float(spread)) for key in keys for centre, spread in self._load(key + "-scale")]
        fused = fuse_layers(maps, scales, config)
        quartile, image = None, fused
        if config.map_offset == "quartile":
            good = torch.stack([torch.from_numpy(self._load(key + "-good")) for key in keys], dim=1)
            quartile = float(median(lower_quartile(fuse_layers(good, scales, config)), dim=0))
        if config.score_relative_to == "anchors":
            relative = [torch.from_numpy(self._load(key + "-relative")) for key in keys]
            image = fuse_layers(torch.stack([bank_consensus(part) for part in relative], dim=1), scales, config)
        scores = top_mean(image, config.top_ratio)
        return VariantScores(scores.numpy(), shift_maps(fused, quartile, config).view(-1, *config.grid).numpy())

    # ------------------------------------------------------------------------------------------------ files

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def _complete(self, read: _Read) -> bool:
        """Whether the residuals are there for enough banks."""
        path = self._path(read.key)
        beside = ["-scale"] * read.scaled + ["-good"] * read.measured
        beside += ["-relative"] * (read.measured and read.config.score_relative_to == "anchors")
        if not path.exists() or not all(self._path(read.key + one).exists() for one in beside):
            return False
        return bool(np.load(path, mmap_mode="r", allow_pickle=False).shape[1] >= read.banks)

    def _load(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = np.load(self._path(name), allow_pickle=False)
        return values

    def _save(self, name: str, values: NDArray[Any]) -> None:
        with atomic_path(self._path(name)) as temporary, temporary.open("wb") as stream:
            np.save(stream, values, allow_pickle=False)


def _is_measured(config: Config) -> bool:
    """Whether scoring needs to know what the memory leaves on good images."""
    return config.score_relative_to == "anchors" or config.map_offset == "quartile"


def _alike(reads: list[_Read], key: Callable[[_Read], Any]) -> list[list[_Read]]:
    """The reads in groups of equal ``key``."""
    groups: dict[Any, list[_Read]] = {}
    for read in reads:
        groups.setdefault(key(read), []).append(read)
    return list(groups.values())


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
