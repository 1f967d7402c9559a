"""A model as a file: settings, memory, threshold, log, and which backbone it belongs to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ModelFileError
from procon.model.document import calibration_of, mismatch_refused, renderings_of
from procon.model.history import Change
from procon.model.lessons import pack_lessons, unpack_lessons
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.reader import Extractor
from procon.model.storage import read_model, write_model
from procon.model.training import pack_thumbnails, unpack_thumbnails
from procon.model.training_image import TrainingImage
from procon.vision.backbone import Backbone, rebuild

_IDENTITY = ("source", "sha256", "fingerprint", "architecture")  # of the backbone; see Backbone.identity


def save_model(path: Path, model: Model, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write ``model`` to ``path``, atomically; ``weights`` are those of the backbone, to be embedded."""
    memory = model.memory
    lessons, listed = pack_lessons(model.lessons)
    tensors = memory.to_tensors() | pack_thumbnails(memory.images) | lessons
    tensors |= {f"backbone.{name}": tensor for name, tensor in (weights or {}).items()}
    metadata = {
        "config": model.config.to_dict(),
        "backbone": {**model.identity, "embedded": bool(weights)},
        "images": [image.to_dict() for image in memory.images],
        "thumbnail_bytes": sum(len(image.thumbnail) for image in memory.images),
        "patches": memory.patches,
        "roi": None if memory.roi is None else float(memory.roi.mean()),
        "calibration": model.calibration.to_dict() if model.calibration else None,
        "history": [change.to_dict() for change in model.history],
        **listed,
        **({} if model.renderings is None else {"renderings": model.renderings.to_dict()}),
    }
    write_model(path, tensors, metadata)


def load_model(path: Path, weights: str | Path | None = None) -> tuple[Model, dict[str, Tensor]]:
    """Read and check a model file: the model, and the weights of its backbone where they are embedded.

    ``weights`` names other weights, which then replace those that the file names or embeds.
    """
    tensors, metadata = read_model(path)
    with mismatch_refused(path):
        config = Config.from_dict(metadata["config"])
        thumbnails = unpack_thumbnails(tensors, len(metadata["images"]))
        described = zip(metadata["images"], thumbnails, strict=True)
        images = tuple(TrainingImage.from_dict(image, thumbnail) for image, thumbnail in described)
        memory = Memory.from_tensors(tensors, images, int(metadata["patches"]), config.compression)
        backbone = metadata["backbone"]
        history = tuple(Change.from_dict(change) for change in metadata["history"])
        identity = {name: backbone[name] for name in _IDENTITY}
        dims = [layer.anchors.shape[1] for layer in memory.layers]
        lessons = unpack_lessons(tensors, metadata, dims, memory.patches)
        model = Model(config, memory, None, history, identity, lessons, renderings_of(metadata))
        model = model.calibrated(calibration_of(metadata))
        _refuse_mismatch(model)
    if weights is not None:
        return replace(model, config=replace(config, weights=str(weights))), {}
    return model, {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}


def find_extractor(path: Path, model: Model, embedded: dict[str, Tensor], device: torch.device) -> Extractor:
    """The backbone that ``model`` was fitted with, embedded or where its settings say, with its embedding."""
    if embedded:
        backbone = rebuild(embedded, dict(model.identity), model.config, device)
    else:
        backbone = Backbone.load(model.config, device, model.identity["source"])
    if backbone.fingerprint != model.identity["fingerprint"]:
        source, sha256 = model.identity["source"], model.identity["sha256"]
        raise ModelFileError(
            f"{path}: was fitted with other backbone weights ({source}, sha256 {sha256[:12]}...) than those found "
            f"({backbone.source}, {backbone.sha256[:12]}...); pass the original ones as weights"
        )
    extractor = Extractor(backbone, model.config)
    dims = [layer.anchors.shape[1] for layer in model.memory.layers]
    if dims != extractor.dims:
        raise ModelFileError(
            f"{path}: its content does not fit together (anchors of {dims} dimensions, the settings call for "
            f"{extractor.dims}); fit again"
        )
    return extractor


def _refuse_mismatch(model: Model) -> None:
    """A ValueError where the memory is not one that these settings make."""
    config, memory, calibration = model.config, model.memory, model.calibration
    layers = 1 if config.layer_fusion == "concat" else len(config.layers)
    if len(memory.layers) != layers:
        raise ValueError(f"the settings call for {layers} memories, the file has {len(memory.layers)}")
    if memory.patches != config.grid[0] * config.grid[1]:
        raise ValueError(f"a {config.grid[0]} x {config.grid[1]} grid cannot have {memory.patches} patches")
    for index, layer in enumerate(memory.layers):
        if len(layer.banks) != config.banks or layer.banks.shape[1] < config.num_neighbors:
            raise ValueError(
                f"memory {index} has {len(layer.banks)} banks of {layer.banks.shape[1]} anchors; the settings call for "
                f"{config.banks} banks of at least {config.num_neighbors}"
            )
    if config.score_relative_to == "anchors" and any(layer.sums is None for layer in memory.layers):
        raise ValueError("the settings call for what anchors leave on good images, and the file has none of it")
    if config.map_offset and memory.quartile is None:
        raise ValueError("the settings call for the lower quartile of good maps, and the file has none")
    if memory.roi is not None and memory.roi.shape != config.input_size:
        raise ValueError(f"a region of interest of {memory.roi.shape} pixels for an input of {config.input_size}")
    own_scores = calibration is not None and model.held_out is None
    if calibration is not None and own_scores and len(calibration.scores) != len(memory.images):
        raise ValueError(f"{len(calibration.scores)} calibration scores for {len(memory.images)} training images")
