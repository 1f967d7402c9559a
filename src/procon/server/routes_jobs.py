"""Fits and what happens in the background, with server-sent events."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from starlette.datastructures import FormData
from starlette.responses import StreamingResponse

from procon.errors import ConfigError
from procon.server.answers import job_answer, model_answer
from procon.server.refusal import Refusal
from procon.server.routes_models import IMAGE_PROBLEMS, problems
from procon.server.schemas import JobAnswer, JobsAnswer
from procon.server.security import check_name
from procon.server.service import Service
from procon.server.settings import NAME_PATTERN, name_rule
from procon.server.store import LIVE
from procon.server.uploads import form, is_form, receiving, store_images

Number = Annotated[int, PathParameter(ge=1, le=2**53, description="Number of the job.")]

_LOOK_SECONDS = 0.1  # how often a stream looks for something to tell
_BEAT_SECONDS = 10.0  # a line now and then, so that both ends notice a lost connection
_FIT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "images"],
                    "properties": {
                        "name": {"type": "string", "pattern": NAME_PATTERN},
                        "images": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}},
                        "false_alarm_rate": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                        "replace": {"type": "boolean"},
                    },
                }
            }
        },
    }
}
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["jobs"])

    @routes.post(
        "/models",
        status_code=202,
        openapi_extra=_FIT_BODY,
        responses={**IMAGE_PROBLEMS, **problems(415)},
        tags=["models"],
    )
    async def fit(request: Request) -> JobAnswer:
        """Fit a model on good images. They are on the disk before the answer; the job survives a restart."""
        if service.settings.only is not None:
            raise Refusal(409, "this server serves one model file; start it with a folder to fit others")
        if not is_form(request):
            raise Refusal(415, "the body must be multipart/form-data with a name and images")
        limits = service.settings.limits
        async with receiving(10 * limits.read_seconds), form(request, limits.fit_images) as fields:
            number = await _queue_fit(service, fields)
        return _job(service, number)

    @routes.get("/jobs", responses=problems(401, 403))
    async def jobs() -> JobsAnswer:
        """The latest jobs."""
        found = await asyncio.to_thread(service.store.jobs)
        return JobsAnswer(jobs=[job_answer(job, service.jobs.progress(job["id"])) for job in found])

    @routes.get("/jobs/{number}", responses=problems(401, 403, 404, 422))
    async def job(number: Number) -> JobAnswer:
        """One job."""
        return _job(service, number)

    @routes.post("/jobs/{number}/cancel", responses=problems(401, 403, 404, 409, 422))
    async def cancel(number: Number) -> JobAnswer:
        """Stop a fit; nothing of it stays."""
        await service.jobs.cancel(number)
        return _job(service, number)

    @routes.get(
        "/jobs/{number}/events",
        response_class=StreamingResponse,
        responses={**_EVENTS, **problems(401, 403, 404, 422)},
    )
    async def job_events(number: Number) -> StreamingResponse:
        """The job whenever it changes, as server-sent events, until it is over."""
        _job(service, number)

        def look() -> tuple[str, bool]:
            found = _job(service, number)
            return found.model_dump_json(), found.state not in LIVE

        return _stream(service, "job", look, _LOOK_SECONDS)

    @routes.get("/events", response_class=StreamingResponse, responses={**_EVENTS, **problems(401, 403)})
    async def events() -> StreamingResponse:
        """Models, jobs and counts whenever they change, as server-sent events: what a page shows."""

        def look() -> tuple[str, bool]:
            return json.dumps(_overview(service)), False

        return _stream(service, "state", look, 3 * _LOOK_SECONDS)

    return routes


async def _queue_fit(service: Service, fields: FormData) -> int:
    name = str(fields.get("name", ""))
    try:
        check_name(name)
    except Refusal:
        raise Refusal(422, name_rule()) from None
    replaces = str(fields.get("replace", "false")).lower()
    if replaces not in ("true", "false"):
        raise Refusal(422, f"replace must be true or false, got {replaces[:20]!r}")
    config = service.settings.fit
    if (rate := fields.get("false_alarm_rate")) is not None:
        try:
            config = replace(config, false_alarm_rate=float(str(rate)))
        except (ConfigError, ValueError):
            raise Refusal(422, "false_alarm_rate must be a number above 0 and below 1") from None
    await asyncio.to_thread(service.jobs.check_free, name, replaces == "true")
    folder = service.jobs.fit_folder(name)
    try:
        images = await store_images(fields, folder, service.settings.limits, "images")
        await asyncio.to_thread(service.jobs.check_free, name, replaces == "true")  # the upload took a while
        return await asyncio.to_thread(service.jobs.fit, name, folder, images, config.to_dict(), replaces == "true")
    except BaseException:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))
        raise


def _job(service: Service, number: int) -> JobAnswer:
    found = service.store.job(number)
    if found is None:
        raise Refusal(404, "no such job")
    return job_answer(found, service.jobs.progress(number))


def _overview(service: Service) -> dict[str, Any]:
    models = [model_answer(service, name, entry) for name, entry in service.models.entries.items()]
    jobs = [job_answer(job, service.jobs.progress(job["id"])) for job in service.store.jobs(limit=20)]
    return {
        "can_fit": service.settings.only is None,
        "ready": service.models.ready,
        "models": [model.model_dump(mode="json") for model in models],
        "jobs": [job.model_dump(mode="json") for job in jobs],
    }


def _stream(
    service: Service, event: str, look: Callable[[], tuple[str, bool]], every_seconds: float
) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        seen, version, beat = "", -1, time.monotonic()
        while not service.stopping:
            if service.version != version:
                version = service.version
                now, over = await asyncio.to_thread(look)
                if now != seen:
                    seen, beat = now, time.monotonic()
                    yield f"event: {event}\ndata: {now}\n\n"
                if over:
                    return
            if time.monotonic() - beat > _BEAT_SECONDS:
                beat = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(every_seconds)

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
