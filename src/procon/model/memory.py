"""What a model remembers: anchors of normal patches, where each came from, and which bank holds which."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from procon.arrays import Bools
from procon.errors import ConfigError, MissingExtraError
from procon.method.levels import anchor_levels
from procon.method.neighbors import Banks
from procon.model.training_image import TrainingImage


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """The banks of one layer. An anchor that several banks picked is stored once."""

    anchors: Tensor  # [U, D] float32, the anchors of all banks, ascending by ``origin``
    origin: Tensor  # [U] int64: image * patches per image + patch, of the training set
    banks: Tensor  # [B, M] int64 rows of ``anchors``, in order of picking
    compression: str = "none"  # of the stored anchors; in memory they are fp32, rounded to what is stored
    scale: tuple[float, float] = (0.0, 1.0)  # mean and deviation of the map on good images, with normalization="train"
    sums: Tensor | None = None  # [3, B, U] float64, see method.levels.residual_sums, with score_relative_to="anchors"

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
        sums = None if self.sums is None else self.sums.to(device)
        moved = self.anchors.to(device), self.origin.to(device), self.banks.to(device)
        return LayerMemory(*moved, self.compression, self.scale, sums)

    def compressed(self, compression: str) -> "LayerMemory":
        """The same memory with its anchors rounded to what ``compression`` can store."""
        stored = pack_anchors(self.anchors, compression)
        return replace(self, anchors=unpack_anchors(stored), compression=compression)


@dataclass(frozen=True)
class Memory:
    """The memories of all layers and the images behind them."""

    layers: tuple[LayerMemory, ...]
    images: tuple[TrainingImage, ...]
    patches: int  # per image
    roi: Bools | None = None  # [H, W] region of interest, stretched over every image; None: all of it
    quartile: float | None = None  # median lower quartile of the maps of good images, with map_offset

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the images, in order."""
        return tuple(image.name for image in self.images)

    def own(self, images: Collection[int]) -> list[Tensor]:
        """[U] bool per layer: which anchors came from any of the training ``images``."""
        return [
            torch.isin(layer.origin // self.patches, torch.tensor(sorted(images), device=layer.origin.device))
            for layer in self.layers
        ]

    def own_of_each(self, images: Sequence[int]) -> list[Tensor]:
        """[N, U] bool per layer: which anchors came from each of N training ``images``."""
        return [
            layer.origin // self.patches == torch.tensor(images, device=layer.origin.device).unsqueeze(1)
            for layer in self.layers
        ]

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
            stored = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            mean, deviation = stored["scale"].tolist()
            layer = LayerMemory(
                unpack_anchors(stored),
                stored["origin"],
                stored["banks"].to(torch.int64),
                compression,
                (mean, deviation),
                stored.get("sums"),
            )
            _check_layer(layer, f"memory {len(layers)}", len(images) * patches)
            layers.append(layer)
        if not layers:
            raise ValueError("no memory in the file")
        roi = tensors["roi"].numpy() > 0 if "roi" in tensors else None
        if roi is not None and (roi.ndim != 2 or not roi.any()):
            raise ValueError("the region of interest is empty")
        quartile = float(tensors["quartile"]) if "quartile" in tensors else None
        return cls(tuple(layers), images, patches, roi, quartile)


def _check_layer(layer: LayerMemory, name: str, patches: int) -> None:
    """Whether the tensors of a layer match each other and the number of training ``patches``; raises a ValueError."""
    anchors, banks, origin, sums = layer.anchors, layer.banks, layer.origin, layer.sums
    if (
        anchors.ndim != 2
        or banks.ndim != 2
        or not banks.numel()
        or origin.shape != anchors.shape[:1]
        or not 0 <= int(banks.min()) <= int(banks.max()) < len(anchors)
        or not 0 <= int(origin.min()) <= int(origin.max()) < patches
    ):
        raise ValueError(f"{name} has tensors of shapes that do not match")
    if not anchors.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinite anchors")
    if sums is not None and (sums.shape != (3, len(banks), len(anchors)) or not sums.isfinite().all()):
        raise ValueError(f"{name} has sums that do not match its anchors")


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
