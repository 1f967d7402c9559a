"""Stand-ins: a training image scored nearly as if the memory had been built without it.

Hiding an image's own anchors alone is pessimistic. The coreset skipped the neighbours of every anchor it picked, so the
area around a hidden anchor is emptier than it would be had the image never been there. So each hidden anchor is
replaced by its stand-in: the nearest patch of another training image, among the patches that have the anchor among
their own k nearest. An anchor that is near to no other image has no stand-in and is only hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from procon.config import Config
from procon.method.score import Banked, LayerBanks, LayerReading, read_neighbors


@dataclass
class StandIns:
    """The stand-in of every anchor of one layer, among the training images read so far."""

    distances: Tensor  # [U] squared, from the anchor; infinite where it has no stand-in yet
    vectors: Tensor  # [U, D]

    @classmethod
    def none(cls, anchors: Tensor) -> "StandIns":
        """No anchor of ``anchors`` [U, D] has a stand-in yet."""
        return cls(anchors.new_full((len(anchors),), torch.inf), torch.zeros_like(anchors))

    def joined(self, other: "StandIns") -> "StandIns":
        """The nearer of two stand-ins for each anchor; of equally near ones that of this set."""
        better = other.distances < self.distances
        return StandIns(
            torch.where(better, other.distances, self.distances),
            torch.where(better.unsqueeze(1), other.vectors, self.vectors),
        )

    def to(self, device: torch.device) -> "StandIns":
        """The same on another device."""
        return StandIns(self.distances.to(device), self.vectors.to(device))

    def update(self, patches: Tensor, reading: LayerReading) -> None:
        """Take the patches [P, D] of one more image, ``reading`` without its own anchors, where they are nearer.

        Ties go to the earlier image and the lower patch, so the result does not depend on threads or on the device.
        """
        assert reading.rows is not None and reading.distances is not None
        rows, distances = reading.rows[0].flatten(), reading.distances[0].flatten()
        places = torch.arange(len(patches), device=rows.device).view(1, -1, 1).expand_as(reading.rows[0]).flatten()
        nearest = torch.full_like(self.distances, torch.inf).scatter_reduce(0, rows, distances, "amin")
        is_nearest = distances == nearest[rows]
        chosen = torch.full_like(rows[:1], len(patches)).expand(len(nearest))
        chosen = chosen.scatter_reduce(0, rows[is_nearest], places[is_nearest], "amin")
        better = nearest < self.distances
        self.distances[better] = nearest[better]
        self.vectors[better] = patches[chosen[better]].to(self.vectors.dtype)

    def read_with(
        self, patches: Tensor, reading: LayerReading, layer: LayerBanks, own: Tensor, config: Config
    ) -> LayerReading:
        """The ``reading`` of an image [P, D] without its ``own`` [U] anchors, with their stand-ins in their place."""
        assert reading.rows is not None and reading.distances is not None
        hidden = (own & self.distances.isfinite()).nonzero().flatten()  # [S]
        vectors = self.vectors[hidden]
        near = torch.cdist(patches.float(), vectors, compute_mode="donot_use_mm_for_euclid_dist").square()  # [P, S]
        held = layer.index.members[:, hidden].unsqueeze(1)  # [B, 1, S]: a bank gets stand-ins for its own anchors only
        candidates = torch.cat([reading.distances[0], near.masked_fill(~held, torch.inf)], dim=2)
        anchors = torch.cat([reading.rows[0], hidden.expand(len(held), len(patches), -1)], dim=2)
        distances, order = candidates.topk(reading.rows.shape[3], dim=2, largest=False)
        rows = anchors.gather(2, order)
        used, places = rows.unique(return_inverse=True)
        values = layer.index.anchors[used].float()
        replaced = own[used]
        values[replaced] = self.vectors[used[replaced]].float()
        result = read_neighbors(patches, values, distances, places, config)
        return LayerReading(result.residuals, result.distances, rows.unsqueeze(0), result.weights)


def replace_own(
    stand_ins: Sequence[StandIns],
    features: Sequence[Tensor],
    layers: Sequence[LayerReading],
    memory: Banked,
    own: Sequence[Tensor],
    config: Config,
) -> list[LayerReading]:
    """:meth:`StandIns.read_with` for every layer of one image [1, P, D]."""
    parts = zip(stand_ins, features, layers, memory.layers, own, strict=True)
    return [spare.read_with(patches[0], reading, layer, mask, config) for spare, patches, reading, layer, mask in parts]
