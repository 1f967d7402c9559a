"""What the variants of a category are made of: residuals, each named after everything that they depend on."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from procon.config import Config
from procon.model.reader import Embedding
from procon.model.selection import IN_RAM_BYTES, coreset_size
from procon.vision.backbone import Backbone


@dataclass(frozen=True)
class ResidualPart:
    """The residuals of one memory under one readout, for as many banks as any variant needs."""

    config: Config  # a variant that needs them
    index: int  # which of its memories
    banks: int
    memory: str  # key of the coreset
    key: str  # key of the residuals


class ResidualPlan:
    """What the variants of a category with ``train`` good images need."""

    def __init__(self, train: int, backbone: Backbone) -> None:
        self._train, self._backbone = train, backbone
        self._embeddings: dict[Config, Embedding] = {}

    def parts(self, config: Config) -> list[ResidualPart]:
        """The residuals that a variant is made of; their keys are digests of everything they depend on."""
        readout: dict[str, Any] = {"readout": config.readout, "compression": config.compression}
        if config.readout != "hard":
            readout |= {"k": config.num_neighbors}
        if config.readout == "soft":
            readout |= {"tau": config.tau, "tau_patches": config.tau_patches}
        parts = []
        for index in range(len(self.embedding(config).dims)):
            part = ResidualPart(config, index, config.banks, self._memory_key(config, index), "")
            about = {"memory": part.memory, "size": self.size(config), **readout}
            parts.append(replace(part, key=_digest(about)))
        return parts

    def _memory_key(self, config: Config, index: int) -> str:
        embedding = self.embedding(config)
        about: dict[str, Any] = {"blocks": embedding.blocks(index), "joint": embedding.joint, "seed": config.seed}
        about |= {"dims": config.projection_dim, "selection": config.selection_dim, "coreset": config.coreset}
        about |= {"bank_seed": config.bank_seed, "half": self.ram_limit(config) == 0}
        if config.coreset == "dense":
            about["size"] = self.size(config)
        return _digest(about)

    def embedding(self, config: Config) -> Embedding:
        """How the tokens of a variant become vectors."""
        if config not in self._embeddings:
            self._embeddings[config] = Embedding(self._backbone.architecture, config, self._backbone.device)
        return self._embeddings[config]

    def size(self, config: Config) -> int:
        """Anchors of each bank of a variant."""
        patches = self._train * config.grid[0] * config.grid[1]
        return coreset_size(patches, config.coreset_ratio, config.num_neighbors, config.max_anchors)

    def search_key(self, part: ResidualPart) -> tuple[Any, ...]:
        """Parts with the same key share their neighbours. An approximate search finds others for another k."""
        config = part.config
        search = (config.num_neighbors, config.readout) if config.compression == "approximate" else None
        return self.size(config), config.compression, search

    def ram_limit(self, config: Config) -> int:
        """Features are stored as a detector with this configuration stores them: as fp16 if they are many."""
        patches = self._train * config.grid[0] * config.grid[1]
        return 0 if 4 * patches * sum(self.embedding(config).dims) > IN_RAM_BYTES else IN_RAM_BYTES


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
