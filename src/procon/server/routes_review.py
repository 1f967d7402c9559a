"""Past parts: their verdicts, their images, and what people say about them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter

from procon.server.answers import feedback_answer, verdict_answer
from procon.server.refusal import Refusal
from procon.server.routes_models import Name, problems
from procon.server.schemas import FeedbackAnswer, NewFeedback, VerdictAnswer, VerdictsAnswer
from procon.server.service import Service
from procon.server.uploads import Upload

Number = Annotated[int, PathParameter(ge=1, le=2**53, description="Number of the verdict.")]

_KINDS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
    ".jp2": "image/jp2",
    ".ppm": "image/x-portable-pixmap",
}
_PICTURE = {"schema": {"type": "string", "format": "binary"}}


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["review"])

    @routes.get("/models/{name}/verdicts", responses=problems(401, 403, 404, 409, 422, 503))
    async def verdicts(
        name: Name,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**53, description="Only verdicts with a lower number.")] = None,
        waiting: Annotated[
            bool, Query(description="Only parts above the threshold that nobody has looked at.")
        ] = False,
    ) -> VerdictsAnswer:
        """Parts that were scored, latest first."""
        known = service.models.get(name).calibration
        above = (known.threshold if known else 1e300) if waiting else None
        rows = await asyncio.to_thread(service.store.verdicts, name, limit, before, above, waiting)
        return VerdictsAnswer(verdicts=[verdict_answer(row) for row in rows])

    @routes.get("/verdicts/{number}", responses=problems(401, 403, 404, 422))
    async def verdict(number: Number) -> VerdictAnswer:
        """One verdict."""
        row = await asyncio.to_thread(service.store.verdict, number)
        if row is None:
            raise Refusal(404, "no such verdict")
        return verdict_answer(row)

    @routes.get(
        "/verdicts/{number}/thumbnail",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": _PICTURE}}, **problems(401, 403, 404, 422)},
    )
    async def thumbnail(number: Number) -> Response:
        """The part, small."""
        found = await asyncio.to_thread(service.store.thumbnail, number)
        if found is None:
            raise Refusal(404, "no such verdict")
        return Response(found, media_type="image/jpeg", headers={"cache-control": "private, max-age=86400, immutable"})

    @routes.get(
        "/verdicts/{number}/image",
        response_class=Response,
        responses={200: {"content": dict.fromkeys(_KINDS.values(), _PICTURE)}, **problems(401, 403, 404, 410, 422)},
    )
    async def image(number: Number) -> Response:
        """The part as it was sent, while it is kept."""
        row = await asyncio.to_thread(service.store.verdict, number)
        if row is None:
            raise Refusal(404, "no such verdict")
        data, ending = await asyncio.to_thread(service.part_bytes, row["digest"])
        return Response(data, media_type=_KINDS[ending], headers={"cache-control": "private, max-age=86400, immutable"})

    _add_feedback(routes, service)
    return routes


def _add_feedback(routes: APIRouter, service: Service) -> None:
    @routes.post("/verdicts/{number}/feedback", responses=problems(400, 401, 403, 404, 409, 410, 413, 422))
    async def feedback(number: Number, said: NewFeedback) -> FeedbackAnswer:
        """Say whether the part was good. It is on the disk before the answer; a good part is then learned.

        An exported model does not learn: what is said is noted, and the part no longer waits for anybody.
        """
        row = await asyncio.to_thread(service.store.verdict, number)
        if row is None:
            raise Refusal(404, "no such verdict")
        if row["feedback_state"] == "learned" and said.label == "defect":
            raise Refusal(409, "the memory holds this part as a good one; take that back first")
        if row["feedback_state"] == "forgetting":
            raise Refusal(409, "what was said about this part is being taken back; wait for it")
        model, data, ending = row["model"], b"", ""
        learns = said.label == "good" and service.models.get(model).exported is None
        if learns:
            data, ending = await asyncio.to_thread(service.part_bytes, row["digest"])
        given = await asyncio.to_thread(_accept, service, model, data, ending, said.label, row)
        if learns:
            await asyncio.to_thread(service.jobs.learn, model)
        found = await asyncio.to_thread(service.store.feedback, given)
        assert found is not None
        return feedback_answer(found)

    @routes.get("/feedback/{number}", responses=problems(401, 403, 404, 422))
    async def one_feedback(
        number: Annotated[int, PathParameter(ge=1, le=2**53, description="Number of the feedback.")],
    ) -> FeedbackAnswer:
        """What became of a piece of feedback."""
        found = await asyncio.to_thread(service.store.feedback, number)
        if found is None:
            raise Refusal(404, "no such feedback")
        return feedback_answer(found)

    @routes.delete("/feedback/{number}", responses=problems(401, 403, 404, 409, 422))
    async def withdraw(
        number: Annotated[int, PathParameter(ge=1, le=2**53, description="Number of the feedback.")],
    ) -> FeedbackAnswer:
        """Take feedback back. A part that was learned is forgotten again, in the background (state forgetting)."""
        row = await asyncio.to_thread(service.store.feedback, number)
        if row is None:
            raise Refusal(404, "no such feedback")
        if row["state"] == "forgetting":
            raise Refusal(409, "it is being taken back already")
        if await asyncio.to_thread(service.jobs.lessons.withdraw, row):
            await asyncio.to_thread(service.jobs.learn, row["model"])
        service.changed()
        found = await asyncio.to_thread(service.store.feedback, number)
        return feedback_answer(found or {**row, "state": "withdrawn", "reason": None})


def _accept(service: Service, model: str, data: bytes, ending: str, label: str, row: dict[str, object]) -> int:
    if data:
        return service.accept(model, Upload(data, "image"), ending, label, row)
    number = service.store.add_feedback(
        model, label, str(row["digest"]), None, int(str(row["id"])), float(str(row["score"]))
    )
    service.changed()
    return number
