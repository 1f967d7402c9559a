"""Choosing the anchors of every bank from the embedded patches of the training images."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from procon.method.coreset import densest, k_center_on_grid, to_grid_
from procon.model.memory import LayerMemory


class PatchSource(Protocol):
    """Embedded patches of training images, by layer."""

    @property
    def rows(self) -> int:
        """Patches of all images."""

    @property
    def dims(self) -> list[int]:
        """Dimensions of each layer."""

    @property
    def counted(self) -> Tensor | None:
        """[K] int64: the patches that may become anchors, ascending; None: all."""

    def pieces(self, layer: int) -> Iterator[tuple[slice, Tensor]]:
        """All patches of a layer in order, float32 [some, D] with the rows they are."""


def coreset_size(patches: int, ratio: float, neighbors: int, cap: int | None) -> int:
    """Anchors of a bank: floor(ratio * N), at least k, at most ``cap``, never more than there are patches."""
    size = max(int(ratio * patches), neighbors)
    return min(size if cap is None else min(size, cap), patches)


def build_layer(
    store: PatchSource,
    layer: int,
    selection: Tensor | None,
    size: int,
    seeds: Sequence[int],
    device: torch.device,
    progress: Callable[[int], None] | None = None,
    *,
    coreset: str = "k-center",
) -> LayerMemory:
    """Select the banks of one layer from its training patches, one for each seed.

    Distances are taken in the space of ``selection`` [D, d] (None: in the full space); anchors stay in D dimensions.
    """
    grid = selection_grid(store, layer, selection, device)
    picks = select_anchors(grid, size, seeds, coreset, progress).cpu()
    return gather_layer(store, layer, picks if store.counted is None else store.counted[picks])


def selection_grid(store: PatchSource, layer: int, selection: Tensor | None, device: torch.device) -> Tensor:
    """The patches of a layer that may become anchors where they are selected: [N, d] on the grid of ``k_center``."""
    points = torch.empty(selectable(store), _selection_dims(store, layer, selection), device=device)
    fill_selected(points, store, layer, selection)
    return to_grid_(points)  # in place: at this size a second copy is what decides whether the fit fits


def fill_selected(points: Tensor, store: PatchSource, layer: int, selection: Tensor | None) -> None:
    """Write the patches of a layer that may become anchors into ``points`` [K, d], in the space of ``selection``."""
    matrix = None if selection is None else selection.to(points.device)
    done = 0
    for rows, features in store.pieces(layer):
        chosen = features
        if store.counted is not None:
            first, last = torch.searchsorted(store.counted, torch.tensor([rows.start, rows.stop])).tolist()
            chosen = features[store.counted[first:last] - rows.start]
        here = chosen.to(points.device)
        points[done : done + len(here)] = here if matrix is None else here @ matrix
        done += len(here)


def selectable(store: PatchSource) -> int:
    """How many patches may become anchors."""
    return store.rows if store.counted is None else len(store.counted)


def _selection_dims(store: PatchSource, layer: int, selection: Tensor | None) -> int:
    return store.dims[layer] if selection is None else selection.shape[1]


def select_anchors(
    grid: Tensor, size: int, seeds: Sequence[int], coreset: str, progress: Callable[[int], None] | None = None
) -> Tensor:
    """Rows of ``grid`` [N, d] that make up the bank of each seed: [len(seeds), size].

    ``k-center`` starts at a point drawn with the seed; ``random`` draws all; ``dense`` keeps the fuller half of twice
    as many centres. The first two are nested: a smaller bank of the same seed is the beginning of a larger one.
    """
    if coreset == "random":
        orders = [np.random.RandomState(seed).permutation(len(grid))[:size] for seed in seeds]
        return torch.from_numpy(np.stack(orders))
    starts = [int(np.random.RandomState(seed).random_sample() * len(grid)) for seed in seeds]
    if coreset == "k-center":
        return k_center_on_grid(grid, size, starts, progress=progress)

    def halved(done: int) -> None:
        if progress is not None:
            progress(done // 2)

    wide = k_center_on_grid(grid, min(2 * size, len(grid)), starts, progress=halved)
    return torch.stack([densest(grid, bank, size) for bank in wide])


def gather_layer(store: PatchSource, layer: int, picks: Tensor) -> LayerMemory:
    """The memory whose banks are rows ``picks`` [B, M] of the training patches of a layer."""
    origin, places = picks.unique(return_inverse=True)  # ascending, so the file does not depend on who picked first
    anchors = torch.empty(len(origin), store.dims[layer])
    for rows, features in store.pieces(layer):
        inside = (origin >= rows.start) & (origin < rows.stop)
        anchors[inside] = features[origin[inside] - rows.start]
    return LayerMemory(anchors, origin, places)
