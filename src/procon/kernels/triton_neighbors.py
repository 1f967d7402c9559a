"""Neighbours on CUDA: a half-precision product fused with the choice of candidates, re-ranked exactly in fp32.

The product never reaches memory. Each thread block multiplies a tile of queries with one run of anchor tiles after
another and keeps, per column of the tile, the two smallest distances seen; the tile number rides in the lowest bits of
the distance. A second kernel takes the few best of those, computes their distances from fp32 differences, and orders
them. An anchor is missed only if two closer ones share its column and run, or if half precision misplaces it past all
candidates: both are bounded by test against the exact path.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_RUN = 16  # tiles per run: 4 bits
_TILE = 128  # anchors per tile
_BIAS = 22.0  # puts every value into [16, 32), where one fp32 step is 2^-19
_FAR = 31.0
_CANDIDATES = 8


@triton.jit  # type: ignore[untyped-decorator]
def _propose(  # type: ignore[no-untyped-def]
    queries,
    anchors,
    norms,
    keys,
    count,
    size,
    D: tl.constexpr,
    BQ: tl.constexpr,
    BA: tl.constexpr,
    BD: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
):
    tile_q, run, bank = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tile_q * BQ + tl.arange(0, BQ)
    depth = tl.arange(0, BD)
    query_tile = queries + (rows % count)[:, None].to(tl.int64) * D + depth[None, :]
    bank_anchors = anchors + bank.to(tl.int64) * size * D
    first = tl.full((BQ, BA), 31.0, tl.float32)
    second = tl.full((BQ, BA), 31.0, tl.float32)
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
        key = ((key.to(tl.int32, bitcast=True) & -16) | tile).to(tl.float32, bitcast=True)
        second = tl.minimum(second, tl.maximum(first, key))
        first = tl.minimum(first, key)
    width: tl.constexpr = 2 * BA * RUNS
    out = keys + (bank.to(tl.int64) * count + rows[:, None]) * width + run * 2 * BA + tl.arange(0, BA)[None, :]
    tl.store(out, first, mask=rows[:, None] < count)
    tl.store(out + BA, second, mask=rows[:, None] < count)


@triton.jit  # type: ignore[untyped-decorator]
def _rerank(  # type: ignore[no-untyped-def]
    queries,
    anchors,
    keys,
    distances,
    indices,
    count,
    size,
    D: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BA: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
):
    row, bank = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = 2 * BA * RUNS
    offsets = tl.arange(0, width)
    key = tl.load(keys + (bank.to(tl.int64) * count + row) * width + offsets)
    depth = tl.arange(0, D)
    query = tl.load(queries + row.to(tl.int64) * D + depth)
    slots = tl.arange(0, C)
    found = tl.full((C,), float("inf"), tl.float32)
    where = tl.full((C,), 2147483647, tl.int32)
    for slot in range(C):
        best, position = tl.min(key, axis=0, return_indices=True)
        key = tl.where(offsets == position, 31.0, key)
        tile = best.to(tl.int32, bitcast=True) & 15
        column = (position // (2 * BA) * RUN + tile) * BA + position % BA
        anchor = tl.load(anchors + (bank.to(tl.int64) * size + column) * D + depth)
        difference = query - anchor
        found = tl.where(slots == slot, tl.sum(difference * difference, axis=0), found)
        where = tl.where(slots == slot, column, where)
    base = (bank.to(tl.int64) * count + row) * K
    for slot in range(K):
        best = tl.min(found, axis=0)
        column = tl.min(tl.where(found == best, where, 2147483647), axis=0)
        tl.store(distances + base + slot, best)
        tl.store(indices + base + slot, column)
        found = tl.where(where == column, float("inf"), found)


@triton.jit  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    queries,
    anchors,
    distances,
    indices,
    temperatures,
    residuals,
    count,
    size,
    patches,
    D: tl.constexpr,
    K: tl.constexpr,
):
    row, bank = tl.program_id(0), tl.program_id(1)
    base = (bank.to(tl.int64) * count + row) * K
    tau = tl.load(temperatures + bank * (count // patches) + row // patches)
    nearest = tl.load(distances + base)
    depth = tl.arange(0, D)
    query = tl.load(queries + row.to(tl.int64) * D + depth)
    total = 0.0
    combined = tl.zeros((D,), tl.float32)
    for slot in range(K):
        weight = tl.exp(-(tl.load(distances + base + slot) - nearest) / tau)
        column = tl.load(indices + base + slot)
        anchor = tl.load(anchors + (bank.to(tl.int64) * size + column) * D + depth)
        combined += weight * (query - anchor)
        total += weight
    combined = combined / total
    tl.store(residuals + bank.to(tl.int64) * count + row, tl.sqrt(tl.sum(combined * combined, axis=0)))


class PackedBanks:
    """The banks of a layer as the kernels want them: padded, contiguous, in fp32 and scaled fp16."""

    def __init__(self, anchors: Tensor, banks: Tensor) -> None:
        """``anchors`` [U, D] float32, ``banks`` [B, M] rows of it."""
        count, size = banks.shape
        self.size = size
        padded = -(-size // (_TILE * _RUN)) * _TILE * _RUN
        self.exact = torch.zeros(count, padded, anchors.shape[1], device=anchors.device)
        self.exact[:, :size] = anchors[banks]
        # With the largest norm at 1 and queries up to twice that, ‖m‖² - 2 z·m + 22 stays within [16, 32).
        self.scale = float(anchors.square().sum(dim=1).max().sqrt().clamp_min(1e-30))
        self.half = (self.exact / self.scale).half()
        norms = self.half.float().square().sum(dim=2) + _BIAS
        norms[:, size:] = _FAR
        self.norms = norms.contiguous()


def nearest_in_packed(queries: Tensor, packed: PackedBanks, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest anchors in every bank: queries [Q, D] -> squared distances [B, Q, k], positions in the bank [B, Q, k]."""
    banks, padded, depth = packed.exact.shape
    count, runs = len(queries), padded // (_TILE * _RUN)
    half = (queries / packed.scale).half()
    keys = torch.empty(banks, count, 2 * _TILE * runs, device=queries.device)
    tile_q = 128
    _propose[(triton.cdiv(count, tile_q), runs, banks)](
        half,
        packed.half,
        packed.norms,
        keys,
        count,
        padded,
        D=depth,
        BQ=tile_q,
        BA=_TILE,
        BD=64,
        RUN=_RUN,
        RUNS=runs,
        num_warps=8,
        num_stages=3,
    )
    distances = torch.empty(banks, count, k, device=queries.device)
    indices = torch.empty(banks, count, k, dtype=torch.int32, device=queries.device)
    _rerank[(count, banks)](
        queries,
        packed.exact,
        keys,
        distances,
        indices,
        count,
        padded,
        D=depth,
        K=k,
        C=_CANDIDATES,
        BA=_TILE,
        RUN=_RUN,
        RUNS=runs,
        num_warps=4,
    )
    return distances, indices


def soft_residual_packed(queries: Tensor, packed: PackedBanks, k: int, patches: int) -> Tensor:
    """r_{b,p} of a batch of images: queries [N * patches, D] -> residuals [B, N * patches]; tau per image and bank."""
    distances, indices = nearest_in_packed(queries, packed, k)
    banks, count, _ = distances.shape
    ordered = distances.view(banks, count // patches, patches * k).sort(dim=2).values
    middle = patches * k
    tau = (ordered[:, :, (middle - 1) // 2] + ordered[:, :, middle // 2]) / 2
    tau = tau.clamp_min(torch.finfo(torch.float32).tiny).contiguous()
    residuals = torch.empty(banks, count, device=queries.device)
    _combine[(count, banks)](
        queries,
        packed.exact,
        distances,
        indices,
        tau,
        residuals,
        count,
        packed.exact.shape[1],
        patches,
        D=queries.shape[1],
        K=k,
        num_warps=4,
    )
    return residuals
