"""One bank of one layer on one device, and every value that its neighbours can give a patch.

Three sets of images are read against it. Test images see the whole bank. Good images, and good images with drawn
defects, see it nearly as if it had been built without them: own anchors are hidden and stand-ins take their place, as
in :mod:`procon.method.stand_ins`, with one difference: the banks of a layer are told apart here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from procon.method.levels import anchor_levels
from procon.method.residual import temperature

K = 5
CELLS = 2**30  # distances held at a time
GATHERED = 2**17  # patches whose neighbours are held at a time
RIDGE = 0.1  # of the mean squared distance, added where a patch is explained by the plane of its neighbours

VOTERS = ("soft", "high", "hard", "plane", "spread", "mass")
"""Residual of the soft projection; relative to the levels of the anchors, as Config.best() scores; distance to the
nearest anchor; distance to the plane through the neighbours (a local PCA); the soft residual in the metric of good
residuals; the soft residual with weights that favour anchors of many good patches."""


@dataclass
class Bank:
    """Anchors, and what good images say about them."""

    anchors: Tensor  # [M, D]
    origin: Tensor  # [M]: the good image of each
    place: Tensor  # [M]: its patch in that image
    spare: Tensor  # [M, D]: stand-ins
    has_spare: Tensor  # [M]
    sums: Tensor  # [3, M]: w, w r and w r² of good patches, own anchors hidden
    metric: Tensor  # [D, D]: turns good residuals into noise of one size in all directions

    @property
    def table(self) -> Tensor:
        """Anchors, then their stand-ins [2M, D]."""
        return torch.cat([self.anchors, self.spare])


@dataclass
class Neighbors:
    """What was found for the patches of N images: squared distances and rows [N, P, k]."""

    distances: Tensor
    rows: Tensor


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` of ``count`` items."""
    for start in range(0, count, max(1, size)):
        yield slice(start, min(start + max(1, size), count))


def squared_distances(flat: Tensor, points: Tensor) -> Tensor:
    """[n, D] and [M, D] to [n, M]."""
    found = torch.addmm(points.square().sum(1), flat, points.T, alpha=-2)
    return found.add_(flat.square().sum(1, keepdim=True)).clamp_min_(0)


