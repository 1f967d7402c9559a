"""What a detector remembers: anchors of normal patches, where each came from, and which bank holds which."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.errors import ConfigError, MissingExtraError
from procon.method.coreset import densest, k_center_on_grid, to_grid_
from procon.method.levels import anchor_levels
from procon.method.neighbors import Banks
from procon.model.training import TrainingImage

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
    compression: str = "none"
    """How the anchors are stored and searched; they are always held as fp32, rounded as they will be stored."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Mean and deviation of this layer's map on good images; used with ``normalization="train"`` only."""
    sums: Tensor | None = None
    """[3, B, U] float64: what good patches left on each anchor (:func:`procon.method.levels.residual_sums`), with
    ``score_relative_to="anchors"`` only."""

    def bank(self, index: int) -> Tensor:
        """M_{l,b}: the anchors of one bank, [M, D]."""
        return self.anchors[self.banks[index]]

    @cached_property
    def index(self) -> Banks:
        """The banks as the neighbour search wants them."""
        propose = inverted_file(self.anchors) if self.compression == "approximate" else None
        return Banks(self.anchors, self.banks, propose)

    @cached_property
    def levels(self) -> Tensor:
        """[B, U]: the level that each anchor leaves on good patches."""
        if self.sums is None:
            raise ConfigError(
                "score_relative_to='anchors' needs what the anchors leave on good images, and this memory was made "
                "without it; fit again with Detector.fit"
            )
        return anchor_levels(self.sums)

    def to(self, device: torch.device) -> "LayerMemory":
        """The same memory on another device."""
        return replace(
            self,
            anchors=self.anchors.to(device),
            origin=self.origin.to(device),
            banks=self.banks.to(device),
            sums=None if self.sums is None else self.sums.to(device),
        )

    def compressed(self, compression: str) -> "LayerMemory":
        """The same memory with its anchors rounded to what ``compression`` can store."""
        stored = pack_anchors(self.anchors, compression)
        return replace(self, anchors=unpack_anchors(stored), compression=compression)


