"""Pixels to the vectors a memory holds: backbone tokens through G_l, one set per memory."""

import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from procon.config import PATCH, Config
from procon.errors import ImageError
from procon.method.projection import gaussian_matrix, project
from procon.method.tiling import tiled_tokens
from procon.model.verdict import opened_groups
from procon.vision.backbone import Backbone
from procon.vision.framing import frame_of
from procon.vision.images import WORKERS, ImageLike, Picture, framed_input
from procon.vision.weights import Architecture

_SCORING, _SELECTION = 0, 1  # what a random projection is for: part of its seed
CUDA_BATCH = 64  # images of CUDA_PATCHES patches that are scored together on a GPU; fewer where they have more
CUDA_PATCHES = 784
CUDA_WORKERS = 8


class Embedding:
    """G_l for the memories of a configuration: one per layer, or one for all layers joined."""

    def __init__(self, architecture: Architecture, config: Config, device: torch.device) -> None:
        self.layers = config.resolve_layers(architecture.depth)
        """0-based blocks whose tokens go in, in the order of the configuration."""
        self.joint = config.layer_fusion == "concat"
        width = architecture.hidden * (len(self.layers) if self.joint else 1)
        dim = min(width, config.projection_dim)
        # The seed of a matrix is (seed, block, purpose); the joint memory takes the number of blocks as its block.
        keys = [architecture.depth] if self.joint else list(self.layers)
        self.dims = [dim] * len(keys)
        """Dimensions of the scoring space, per memory."""
        self.projections = [
            gaussian_matrix(width, dim, config.seed, key, _SCORING).to(device) if dim < width else None for key in keys
        ]
        """G_l without the normalisation: [C, D] per memory, or None where C is kept."""
        self.selections = [
            gaussian_matrix(dim, config.selection_dim, config.seed, key, _SELECTION).to(device)
            if config.selection_dim < dim
            else None
            for key in keys
        ]
        """From the scoring space to the one in which coresets are selected, per memory."""

    def embed(self, tokens: list[Tensor]) -> list[Tensor]:
        """Tokens [N, P, C] per layer to features [N, P, D] per memory."""
        if self.joint:
            return [self.embed_memory(0, tokens)]
        return [self.embed_memory(index, [layer]) for index, layer in enumerate(tokens)]

    def blocks(self, index: int) -> tuple[int, ...]:
        """The blocks that memory ``index`` is made from."""
        return self.layers if self.joint else (self.layers[index],)

    def embed_memory(self, index: int, tokens: list[Tensor]) -> Tensor:
        """Tokens [N, P, C] of each of its blocks to the features [N, P, D] of memory ``index``."""
        joined = torch.cat([project(layer, None) for layer in tokens], dim=-1) if self.joint else tokens[0]
        return project(joined, self.projections[index])


class Extractor(Embedding):
    """Images to embedded patches: backbone, then embedding."""

    def __init__(self, backbone: Backbone, config: Config) -> None:
        super().__init__(backbone.architecture, config, backbone.device)
        self.backbone = backbone
        self.workers = min(CUDA_WORKERS, os.cpu_count() or 1) if backbone.device.type == "cuda" else WORKERS
        """Threads for what is done to single images before and after the backbone."""
        self._config = config

    def tokens(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to raw block outputs [N, P, C] per layer; in tiles, if the configuration says so."""
        if self._config.tile is None:
            return self.backbone.tokens(pixels)
        return tiled_tokens(pixels, PATCH, self._config.tile // PATCH, self.backbone.tokens)

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to embedded patches [N, P, D], one tensor per memory."""
        return self.embed(self.tokens(pixels))

    def prepare(self, picture: Picture) -> Tensor:
        """The picture as the input [3, H, W] of the backbone."""
        frame = frame_of(self._config, picture.size)
        return torch.from_numpy(framed_input(picture, self._config.input_size, frame.origin, frame.scaled))

    @property
    def group_size(self) -> int:
        """Images that pass the backbone together.

        On a CPU it is one: matrix sizes, and with them rounding, then never depend on the batch. The same holds where
        images are padded, as each then has patches of its own that count.
        """
        if self.backbone.device.type != "cuda" or self._config.aspect == "pad":
            return 1
        patches = self._config.grid[0] * self._config.grid[1]
        return max(1, CUDA_BATCH * CUDA_PATCHES // max(CUDA_PATCHES, patches))

    def batches(self, images: Iterable[ImageLike]) -> Iterator[tuple[list[Picture | ImageError], Tensor]]:
        """Images in groups, opened, with the pixels [N, 3, H, W] of those that could be, in order."""
        for group in opened_groups(images, self.prepare, self.group_size, self.workers):
            inputs = [pixels for _, pixels in group if pixels is not None]
            pixels = torch.stack(inputs) if inputs else torch.empty(0, 3, *self._config.input_size)
            yield [picture for picture, _ in group], pixels
