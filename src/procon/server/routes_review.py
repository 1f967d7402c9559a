"""Routes of past parts: verdicts, images and feedback."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from procon.server.answers import verdict_answer
from procon.server.openapi import PROBLEMS, ModelName, RowNumber, content
from procon.server.request_errors import RequestError, require_existing
from procon.server.schemas import FeedbackAnswer, NewFeedback, VerdictAnswer, VerdictsAnswer
from procon.server.service import Service
from procon.server.store import StoreRow
from procon.server.uploads import MEDIA_TYPES

_CACHED = {"cache-control": "private, max-age=86400, immutable"}


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["review"], responses=PROBLEMS)
    store = service.store

    def find_verdict(number: int) -> StoreRow:
        return require_existing(store.verdict(number), "verdict")

    def find_feedback(number: int) -> StoreRow:
        return require_existing(store.feedback(number), "feedback")

    @routes.get("/models/{name}/verdicts")
    def verdicts(
        name: ModelName,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**53, description="Only verdicts with a lower number.")] = None,
        waiting: Annotated[bool, Query(description="Only parts above the threshold that nobody has reviewed.")] = False,
    ) -> VerdictsAnswer:
        """Parts that were scored, latest first."""
        calibration = service.models.get(name).calibration
        above = (calibration.threshold if calibration else 1e300) if waiting else -1e300
        rows = store.verdicts(name, limit, before, above, waiting)
        return VerdictsAnswer(verdicts=[verdict_answer(row) for row in rows])

    @routes.get("/verdicts/{number}")
    def verdict(number: RowNumber) -> VerdictAnswer:
        """One verdict."""
        return verdict_answer(find_verdict(number))

    @routes.get("/verdicts/{number}/thumbnail", response_class=Response, responses=content("image/jpeg"))
    def thumbnail(number: RowNumber) -> Response:
        """The part, small."""
        return Response(require_existing(store.thumbnail(number), "verdict"), media_type="image/jpeg", headers=_CACHED)

    @routes.get("/verdicts/{number}/image", response_class=Response, responses=content(*MEDIA_TYPES.values()))
    def image(number: RowNumber) -> Response:
        """The part as it was sent, while it is stored."""
        data, ending = service.parts.image(find_verdict(number)["digest"])
        return Response(data, media_type=MEDIA_TYPES[ending], headers=_CACHED)

    @routes.post("/verdicts/{number}/feedback")
    def give_feedback(number: RowNumber, given: NewFeedback) -> FeedbackAnswer:
        """Say whether the part was good. It is on disk before the response; a good part is then learned.

        An exported model does not learn: the feedback is noted, and the part no longer waits for review.
        """
        row = find_verdict(number)
        if row["feedback_state"] == "learned" and given.label == "defect":
            raise RequestError(409, "the memory contains this part as a good one; take that back first")
        if row["feedback_state"] == "forgetting":
            raise RequestError(409, "the feedback about this part is being taken back; wait for it")
        model = row["model"]
        if given.label == "good" and service.models.get(model).exported is None:
            feedback = service.accept_good(model, *service.parts.image(row["digest"]), row)
            service.jobs.queue_learning(model)
        else:
            feedback = service.note(model, given.label, row["digest"], None, row)
        return FeedbackAnswer(**find_feedback(feedback))

    @routes.get("/feedback/{number}")
    def feedback(number: RowNumber) -> FeedbackAnswer:
        """The state of a piece of feedback."""
        return FeedbackAnswer(**find_feedback(number))

    @routes.delete("/feedback/{number}")
    def withdraw(number: RowNumber) -> FeedbackAnswer:
        """Take feedback back. A part that was learned is forgotten again, in the background (state forgetting)."""
        row = find_feedback(number)
        if row["state"] == "forgetting":
            raise RequestError(409, "the feedback is being taken back already")
        if service.jobs.learning.withdraw(row):
            service.jobs.queue_learning(row["model"])
        service.notify()
        return FeedbackAnswer(**(store.feedback(number) or {**row, "state": "withdrawn", "reason": None}))

    return routes
