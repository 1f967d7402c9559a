"""Responses made from models, predictions and rows of the store."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.model.calibration import Calibration
from procon.prediction import Explanation, Prediction
from procon.results.inspection import OVERLAY_SIDE
from procon.results.rendering import color_scale, painted
from procon.server.crops import crop_around, crop_normal
from procon.server.models import Entry, ServedModel
from procon.server.schemas import (
    ChangeAnswer,
    ExplanationAnswer,
    FloatMap,
    JobAnswer,
    ModelAnswer,
    NormalPatchAnswer,
    PredictionAnswer,
    ThresholdAnswer,
)
from procon.server.service import InspectedPart, Service
from procon.server.store import StoreRow
from procon.vision.framing import patch_size
from procon.vision.images import Picture
from procon.vision.pictures import shrink, shrink_map


def prediction_answer(part: InspectedPart, map_side: int, seconds: float) -> PredictionAnswer:
    """The prediction for one image."""
    return PredictionAnswer(
        **part.prediction.to_dict(),
        id=part.number,
        model=part.model.name,
        revision=part.model.revision,
        name=part.upload.name,
        width=part.picture.size[1],
        height=part.picture.size[0],
        map=small_map(part.prediction, map_side) if map_side else None,
        seconds=seconds,
    )


def model_answers(service: Service) -> list[ModelAnswer]:
    """All models."""
    return [model_answer(service, name, entry) for name, entry in service.models.entries.items()]


def model_answer(service: Service, name: str, entry: Entry) -> ModelAnswer:
    """One model."""
    model = entry.model
    if model is None:
        return ModelAnswer(name=name, error=entry.error)
    verdicts, waiting = service.store.counts(name, model.calibration.threshold if model.calibration else None)
    return ModelAnswer(
        name=name,
        revision=model.revision,
        error=entry.error,
        exported=model.exported,
        backbone=model.config.backbone,
        image_size=model.config.input_size,
        images=model.images,
        anchors=model.anchors,
        loaded=model.loaded,
        threshold=threshold_answer(model.calibration) if model.calibration else None,
        history=[ChangeAnswer(**change.to_dict()) for change in model.history[-50:]],
        verdicts=verdicts,
        waiting=waiting,
    )


def threshold_answer(calibration: Calibration) -> ThresholdAnswer:
    """A threshold and its false-alarm rate."""
    return ThresholdAnswer(
        score=calibration.threshold,
        pixel=calibration.pixel_threshold,
        typical=calibration.typical,
        by_hand=calibration.fixed is not None,
        kind=calibration.kind,
        guaranteed=calibration.kind == "held-out" and not calibration.kept,
        false_alarm_rate=calibration.false_alarm_rate,
        promised_rate=calibration.promised_rate,
        rate_at_95_percent_confidence=calibration.confident_rate(),
        good_scores=list(calibration.ascending),
        sentences=calibration.describe(),
    )


def job_answer(service: Service, job: StoreRow) -> JobAnswer:
    """One job."""
    images = len(job["settings"].get("images", ()))
    return JobAnswer(**job, images=images, **vars(service.jobs.progress(job["id"])))


def small_map(prediction: Prediction, side: int) -> FloatMap:
    """The heat map with at most ``side`` pixels on a side."""
    height, width = prediction.heatmap.shape
    factor = min(1.0, side / max(height, width))
    size = max(1, round(height * factor)), max(1, round(width * factor))
    values = np.ascontiguousarray(shrink_map(prediction.heatmap, size), "<f4")
    return FloatMap(width=size[1], height=size[0], data=base64.b64encode(values.tobytes()).decode())


def overlay_png(part: InspectedPart) -> bytes:
    """The overlay that ``procon predict`` writes: the heat map over the part, its regions outlined."""
    small = shrink(part.picture.rgb8(), OVERLAY_SIDE)
    model: Any = part.model  # color_scale uses only its calibration
    buffer = io.BytesIO()
    Image.fromarray(painted(small, part.prediction, color_scale(model))).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def map_npy(prediction: Prediction) -> bytes:
    """The heat map as a .npy file: float32 [height, width] of the image."""
    buffer = io.BytesIO()
    np.save(buffer, prediction.heatmap, allow_pickle=False)
    return buffer.getvalue()


def explanation_answer(model: ServedModel, picture: Picture, explanation: Explanation) -> ExplanationAnswer:
    """An explanation with pictures of its patches, without paths of this machine."""
    patch = patch_size(model.config, picture.size)
    crop, inner = crop_around(picture.rgb8(), picture.size, explanation.box, patch)
    patches = []
    for normal in explanation.normal_patches():
        crops = crop_normal(model.detector, normal)
        facts = {**vars(normal), "image": Path(normal.image).name}
        missing = None if crops else "the training image can no longer be read"
        normal_crop, normal_inner = crops or (None, None)
        patches.append(NormalPatchAnswer(**facts, picture=normal_crop, inner=normal_inner, missing=missing))
    return ExplanationAnswer(
        **{**vars(explanation), "layers": [vars(layer) for layer in explanation.layers]},
        model=model.name,
        revision=model.revision,
        typical=model.calibration.typical if model.calibration else None,
        picture=crop,
        inner=inner,
        normal_patches=patches,
    )
