"""Routes of fits and other background jobs, with server-sent events."""

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData
from starlette.responses import StreamingResponse

from procon.config import LOWEST_RATE
from procon.errors import ConfigError
from procon.server.answers import job_answer, model_answers
from procon.server.openapi import FILES, PROBLEMS, RowNumber, content, form_body
from procon.server.request_errors import RequestError, require_existing
from procon.server.schemas import JobAnswer, JobsAnswer, PromiseAnswer
from procon.server.service import Service
from procon.server.settings import NAME_PATTERN, NAME_RULE
from procon.server.store import LIVE
from procon.server.thresholds import describe_fit
from procon.server.uploads import form_of, is_form, store_images

_POLL_SECONDS = 0.1  # how often a stream checks for changes
_BEAT_SECONDS = 10.0  # a comment line this often lets both ends notice a lost connection
_FIT_BODY = form_body(
    ["name", "images"],
    name={"type": "string", "pattern": NAME_PATTERN},
    images=FILES,
    false_alarm_rate={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    replace={"type": "boolean"},
)
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
_EVENTS = content("text/event-stream", schema=_EVENT)


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["jobs"], responses=PROBLEMS)

    def find_job(number: int) -> JobAnswer:
        return job_answer(service, require_existing(service.store.job(number), "job"))

    @routes.post("/models", status_code=202, openapi_extra=_FIT_BODY, tags=["models"])
    async def fit(request: Request) -> JobAnswer:
        """Fit a model on good images. They are on disk before the response; the job survives a restart."""
        if service.settings.only is not None:
            raise RequestError(409, "this server serves one model file; start it with a folder to fit others")
        if not is_form(request):
            raise RequestError(415, "the body must be multipart/form-data with a name and images")
        async with form_of(request, service.settings.limits.fit_images) as fields:
            return find_job(await _queue_fit(service, fields))

    @routes.get("/promise", tags=["models"])
    def promise(
        images: Annotated[int, Query(ge=1, le=10**6, description="Good images.")],
        false_alarm_rate: Annotated[float, Query(ge=LOWEST_RATE, lt=1)],
    ) -> PromiseAnswer:
        """What the threshold of a fit on so many good images will promise."""
        rule = service.settings.fit.threshold_rule
        return PromiseAnswer(sentences=describe_fit(images, false_alarm_rate, rule))

    @routes.get("/jobs")
    def jobs() -> JobsAnswer:
        """The latest jobs."""
        return JobsAnswer(jobs=[job_answer(service, job) for job in service.store.jobs()])

    @routes.get("/jobs/{number}")
    def job(number: RowNumber) -> JobAnswer:
        """One job."""
        return find_job(number)

    @routes.post("/jobs/{number}/cancel")
    async def cancel(number: RowNumber) -> JobAnswer:
        """Cancel a fit and delete its images, or stop computing the price of a lesson."""
        await service.jobs.cancel(require_existing(service.store.job(number), "job"))
        return find_job(number)

    @routes.get("/jobs/{number}/events", response_class=StreamingResponse, responses=_EVENTS)
    async def job_events(number: RowNumber) -> StreamingResponse:
        """The job whenever it changes, as server-sent events, until it ends."""
        find_job(number)

        def state() -> tuple[str, bool]:
            answer = find_job(number)
            return answer.model_dump_json(), answer.state not in LIVE

        return _stream(service, "job", state, _POLL_SECONDS)

    @routes.get("/events", response_class=StreamingResponse, responses=_EVENTS)
    async def events() -> StreamingResponse:
        """Models, jobs and counts whenever they change, as server-sent events, for the page."""

        def state() -> tuple[str, bool]:
            overview = {
                "can_fit": service.settings.only is None,
                "ready": service.models.ready,
                "problems": service.problems,
                "models": [model.model_dump(mode="json") for model in model_answers(service)],
                "jobs": [job_answer(service, job).model_dump(mode="json") for job in service.store.jobs(limit=20)],
            }
            return json.dumps(overview), False

        return _stream(service, "state", state, 3 * _POLL_SECONDS)

    return routes


async def _queue_fit(service: Service, fields: FormData) -> int:
    name, replaces = str(fields.get("name", "")), str(fields.get("replace", "false")).lower()
    if not re.fullmatch(NAME_PATTERN, name):
        raise RequestError(422, NAME_RULE)
    if replaces not in ("true", "false"):
        raise RequestError(422, f"replace must be true or false, got {replaces[:20]!r}")
    config, arguments = service.settings.fit, (name, replaces == "true")
    if (rate := fields.get("false_alarm_rate")) is not None:
        try:
            config = replace(config, false_alarm_rate=float(str(rate)))
        except (ConfigError, ValueError):
            raise RequestError(422, "false_alarm_rate must be a number above 0 and below 1") from None
    await asyncio.to_thread(service.jobs.check_free, *arguments)
    folder = service.jobs.new_fit_folder(name)
    try:
        images = await store_images(fields, folder, service.settings.limits)
        await asyncio.to_thread(service.jobs.check_free, *arguments)  # again: storing took a while
        return await asyncio.to_thread(
            service.jobs.queue_fit, name, folder, images, config.to_dict(), replaces == "true"
        )
    except BaseException:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))
        raise


def _stream(
    service: Service, event: str, state: Callable[[], tuple[str, bool]], every_seconds: float
) -> StreamingResponse:
    """Send ``state``, its text and whether it is final, whenever it changes."""

    async def lines() -> AsyncIterator[str]:
        sent, version, beat = "", -1, time.monotonic()
        while not service.stopping:
            if service.version != version:
                version = service.version
                text, final = await asyncio.to_thread(state)
                if text != sent:
                    sent, beat = text, time.monotonic()
                    yield f"event: {event}\ndata: {text}\n\n"
                if final:
                    return
            if time.monotonic() - beat > _BEAT_SECONDS:
                beat = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(every_seconds)

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
