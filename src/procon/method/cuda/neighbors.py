"""Neighbours and residuals on CUDA: a half-precision product proposes, fp32 differences decide.

The product never reaches memory. Each thread block multiplies a tile of queries with one run of anchor tiles after
another and keeps, per column of the tile, the two smallest distances seen; the tile number rides in the lowest bits of
the distance. A second kernel takes the few best of those, computes their distances from fp32 differences, and orders
them; where both kept distances of a column made it, the rest of that column is looked at too. An anchor is missed only
if half precision misplaces it past all candidates; the tests bound what that does to residuals.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LONGEST_RUN = 16  # tiles per run: 4 bits
_RUNS = 4  # wanted per bank: the more columns, the fewer neighbours share one
_TILE = 128  # anchors per tile
_BIAS = 22.0  # puts every key into [16, 32), where one fp32 step is 2^-19
_NONE = tl.constexpr(31.0)  # the key of no anchor
_SPARE = 3  # candidates re-ranked beyond k


@triton.jit  # type: ignore[untyped-decorator]
def _propose(  # type: ignore[no-untyped-def]
    queries,
    anchors,
    norms,
    hidden,
    keys,
    count,
    size,
    patches,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BD: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
    HIDE: tl.constexpr,
):
    """The two smallest ‖m‖² - 2 z·m per column and run: queries [Q, D], anchors [B, M, D], keys [B, Q, RUNS, 2 BA].

    With HIDE, ``hidden`` [N, B, M] says which anchors the ``patches`` queries of each image may not find.
    """
    tile_q, run, bank = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tile_q * BQ + tl.arange(0, BQ)
    depth = tl.arange(0, BD)
    query_tile = queries + (rows % count)[:, None].to(tl.int64) * D + depth[None, :]
    bank_anchors = anchors + bank.to(tl.int64) * size * D
    masks = hidden + ((rows % count // patches).to(tl.int64) * tl.num_programs(2) + bank) * size
    first = tl.full((BQ, BA), _NONE, tl.float32)
    second = tl.full((BQ, BA), _NONE, tl.float32)
    for tile in range(RUN):
        columns = (run * RUN + tile) * BA + tl.arange(0, BA)
        anchor_tile = bank_anchors + columns[None, :] * D + depth[:, None]
        product = tl.zeros((BQ, BA), tl.float32)
        for step in range(D // BD):
            q = tl.load(query_tile + step * BD)
            a = tl.load(anchor_tile + step * BD)
            product = tl.dot(q, a, product)
        norm = tl.load(norms + bank * size + columns)
        key = norm[None, :] - 2.0 * product
        if HIDE:
            key = tl.where(tl.load(masks[:, None] + columns[None, :]) != 0, _NONE, key)
        key = ((key.to(tl.int32, bitcast=True) & -RUN) | tile).to(tl.float32, bitcast=True)
        second = tl.minimum(second, tl.maximum(first, key))
        first = tl.minimum(first, key)
    out = keys + ((bank.to(tl.int64) * count + rows[:, None]) * RUNS + run) * (2 * BA) + tl.arange(0, BA)[None, :]
    tl.store(out, first, mask=rows[:, None] < count)
    tl.store(out + BA, second, mask=rows[:, None] < count)


@triton.jit  # type: ignore[untyped-decorator]
def _rerank(  # type: ignore[no-untyped-def]
    queries,
    anchors,
    hidden,
    keys,
    distances,
    positions,
    count,
    size,
    limit,
    patches,
    D: tl.constexpr,
    BD: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BW: tl.constexpr,
    BA: tl.constexpr,
    RUN: tl.constexpr,
    HIDE: tl.constexpr,
):
    """The K nearest of the C best keys by fp32 differences: distances and positions in the bank [B, Q, K]."""
    row, bank = tl.program_id(0), tl.program_id(1)
    mask = hidden + ((row // patches).to(tl.int64) * tl.num_programs(1) + bank) * size
    offsets, depth, slots = tl.arange(0, BW), tl.arange(0, BD), tl.arange(0, C)
    key = tl.load(keys + (bank.to(tl.int64) * count + row) * WIDTH + offsets, mask=offsets < WIDTH, other=_NONE)
    query = tl.load(queries + row.to(tl.int64) * D + depth, mask=depth < D, other=0.0)
    nearest = tl.full((C,), float("inf"), tl.float32)
    where = tl.full((C,), 2147483647, tl.int32)
    shared = tl.full((C,), -1, tl.int32)  # the column of a candidate that was second in it
    for slot in range(C):
        best, place = tl.min(key, axis=0, return_indices=True)
        key = tl.where(offsets == place, _NONE, key)
        tile = best.to(tl.int32, bitcast=True) & (RUN - 1)
        first = place // (2 * BA) * RUN * BA + place % BA
        column = first + tile * BA
        real = best < _NONE
        width = tl.where(real, D, 0)
        anchor = tl.load(anchors + (bank.to(tl.int64) * size + column) * D + depth, mask=depth < width, other=0.0)
        difference = query - anchor
        distance = tl.where(real, tl.sum(difference * difference, axis=0), float("inf"))
        nearest = tl.where(slots == slot, distance, nearest)
        where = tl.where(slots == slot, column, where)
        second = tl.where(place % (2 * BA) >= BA, first, -1)
        shared = tl.where(slots == slot, tl.where(real, second, -1), shared)
    for slot in range(C):
        first = tl.max(tl.where(slots == slot, shared, -1), axis=0)
        if first >= 0:
            for tile in range(RUN):
                column = first + tile * BA
                width = tl.where(column < limit, D, 0)
                if HIDE:
                    width = tl.where(tl.load(mask + column) == 0, width, 0)
                anchor = tl.load(
                    anchors + (bank.to(tl.int64) * size + column) * D + depth, mask=depth < width, other=0.0
                )
                difference = query - anchor
                distance = tl.where(width > 0, tl.sum(difference * difference, axis=0), float("inf"))
                worst, at = tl.max(nearest, axis=0, return_indices=True)
                repeated = tl.max((where == column).to(tl.int32), axis=0)
                distance = tl.where(repeated == 0, distance, float("inf"))
                better = tl.where(slots == at, distance, float("inf")) < worst
                nearest = tl.where(better, distance, nearest)
                where = tl.where(better, column, where)
    base = (bank.to(tl.int64) * count + row) * K
    for slot in range(K):
        best = tl.min(nearest, axis=0)
        column = tl.min(tl.where(nearest == best, where, 2147483647), axis=0)  # ties to the lower position
        tl.store(distances + base + slot, best)
        tl.store(positions + base + slot, column)
        nearest = tl.where(where == column, float("inf"), nearest)


@triton.jit  # type: ignore[untyped-decorator]
def _residual(  # type: ignore[no-untyped-def]
    queries, anchors, rows, weights, residuals, patches, D: tl.constexpr, BD: tl.constexpr, K: tl.constexpr
):
    """‖sum_j w_j (z - m_j)‖ of one query and bank: queries [N P, D], rows and weights [N, B, P, K]."""
    query, bank, banks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    place = (query // patches * banks + bank).to(tl.int64) * patches + query % patches
    depth = tl.arange(0, BD)
    vector = tl.load(queries + query.to(tl.int64) * D + depth, mask=depth < D, other=0.0)
    combined = tl.zeros((BD,), tl.float32)
    for slot in range(K):
        weight = tl.load(weights + place * K + slot)
        row = tl.load(rows + place * K + slot)
        anchor = tl.load(anchors + row * D + depth, mask=depth < D, other=0.0)
        combined += weight * (vector - anchor)
    tl.store(residuals + place, tl.sqrt(tl.sum(combined * combined, axis=0)))


class PackedBanks:
    """The banks of a layer as the kernels want them: contiguous, padded to whole runs, in fp32 and scaled fp16.

    Queries may be up to four times as long as the longest anchor; embedded patches are all of about unit length.
    """

    def __init__(self, anchors: Tensor, rows: Tensor) -> None:
        """``anchors`` [U, D] float32, ``rows`` [B, M] of it."""
        rows = rows.sort(dim=1).values  # so that the lower of two positions is the lower row
        count, size = rows.shape
        self.size = size
        tiles = triton.cdiv(size, _TILE)
        self.run = min(_LONGEST_RUN, triton.next_power_of_2(triton.cdiv(tiles, _RUNS)))
        padded = triton.cdiv(tiles, self.run) * self.run * _TILE
        self.exact = torch.zeros(count, padded, anchors.shape[1], device=anchors.device)
        self.exact[:, :size] = anchors[rows]
        # With the longest anchor at 1, ‖m‖² - 2 z·m + 22 stays within [16, 31).
        self.scale = float(anchors.square().sum(dim=1).max().sqrt().clamp_min(1e-30))
        self.half = (self.exact / self.scale).half()
        self.norms = self.half.float().square().sum(dim=2) + _BIAS
        self.norms[:, size:] = _NONE.value
        self.rows = torch.nn.functional.pad(rows, (0, padded - size))  # [B, M]: the anchor at each position

    def hide(self, hidden: Tensor) -> Tensor:
        """``hidden`` [N, U] by position in the banks: uint8 [N, B, M]."""
        return hidden.to(torch.uint8)[:, self.rows].contiguous()


def nearest_packed(patches: Tensor, packed: PackedBanks, k: int, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k nearest anchors of patches [N, P, D] in every bank: squared distances and rows of anchors, [N, B, P, k].

    Distances ascend, ties go to the lower row. ``hidden`` [N, U] says which anchors an image may not find.
    """
    images, count, dims = patches.shape
    banks, size, _ = packed.exact.shape
    queries = patches.reshape(-1, dims).float().contiguous()
    total, runs = len(queries), size // (_TILE * packed.run)
    masks = packed.rows if hidden is None else packed.hide(hidden)
    keys = torch.empty(banks, total, runs * 2 * _TILE, device=queries.device)
    # A single image is too little work for large tiles to fill the GPU.
    tile, warps = (128, 8) if total > 4096 else (64, 4)
    _propose[(triton.cdiv(total, tile), runs, banks)](
        (queries / packed.scale).half(),
        packed.half,
        packed.norms,
        masks,
        keys,
        total,
        size,
        count,
        D=dims,
        BQ=tile,
        BA=_TILE,
        BD=64,
        RUN=packed.run,
        RUNS=runs,
        HIDE=hidden is not None,
        num_warps=warps,
        num_stages=4,
    )
    distances = torch.empty(banks, total, k, device=queries.device)
    positions = torch.empty(banks, total, k, dtype=torch.int32, device=queries.device)
    _rerank[(total, banks)](
        queries,
        packed.exact,
        masks,
        keys,
        distances,
        positions,
        total,
        size,
        packed.size,
        count,
        D=dims,
        BD=triton.next_power_of_2(dims),
        K=k,
        C=triton.next_power_of_2(k + _SPARE),
        WIDTH=runs * 2 * _TILE,
        BW=triton.next_power_of_2(runs * 2 * _TILE),
        BA=_TILE,
        RUN=packed.run,
        HIDE=hidden is not None,
        num_warps=1,
    )
    rows = packed.rows.gather(1, positions.view(banks, -1).long()).view(banks, images, count, k)
    return distances.view(banks, images, count, k).transpose(0, 1), rows.transpose(0, 1)


def residual_norms_cuda(patches: Tensor, anchors: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """``method.residual.residual_norms`` of N images: patches [N, P, D], rows and weights [N, B, P, k] -> [N, B, P]."""
    images, count, dims = patches.shape
    banks, k = rows.shape[1], rows.shape[3]
    residuals = torch.empty(images, banks, count, device=patches.device)
    _residual[(images * count, banks)](
        patches.float().contiguous(),
        anchors,
        rows.contiguous(),
        weights.contiguous(),
        residuals,
        count,
        D=dims,
        BD=triton.next_power_of_2(dims),
        K=k,
        num_warps=1,
    )
    return residuals
