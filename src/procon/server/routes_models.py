"""Routes of a model: list, predict, explain, threshold and partial_fit."""

import asyncio
import shutil
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from procon.errors import ConfigError
from procon.model.file import read_calibration
from procon.server.answers import (
    explanation_answer,
    map_npy,
    model_answer,
    model_answers,
    overlay_png,
    prediction_answer,
)
from procon.server.lessons import set_threshold
from procon.server.openapi import COMMON, FILE, FILES, IMAGE_PROBLEMS, Name, content, form_body, numbers, problems
from procon.server.refusal import Refusal
from procon.server.schemas import (
    ExplanationAnswer,
    FeedbackAnswer,
    ModelAnswer,
    ModelsAnswer,
    PartialFitAnswer,
    PredictionAnswer,
    ThresholdByRate,
    ThresholdByScore,
)
from procon.server.service import InspectedPart, Service
from procon.server.uploads import check_image, form_of, is_form, receive_image, receiving, store_images

_IMAGE = form_body(["image"], raw=True, image=FILE)
_PREDICTIONS = content("image/png", "application/x-npy")


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["models"], responses=COMMON)

    @routes.get("")
    def models() -> ModelsAnswer:
        """All models of the folder, with their thresholds and false-alarm rates."""
        return ModelsAnswer(models=model_answers(service), can_fit=service.settings.only is None)

    @routes.get("/{name}", responses=problems(404, 422))
    def model(name: Name) -> ModelAnswer:
        """One model."""
        entry = service.models.entries.get(name)
        if entry is None:
            raise Refusal(404, "no such model")
        return model_answer(service, name, entry)

    @routes.post(
        "/{name}/predict",
        response_model=PredictionAnswer,
        openapi_extra=_IMAGE,
        responses={**_PREDICTIONS, **IMAGE_PROBLEMS},
    )
    async def predict(
        request: Request,
        name: Name,
        output: Annotated[
            Literal["json", "overlay", "map"],
            Query(description="JSON, the overlay (PNG), or the float heat map (.npy)."),
        ] = "json",
        map_side: Annotated[int, Query(ge=0, le=2048, description="Add a heat map of this side to the JSON.")] = 0,
        keep: Annotated[bool, Query(description="Store the verdict for review.")] = True,
    ) -> Response:
        """Score an image."""
        started = time.perf_counter()
        served = service.models.get(name)

        def respond(part: InspectedPart) -> Response:
            headers = {"x-procon-score": repr(part.prediction.score), "x-procon-id": str(part.number)}
            if output == "overlay":
                return Response(overlay_png(part), media_type="image/png", headers=headers)
            if output == "map":
                return Response(map_npy(part.prediction), media_type="application/x-npy", headers=headers)
            answer = prediction_answer(part, map_side, time.perf_counter() - started)
            return Response(answer.model_dump_json(), media_type="application/json", headers=headers)

        with service.queue.ticket() as ticket, service.metrics.timed("predict", name):
            upload = await receive_image(request, service.settings.limits)
            return await service.inspect(served, upload, ticket, request, keep, respond)

    @routes.post("/{name}/explain", openapi_extra=_IMAGE, responses=IMAGE_PROBLEMS)
    async def explain(
        request: Request,
        name: Name,
        xy: Annotated[
            str | None,
            Query(pattern=numbers(2), description="Pixel, as X,Y; default: the peak of the heat map."),
        ] = None,
        region: Annotated[
            str | None,
            Query(pattern=numbers(4), description="Box, as LEFT,TOP,RIGHT,BOTTOM: explains the peak inside it."),
        ] = None,
    ) -> ExplanationAnswer:
        """The normal patches that a pixel of an image was compared with."""
        served = service.models.get(name)
        _ = served.detector  # an exported model is refused before the image is received
        if xy is not None and region is not None:
            raise Refusal(422, "give xy or region, not both")
        pixel: Any = xy and tuple(map(int, xy.split(",")))
        box: Any = region and tuple(map(int, region.split(",")))
        with service.queue.ticket() as ticket, service.metrics.timed("explain", name):
            upload = await receive_image(request, service.settings.limits)
            explanation, picture = await service.explain(served, upload, ticket, request, pixel, box)
            return await service.in_pool(explanation_answer, served, picture, explanation)

    @routes.put("/{name}/threshold", responses=problems(400, 404, 409, 413, 422, 503))
    def threshold(name: Name, wanted: ThresholdByScore | ThresholdByRate) -> ModelAnswer:
        """Set the threshold by hand, or by a false-alarm rate."""
        _ = service.models.get(name).detector
        _set_threshold(service, name, wanted)
        return model_answer(service, name, service.models.entries[name])

    @routes.post(
        "/{name}/partial_fit",
        status_code=202,
        openapi_extra=form_body(["images"], raw=True, images=FILES),
        responses=IMAGE_PROBLEMS,
    )
    async def partial_fit(request: Request, name: Name) -> PartialFitAnswer:
        """Add good images to the memory. They are on disk before the response, and learned in the background."""
        _ = service.models.get(name).detector
        with service.queue.ticket():
            async with receiving(10 * service.settings.limits.read_seconds):
                feedback = await _accept_images(service, request, name)
        await asyncio.to_thread(service.jobs.learn, name)
        rows = [service.store.feedback(number) for number in feedback]
        return PartialFitAnswer(feedback=[FeedbackAnswer(**row) for row in rows if row])

    return routes


def _set_threshold(service: Service, name: str, wanted: ThresholdByScore | ThresholdByRate) -> None:
    path = service.models.path(name)
    with service.models.editing(name):
        calibration = read_calibration(path)
        if calibration is None:
            raise Refusal(409, "the model has no calibration; fit it on more images")
        try:
            if isinstance(wanted, ThresholdByScore):
                changed = calibration.at_score(wanted.score)
            else:
                changed = calibration.at_rate(wanted.false_alarm_rate)
        except ConfigError as error:
            raise Refusal(422, str(error)) from None
        set_threshold(path, calibration, changed)
    service.models.scan()


async def _accept_images(service: Service, request: Request, name: str) -> list[int]:
    """Store the images of a request as feedback; returns the numbers of the feedback."""
    limits = service.settings.limits
    if not is_form(request):
        data = await request.body()
        header = await service.in_pool(check_image, data, limits)
        return [await service.in_pool(service.accept_good, name, data, header.ending)]
    folder, numbers_given = service.jobs.fit_folder(name), []
    async with form_of(request, limits.fit_images) as fields:
        try:
            for path in await store_images(fields, folder, limits):
                data = await service.in_pool(path.read_bytes)
                numbers_given.append(await service.in_pool(service.accept_good, name, data, path.suffix))
        finally:
            await service.in_pool(shutil.rmtree, folder, True)
    return numbers_given
