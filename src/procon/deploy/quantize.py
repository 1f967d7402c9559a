"""int8: the range of what each linear layer of the backbone reads, from real images."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from procon.config import PATCH
from procon.deploy.graph import Graph, save_onnx
from procon.deploy.sessions import INPUT, open_session
from procon.deploy.vit import Vit, add_backbone

Ranges = Mapping[str, tuple[float, float]]
"""Smallest and largest input of a linear layer, by its name."""


def input_ranges(vit: Vit, runtime: str, pixels: NDArray[np.float32]) -> Ranges:
    """The ranges over images ``pixels`` [N, 3, H, W]."""
    graph = Graph()
    add_backbone(graph, INPUT, vit)
    names = graph.linear_inputs
    height, width = (PATCH * cells for cells in vit.grid)
    wanted = sorted(set(names.values()))
    model = graph.model({INPUT: ["N", 3, height, width]}, {name: ["R", "C"] for name in wanted})
    ranges: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (file, *_) = save_onnx(model, Path(folder), graph.constant_bytes)
        session = open_session(Path(folder) / file, runtime, outputs=wanted)
        for image in pixels:
            found = session(image[None])
            for name, tensor in names.items():
                low, high = float(found[tensor].min()), float(found[tensor].max())
                before = ranges.get(name, (low, high))
                ranges[name] = (min(low, before[0]), max(high, before[1]))
    return ranges
