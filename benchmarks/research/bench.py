"""A bench for recipes: tokens once, neighbours once, then any number of readouts.

A :class:`Reading` says how the patches of an image get their values. Its map gives the pixel metrics, the mean of its
highest patches the image metrics, so that a recipe may take the two from different readings. What readings share is
computed once: tokens of an input size, anchors and neighbours of a memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from procon.config import Config
from procon.evaluation.data.datasets import Category
from procon.method.consensus import bank_consensus, top_mean
from procon.method.coreset import to_grid_
from procon.method.projection import gaussian_matrix, project
from procon.model.reader import Extractor
from procon.model.selection import coreset_size, select_anchors
from procon.vision.backbone import Backbone
from procon.vision.framing import to_input
from procon.vision.images import open_image
from research.readouts import Neighborhood, Normal, PatchReadout, find_neighbors, normal_statistics, read_patches

_SELECTION = 1  # as in procon.model.features: the purpose in the seed of the matrix anchors are selected with

Block = int | tuple[int, ...]
"""A block of the backbone, or several whose normalised tokens are averaged."""

TURNS = {
    "none": ((0, False),),
    "mirror": ((0, False), (0, True)),
    "mirrors": ((0, False), (0, True), (2, False), (2, True)),
    "all": tuple((quarter, mirrored) for mirrored in (False, True) for quarter in range(4)),
}
"""Ways an image is turned: quarter turns, and whether it is mirrored first."""


@dataclass(frozen=True)
class Reading:
    """How the patches of an image get their values. The default is the paper's recipe."""

    image_size: int = 392
    tile: int | None = None
    """Side in pixels of the overlapping squares that the backbone sees one at a time; None: all at once."""
    layers: tuple[Block, ...] = (-3, -6, -8, -9)
    channels: Literal["raw", "centred", "standard", "whitened"] = "raw"
    """Tokens before they are normalised: as they are, without the mean of the good ones, divided by its deviation per
    channel too, or decorrelated."""
    turned: str = "none"
    """How the good images are turned to make more of them; see :data:`TURNS`."""
    views: str = "none"
    """How a test image is turned; its map is the mean over these."""
    coreset_ratio: float = 0.05
    """Anchors of a bank over the patches of the good images, before these are turned."""
    banks: int = 5
    readout: PatchReadout = field(default_factory=PatchReadout)
    scaled: bool = False
    """Each layer by the mean and deviation of its map on good images, before the layers are averaged."""
    less_median: float = 0.0
    """How much of the image's own median patch value is taken off its map."""
    typical: float = 0.5
    """The share of patches below the value that is taken off: 0.5 is the median."""
    top_ratio: float = 0.005
    """Share of patches whose mean is the image score."""
    blur_sigma: float = 4.0
    """Blur of the pixel map, in pixels of a map of side 392."""
    smooth: int = 0
    """Patches on each side over which a value is averaged before the highest are taken for the image score."""

    @property
    def source(self) -> tuple[Any, ...]:
        """What its memories are made of; readings that agree in it share tokens and anchors."""
        return self.image_size, self.tile, self.channels, self.turned, self.views

    @property
    def name(self) -> str:
        """How it differs from the paper's recipe."""
        return describe(self, Reading()) or "paper"


def describe(value: Any, plain: Any) -> str:
    """``field=value`` of every field in which a dataclass differs from another, nested ones included."""
    parts = []
    for one in fields(plain):
        mine, other = getattr(value, one.name), getattr(plain, one.name)
        if mine == other:
            continue
        text = f"{mine:.4g}" if isinstance(mine, float) else str(mine).replace(" ", "")
        parts.append(describe(mine, other) if one.name == "readout" else f"{one.name}={text}")
    return " ".join(parts)


