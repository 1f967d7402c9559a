"""Make responses from models, predictions and rows of the store."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.arrays import Box
from procon.config import Config
from procon.errors import ImageError
from procon.model.lessons import lesson_pixels
from procon.names import show_name
from procon.prediction import Explanation, LessonEvidence, Prediction
from procon.results.inspection import OVERLAY_SIDE
from procon.server import schemas
from procon.server.models import Entry, ServedModel
from procon.server.service import InspectedPart, Service
from procon.server.store import StoreRow
from procon.server.thresholds import threshold_answer
from procon.showing.crops import crop_patch
from procon.showing.painting import color_scale, data_uri, paint_prediction
from procon.vision.images import Picture
from procon.vision.pictures import jpeg, png, shrink, shrink_map

_SIDE = 168  # pixels of the picture of a patch


def prediction_answer(part: InspectedPart, map_side: int, seconds: float) -> schemas.PredictionAnswer:
    """The prediction for one image."""
    return schemas.PredictionAnswer(
        **part.prediction.to_dict(),
        id=part.number,
        not_kept=part.not_kept,
        model=part.model.name,
        revision=part.model.revision,
        name=part.upload.name,
        width=part.picture.size[1],
        height=part.picture.size[0],
        map=_small_map(part.prediction, map_side) if map_side else None,
        seconds=seconds,
    )


def verdict_answer(row: StoreRow) -> schemas.VerdictAnswer:
    """A part that was scored earlier."""
    return schemas.VerdictAnswer(**row, relative_score=relative_score(row))


def relative_score(row: StoreRow) -> float | None:
    """The score of an earlier part over its threshold; None without a threshold above 0."""
    return row["score"] / row["threshold"] if row["threshold"] else None


def model_answers(service: Service) -> list[schemas.ModelAnswer]:
    """All models."""
    return [model_answer(service, name, entry) for name, entry in service.models.entries.items()]


def model_answer(service: Service, name: str, entry: Entry) -> schemas.ModelAnswer:
    """One model."""
    model = entry.model
    if model is None:
        return schemas.ModelAnswer(name=name, error=entry.error)
    verdicts, waiting = service.store.counts(name, model.calibration.threshold if model.calibration else None)
    return schemas.ModelAnswer(
        name=name,
        revision=model.revision,
        error=entry.error,
        exported=model.exported,
        backbone=model.config.backbone,
        image_size=model.config.input_size,
        images=model.images,
        anchors=model.anchors,
        loaded=model.loaded,
        threshold=threshold_answer(model, model.calibration) if model.calibration else None,
        lessons=_lessons(service, model),
        history=[schemas.ChangeAnswer(**change.to_dict()) for change in model.history[-50:]],
        verdicts=verdicts,
        waiting=waiting,
    )


def _lessons(service: Service, model: ServedModel) -> list[schemas.LessonAnswer]:
    """The lessons of a model; an exported one has them in its graph and does not name them."""
    lessons = () if model.full_detector is None else model.full_detector.model.lessons
    return [
        schemas.LessonAnswer(name=lesson.name, box=lesson.box, sentence=service.redact(lesson.describe()))
        for lesson in lessons
    ]


def job_answer(service: Service, job: StoreRow) -> schemas.JobAnswer:
    """One job."""
    images = len(job["settings"].get("images", ()))
    return schemas.JobAnswer(**job, images=images, **service.jobs.progress(job["id"])._asdict())


def _small_map(prediction: Prediction, side: int) -> schemas.FloatMap:
    """The heat map with at most ``side`` pixels on a side."""
    height, width = prediction.heatmap.shape
    factor = min(1.0, side / max(height, width))
    size = max(1, round(height * factor)), max(1, round(width * factor))
    values = np.ascontiguousarray(shrink_map(prediction.heatmap, size), "<f4")
    return schemas.FloatMap(width=size[1], height=size[0], data=base64.b64encode(values.tobytes()).decode())


def overlay_png(part: InspectedPart) -> bytes:
    """The overlay that ``procon predict`` writes: the heat map over the part, its regions outlined."""
    small = shrink(part.picture.rgb8(), OVERLAY_SIDE)
    model: Any = part.model  # color_scale uses only its calibration
    return png(Image.fromarray(paint_prediction(small, part.prediction, color_scale(model))))


def map_npy(part: InspectedPart) -> bytes:
    """The heat map as a .npy file: float32 [height, width] of the image."""
    buffer = io.BytesIO()
    np.save(buffer, part.prediction.heatmap, allow_pickle=False)
    return buffer.getvalue()


def explanation_answer(model: ServedModel, picture: Picture, explanation: Explanation) -> schemas.ExplanationAnswer:
    """An explanation with pictures of its patches, without paths of this machine."""
    crop, inner = show_patch(model.config, picture, picture.size, explanation.box)
    patches = []
    for normal in explanation.normal_patches():
        image = model.detector.model.memory.images[normal.number]
        opened = model.detector.sources.picture(image)
        shown: dict[str, Any] = dict.fromkeys(("picture", "inner"))
        if isinstance(opened, ImageError):
            shown["missing"] = "the training image can no longer be read"
        else:
            shown["picture"], shown["inner"] = show_patch(model.config, opened, image.size, normal.box)
        facts = {**vars(normal), "image": show_name(Path(normal.image).name)}
        patches.append(schemas.NormalPatchAnswer(**facts, **shown))
    lesson = None if explanation.lesson is None else _lesson_evidence(model, explanation.lesson)
    return schemas.ExplanationAnswer(
        **{**vars(explanation), "layers": [vars(layer) for layer in explanation.layers], "lesson": lesson},
        model=model.name,
        revision=model.revision,
        typical=model.calibration.typical if model.calibration else None,
        picture=crop,
        inner=inner,
        normal_patches=patches,
    )


def _lesson_evidence(model: ServedModel, evidence: LessonEvidence) -> schemas.LessonEvidenceAnswer:
    """The marked defect that raised the score, with its picture."""
    lesson = next(known for known in model.detector.model.lessons if known.name == evidence.lesson)
    marked, inner = show_patch(model.config, Picture(lesson_pixels(lesson)), lesson.image.size, evidence.box)
    facts = {**vars(evidence), "image": show_name(Path(evidence.image).name)}
    return schemas.LessonEvidenceAnswer(**facts, picture=marked, inner=inner)


def show_patch(config: Config, picture: Picture, size: tuple[int, int], box: Box) -> tuple[str, schemas.BoxShares]:
    """A patch with its surroundings, as a data: URL, and its place in that picture.

    ``picture`` shows an image of ``size`` (height, width) and may be smaller.
    """
    crop = crop_patch(config, picture.rgb8(), size, box, _SIDE)
    return data_uri(jpeg(np.asarray(crop.picture), 85)), crop.place(box)
