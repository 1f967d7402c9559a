"""Tokens of a category's images on disk: one forward pass serves every variant; a crash loses only a few images."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.config import Config
from procon.errors import ImageError
from procon.files import write_text
from procon.model.reader import Extractor
from procon.progress import Progress
from procon.vision.backbone import Backbone

_SAVE_EVERY = 8  # images between two updates of tokens.json


class TokenCache:
    """Raw block outputs [P, C] of every image, float32, a file for each block.

    ``tokens.json`` says for how many images each block is complete; the rest of its file is written again.
    """

    def __init__(self, folder: Path, images: Sequence[Path], patches: int, width: int, identity: str) -> None:
        self.folder, self.images = folder, tuple(images)
        self._shape = (patches, width)
        self._state = folder / "tokens.json"
        self._about = {"identity": identity, "images": [str(path) for path in self.images], "shape": [patches, width]}
        self._done: dict[int, int] = {}
        if self._state.exists():
            state = json.loads(self._state.read_text(encoding="utf-8"))
            done = state.pop("done")
            if state == self._about:
                self._done = {int(block): count for block, count in done.items()}

    def missing(self, blocks: Sequence[int]) -> list[int]:
        """Blocks that are not complete yet, deepest last."""
        return sorted(block for block in blocks if self._done.get(block, 0) < len(self.images))

    def fill(self, backbone: Backbone, config: Config, on_progress: Progress) -> None:
        """Run the images through ``backbone`` and store the tokens of its layers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = min(self._done.get(block, 0) for block in backbone.layers)
        files = {block: self._open(block) for block in backbone.layers}
        extractor = Extractor(backbone, replace(config, layers=backbone.layers))
        for group, pixels in extractor.batches(self.images[done:]):
            for picture in group:
                if isinstance(picture, ImageError):
                    raise picture
            for block, tokens in zip(backbone.layers, extractor.tokens(pixels), strict=True):
                files[block][done : done + len(group)] = tokens.cpu().numpy()
            before, done = done, done + len(group)
            if done // _SAVE_EVERY != before // _SAVE_EVERY or done == len(self.images):
                self._save_state(files, done)
            on_progress("reading images", done, len(self.images))

    def _open(self, block: int) -> NDArray[np.float32]:
        path, shape = self._path(block), (len(self.images), *self._shape)
        intact = path.exists() and path.stat().st_size == 4 * math.prod(shape)
        return np.memmap(path, np.float32, "r+" if intact else "w+", shape=shape)

    def _save_state(self, files: dict[int, NDArray[np.float32]], done: int) -> None:
        for block, values in files.items():
            assert isinstance(values, np.memmap)
            values.flush()
            self._done[block] = max(done, self._done.get(block, 0))
        write_text(self._state, json.dumps({**self._about, "done": self._done}))

    def _path(self, block: int) -> Path:
        return self.folder / f"block{block}.f32"

    def load_tokens(self, blocks: Sequence[int], images: range) -> Iterator[list[Tensor]]:
        """Tokens [1, P, C] of each of ``blocks``, image by image."""
        shape = (len(self.images), *self._shape)
        files = [np.memmap(self._path(block), np.float32, "r", shape=shape) for block in blocks]
        for image in images:
            yield [torch.from_numpy(np.array(values[image])).unsqueeze(0) for values in files]
