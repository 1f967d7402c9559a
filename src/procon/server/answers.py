"""From what the server knows to the shapes of its answers."""

from typing import Any

from procon.calibration import Calibration
from procon.deploy import Runtime
from procon.detector import Detector
from procon.history import Change
from procon.server.models import Entry
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
from procon.server.service import Inspection, Service, small_map


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
        typical=said.typical,
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
