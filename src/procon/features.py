"""Pixels to the vectors a memory holds: backbone tokens through G_l, one set per memory."""

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from procon.backbone import Backbone
from procon.config import Config
from procon.errors import ImageError
from procon.images import Picture, to_input
from procon.kernels.projection import gaussian_matrix, project

_SCORING, _SELECTION = 0, 1  # what a random projection is for: part of its seed
CUDA_BATCH = 64  # images that pass the backbone together on a GPU


class Extractor:
    """Embeds images for the memories of a configuration: one per layer, or one for all layers joined."""

    def __init__(self, backbone: Backbone, config: Config) -> None:
        self.backbone = backbone
        self._config = config
        self._joint = config.layer_fusion == "concat"
        width = backbone.architecture.hidden * (len(backbone.layers) if self._joint else 1)
        dim = min(width, config.projection_dim)
        # The seed of a matrix is (seed, block, purpose); the joint memory takes the number of blocks as its block.
        keys = [backbone.architecture.depth] if self._joint else list(backbone.layers)
        self.dims = [dim] * len(keys)
        """Dimensions of the scoring space, per memory."""
        self.projections = [
            gaussian_matrix(width, dim, config.seed, key, _SCORING).to(backbone.device) if dim < width else None
            for key in keys
        ]
        """G_l without the normalisation: [C, D] per memory, or None where C is kept."""
        self.selections = [
            gaussian_matrix(dim, config.selection_dim, config.seed, key, _SELECTION).to(backbone.device)
            if config.selection_dim < dim
            else None
            for key in keys
        ]
        """From the scoring space to the one in which coresets are selected, per memory."""

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to embedded patches [N, P, D], one tensor per memory."""
        return self.embed(self.backbone.tokens(pixels))

    def embed(self, tokens: list[Tensor]) -> list[Tensor]:
        """Tokens [N, P, C] per layer to features [N, P, D] per memory."""
        if self._joint:
            tokens = [torch.cat([project(layer, None) for layer in tokens], dim=-1)]
        return [project(layer, matrix) for layer, matrix in zip(tokens, self.projections, strict=True)]

    def batches(self, pictures: Iterable[Picture | ImageError]) -> Iterator[tuple[list[Picture | ImageError], Tensor]]:
        """Pictures in groups with the pixels [N, 3, H, W] of those that could be opened, in order.

        On a CPU a group is one image: matrix sizes, and with them rounding, then never depend on the batch.
        """
        size = CUDA_BATCH if self.backbone.device.type == "cuda" else 1
        pictures = iter(pictures)
        while group := list(itertools.islice(pictures, size)):
            inputs = [
                torch.from_numpy(to_input(picture, self._config.input_size, self._config.resize))
                for picture in group
                if isinstance(picture, Picture)
            ]
            empty = torch.empty(0, 3, *self._config.input_size)
            yield group, torch.stack(inputs) if inputs else empty
