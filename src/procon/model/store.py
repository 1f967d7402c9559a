"""The embedded patches of the training images while a model is fitted, in RAM or on disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IN_RAM_BYTES = 2 * 2**30  # features up to this size stay in memory as fp32; beyond it they go to disk as fp16


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
    ) -> None:
        self.patches = patches
        self.rows = images * patches
        self.counted: Tensor | None = None
        """[K] int64: the patches that may become anchors, ascending; None: all."""
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

    def keep(self, images: int) -> None:
        """Forget the space for all but the first so many ``images``."""
        self.rows = images * self.patches

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
