"""Editing a memory: images added, removed, and two memories made one. Nothing here needs the old images.

What a memory knows about good images (``sums``, ``scale``, ``quartile``) is that of before, or gone: measure it again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from procon.method.coreset import k_center, k_center_from_grid, to_grid_
from procon.model.memory import LayerMemory, Memory
from procon.model.selection import PatchSource, fill_selected, gather_layer, selectable
from procon.model.training import TrainingImage


def growth(patches: int, ratio: float, held: int, cap: int | None) -> int:
    """Anchors a bank of ``held`` gains from N patches: floor(ratio * N), at least 1, as far as ``cap`` leaves room."""
    wanted = max(1, int(ratio * patches))
    return wanted if cap is None else max(0, min(wanted, cap - held))


def extended(
    memory: Memory,
    source: PatchSource,
    images: Sequence[TrainingImage],
    selections: Sequence[Tensor | None],
    size: int,
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> Memory:
    """The memory with ``size`` anchors more in every bank, from the patches of ``images`` in ``source``.

    Each bank continues its own farthest-point traversal: the next anchor is the patch farthest from all it has, in the
    space of ``selections``. Anchors already there stay, in their order. ``progress`` hears the anchors chosen so far.
    """
    before = len(memory.images) * memory.patches
    layers: list[LayerMemory] = []
    for index, (layer, selection) in enumerate(zip(memory.layers, selections, strict=True)):
        grid = _shared_grid(layer.anchors, source, index, selection, device)
        centers, points = grid[: len(layer.anchors)], grid[len(layer.anchors) :]
        picks = []
        for bank in layer.banks:
            found = k_center_from_grid(points, centers[bank], size).cpu()
            picks.append(found if source.counted is None else source.counted[found])
            if progress is not None:
                progress((len(layers) * len(layer.banks) + len(picks)) * size)
        added = gather_layer(source, index, torch.stack(picks)).compressed(layer.compression).to(device)
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


def _shared_grid(
    anchors: Tensor, source: PatchSource, layer: int, selection: Tensor | None, device: torch.device
) -> Tensor:
    """Anchors [U, D] and the patches [N, D] of a layer where coresets are selected, on one grid: [U + N, d]."""
    width = anchors.shape[1] if selection is None else selection.shape[1]
    points = torch.empty(len(anchors) + selectable(source), width, device=device)
    points[: len(anchors)] = anchors if selection is None else anchors @ selection.to(device)
    fill_selected(points[len(anchors) :], source, layer, selection)
    return to_grid_(points)


def without(memory: Memory, gone: Collection[int]) -> Memory:
    """The memory without the images numbered ``gone`` and every anchor that came from them.

    Banks of a layer keep one length: the longer ones drop their last picks, the least distinctive they have.
    """
    keep = [number for number in range(len(memory.images)) if number not in gone]
    renumbered = torch.full((len(memory.images),), -1, dtype=torch.int64)
    renumbered[keep] = torch.arange(len(keep))
    layers = []
    for layer in memory.layers:
        number = renumbered.to(layer.origin.device)[layer.origin // memory.patches]
        banks = [bank[number[bank] >= 0] for bank in layer.banks]
        length = min(len(bank) for bank in banks)
        kept, places = torch.stack([bank[:length] for bank in banks]).unique(return_inverse=True)
        origin = number[kept] * memory.patches + layer.origin[kept] % memory.patches
        layers.append(replace(layer, anchors=layer.anchors[kept], origin=origin, banks=places, sums=None))
    return replace(memory, layers=tuple(layers), images=tuple(memory.images[number] for number in keep))


def merged(one: Memory, other: Memory, selections: Sequence[Tensor | None], cap: int | None) -> Memory:
    """The memory of both sets of images: bank b holds the anchors of both banks b.

    They are put in the order of a farthest-point traversal from the first of ``one``; where ``cap`` allows fewer, its
    beginning is kept.
    """
    layers = []
    for layer, more, selection in zip(one.layers, other.layers, selections, strict=True):
        anchors = torch.cat([layer.anchors, more.anchors.to(layer.anchors.device)])
        origin = torch.cat([layer.origin, more.origin.to(layer.origin.device) + len(one.images) * one.patches])
        points = anchors if selection is None else anchors @ selection.to(anchors.device)
        banks = []
        for mine, theirs in zip(layer.banks, more.banks.to(layer.banks.device), strict=True):
            union = torch.cat([mine, theirs + len(layer.anchors)])
            banks.append(union[k_center(points[union], min(len(union), cap or len(union)), [0])[0]])
        kept, places = torch.stack(banks).unique(return_inverse=True)
        layers.append(replace(layer, anchors=anchors[kept], origin=origin[kept], banks=places, sums=None))
    return replace(one, layers=tuple(layers), images=one.images + other.images)
