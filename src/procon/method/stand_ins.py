"""Stand-ins: a training image scored nearly as if the memory had been built without it.

Hiding an image's own anchors alone is pessimistic. The coreset skipped the neighbours of every anchor it picked, so the
area around a hidden anchor is emptier than it would be had the image never been there. So each hidden anchor is
replaced by its stand-in: the nearest patch of another training image, among the patches that have the anchor among
their own k nearest. An anchor that is near to no other image has no stand-in and is only hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from procon.config import Config
from procon.method.score import Banked, LayerBanks, LayerReading, Neighbors, read_neighbors


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

    def update(self, patches: Tensor, neighbors: Neighbors) -> None:
        """Take the patches [N, P, D] of more images, ``neighbors`` without their own anchors, where they are nearer.

        Ties go to the earlier image and the lower patch, so the result does not depend on threads or on the device.
        """
        rows, distances = neighbors.rows.flatten(), neighbors.distances.flatten()
        flat = patches.flatten(0, 1)
        places = torch.arange(len(flat), device=rows.device).view(len(patches), 1, -1, 1)
        places = places.expand_as(neighbors.rows).flatten()
        nearest = torch.full_like(self.distances, torch.inf).scatter_reduce(0, rows, distances, "amin")
        is_nearest = distances == nearest[rows]
        chosen = torch.full_like(rows[:1], len(flat)).expand(len(nearest))
        chosen = chosen.scatter_reduce(0, rows[is_nearest], places[is_nearest], "amin")
        better = nearest < self.distances
        self.distances[better] = nearest[better]
        self.vectors[better] = flat[chosen[better]].to(self.vectors.dtype)

    def read_with(
        self, patches: Tensor, neighbors: Neighbors, layer: LayerBanks, own: Tensor, config: Config
    ) -> LayerReading:
        """Images [N, P, D] whose ``neighbors`` leave out their ``own`` [N, U] anchors, with stand-ins for these."""
        replaced = own & self.distances.isfinite()
        most = int(replaced.sum(dim=1).max())
        # The anchors of each image that have stand-ins, and others as padding: [N, S].
        hidden = replaced.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :most]
        near = _squared_distances(patches, self.vectors, hidden)  # [N, P, S]
        # A bank gets stand-ins for its own anchors only: [N, B, 1, S].
        held = layer.index.members[:, hidden].transpose(0, 1) & replaced.gather(1, hidden).unsqueeze(1)
        near = near.unsqueeze(1).masked_fill(~held.unsqueeze(2), torch.inf)
        candidates = torch.cat([neighbors.distances, near], dim=3)
        anchors = torch.cat([neighbors.rows, hidden[:, None, None].expand_as(near)], dim=3)
        distances, order = candidates.topk(neighbors.rows.shape[3], dim=3, largest=False)
        rows = anchors.gather(3, order)
        used, places = (rows + len(self.vectors) * _of_image(replaced, rows)).unique(return_inverse=True)
        stands_in = used >= len(self.vectors)
        values = layer.index.anchors[used % len(self.vectors)].float()
        values[stands_in] = self.vectors[used[stands_in] - len(self.vectors)].float()
        return replace(read_neighbors(patches, values, Neighbors(distances, places), config), rows=rows)


def _of_image(values: Tensor, rows: Tensor) -> Tensor:
    """The ``values`` [N, U] of each image at its own ``rows`` [N, B, P, k]."""
    return values.gather(1, rows.flatten(1)).view_as(rows)


def _squared_distances(patches: Tensor, vectors: Tensor, chosen: Tensor) -> Tensor:
    """Patches [N, P, D] to the ``chosen`` [N, S] of vectors [U, D], from differences: [N, P, S]."""
    images = [
        torch.cdist(image.float(), vectors[rows], compute_mode="donot_use_mm_for_euclid_dist").square()
        for image, rows in zip(patches, chosen, strict=True)
    ]
    return torch.stack(images)


def replace_own(
    stand_ins: Sequence[StandIns],
    features: Sequence[Tensor],
    layers: Sequence[Neighbors],
    memory: Banked,
    own: Sequence[Tensor],
    config: Config,
) -> list[LayerReading]:
    """:meth:`StandIns.read_with` for every layer of images [N, P, D], whose ``own`` [N, U] anchors were hidden."""
    parts = zip(stand_ins, features, layers, memory.layers, own, strict=True)
    return [spare.read_with(patches, near, layer, mask, config) for spare, patches, near, layer, mask in parts]
