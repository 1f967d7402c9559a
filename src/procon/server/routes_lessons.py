"""Routes of lessons: a defect that was missed is marked, its price is told, and it is accepted or discarded."""

from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path

from procon.errors import ImageError
from procon.server import answers
from procon.server.lesson_schemas import AcceptLesson, LessonPriceAnswer, NewLesson, PricedImageAnswer
from procon.server.lessons import KIND
from procon.server.openapi import PROBLEMS, ModelName, RowNumber
from procon.server.request_errors import RequestError, require_existing
from procon.server.schemas import JobAnswer, ModelAnswer
from procon.server.service import Service
from procon.server.store import StoreRow

_LessonName = Annotated[str, Path(min_length=1, max_length=200, description="Name of the lesson.")]


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["lessons"], responses=PROBLEMS)
    store, teaching = service.store, service.jobs.teaching

    def find_proposal(number: int) -> StoreRow:
        job = require_existing(store.job(number), "lesson")
        return require_existing(job if job["kind"] == KIND else None, "lesson")

    @routes.post("/verdicts/{number}/lesson", status_code=202)
    def propose(number: RowNumber, marked: NewLesson) -> JobAnswer:
        """Mark a defect on a part that passed. What the lesson would cost is computed in the background.

        The part is noted as a defect. Nothing changes before the price is accepted.
        """
        row = require_existing(store.verdict(number), "verdict")
        _ = service.models.get(row["model"]).detector  # an exported model cannot be taught
        left, top, right, bottom = marked.box
        if not (left < right <= row["width"] and top < bottom <= row["height"]):
            raise RequestError(
                422,
                f"the box must lie in the part of {row['width']} x {row['height']} pixels and hold at least one, got "
                f"{left},{top},{right},{bottom}",
            )
        image = service.parts.image(row["digest"])
        job = service.jobs.queue_lesson(row["model"], row, image, list(marked.box), force=marked.force)
        if row["feedback_state"] is None:
            service.note(row["model"], "defect", row["digest"], None, row)
        return answers.job_answer(service, require_existing(store.job(job), "job"))

    @routes.get("/lessons/{number}")
    def price(number: RowNumber) -> LessonPriceAnswer:
        """What a lesson costs, by the number of its job; null until that is known."""
        return _price_answer(service, find_proposal(number))

    @routes.post("/lessons/{number}/accept")
    def accept(number: RowNumber, wanted: AcceptLesson) -> ModelAnswer:
        """Take the lesson into the model. Over the false-alarm rate of the model that needs force."""
        job = find_proposal(number)
        teaching.accept(job, force=wanted.force)
        name = job["model"]
        return answers.model_answer(service, name, require_existing(service.models.entries.get(name), "model"))

    @routes.delete("/lessons/{number}", status_code=204)
    def discard(number: RowNumber) -> None:
        """Leave the model as it is; a price that is still being computed is cancelled with its job instead."""
        job = find_proposal(number)
        if job["state"] in ("queued", "running"):
            raise RequestError(409, "the price is still being computed; cancel the job")
        teaching.discard(job["id"])

    @routes.delete("/models/{name}/lessons/{lesson}")
    def forget(name: ModelName, lesson: _LessonName) -> ModelAnswer:
        """Take a lesson back. Every score is then what it was without it."""
        teaching.forget(name, lesson)
        return answers.model_answer(service, name, require_existing(service.models.entries.get(name), "model"))

    return routes


def _price_answer(service: Service, job: StoreRow) -> LessonPriceAnswer:
    price = service.jobs.teaching.price(job)
    common: dict[str, Any] = {"job": answers.job_answer(service, job), "part": job["settings"]["name"]}
    if price is None:
        return LessonPriceAnswer(**common)
    return LessonPriceAnswer(
        **common,
        is_known=True,
        sentences=[service.redact(line) for line in price["sentences"]],
        score_before=price["score_before"],
        score_after=price["score_after"],
        is_too_high=price["is_too_high"],
        added=[_priced_image(service, job["model"], entry) for entry in price["added"]],
    )


def _priced_image(service: Service, model: str, entry: dict[str, Any]) -> PricedImageAnswer:
    """A training image that only the lesson flags, with the patch that it raised most."""
    served = service.models.get(model)
    image = served.detector.model.memory.images[entry["number"]]
    picture = served.detector.sources.picture(image)
    shown: dict[str, Any] = {"picture": None, "inner": None}
    if not isinstance(picture, ImageError) and entry["box"] is not None:
        shown = dict(
            zip(shown, answers.show_patch(served.config, picture, image.size, tuple(entry["box"])), strict=True)
        )
    name = service.redact(FilePath(image.name).name)
    return PricedImageAnswer(name=name, score_before=entry["before"], score_after=entry["after"], **shown)
