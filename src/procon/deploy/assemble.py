"""Turn a fitted detector into arrays, and these into one graph."""

import torch

from procon.config import Config
from procon.deploy.graph import Graph
from procon.deploy.quantize import Ranges
from procon.deploy.scoring import ExportedLayer, ExportedScope, ScoringPlan, add_scoring
from procon.deploy.sessions import INPUT, OUTPUTS
from procon.deploy.vit import Vit, add_backbone
from procon.detector import Detector
from procon.vision.scope import scope_of


def build_graph(detector: Detector, *, ranges: Ranges | None = None, half: bool = False) -> Graph:
    """The whole method from normalised pixels to score, map and patch scores."""
    graph = Graph(ranges=ranges, half=half)
    tokens = add_backbone(graph, INPUT, build_vit(detector))
    add_scoring(graph, tokens, _export_layers(detector), _scoring_plan(detector))
    return graph


def build_vit(detector: Detector) -> Vit:
    """The backbone of a detector as arrays."""
    backbone = detector.reader.extractor.backbone
    architecture = backbone.architecture
    return Vit(
        tensors={name: tensor.float().numpy() for name, tensor in backbone.state().items()},
        position=backbone._position.float().numpy(),
        heads=architecture.heads,
        registers=architecture.registers,
        swiglu=architecture.swiglu,
        layers=backbone.layers,
        grid=detector.config.grid,
    )


def _export_layers(detector: Detector) -> list[ExportedLayer]:
    extractor, relative = detector.reader.extractor, detector.config.score_relative_to == "anchors"
    marked = detector.model.marked
    blocks = list(extractor.layers)
    return [
        ExportedLayer(
            anchors=layer.anchors.numpy(),
            members=layer.index.members.numpy(),
            projection=None if projection is None else projection.numpy(),
            sources=tuple(blocks.index(block) for block in extractor.blocks(index)),
            scale=layer.scale,
            levels=layer.levels.numpy() if relative else None,
            marked=None if marked is None else marked[index].numpy(),
        )
        for index, (layer, projection) in enumerate(
            zip(detector.model.memory.layers, extractor.projections, strict=True)
        )
    ]


def export_scope(detector: Detector) -> ExportedScope | None:
    """The region of interest, if there is one; images fill the input, whatever their size."""
    config = detector.config
    scope = scope_of(config, detector.model.memory.roi, config.input_size, torch.device("cpu"))
    if scope is None:
        return None
    return ExportedScope(scope.rows.numpy(), scope.nearest.numpy(), scope.pixels.numpy())


def _scoring_plan(detector: Detector) -> ScoringPlan:
    config = detector.config
    plan = ScoringPlan(config, detector.model.memory.quartile or 0.0, export_scope(detector))
    if config.tau_patches is None or config.tau_patches >= plan.patches:
        return plan
    generator = torch.Generator().manual_seed(0)  # the subsample of procon.method.residual
    chosen = torch.randperm(plan.patches, generator=generator)[: config.tau_patches].numpy()
    return ScoringPlan(config, plan.quartile, plan.scope, chosen)


def graph_shapes(config: Config) -> tuple[dict[str, list[int | str]], dict[str, list[int | str]]]:
    """Names and shapes of the graph's input and of its outputs; N is any number of images."""
    (height, width), (rows, columns) = config.input_size, config.grid
    shapes: list[list[int | str]] = [["N"], ["N", height, width], ["N", rows, columns]]
    return {INPUT: ["N", 3, height, width]}, dict(zip(OUTPUTS, shapes, strict=True))
