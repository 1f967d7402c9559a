"""From what the server knows to the shapes of its answers."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.deploy import Runtime
from procon.detector import Detector
from procon.model.calibration import Calibration
from procon.model.history import Change
from procon.prediction import Explanation, Prediction
from procon.results.inspection import OVERLAY_SIDE
from procon.results.rendering import color_scale, painted
from procon.server import crops
from procon.server.models import Entry, Model
from procon.server.process import Progress
from procon.server.schemas import (
    Box,
    ChangeAnswer,
    FeedbackAnswer,
    FloatMap,
    JobAnswer,
    ModelAnswer,
    PredictionAnswer,
    ThresholdAnswer,
    VerdictAnswer,
)
from procon.server.service import Inspection, Service
from procon.vision.pictures import shrink, shrink_map


def prediction_answer(done: Inspection, map_side: int, seconds: float) -> PredictionAnswer:
    """One scored image."""
    said, height, width = done.prediction, *done.picture.size
    small = None
    if map_side:
        columns, rows, data = small_map(said, map_side)
        small = FloatMap(width=columns, height=rows, data=data)
    return PredictionAnswer(
        id=done.number,
        model=done.model.name,
        revision=done.model.revision,
        name=done.upload.name,
        score=said.score,
        p_value=said.p_value,
        is_anomalous=said.is_anomalous,
        threshold=said.threshold,
        pixel_threshold=said.pixel_threshold,
        median_patch_score=said.median_patch_score,
        width=width,
        height=height,
        regions=[Box(**region.to_dict()) for region in said.regions],
        map=small,
        seconds=seconds,
    )


def model_answer(service: Service, name: str, entry: Entry) -> ModelAnswer:
    """One model."""
    if entry.model is None:
        return ModelAnswer(name=name, revision=None, error=entry.error)
    model, known = entry.model, entry.model.calibration
    images, anchors, history = _memory_facts(model.scorer)
    verdicts, waiting = service.store.counts(name, known.threshold if known else None)
    return ModelAnswer(
        name=name,
        revision=model.revision,
        error=entry.error,
        exported=model.exported,
        backbone=model.config.backbone,
        image_size=model.config.input_size,
        images=images,
        anchors=anchors,
        loaded=model.loaded,
        threshold=threshold_answer(known) if known else None,
        history=[
            ChangeAnswer(when=change.when, what=change.what, count=change.count, note=change.note)
            for change in history[-50:]
        ],
        verdicts=verdicts,
        waiting=waiting,
    )


def _memory_facts(scorer: Detector | Runtime) -> tuple[int, int, tuple[Change, ...]]:
    """Training images, anchors of a bank and the log; an exported model has left its log behind."""
    if isinstance(scorer, Runtime):
        stored = scorer.manifest.entries["memory"]
        return int(stored["images"]), int(stored["anchors_per_bank"]), ()
    assert scorer.memory is not None
    return len(scorer.memory.images), int(scorer.memory.layers[0].banks.shape[1]), scorer.history


def threshold_answer(known: Calibration) -> ThresholdAnswer:
    """A threshold and what it can promise."""
    return ThresholdAnswer(
        score=known.threshold,
        pixel=known.pixel_threshold,
        typical=known.typical,
        by_hand=known.fixed is not None,
        kind=known.kind,
        guaranteed=known.kind == "held-out" and not known.kept,
        false_alarm_rate=known.false_alarm_rate,
        promised_rate=known.promised_rate,
        rate_at_95_percent_confidence=known.confident_rate(),
        good_scores=list(known.ascending),
        sentences=known.describe(),
    )


def job_answer(job: dict[str, Any], progress: Progress) -> JobAnswer:
    """One job."""
    return JobAnswer(
        id=job["id"],
        kind=job["kind"],
        model=job["model"],
        state=job["state"],
        at=job["at"],
        finished=job["finished"],
        reason=job["reason"],
        images=len(job["settings"].get("images", ())),
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
    )


def verdict_answer(row: dict[str, Any]) -> VerdictAnswer:
    """One verdict."""
    return VerdictAnswer(**{name: row[name] for name in VerdictAnswer.model_fields})


def feedback_answer(row: dict[str, Any]) -> FeedbackAnswer:
    """One piece of feedback."""
    return FeedbackAnswer(**{name: row[name] for name in FeedbackAnswer.model_fields})


def small_map(prediction: Prediction, side: int) -> tuple[int, int, str]:
    """Width, height and base64 float32 of the heat map with at most ``side`` pixels on a side."""
    height, width = prediction.heatmap.shape
    factor = min(1.0, side / max(height, width))
    size = max(1, round(height * factor)), max(1, round(width * factor))
    small = np.ascontiguousarray(shrink_map(prediction.heatmap, size), "<f4")
    return size[1], size[0], base64.b64encode(small.tobytes()).decode()


def overlay_png(inspection: Inspection) -> bytes:
    """The overlay that ``procon predict`` writes: the heat map over the part, its regions outlined."""
    small = shrink(inspection.picture.rgb8(), OVERLAY_SIDE)
    scorer: Any = inspection.model.scorer  # color_scale uses only its calibration
    buffer = io.BytesIO()
    pixels = painted(small, inspection.prediction, color_scale(scorer))
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def map_npy(prediction: Prediction) -> bytes:
    """The heat map as a .npy file: float32 [height, width] of the image."""
    buffer = io.BytesIO()
    np.save(buffer, prediction.heatmap, allow_pickle=False)
    return buffer.getvalue()


def explanation_patches(model: Model, found: Explanation) -> list[dict[str, Any]]:
    """The normal patches of an explanation with their pictures, and no path of this machine."""
    patches = []
    for patch in found.normal_patches():
        picture = crops.normal(model.detector, patch)
        patches.append(
            {
                "image": Path(patch.image).name,
                "number": patch.number,
                "box": patch.box,
                "weight": patch.weight,
                "distance": patch.distance,
                "picture": picture[0] if picture else None,
                "inner": picture[1] if picture else None,
                "missing": None if picture else "the training image can no longer be read",
            }
        )
    return patches
