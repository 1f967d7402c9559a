"""What a detector remembers: anchors of normal patches, where each came from, and which bank holds which."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from procon.kernels.coreset import k_center
from procon.kernels.neighbors import Banks

IN_RAM_BYTES = 2 * 2**30  # features up to this size stay in memory as fp32; beyond it they go to disk as fp16


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """The banks of one layer. An anchor that several banks picked is stored once."""

    anchors: Tensor
    """[U, D] float32, the anchors of all banks, ascending by ``origin``."""
    origin: Tensor
    """[U] int64: image * patches per image + patch, of the training set."""
    banks: Tensor
    """[B, M] int64 rows of ``anchors``, in order of picking."""

    def bank(self, index: int) -> Tensor:
        """M_{l,b}: the anchors of one bank, [M, D]."""
        return self.anchors[self.banks[index]]

    @cached_property
    def index(self) -> Banks:
        """The banks as the neighbour search wants them."""
        return Banks(self.anchors, self.banks)

    def to(self, device: torch.device) -> "LayerMemory":
        """The same memory on another device."""
        return LayerMemory(self.anchors.to(device), self.origin.to(device), self.banks.to(device))


@dataclass(frozen=True)
class Memory:
    """The memories of all layers and the names of the images behind them."""

    layers: tuple[LayerMemory, ...]
    images: tuple[str, ...]
    patches: int
    """Patches per image."""

    def own(self, layer: LayerMemory, image: int | None) -> Tensor | None:
        """[U] bool: which anchors of ``layer`` came from training image ``image``; None hides nothing."""
        return None if image is None else layer.origin // self.patches == image

    def fewest_without(self, image: int) -> int:
        """Anchors of the smallest bank once those from ``image`` are left out."""
        return min(
            int((layer.origin[bank] // self.patches != image).sum()) for layer in self.layers for bank in layer.banks
        )

    def to(self, device: torch.device) -> "Memory":
        """The same memory on another device."""
        return replace(self, layers=tuple(layer.to(device) for layer in self.layers))

    def to_tensors(self) -> dict[str, Tensor]:
        """What a model file stores."""
        tensors = {}
        for index, layer in enumerate(self.layers):
            tensors[f"memory.{index}.anchors"] = layer.anchors
            tensors[f"memory.{index}.origin"] = layer.origin
            tensors[f"memory.{index}.banks"] = layer.banks.to(torch.int32)
        return tensors

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], images: tuple[str, ...], patches: int) -> "Memory":
        """The inverse of :meth:`to_tensors`; a ValueError says what does not fit."""
        layers: list[LayerMemory] = []
        while f"memory.{len(layers)}.anchors" in tensors:
            prefix = f"memory.{len(layers)}."
            layer = LayerMemory(
                tensors[prefix + "anchors"], tensors[prefix + "origin"], tensors[prefix + "banks"].to(torch.int64)
            )
            if (
                layer.anchors.ndim != 2
                or layer.banks.ndim != 2
                or not layer.banks.numel()
                or layer.origin.shape != layer.anchors.shape[:1]
                or not 0 <= int(layer.banks.min()) <= int(layer.banks.max()) < len(layer.anchors)
                or not 0 <= int(layer.origin.min()) <= int(layer.origin.max()) < len(images) * patches
            ):
                raise ValueError(f"memory {len(layers)} has tensors of shapes that do not match")
            if not layer.anchors.isfinite().all():
                raise ValueError(f"memory {len(layers)} holds NaN or infinite anchors")
            layers.append(layer)
        if not layers:
            raise ValueError("no memory in the file")
        return cls(tuple(layers), images, patches)


class FeatureStore:
    """Embedded patches of the training images, filled image by image, read layer by layer.

    Small sets stay in memory as fp32. Larger ones live in temporary memory-mapped files as fp16, so that fitting
    thousands of images needs disk, not memory. Use as a context manager: the files go away with it.
    """

    def __init__(self, images: int, patches: int, dims: list[int], limit: int = IN_RAM_BYTES) -> None:
        rows = images * patches
        self.patches = patches
        self.on_disk = 4 * rows * sum(dims) > limit
        self._folder = tempfile.TemporaryDirectory(prefix="procon-") if self.on_disk else None
        self._layers = [
            torch.from_file(
                str(Path(self._folder.name) / f"layer{index}"), shared=True, size=rows * dim, dtype=torch.float16
            ).view(rows, dim)
            if self._folder
            else torch.empty(rows, dim)
            for index, dim in enumerate(dims)
        ]

    def __enter__(self) -> "FeatureStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._layers.clear()
        if self._folder:
            self._folder.cleanup()

    def put(self, image: int, features: list[Tensor]) -> None:
        """Store the embedded patches [N, P, D] of every layer, of N images from number ``image`` on."""
        for layer, values in zip(self._layers, features, strict=True):
            rows = slice(image * self.patches, (image + len(values)) * self.patches)
            layer[rows] = values.flatten(0, 1).to("cpu", layer.dtype)

    def image(self, image: int) -> list[Tensor]:
        """The embedded patches [1, P, D] of every layer of one image, float32."""
        rows = slice(image * self.patches, (image + 1) * self.patches)
        return [layer[rows].float().unsqueeze(0) for layer in self._layers]

    def layer(self, layer: int) -> Tensor:
        """All patches [N, D] of a layer as stored."""
        return self._layers[layer]

    def __len__(self) -> int:
        return len(self._layers)


def coreset_size(patches: int, ratio: float, neighbors: int, cap: int | None) -> int:
    """Anchors of a bank: floor(ratio * N), at least k, at most ``cap``, never more than there are patches."""
    size = max(int(ratio * patches), neighbors)
    return min(size if cap is None else min(size, cap), patches)


def build_layer(
    features: Tensor,
    selection: Tensor | None,
    size: int,
    banks: int,
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> LayerMemory:
    """Select the banks of one layer from its training patches [N, D].

    Distances are taken in the space of ``selection`` [D, d] (None: in the full space); anchors stay in D dimensions.
    Bank b = 1..B starts at a point drawn with seed b.
    """
    starts = [int(np.random.RandomState(bank).random_sample() * len(features)) for bank in range(1, banks + 1)]
    chunks = [rows.to(device).float() for rows in features.split(65_536)]
    points = torch.cat(chunks if selection is None else [rows @ selection.to(device) for rows in chunks])
    del chunks
    picks = k_center(points, size, starts, progress=progress).cpu()
    origin, rows = picks.unique(return_inverse=True)  # ascending, so the file does not depend on who picked first
    return LayerMemory(features[origin].float(), origin, rows)
