"""Routes of past parts: verdicts, images and feedback."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from procon.server.openapi import COMMON, Name, Number, content, problems
from procon.server.refusal import Refusal
from procon.server.schemas import FeedbackAnswer, NewFeedback, VerdictAnswer, VerdictsAnswer
from procon.server.service import Service
from procon.server.store import StoreRow
from procon.server.uploads import MEDIA_TYPES

_CACHED = {"cache-control": "private, max-age=86400, immutable"}
_NOT_FOUND = problems(404, 422)


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["review"], responses=COMMON)

    @routes.get("/models/{name}/verdicts", responses=problems(404, 409, 422, 503))
    def verdicts(
        name: Name,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**53, description="Only verdicts with a lower number.")] = None,
        waiting: Annotated[bool, Query(description="Only parts above the threshold that nobody has reviewed.")] = False,
    ) -> VerdictsAnswer:
        """Parts that were scored, latest first."""
        calibration = service.models.get(name).calibration
        above = (calibration.threshold if calibration else 1e300) if waiting else None
        rows = service.store.verdicts(name, limit, before, above, waiting)
        return VerdictsAnswer(verdicts=[VerdictAnswer(**row) for row in rows])

    @routes.get("/verdicts/{number}", responses=_NOT_FOUND)
    def verdict(number: Number) -> VerdictAnswer:
        """One verdict."""
        return VerdictAnswer(**_verdict(service, number))

    @routes.get(
        "/verdicts/{number}/thumbnail",
        response_class=Response,
        responses={**content("image/jpeg"), **_NOT_FOUND},
    )
    def thumbnail(number: Number) -> Response:
        """The part, small."""
        _verdict(service, number)
        return Response(service.store.thumbnail(number), media_type="image/jpeg", headers=_CACHED)

    @routes.get(
        "/verdicts/{number}/image",
        response_class=Response,
        responses={**content(*MEDIA_TYPES.values()), **problems(404, 410, 422)},
    )
    def image(number: Number) -> Response:
        """The part as it was sent, while it is stored."""
        data, ending = service.part_image(_verdict(service, number)["digest"])
        return Response(data, media_type=MEDIA_TYPES[ending], headers=_CACHED)

    @routes.post("/verdicts/{number}/feedback", responses=problems(400, 404, 409, 410, 413, 422))
    def give_feedback(number: Number, given: NewFeedback) -> FeedbackAnswer:
        """Say whether the part was good. It is on disk before the response; a good part is then learned.

        An exported model does not learn: the feedback is noted, and the part no longer waits for review.
        """
        row = _verdict(service, number)
        if row["feedback_state"] == "learned" and given.label == "defect":
            raise Refusal(409, "the memory holds this part as a good one; take that back first")
        if row["feedback_state"] == "forgetting":
            raise Refusal(409, "the feedback about this part is being taken back; wait for it")
        model = row["model"]
        if given.label == "good" and service.models.get(model).exported is None:
            feedback = service.accept_good(model, *service.part_image(row["digest"]), row)
            service.jobs.learn(model)
        else:
            feedback = service.note(model, given.label, row["digest"], None, row)
        return FeedbackAnswer(**_feedback(service, feedback))

    @routes.get("/feedback/{number}", responses=_NOT_FOUND)
    def feedback(number: Number) -> FeedbackAnswer:
        """The state of a piece of feedback."""
        return FeedbackAnswer(**_feedback(service, number))

    @routes.delete("/feedback/{number}", responses=problems(404, 409, 422))
    def withdraw(number: Number) -> FeedbackAnswer:
        """Take feedback back. A part that was learned is forgotten again, in the background (state forgetting)."""
        row = _feedback(service, number)
        if row["state"] == "forgetting":
            raise Refusal(409, "it is being taken back already")
        if service.jobs.lessons.withdraw(row):
            service.jobs.learn(row["model"])
        service.notify()
        return FeedbackAnswer(**(service.store.feedback(number) or {**row, "state": "withdrawn", "reason": None}))

    return routes


def _verdict(service: Service, number: int) -> StoreRow:
    row = service.store.verdict(number)
    if row is None:
        raise Refusal(404, "no such verdict")
    return row


def _feedback(service: Service, number: int) -> StoreRow:
    row = service.store.feedback(number)
    if row is None:
        raise Refusal(404, "no such feedback")
    return row