def search(patches: Tensor, anchors: Tensor, hidden: Tensor | None = None, far: Tensor | None = None) -> Neighbors:
    """The nearest anchors of unit patches [N, P, D]; ``hidden`` [N, M] masks them by image, ``far`` [P, M] by place.

    Far anchors are taken only where too few are near. On a GPU the product that ranks anchors is rounded (TF32):
    whatever is made of the neighbours measures their distances again.
    """
    count, places, _ = patches.shape
    squares = anchors.square().sum(1)
    parts = []
    rounded = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    for part in chunks(count, CELLS // (places * len(anchors))):
        found = torch.addmm(squares, patches[part].flatten(0, 1), anchors.T, alpha=-2).view(-1, places, len(anchors))
        if far is not None:
            found += 8.0 * far  # more than any distance between unit vectors
        if hidden is not None:
            found.masked_fill_(hidden[part].unsqueeze(1), torch.inf)
        parts.append(found.topk(min(K, len(anchors)), dim=2, largest=False))
        del found
    torch.backends.cuda.matmul.allow_tf32 = rounded
    distances, rows = (torch.cat(found) for found in zip(*parts, strict=True))
    return Neighbors(distances + 1, rows)


def far_anchors(place: Tensor, grid: tuple[int, int], radius: float) -> Tensor:
    """Which anchors lie more than ``radius`` of the grid's sides away from each place: [P, M]."""
    rows, columns = grid
    index = torch.arange(rows * columns, device=place.device)
    down = (index // columns).unsqueeze(1) - place // columns
    across = (index % columns).unsqueeze(1) - place % columns
    return (down.abs() > radius * rows) | (across.abs() > radius * columns)


@dataclass
class Soft:
    """The soft projection of patches [n, P, D]."""

    differences: Tensor  # [n, P, k, D], to the neighbours
    distances: Tensor  # [n, P, k]
    weights: Tensor
    residuals: Tensor  # [n, P, D]


def project(patches: Tensor, rows: Tensor, table: Tensor) -> Soft:
    """The soft projection on rows [n, P, k] of ``table``."""
    differences = patches.float().unsqueeze(2) - table[rows]
    distances = differences.square().sum(3)
    order = distances - distances.amin(2, keepdim=True)
    weights = torch.softmax(-order / temperature(distances)[:, None, None].clamp_min(1e-30), dim=2)
    return Soft(differences, distances, weights, (weights.unsqueeze(3) * differences).sum(2))


def values_of(soft: Soft, rows: Tensor, bank: Bank, levels: Tensor, wanted: Sequence[str]) -> dict[str, Tensor]:
    """Each wanted voter's values [n, P]; ``levels`` [n, M] of the anchors as seen by each image."""
    anchor = rows % len(bank.anchors)
    found: dict[str, Tensor] = {}
    plain = soft.residuals.norm(dim=2)
    for name in wanted:
        if name == "soft":
            found[name] = plain
        elif name == "high":
            near = levels.gather(1, anchor.flatten(1)).view_as(soft.weights)
            found[name] = plain / (soft.weights * near).sum(2).clamp_min(1e-12)
        elif name == "hard":
            found[name] = soft.distances.amin(2).sqrt()
        elif name == "plane":
            found[name] = _plane(soft.differences)
        elif name == "spread":
            found[name] = (soft.residuals @ bank.metric).norm(dim=2)
        elif name == "mass":
            worth = (bank.sums[0].float() + 1).log()[anchor] / 2
            order = -soft.distances / temperature(soft.distances)[:, None, None].clamp_min(1e-30) + worth
            found[name] = (torch.softmax(order, 2).unsqueeze(3) * soft.differences).sum(2).norm(dim=2)
    return found


def _plane(differences: Tensor) -> Tensor:
    """Distance to the plane through the neighbours, pulled to their middle where they lie close together."""
    gram = differences @ differences.transpose(2, 3)  # [n, P, k, k]
    k = gram.shape[-1]
    size = gram.diagonal(dim1=2, dim2=3).mean(2)
    gram = gram + (RIDGE * size + 1e-12)[..., None, None] * torch.eye(k, device=gram.device)
    weights = torch.linalg.solve(gram, torch.ones_like(gram[..., :1]))
    weights = weights / weights.sum(2, keepdim=True)
    distance: Tensor = (weights * differences).sum(2).norm(dim=2)
    return distance


def measure_good(patches: Tensor, anchors: Tensor, picks: Tensor) -> tuple[Bank, Neighbors, Tensor, Tensor]:
    """The bank of rows ``picks`` of the good patches [N, P, D], and what these find in it without their own anchors.

    With it the weights [N, P, k] and the residuals' lengths [N, P].
    """
    count, places, width = patches.shape
    origin = picks // places
    images = torch.arange(count, device=patches.device)
    near = search(patches, anchors, hidden=images.unsqueeze(1) == origin)
    nearest = torch.full((len(anchors),), torch.inf, device=patches.device)
    spare = torch.zeros_like(anchors)
    sums = torch.zeros(3, len(anchors), dtype=torch.float64, device=patches.device)
    spread = torch.zeros(width, width, dtype=torch.float64, device=patches.device)
    weights, lengths = [], []
    for part in chunks(count, GATHERED // places):
        rows = near.rows[part]
        soft = project(patches[part], rows, anchors)
        near.distances[part] = soft.distances
        length = soft.residuals.norm(dim=2)
        weights.append(soft.weights)
        lengths.append(length)
        residuals = soft.residuals.flatten(0, 1)
        spread += (residuals.T @ residuals).double()
        value = length.double().unsqueeze(2)
        for term, amount in enumerate((torch.ones_like(value), value, value.square())):
            sums[term].index_add_(0, rows.flatten(), (soft.weights * amount).flatten())
        flat, distances = rows.flatten(), soft.distances.flatten()
        best = torch.full_like(nearest, torch.inf).scatter_reduce(0, flat, distances, "amin")
        better = best < nearest
        winners = ((distances == best[flat]) & better[flat]).nonzero().flatten()
        spare[flat[winners]] = patches[part].flatten(0, 1)[winners // rows.shape[2]].float()
        nearest = torch.minimum(nearest, best)
    power, axes = torch.linalg.eigh(spread / (count * places))
    metric = (axes / (power + power.mean()).sqrt()) @ axes.T
    bank = Bank(anchors, origin, picks % places, spare, nearest.isfinite(), sums, metric.float())
    return bank, near, torch.cat(weights), torch.cat(lengths)


def with_stand_ins(patches: Tensor, source: Tensor, near: Neighbors, bank: Bank) -> Tensor:
    """Rows [N, P, k] of the table for patches [N, P, D] of good images ``source`` [N], which found ``near``."""
    count, places, _ = patches.shape
    size = len(bank.anchors)
    merged = near.rows.clone()
    for part in chunks(count, max(1, GATHERED // places)):
        mine = source[part]
        own = ((bank.origin.unsqueeze(0) == mine.unsqueeze(1)).any(0) & bank.has_spare).nonzero().flatten()
        if not len(own):
            continue
        found = squared_distances(patches[part].flatten(0, 1).float(), bank.spare[own]).view(-1, places, len(own))
        found.masked_fill_((bank.origin[own].unsqueeze(0) != mine.unsqueeze(1)).unsqueeze(1), torch.inf)
        distances, rows = found.topk(min(K, len(own)), dim=2, largest=False)
        joined = torch.cat([near.distances[part], distances], 2)
        candidates = torch.cat([near.rows[part], own[rows] + size], 2)
        merged[part] = candidates.gather(2, joined.topk(near.rows.shape[2], dim=2, largest=False).indices)
    return merged


def levels_seen(bank: Bank, own: Neighbors, weights: Tensor, lengths: Tensor) -> Tensor:
    """Levels [n, M] of the anchors without what each of n good images added to them."""
    count, size = len(weights), len(bank.anchors)
    flat = (own.rows + size * torch.arange(count, device=weights.device)[:, None, None]).flatten()
    added = torch.zeros(3, count * size, dtype=torch.float64, device=weights.device)
    value = lengths.double().unsqueeze(2)
    for term, amount in enumerate((torch.ones_like(value), value, value.square())):
        added[term].index_add_(0, flat, (weights * amount).flatten())
    return anchor_levels(bank.sums.unsqueeze(1) - added.view(3, count, size))


def read_test(patches: Tensor, near: Neighbors, bank: Bank, wanted: Sequence[str]) -> dict[str, Tensor]:
    """Values [T, P] of test images."""
    levels = anchor_levels(bank.sums.unsqueeze(1))
    parts = []
    for part in chunks(len(patches), GATHERED // patches.shape[1]):
        rows = near.rows[part]
        soft = project(patches[part], rows, bank.anchors)
        parts.append(values_of(soft, rows, bank, levels.expand(len(rows), -1), wanted))
    return {name: torch.cat([part[name] for part in parts]) for name in wanted}


def read_without(
    patches: Tensor, source: Tensor, near: Neighbors, bank: Bank, good: tuple[Neighbors, Tensor, Tensor],
    wanted: Sequence[str],
) -> dict[str, Tensor]:  # fmt: skip
    """Values [N, P] of patches of good images ``source`` [N]; ``good`` is what all good images found."""
    merged = with_stand_ins(patches, source, near, bank)
    table = bank.table
    known, weights, lengths = good
    parts = []
    for part in chunks(len(patches), GATHERED // patches.shape[1]):
        rows, mine = merged[part], source[part]
        own = Neighbors(known.distances[mine], known.rows[mine])
        levels = levels_seen(bank, own, weights[mine], lengths[mine])
        parts.append(values_of(project(patches[part], rows, table), rows, bank, levels, wanted))
    return {name: torch.cat([part[name] for part in parts]) for name in wanted}


def soft_only(patches: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """The soft residual [N, P] on given neighbours."""
    parts = [
        project(patches[part], rows[part], table).residuals.norm(dim=2)
        for part in chunks(len(patches), GATHERED // patches.shape[1])
    ]
    return torch.cat(parts)


def position_read(patches: Tensor, memory: Tensor, shape: tuple[int, int], seen: Tensor, radius: int) -> Tensor:
    """RAD's patch score [T, P]: one less the highest cosine with patches of the images it may see, at near places.

    ``patches`` [T, P, D] and ``memory`` [N, P, D] are unit vectors, ``seen`` [T, N] says which images each may see.
    """
    rows, columns = shape
    new = patches.transpose(0, 1).contiguous()  # [P, T, D]
    known = memory.view(len(memory), rows, columns, -1).permute(1, 2, 0, 3).contiguous()  # [rows, columns, N, D]
    best = torch.full((rows * columns, len(patches)), -1.0, device=patches.device)
    index = torch.arange(rows * columns, device=patches.device)
    for down in range(-radius, radius + 1):
        for across in range(-radius, radius + 1):
            row, column = index // columns + down, index % columns + across
            inside = ((row >= 0) & (row < rows) & (column >= 0) & (column < columns)).nonzero().flatten()
            for part in chunks(len(inside), CELLS // (4 * len(patches) * len(memory))):
                places = inside[part]
                near = known[row[places], column[places]]
                found = (new[places] @ near.transpose(1, 2)).float().masked_fill_(~seen, -1.0).amax(2)
                best[places] = torch.maximum(best[places], found)
    return (1 - best).T.contiguous()
