"""Which patches are anchors: of a new memory, of one that gains or loses images, of two that become one.

An edited memory has no ``sums``, and its ``scale`` and ``quartile`` are those of before: measure good images again.
"""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.method.coreset import OnPick, densest, k_center, k_center_from_grid, k_center_on_grid, to_grid_
from procon.model.memory import LayerMemory, Memory
from procon.model.training_image import TrainingImage

IN_RAM_BYTES = 2 * 2**30  # features up to this size stay in memory as fp32; beyond it they go to disk as fp16


class FeatureStore:
    """Embedded patches of the training images, filled image by image, read layer by layer.

    Small sets stay in memory as fp32. Larger ones are in temporary files as fp16, mapped a piece at a time, so that
    fitting thousands of images needs disk, not memory. A context manager: it deletes the files. On a GPU, ``device``,
    they stay there.
    """

    def __init__(
        self,
        images: int,
        patches: int,
        dims: list[int],
        limit: int = IN_RAM_BYTES,
        device: torch.device | None = None,
    ) -> None:
        self.patches, self.dims = patches, dims
        self.rows = images * patches
        self.counted: Tensor | None = None  # [K] int64: the patches that may become anchors, ascending; None: all
        self._device = torch.device("cpu") if device is None else device
        self.on_disk = device is None and 4 * self.rows * sum(dims) > limit
        self._folder = tempfile.TemporaryDirectory(prefix="procon-") if self.on_disk else None
        self._layers = [] if self.on_disk else [torch.empty(self.rows, dim, device=device) for dim in dims]
        if self._folder is not None:
            for index, dim in enumerate(dims):
                with self._file(index).open("wb") as stream:
                    stream.truncate(2 * self.rows * dim)

    def __enter__(self) -> "FeatureStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._layers.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __len__(self) -> int:
        return len(self.dims)

    @property
    def selectable(self) -> int:
        """How many patches may become anchors."""
        return self.rows if self.counted is None else len(self.counted)

    def keep(self, images: int) -> None:
        """Use only the first so many ``images``."""
        self.rows = images * self.patches

    def put(self, image: int, features: list[Tensor]) -> None:
        """Store the embedded patches [N, P, D] of every layer, of N images from number ``image`` on."""
        for layer, (values, _) in enumerate(zip(features, self.dims, strict=True)):
            rows = slice(image * self.patches, (image + len(values)) * self.patches)
            flat = values.flatten(0, 1).to(self._device)
            if self.on_disk:
                self._map(layer, rows, "r+")[:] = flat.half().numpy()
            else:
                self._layers[layer][rows] = flat

    def image(self, image: int) -> list[Tensor]:
        """The embedded patches [1, P, D] of every layer of one image, float32."""
        rows = slice(image * self.patches, (image + 1) * self.patches)
        return [self._read_rows(layer, rows).unsqueeze(0) for layer in range(len(self))]

    def pieces(self, layer: int, size: int = 65_536) -> Iterator[tuple[slice, Tensor]]:
        """All patches of a layer in order, float32 [at most size, D], each with its rows."""
        for start in range(0, self.rows, size):
            rows = slice(start, min(start + size, self.rows))
            yield rows, self._read_rows(layer, rows)

    def _file(self, layer: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"layer{layer}"

    def _map(self, layer: int, rows: slice, mode: Literal["r", "r+"]) -> NDArray[np.float16]:
        """Some rows of a file; mapped pages count as memory only while this array lives."""
        count, dim = rows.stop - rows.start, self.dims[layer]
        return np.memmap(self._file(layer), np.float16, mode, offset=2 * rows.start * dim, shape=(count, dim))

    def _read_rows(self, layer: int, rows: slice) -> Tensor:
        if not self.on_disk:
            return self._layers[layer][rows]
        return torch.from_numpy(self._map(layer, rows, "r").astype(np.float32))


# ---------------------------------------------------------------------------------------------------------- new banks


def coreset_size(patches: int, ratio: float, neighbors: int, cap: int | None) -> int:
    """Anchors of a bank: floor(ratio * N), at least k, at most ``cap``, never more than there are patches."""
    size = max(int(ratio * patches), neighbors)
    return min(size if cap is None else min(size, cap), patches)


def build_layer(
    store: FeatureStore,
    layer: int,
    selection: Tensor | None,
    size: int,
    seeds: Sequence[int],
    device: torch.device,
    on_pick: OnPick = None,
    *,
    coreset: str = "k-center",
) -> LayerMemory:
    """Select the banks of one layer from its training patches, one for each seed.

    Distances are taken in the space of ``selection`` [D, d] (None: in the full space); anchors stay in D dimensions.
    """
    grid = selection_grid(store, layer, selection, device)
    picks = select_anchors(grid, size, seeds, coreset, on_pick).cpu()
    return gather_layer(store, layer, picks if store.counted is None else store.counted[picks])


def selection_grid(store: FeatureStore, layer: int, selection: Tensor | None, device: torch.device) -> Tensor:
    """The selectable patches of a layer in the space of ``selection``: [N, d] on the grid of ``k_center``."""
    # In place: at this size a second copy is what decides whether the fit fits.
    return to_grid_(selection_points(store, layer, selection, device))


def selection_points(
    store: FeatureStore,
    layer: int,
    selection: Tensor | None,
    device: torch.device,
    anchors: Tensor | None = None,
) -> Tensor:
    """``anchors`` [U, D], then the selectable patches of a layer, in the space of ``selection``: [U + N, d]."""
    matrix = None if selection is None else selection.to(device)
    done = 0 if anchors is None else len(anchors)
    width = store.dims[layer] if matrix is None else matrix.shape[1]
    points = torch.empty(done + store.selectable, width, device=device)
    if anchors is not None:
        points[:done] = anchors if matrix is None else anchors @ matrix
    for rows, features in store.pieces(layer):
        chosen = features
        if store.counted is not None:
            first, last = torch.searchsorted(store.counted, torch.tensor([rows.start, rows.stop])).tolist()
            chosen = features[(store.counted[first:last] - rows.start).to(features.device)]
        piece = chosen.to(device)
        points[done : done + len(piece)] = piece if matrix is None else piece @ matrix
        done += len(piece)
    return points


def select_anchors(grid: Tensor, size: int, seeds: Sequence[int], coreset: str, on_pick: OnPick = None) -> Tensor:
    """Rows of ``grid`` [N, d] that make up the bank of each seed: [len(seeds), size].

    ``k-center`` starts at a point drawn with the seed; ``random`` draws all; ``dense`` keeps the fuller half of twice
    as many centres. The first two are nested: a smaller bank of the same seed is the beginning of a larger one.
    """
    if coreset == "random":
        orders = [np.random.RandomState(seed).permutation(len(grid))[:size] for seed in seeds]
        return torch.from_numpy(np.stack(orders))
    starts = [int(np.random.RandomState(seed).random_sample() * len(grid)) for seed in seeds]
    if coreset == "k-center":
        return k_center_on_grid(grid, size, starts, on_pick=on_pick)
    on_half = None if on_pick is None else lambda done: on_pick(done // 2)
    wide = k_center_on_grid(grid, min(2 * size, len(grid)), starts, on_pick=on_half)
    return torch.stack([densest(grid, bank, size) for bank in wide])


def gather_layer(store: FeatureStore, layer: int, picks: Tensor) -> LayerMemory:
    """The memory whose banks are rows ``picks`` [B, M] of the training patches of a layer."""
    origin, banks = picks.unique(return_inverse=True)  # ascending, so the file does not depend on who picked first
    anchors = torch.empty(len(origin), store.dims[layer])
    for rows, features in store.pieces(layer):
        inside = (origin >= rows.start) & (origin < rows.stop)
        anchors[inside] = features[(origin[inside] - rows.start).to(features.device)].cpu()
    return LayerMemory(anchors, origin, banks)


# ------------------------------------------------------------------------------------------------------- edited banks


def growth_size(patches: int, ratio: float, held: int, cap: int | None) -> int:
    """Anchors a bank of ``held`` gains from N patches: floor(ratio * N), at least 1, as far as ``cap`` leaves room."""
    wanted = max(1, int(ratio * patches))
    return wanted if cap is None else max(0, min(wanted, cap - held))


def add_images(
    memory: Memory,
    store: FeatureStore,
    images: Sequence[TrainingImage],
    selections: Sequence[Tensor | None],
    size: int,
    device: torch.device,
    on_pick: OnPick = None,
) -> Memory:
    """The memory with ``size`` anchors more in every bank, from the patches of ``images`` in ``store``.

    Each bank continues its own farthest-point traversal: the next anchor is the patch farthest from all it has, in the
    space of ``selections``. Existing anchors stay, in their order.
    """
    before = len(memory.images) * memory.patches
    layers: list[LayerMemory] = []
    for index, (layer, selection) in enumerate(zip(memory.layers, selections, strict=True)):
        # Anchors and patches share one grid: distances between them need one scale.
        grid = to_grid_(selection_points(store, index, selection, device, layer.anchors))
        centers, points = grid[: len(layer.anchors)], grid[len(layer.anchors) :]
        picks = []
        for bank in layer.banks:
            rows = k_center_from_grid(points, centers[bank], size).cpu()
            picks.append(rows if store.counted is None else store.counted[rows])
            if on_pick is not None:
                on_pick((len(layers) * len(layer.banks) + len(picks)) * size)
        added = gather_layer(store, index, torch.stack(picks)).compressed(layer.compression).to(device)
        layers.append(
            replace(
                layer,
                anchors=torch.cat([layer.anchors, added.anchors]),
                origin=torch.cat([layer.origin, added.origin + before]),
                banks=torch.cat([layer.banks, added.banks + len(layer.anchors)], dim=1),
                sums=None,
            )
        )
    return replace(memory, layers=tuple(layers), images=(*memory.images, *images))


def remove_images(memory: Memory, removed: Collection[int]) -> Memory:
    """The memory without the images numbered ``removed`` and every anchor that came from them.

    Banks of a layer keep one length: the longer ones drop their last picks, the least distinctive they have.
    """
    staying = [number for number in range(len(memory.images)) if number not in removed]
    renumbered = torch.full((len(memory.images),), -1, dtype=torch.int64)
    renumbered[staying] = torch.arange(len(staying))
    layers = []
    for layer in memory.layers:
        number = renumbered.to(layer.origin.device)[layer.origin // memory.patches]
        banks = [bank[number[bank] >= 0] for bank in layer.banks]
        length = min(len(bank) for bank in banks)
        rows, places = torch.stack([bank[:length] for bank in banks]).unique(return_inverse=True)
        origin = number[rows] * memory.patches + layer.origin[rows] % memory.patches
        layers.append(replace(layer, anchors=layer.anchors[rows], origin=origin, banks=places, sums=None))
    return replace(memory, layers=tuple(layers), images=tuple(memory.images[number] for number in staying))


def merge_memories(first: Memory, second: Memory, selections: Sequence[Tensor | None], cap: int | None) -> Memory:
    """The memory of both sets of images: bank b holds the anchors of both banks b.

    They are put in the order of a farthest-point traversal from the first anchor of ``first``; where ``cap`` allows
    fewer, its beginning is kept.
    """
    layers = []
    for layer, other, selection in zip(first.layers, second.layers, selections, strict=True):
        more = other.to(layer.anchors.device)
        anchors = torch.cat([layer.anchors, more.anchors])
        origin = torch.cat([layer.origin, more.origin + len(first.images) * first.patches])
        points = anchors if selection is None else anchors @ selection.to(anchors.device)
        banks = []
        for mine, theirs in zip(layer.banks, more.banks, strict=True):
            union = torch.cat([mine, theirs + len(layer.anchors)])
            banks.append(union[k_center(points[union], min(len(union), cap or len(union)), [0])[0]])
        rows, places = torch.stack(banks).unique(return_inverse=True)
        layers.append(replace(layer, anchors=anchors[rows], origin=origin[rows], banks=places, sums=None))
    return replace(first, layers=tuple(layers), images=first.images + second.images)
