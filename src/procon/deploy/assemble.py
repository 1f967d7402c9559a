"""A fitted detector taken apart into arrays, and put together again as one graph."""

import torch

from procon.config import Config
from procon.deploy.graph import Graph
from procon.deploy.quantize import Ranges
from procon.deploy.scoring import Counted, ExportedLayer, ScoringPlan, add_scoring
from procon.deploy.sessions import INPUT, OUTPUTS
from procon.deploy.vit import Vit, add_backbone
from procon.detector import Detector
from procon.vision.scope import scope_of


def build_graph(
    detector: Detector,
    *,
    ranges: Ranges | None = None,
    half: bool = False,
) -> Graph:
    """The whole method from normalised pixels to score, map and patch scores."""
    graph = Graph(ranges=ranges, half=half)
    tokens = add_backbone(graph, INPUT, build_vit(detector))
    add_scoring(graph, tokens, layers_of(detector), _scoring_plan(detector))
    return graph


def build_vit(detector: Detector) -> Vit:
    """The backbone of a detector as arrays."""
    backbone = detector.reader.extractor.backbone
    architecture = backbone.architecture
    tensors = {name: tensor.float().numpy() for name, tensor in backbone.state().items()}
    return Vit(
        tensors,
        backbone._position.float().numpy(),
        architecture.heads,
        architecture.registers,
        architecture.swiglu,
        backbone.layers,
        detector.config.grid,
    )


def layers_of(detector: Detector) -> list[ExportedLayer]:
    """The memory of a detector as arrays."""
    assert detector.memory is not None
    extractor = detector.reader.extractor
    blocks = list(extractor.layers)
    layers = []
    for index, memory in enumerate(detector.memory.layers):
        projection = extractor.projections[index]
        layers.append(
            ExportedLayer(
                memory.anchors.numpy(),
                memory.index.members.numpy(),
                None if projection is None else projection.numpy(),
                tuple(blocks.index(block) for block in extractor.blocks(index)),
                memory.scale,
                None if detector.config.score_relative_to == "nothing" else memory.levels.numpy(),
            )
        )
    return layers


def counted_patches(detector: Detector) -> Counted | None:
    """The patches in the region of interest, if there is one; images fill the input, whatever their size."""
    assert detector.memory is not None
    scope = scope_of(detector.config, detector.memory.roi, detector.config.input_size, torch.device("cpu"))
    return None if scope is None else Counted(scope.rows.numpy(), scope.nearest.numpy(), scope.pixels.numpy())


def _scoring_plan(detector: Detector) -> ScoringPlan:
    assert detector.memory is not None
    config, counted, chosen = detector.config, counted_patches(detector), None
    patches = config.grid[0] * config.grid[1] if counted is None else len(counted.rows)
    if config.tau_patches is not None and config.tau_patches < patches:
        generator = torch.Generator().manual_seed(0)  # the subsample of kernels.scoring.temperature
        chosen = torch.randperm(patches, generator=generator)[: config.tau_patches].numpy()
    return ScoringPlan(config, chosen, detector.memory.quartile or 0.0, counted)


def shapes(config: Config) -> tuple[dict[str, list[int | str]], dict[str, list[int | str]]]:
    """Names and shapes of the graph's input and of its outputs; N is any number of images."""
    (height, width), (rows, columns) = config.input_size, config.grid
    given: list[list[int | str]] = [["N"], ["N", height, width], ["N", rows, columns]]
    return {INPUT: ["N", 3, height, width]}, dict(zip(OUTPUTS, given, strict=True))