class Bench:
    """One part on one device: its good and test images, and the backbone."""

    def __init__(self, category: Category, base: Config, device: torch.device) -> None:
        self.category, self.base, self.device = category, base, device
        self.train = list(category.train)
        self.test = [sample.path for sample in category.test]
        self._pixels: dict[tuple[str, int], Tensor] = {}
        self._depth = 0

    @torch.inference_mode()
    def run(self, readings: Iterable[Reading], seed: int = 0) -> Iterator[tuple[Reading, Tensor]]:
        """The patch values [T, rows, columns] of all test images under each reading; ``seed`` shifts the banks'."""
        groups: dict[tuple[Any, ...], list[Reading]] = {}
        for reading in readings:
            groups.setdefault(reading.source, []).append(reading)
        for group in groups.values():
            yield from self._group(group, seed)

    def _group(self, group: list[Reading], seed: int) -> Iterator[tuple[Reading, Tensor]]:
        first = group[0]
        side = first.image_size // 14
        layers = sorted({layer for reading in group for layer in reading.layers}, key=str)
        maps: dict[tuple[Any, ...], tuple[Tensor, Tensor | None]] = {}
        for layer, good, test in self._features(first, layers):
            for key, read_maps in self._layer(group, layer, good, test, seed).items():
                maps[key, layer] = read_maps
        for reading in group:
            parts = []
            for layer in reading.layers:
                values, normal = maps[_memory_key(reading), layer]
                if reading.scaled:
                    assert normal is not None
                    values = (values - normal.mean()) / normal.std()
                parts.append(values)
            fused = torch.stack(parts).mean(dim=0).view(-1, len(self.test), side, side)
            views = [
                turn(one, quarter, mirrored, back=True)
                for one, (quarter, mirrored) in zip(fused, TURNS[reading.views], strict=True)
            ]
            values = torch.stack(views).mean(dim=0)
            typical = values.flatten(1).quantile(reading.typical, dim=1).view(-1, 1, 1)
            yield reading, (values - reading.less_median * typical).cpu()

    # ------------------------------------------------------------------------------------------------ features

    def _features(self, reading: Reading, layers: Sequence[Block]) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Features [N * turns, P, D] of the good and [views * T, P, D] of the test images, layer by layer."""
        blocks = sorted({block for layer in layers for block in _blocks(layer)})
        config = replace(self.base, image_size=reading.image_size, tile=reading.tile, layers=tuple(blocks))
        extractor = Extractor(Backbone.load(config, self.device), config)
        self._depth = extractor.backbone.architecture.depth
        good = self._tokens(extractor, self._read("good", self.train, reading.image_size), reading.turned)
        test = self._tokens(extractor, self._read("test", self.test, reading.image_size), reading.views)
        for layer in layers:
            sides: list[list[Tensor]] = [[], []]
            for block in _blocks(layer):
                transform = channel_transform(good[block], reading.channels)
                for side, tokens in zip(sides, (good, test), strict=True):
                    side.append(project(transform(tokens[block].to(self.device)), None))
            known, new = (project(torch.stack(side).mean(dim=0), None) for side in sides)
            yield layer, known, new

    def _read(self, which: str, paths: Sequence[Path], size: int) -> Tensor:
        """Inputs [N, 3, size, size] of images, decoded once for each size."""
        if (which, size) not in self._pixels:
            with ThreadPoolExecutor(16) as pool:
                inputs = pool.map(lambda path: to_input(open_image(path), Config(image_size=size)), paths)
                self._pixels[which, size] = torch.stack([torch.from_numpy(values) for values in inputs])
        return self._pixels[which, size]

    def _tokens(self, extractor: Extractor, pixels: Tensor, turns: str) -> dict[int, Tensor]:
        """Tokens [turns * N, P, C] of each block: all images in the first turn, then all in the next."""
        depth = extractor.backbone.architecture.depth
        parts: dict[int, list[Tensor]] = {block - depth: [] for block in extractor.layers}
        for quarter, mirrored in TURNS[turns]:
            for batch in pixels.split(32):
                found = extractor.tokens(turn(batch, quarter, mirrored))
                for values, tokens in zip(parts.values(), found, strict=True):
                    values.append(tokens)
        return {block: torch.cat(values) for block, values in parts.items()}

    # ------------------------------------------------------------------------------------------------ one layer

    def _layer(
        self, group: list[Reading], layer: Block, good: Tensor, test: Tensor, seed: int
    ) -> dict[tuple[Any, ...], tuple[Tensor, Tensor | None]]:
        """Values [views * T, P] of the test patches for every way the memory of a layer is built and read.

        With them those [N, P] of the good ones, each image without its own anchors, where a reading asks for them.
        """
        wanted = [reading for reading in group if layer in reading.layers]
        patches, count = good.shape[1], len(self.train)
        sizes = {r.coreset_ratio: coreset_size(count * patches, r.coreset_ratio, 5, None) for r in wanted}
        most = max(reading.banks for reading in wanted)
        picks = self._pick(good.flatten(0, 1), layer, max(sizes.values()), [seed + 1 + bank for bank in range(most)])
        found: dict[tuple[Any, ...], tuple[Tensor, Tensor | None]] = {}
        for ratio, size in sizes.items():
            alike = [reading for reading in wanted if reading.coreset_ratio == ratio]
            banks = max(reading.banks for reading in alike)
            k = max(reading.readout.neighbors for reading in alike)
            memories = {_memory_key(reading): reading for reading in alike}
            values: dict[tuple[Any, ...], list[Tensor]] = {key: [] for key in memories}
            normal: dict[tuple[Any, ...], list[Tensor]] = {key: [] for key in memories}
            learns = any(r.scaled or r.readout.relative_to != "nothing" for r in alike)
            for bank in picks[:banks, :size]:
                anchors, origin = good.flatten(0, 1)[bank], bank // patches % count
                near = find_neighbors(test, anchors, k)
                known = find_neighbors(good[:count], anchors, k, origin) if learns else None
                for key, reading in memories.items():
                    if len(values[key]) < reading.banks:
                        levels, seen = _statistics(known, reading, len(anchors))
                        values[key].append(read_patches(near, reading.readout, levels))
                        if seen is not None and reading.scaled:
                            normal[key].append(seen)
            for key in memories:
                good_maps = bank_consensus(torch.stack(normal[key], dim=1)) if normal[key] else None
                found[key] = bank_consensus(torch.stack(values[key], dim=1)), good_maps
        return found

    def _pick(self, points: Tensor, layer: Block, size: int, seeds: Sequence[int]) -> Tensor:
        """Rows [len(seeds), size] of ``points`` that make up the banks, as the package selects them."""
        width, wanted = points.shape[1], self.base.selection_dim
        key = _blocks(layer)[0] + self._depth
        selection = gaussian_matrix(width, wanted, self.base.seed, key, _SELECTION) if wanted < width else None
        grid = points @ selection.to(points.device) if selection is not None else points.clone()
        return select_anchors(to_grid_(grid), size, seeds, "k-center").to(points.device)


def _statistics(known: Neighborhood | None, reading: Reading, anchors: int) -> tuple[Normal | None, Tensor | None]:
    """Normal levels for a readout, and its values on the good images where layers are scaled by them."""
    if known is None:
        return None, None
    levels = None
    if reading.readout.relative_to != "nothing":
        levels = normal_statistics(known, reading.readout, anchors)
    return levels, read_patches(known, reading.readout, levels) if reading.scaled else None


def _memory_key(reading: Reading) -> tuple[Any, ...]:
    return reading.coreset_ratio, reading.banks, reading.readout, reading.scaled


def _blocks(layer: Block) -> tuple[int, ...]:
    return layer if isinstance(layer, tuple) else (layer,)


def turn(images: Tensor, quarter: int, mirrored: bool, *, back: bool = False) -> Tensor:
    """Images [..., H, W] mirrored left to right and then turned by quarters; ``back`` undoes it."""
    if back:
        images = torch.rot90(images, -quarter, (-2, -1))
        return images.flip(-1) if mirrored else images
    return torch.rot90(images.flip(-1) if mirrored else images, quarter, (-2, -1))


def channel_transform(tokens: Tensor, channels: str) -> Callable[[Tensor], Tensor]:
    """What to do to tokens [..., C] before they are normalised, learnt from those [N, P, C] of good images."""
    if channels == "raw":
        return lambda values: values
    flat = tokens.flatten(0, -2).double()
    mean = flat.mean(dim=0)
    if channels == "centred":
        return lambda values: values - mean.float()
    if channels == "standard":
        spread = flat.std(dim=0).clamp_min(1e-9)
        return lambda values: ((values - mean) / spread).float()
    centred = flat - mean
    power, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    turned = (axes / (power + power.mean()).sqrt()).float()
    return lambda values: (values - mean.float()) @ turned


def image_scores(values: Tensor, reading: Reading) -> Tensor:
    """Image scores [T] from patch values [T, rows, columns]."""
    if reading.smooth:
        side = 2 * reading.smooth + 1
        pooled = torch.nn.functional.avg_pool2d(values.unsqueeze(1), side, 1, reading.smooth, count_include_pad=False)
        values = pooled.squeeze(1)
    return top_mean(values.flatten(1), reading.top_ratio)
