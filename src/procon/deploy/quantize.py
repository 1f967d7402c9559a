"""int8: the range of the inputs of each linear layer of the backbone, from real images."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from procon.arrays import Floats
from procon.config import PATCH
from procon.deploy.graph import Graph, save_onnx
from procon.deploy.sessions import INPUT, open_session
from procon.deploy.vit import Vit, add_backbone

Ranges = Mapping[str, tuple[float, float]]
"""Smallest and largest input of a linear layer, by its name."""


def input_ranges(vit: Vit, runtime: str, pixels: Floats) -> Ranges:
    """The ranges over images ``pixels`` [N, 3, H, W]."""
    graph = Graph()
    add_backbone(graph, INPUT, vit)
    outputs = sorted(set(graph.linear_inputs.values()))
    height, width = (PATCH * cells for cells in vit.grid)
    model = graph.model({INPUT: ["N", 3, height, width]}, {name: ["R", "C"] for name in outputs})
    with tempfile.TemporaryDirectory() as folder:
        (file, *_) = save_onnx(model, Path(folder), graph.constant_bytes)
        session = open_session(Path(folder) / file, runtime, outputs=outputs)
        extremes: dict[str, list[float]] = {name: [] for name in outputs}
        for image in pixels:
            for name, tensor in session(image[None]).items():
                extremes[name] += [float(tensor.min()), float(tensor.max())]
    return {layer: (min(extremes[name]), max(extremes[name])) for layer, name in graph.linear_inputs.items()}
