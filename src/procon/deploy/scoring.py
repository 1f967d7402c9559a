"""Banks, consensus, map and image score as an ONNX graph: from tokens to the outputs that a prediction needs.

The anchors of a layer are stored once. They are sorted by the set of banks that hold them, so that a bank is a few
runs of columns of one product; with too many such sets, a mask per bank is used instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Bools, Floats
from procon.config import Config
from procon.deploy.graph import Graph
from procon.deploy.interpolation import spread_matrix
from procon.method.lessons import CLEAR, MOST_GAIN, REACH

SPARE = 1  # candidates beyond k, of which the k nearest are taken
SPARE_INT8 = 3  # the same where the search is done in 8-bit integers
MOST_RUNS = 64  # sets of banks that are cut apart; five banks have at most 31


@dataclass(frozen=True)
class ExportedLayer:
    """The memory of one layer, or of several joined."""

    anchors: Floats  # [U, D]
    members: Bools  # [B, U]: which bank holds which anchor
    projection: Floats | None  # [C, D], or None where tokens keep their dimensions
    sources: tuple[int, ...]  # the outputs of the backbone that it reads
    scale: tuple[float, float]  # mean and deviation on good images
    levels: Floats | None  # [B, U]: residuals of good patches, where the image score is relative to them
    marked: Floats | None = None  # [A, D]: marked defects, where the model was taught some


class ExportedScope(NamedTuple):
    """A region of interest; see :class:`procon.vision.scope.Scope`."""

    rows: NDArray[np.int64]  # [K] the patches inside
    nearest: NDArray[np.int64]  # [P] which of them is nearest to each patch
    pixels: Bools  # [H, W] the pixels inside


@dataclass(frozen=True)
class ScoringPlan:
    """Everything but the memory that the scoring graph needs."""

    config: Config
    quartile: float  # the lower quartile that maps are shifted towards, with ``map_offset``
    scope: ExportedScope | None  # None: all patches count
    tau_patches: NDArray[np.int64] | None = None  # the patches that set the temperature; None: all

    @property
    def patches(self) -> int:
        """Patches per image that count."""
        return self.config.grid[0] * self.config.grid[1] if self.scope is None else len(self.scope.rows)


def add_scoring(graph: Graph, tokens: Sequence[str], layers: Sequence[ExportedLayer], plan: ScoringPlan) -> None:
    """From tokens [N * P, C] to the outputs ``score`` [N], ``map`` [N, H, W] and ``patches`` [N, rows, columns]."""
    config = plan.config
    maps: list[str] = []
    relative: list[str] = []
    normal: list[str] = []
    defect: list[str] = []
    for index, layer in enumerate(layers):
        inside = [_select_patches(graph, tokens[source], plan) for source in layer.sources]
        features = _embed(graph, inside, layer, index)
        *residuals, nearest = _residuals(graph, features, layer, plan, index)
        if layer.marked is not None:
            normal.append(graph.median(graph.op("Sqrt", nearest), len(layer.members)))
            defect.append(_marked_distances(graph, features, layer.marked, index))
        for residual, parts in zip(residuals, (maps, relative), strict=True):
            if residual is not None:
                consensus = graph.reshape(graph.median(residual, len(layer.members)), [-1, plan.patches])
                parts.append(_normalized(graph, consensus, layer, plan))
    patches = _fused(graph, maps, config.layer_fusion)
    count = max(1, round(config.top_ratio * plan.patches))
    ranked = _fused(graph, relative, config.layer_fusion) if relative else patches
    heat = _shifted(graph, patches, plan) if config.map_offset else patches
    if defect:
        gain = _gain(graph, defect, normal, plan)
        patches, ranked, heat = (graph.op("Mul", values, gain) for values in (patches, ranked, heat))
    highest, _ = graph.ops("TopK", 2, ranked, graph.constant([count]), axis=-1)
    graph.op("ReduceMean", highest, name="score", axes=[-1], keepdims=0)
    shape = graph.constant([-1, *config.grid])
    grid = graph.op("Reshape", _spread_patches(graph, patches, plan), shape, name="patches")
    if config.map_offset:
        grid = graph.op("Reshape", _spread_patches(graph, heat, plan), shape)
    _add_map(graph, grid, plan)


def _add_map(graph: Graph, grid: str, plan: ScoringPlan) -> None:
    """Patch scores [N, rows, columns] to the output ``map`` [N, H, W]; 0 outside the region of interest."""
    config = plan.config
    rows, columns = (
        spread_matrix(cells, size, config.blur_sigma)
        for cells, size in zip(config.grid, config.input_size, strict=True)
    )
    tall = graph.op("MatMul", graph.constant(rows, "map/rows"), grid)
    across = graph.constant(np.ascontiguousarray(columns.T), "map/columns")
    if plan.scope is None:
        graph.op("MatMul", tall, across, name="map")
    else:
        inside = graph.constant(plan.scope.pixels.astype(np.float32), "map/region")
        graph.op("Mul", graph.op("MatMul", tall, across), inside, name="map")


def _select_patches(graph: Graph, tokens: str, plan: ScoringPlan) -> str:
    """Of tokens [N * P, C] those inside the region of interest [N * K, C]."""
    if plan.scope is None:
        return tokens
    # The width is not known here, so the patches are: every image has as many rows of tokens.
    width = graph.op("Shape", tokens, start=1, end=2)
    whole = graph.constant([-1, len(plan.scope.nearest)])
    images = graph.op("Reshape", tokens, graph.op("Concat", whole, width, axis=0))
    selected = graph.op("Gather", images, graph.constant(plan.scope.rows), axis=1)
    return graph.op("Reshape", selected, graph.op("Concat", graph.constant([-1]), width, axis=0))


def _spread_patches(graph: Graph, patches: str, plan: ScoringPlan) -> str:
    """Scores of the patches that count [N, K] to all [N, P]: others repeat their nearest."""
    if plan.scope is None:
        return patches
    return graph.op("Gather", patches, graph.constant(plan.scope.nearest), axis=1)


def _shifted(graph: Graph, patches: str, plan: ScoringPlan) -> str:
    """Patch scores [N, K], shifted as :func:`procon.method.score.shift_maps` does it."""
    rank = (plan.patches - 1) / 4
    first, last = int(rank), min(int(rank) + 1, plan.patches - 1)
    lowest, _ = graph.ops("TopK", 2, patches, graph.constant([last + 1]), axis=-1, largest=0, sorted=1)
    low, high = (graph.slice(lowest, index, index + 1) for index in (first, last))
    step = graph.op("Mul", graph.op("Sub", high, low), graph.constant(rank - first))
    offset = graph.op("Sub", graph.constant(plan.quartile), graph.op("Add", low, step))
    share = plan.config.map_offset
    return graph.op("Add", patches, offset if share == 1 else graph.op("Mul", offset, graph.constant(share)))


def _embed(graph: Graph, tokens: list[str], layer: ExportedLayer, index: int) -> str:
    """G_l: tokens [Q, C] to unit vectors, and through the projection: [Q, D]."""
    unit = [_unit(graph, tensor) for tensor in tokens]
    joined = unit[0] if len(unit) == 1 else _unit(graph, graph.op("Concat", *unit, axis=1))
    if layer.projection is None:
        return joined
    return graph.op("MatMul", joined, graph.constant(layer.projection, f"memory/{index}/projection"))


def _unit(graph: Graph, tensor: str) -> str:
    length = graph.op("Max", graph.op("ReduceL2", tensor, axes=[1], keepdims=1), graph.constant(1e-12))
    return graph.op("Div", tensor, length)


def _residuals(
    graph: Graph, features: str, layer: ExportedLayer, plan: ScoringPlan, index: int
) -> tuple[str, str | None, str]:
    """r_{l,b,p}: features [Q, D] to [Q, B]; and the same over the level of the anchors, where that is asked for.

    The last is the squared distance to the nearest anchor of each bank [Q, B].
    """
    config, banks = plan.config, len(layer.members)
    k = 1 if config.readout == "hard" else config.num_neighbors
    # The anchors that any bank holds, sorted by the set of banks that hold them.
    held = np.flatnonzero(layer.members.any(axis=0))
    order = held[np.lexsort(layer.members[:, held])]
    anchors, members = np.ascontiguousarray(layer.anchors[order]), layer.members[:, order]
    stored = graph.constant(anchors, f"memory/{index}/anchors")
    # The product proposes a few more than k, as its rounding may swap neighbours that are equally far.
    spare = SPARE_INT8 if graph.integers else SPARE
    count = min(k + spare, int(layer.members.sum(axis=1).min()))
    nearness = _nearness(graph, features, stored, anchors, index)
    neighbors = _nearest(graph, nearness, members, count)
    # Distances and residual come from differences: the expanded square would lose what small ones consist of.
    chosen = graph.op("Gather", stored, neighbors, axis=0)
    width = anchors.shape[1]
    differences = graph.op("Sub", graph.reshape(features, [-1, 1, width]), chosen)  # [Q, B * count, D]
    distances = graph.op("ReduceSumSquare", differences, axes=[2], keepdims=0)
    distances = graph.reshape(distances, [-1, banks, count])
    nearest = graph.op("ReduceMin", distances, axes=[2], keepdims=0)
    if config.readout == "hard":
        return graph.op("Sqrt", nearest), None, nearest
    weights = _weights(graph, distances, plan, banks, count)
    rows = graph.reshape(weights, [-1, 1, count]), graph.reshape(differences, [-1, count, width])
    combined = graph.op("MatMul", *rows)  # [Q * B, 1, D]
    residual = graph.op("Sqrt", graph.op("ReduceSumSquare", combined, axes=[2], keepdims=0))
    residual = graph.reshape(residual, [-1, banks])
    if layer.levels is None:
        return residual, None, nearest
    # One row of levels for all banks: those of bank b begin at b * U.
    level = graph.constant(np.ascontiguousarray(layer.levels[:, order]).ravel(), f"memory/{index}/levels")
    starts = np.repeat(np.arange(banks) * len(anchors), count).astype(np.int64)
    near = graph.op("Gather", level, graph.op("Add", neighbors, graph.constant(starts)), axis=0)
    weighted = graph.op("Mul", weights, graph.reshape(near, [-1, banks, count]))
    usual = graph.op("ReduceSum", weighted, graph.constant([2]), keepdims=0)
    return residual, graph.op("Div", residual, graph.op("Max", usual, graph.constant(1e-12))), nearest


def _marked_distances(graph: Graph, features: str, marked: Floats, index: int) -> str:
    """Distances between features [Q, D] and ``marked`` defects [A, D]: [Q, A].

    From the expanded square: its rounding matters only where a distance is small, and there the gain has its limit.
    """
    own = graph.op("ReduceSumSquare", features, axes=[1], keepdims=1)
    halves = graph.constant(np.ascontiguousarray(-2 * marked.T), f"lessons/{index}/anchors")
    squares = graph.constant(np.square(marked, dtype=np.float64).sum(axis=1).astype(np.float32))
    squared = graph.op("Add", graph.op("Add", graph.op("MatMul", features, halves), squares), own)
    return graph.op("Sqrt", graph.op("Max", squared, graph.constant(0.0)))


def _gain(graph: Graph, defect: list[str], normal: list[str], plan: ScoringPlan) -> str:
    """The gain of every patch [N, K]; see :mod:`procon.method.lessons`."""
    mean = [parts[0] if len(parts) == 1 else graph.op("Mean", *parts) for parts in (defect, normal)]
    nearest = graph.op("ReduceMin", mean[0], axes=[1], keepdims=1)
    ratio = graph.op("Div", nearest, graph.op("Max", mean[1], graph.constant(1e-12)))
    rise = graph.op("Div", graph.op("Sub", graph.constant(REACH), ratio), graph.constant(REACH - CLEAR))
    share = graph.op("Clip", rise, graph.constant(0.0), graph.constant(1.0))
    gain = graph.op("Add", graph.op("Mul", share, graph.constant(MOST_GAIN - 1)), graph.constant(1.0))
    return graph.reshape(gain, [-1, plan.patches])


def _nearness(graph: Graph, features: str, stored: str, anchors: Floats, index: int) -> str:
    """z·m - ‖m‖² / 2: features [Q, D] to [Q, U], highest for the nearest anchor.

    It only proposes candidates, whose distances are then computed exactly, so 8-bit integers are precise enough.
    """
    halves = np.square(anchors, dtype=np.float64).sum(axis=1).astype(np.float32) / 2
    if graph.integers:
        limit = 1.1 * float(np.abs(anchors).max())  # anchors are features of good images; a little room for others
        matrix = np.ascontiguousarray(anchors.T)
        return graph.integer_linear(features, matrix, -halves, (-limit, limit), f"memory/{index}/search")
    product = graph.op("MatMul", features, graph.op("Transpose", stored, perm=[1, 0]))
    return graph.op("Sub", product, graph.constant(halves))


def _nearest(graph: Graph, nearness: str, members: Bools, k: int) -> str:
    """Rows of the k nearest anchors of every bank: nearness [Q, U], members [B, U] -> [Q, B * k]."""
    count = graph.constant([k])
    changes = np.flatnonzero((members[:, 1:] != members[:, :-1]).any(axis=0)) + 1
    runs = list(pairwise([0, *changes.tolist(), members.shape[1]]))  # columns of anchors that the same banks hold
    rows = []
    if len(runs) > MOST_RUNS:
        for bank in members:
            hidden = graph.constant(np.where(bank, 0, -np.inf).astype(np.float32))
            rows.append(graph.ops("TopK", 2, graph.op("Add", nearness, hidden), count, axis=1)[1])
        return graph.op("Concat", *rows, axis=1)
    sizes = graph.constant([stop - start for start, stop in runs])
    pieces = [nearness] if len(runs) == 1 else graph.ops("Split", len(runs), nearness, sizes, axis=1)
    best = []
    for (start, stop), piece in zip(runs, pieces, strict=True):
        value, place = graph.ops("TopK", 2, piece, graph.constant([min(k, stop - start)]), axis=1)
        best.append((value, graph.op("Add", place, graph.constant(start))))
    for bank in members:
        own = [pair for (start, _), pair in zip(runs, best, strict=True) if bank[start]]
        values, places = zip(*own, strict=True)
        if len(own) == 1:
            rows += places
            continue
        _, position = graph.ops("TopK", 2, graph.op("Concat", *values, axis=1), count, axis=1)
        rows.append(graph.op("GatherElements", graph.op("Concat", *places, axis=1), position, axis=1))
    return rows[0] if len(rows) == 1 else graph.op("Concat", *rows, axis=1)


def _weights(graph: Graph, distances: str, plan: ScoringPlan, banks: int, count: int) -> str:
    """Weights softmax(-d / tau) of the k nearest of the candidates, 0 for the others: [Q, B, count] -> [Q, B, count].

    Without a fixed one, the temperature is the median over an image of the distances to the k nearest, for each bank.
    """
    config = plan.config
    k, patches = config.num_neighbors, plan.patches
    nearest, _ = graph.ops("TopK", 2, distances, graph.constant([k]), axis=2, largest=0, sorted=1)
    logits = graph.op("Sub", graph.slice(nearest, 0, 1), distances)  # 0 for the nearest, then falling
    if config.readout == "uniform":
        logits = graph.op("Mul", logits, graph.constant(0.0))
    elif config.tau is not None:
        logits = graph.op("Div", logits, graph.constant(config.tau))
    else:
        images, rows = graph.reshape(nearest, [-1, patches, banks, k]), patches
        if plan.tau_patches is not None:
            images = graph.op("Gather", images, graph.constant(plan.tau_patches), axis=1)
            rows = len(plan.tau_patches)
        pooled = graph.reshape(graph.op("Transpose", images, perm=[0, 2, 1, 3]), [-1, banks, rows * k])
        tau = graph.op("Max", graph.median(pooled, rows * k), graph.constant(float(np.finfo(np.float32).tiny)))
        per_image = graph.reshape(logits, [-1, patches, banks, count])
        per_image = graph.op("Div", per_image, graph.reshape(tau, [-1, 1, banks, 1]))
        logits = graph.reshape(per_image, [-1, banks, count])
    if count > k:
        farther = graph.op("Greater", distances, graph.slice(nearest, k - 1, k))
        logits = graph.op("Where", farther, graph.constant(-np.inf), logits)
    return graph.op("Softmax", logits, axis=-1)


def _normalized(graph: Graph, layer_map: str, layer: ExportedLayer, plan: ScoringPlan) -> str:
    """S_l [N, P] as the settings standardise it."""
    if plan.config.normalization == "train":
        centred = graph.op("Sub", layer_map, graph.constant(layer.scale[0]))
        return graph.op("Div", centred, graph.constant(layer.scale[1]))
    if plan.config.normalization == "robust":
        centred = graph.op("Sub", layer_map, graph.median(layer_map, plan.patches))
        spread = graph.median(graph.op("Abs", centred), plan.patches)
        tiny = graph.constant(float(np.finfo(np.float32).tiny))
        return graph.op("Div", centred, graph.op("Max", spread, tiny))
    return layer_map


def _fused(graph: Graph, maps: list[str], fusion: str) -> str:
    """S_map [N, P] from the maps of the layers."""
    if len(maps) == 1:
        return maps[0]
    if fusion == "median":
        stacked = graph.op(
            "Concat", *(graph.op("Unsqueeze", layer_map, graph.constant([2])) for layer_map in maps), axis=2
        )
        return graph.op("Squeeze", graph.median(stacked, len(maps)), graph.constant([2]))
    return graph.op("Max" if fusion == "max" else "Mean", *maps)