@dataclass(frozen=True)
class Memory:
    """The memories of all layers and the images behind them."""

    layers: tuple[LayerMemory, ...]
    images: tuple[TrainingImage, ...]
    patches: int
    """Patches per image."""
    roi: NDArray[np.bool_] | None = None
    """[H, W] region of interest, stretched over every image; None: all of it."""
    quartile: float | None = None
    """Median over good images of the lower quartile of their maps, with ``map_offset="quartile"`` only."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the images, in order."""
        return tuple(image.name for image in self.images)

    def own(self, layer: LayerMemory, images: int | Collection[int] | None) -> Tensor | None:
        """[U] bool: which anchors of ``layer`` came from training image ``images``, or any of them; None hides none."""
        if images is None:
            return None
        source = layer.origin // self.patches
        if isinstance(images, int):
            return source == images
        return torch.isin(source, torch.tensor(sorted(images), dtype=source.dtype, device=source.device))

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
        tensors: dict[str, Tensor] = {}
        for index, layer in enumerate(self.layers):
            stored = pack_anchors(layer.anchors, layer.compression)
            tensors |= {f"memory.{index}.{name}": tensor for name, tensor in stored.items()}
            tensors[f"memory.{index}.origin"] = layer.origin
            tensors[f"memory.{index}.banks"] = layer.banks.to(torch.int32)
            tensors[f"memory.{index}.scale"] = torch.tensor(layer.scale, dtype=torch.float64)
            if layer.sums is not None:
                tensors[f"memory.{index}.sums"] = layer.sums
        if self.quartile is not None:
            tensors["quartile"] = torch.tensor(self.quartile, dtype=torch.float64)
        if self.roi is not None:
            tensors["roi"] = torch.from_numpy(self.roi.astype(np.uint8))
        return tensors

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor], images: tuple[TrainingImage, ...], patches: int, compression: str = "none"
    ) -> "Memory":
        """The inverse of :meth:`to_tensors`; a ValueError says what does not fit."""
        layers: list[LayerMemory] = []
        while f"memory.{len(layers)}.anchors" in tensors:
            prefix = f"memory.{len(layers)}."
            stored = {name: tensors[prefix + name] for name in ("anchors", "steps") if prefix + name in tensors}
            layer = LayerMemory(
                unpack_anchors(stored),
                tensors[prefix + "origin"],
                tensors[prefix + "banks"].to(torch.int64),
                compression,
                (float(tensors[prefix + "scale"][0]), float(tensors[prefix + "scale"][1])),
                tensors.get(prefix + "sums"),
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
            if layer.sums is not None and (
                layer.sums.shape != (3, len(layer.banks), len(layer.anchors)) or not layer.sums.isfinite().all()
            ):
                raise ValueError(f"memory {len(layers)} has sums that do not match its anchors")
            layers.append(layer)
        if not layers:
            raise ValueError("no memory in the file")
        roi = tensors["roi"].numpy() > 0 if "roi" in tensors else None
        if roi is not None and (roi.ndim != 2 or not roi.any()):
            raise ValueError("the region of interest is empty")
        quartile = float(tensors["quartile"]) if "quartile" in tensors else None
        return cls(tuple(layers), images, patches, roi, quartile)


def pack_anchors(anchors: Tensor, compression: str) -> dict[str, Tensor]:
    """Anchors [U, D] as a model file holds them: fp32, fp16, or int8 with one step size [U, 1] per anchor."""
    if compression == "fp16":
        return {"anchors": anchors.half()}
    if compression == "int8":
        # A step is a power of two, so that packing what was unpacked changes nothing.
        largest = anchors.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        steps = torch.exp2(torch.log2(largest / 127).ceil())
        return {"anchors": (anchors / steps).round().to(torch.int8), "steps": steps}
    return {"anchors": anchors}


def unpack_anchors(stored: dict[str, Tensor]) -> Tensor:
    """The inverse of :func:`pack_anchors`, float32."""
    anchors = stored["anchors"].float()
    return anchors * stored["steps"] if "steps" in stored else anchors


def inverted_file(anchors: Tensor) -> Callable[[Tensor, int], Tensor]:
    """An approximate search over anchors [U, D]: they are sorted into cells, and a query looks into the nearest few."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError(
            "compression='approximate' needs the faiss package: pip install 'procon[approximate]'"
        ) from None
    vectors = np.ascontiguousarray(anchors.cpu().numpy())
    cells = max(1, min(4 * int(len(vectors) ** 0.5), len(vectors) // 40))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(vectors.shape[1]), vectors.shape[1], cells)
    index.cp.seed = 1
    index.train(vectors)
    index.add(vectors)
    index.nprobe = max(1, min(cells, cells // 16 + 4))

    def propose(queries: Tensor, count: int) -> Tensor:
        _, rows = index.search(np.ascontiguousarray(queries.cpu().numpy()), count)
        return torch.from_numpy(rows).to(queries.device)

    return propose


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


class FeatureStore:
    """Embedded patches of the training images, filled image by image, read layer by layer.

    Small sets stay in memory as fp32. Larger ones live in temporary files as fp16, mapped a piece at a time, so that
    fitting thousands of images needs disk, not memory. Use as a context manager: the files go away with it.
    """

    def __init__(
        self,
        images: int,
        patches: int,
        dims: list[int],
        limit: int = IN_RAM_BYTES,
        counted: Tensor | None = None,
    ) -> None:
        self.patches = patches
        self.rows = images * patches
        self.counted = counted
        self.dims = dims
        self.on_disk = 4 * self.rows * sum(dims) > limit
        self._folder = tempfile.TemporaryDirectory(prefix="procon-") if self.on_disk else None
        self._layers = [] if self.on_disk else [torch.empty(self.rows, dim) for dim in dims]
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

    def _file(self, layer: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"layer{layer}"

    def _map(self, layer: int, rows: slice, mode: Literal["r", "r+"]) -> NDArray[np.float16]:
        """Some rows of a file; mapped pages count as memory only while this array lives."""
        count, dim = rows.stop - rows.start, self.dims[layer]
        return np.memmap(self._file(layer), np.float16, mode, offset=2 * rows.start * dim, shape=(count, dim))

    def put(self, image: int, features: list[Tensor]) -> None:
        """Store the embedded patches [N, P, D] of every layer, of N images from number ``image`` on."""
        for layer, (values, _) in enumerate(zip(features, self.dims, strict=True)):
            rows = slice(image * self.patches, (image + len(values)) * self.patches)
            flat = values.flatten(0, 1).cpu()
            if self.on_disk:
                self._map(layer, rows, "r+")[:] = flat.half().numpy()
            else:
                self._layers[layer][rows] = flat

    def read(self, layer: int, rows: slice) -> Tensor:
        """Some patches of a layer, float32 [rows, D]."""
        if not self.on_disk:
            return self._layers[layer][rows]
        return torch.from_numpy(self._map(layer, rows, "r").astype(np.float32))

    def image(self, image: int) -> list[Tensor]:
        """The embedded patches [1, P, D] of every layer of one image, float32."""
        rows = slice(image * self.patches, (image + 1) * self.patches)
        return [self.read(layer, rows).unsqueeze(0) for layer in range(len(self))]

    def pieces(self, layer: int, size: int = 65_536) -> Iterator[tuple[slice, Tensor]]:
        """All patches of a layer in order, float32 [at most size, D] with the rows they are."""
        for start in range(0, self.rows, size):
            rows = slice(start, min(start + size, self.rows))
            yield rows, self.read(layer, rows)

    def __len__(self) -> int:
        return len(self.dims)


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
