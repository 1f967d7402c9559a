"""Routes of a model: list, predict, explain, good images, threshold and partial_fit."""

import asyncio
import shutil
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from procon.errors import ConfigError
from procon.model.document import read_calibration
from procon.server import answers, schemas
from procon.server.learning import write_threshold
from procon.server.openapi import FILE, FILES, PROBLEMS, ModelName, content, form_body, pixel_pattern
from procon.server.request_errors import RequestError, require_existing
from procon.server.service import InspectedPart, Service
from procon.server.thresholds import good_images_answer, good_picture
from procon.server.uploads import check_image, form_of, is_form, receive_image, store_images

_IMAGE = form_body(["image"], raw=True, image=FILE)
_IMAGES = form_body(["images"], raw=True, images=FILES)
_PICTURES = content("image/png", "application/x-npy")


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["models"], responses=PROBLEMS)

    @routes.get("")
    def models() -> schemas.ModelsAnswer:
        """All models of the folder, with their thresholds and false-alarm rates."""
        return schemas.ModelsAnswer(models=answers.model_answers(service), can_fit=service.settings.only is None)

    @routes.get("/{name}")
    def model(name: ModelName) -> schemas.ModelAnswer:
        """One model."""
        return answers.model_answer(service, name, require_existing(service.models.entries.get(name), "model"))

    @routes.post("/{name}/predict", response_model=schemas.PredictionAnswer, openapi_extra=_IMAGE, responses=_PICTURES)
    async def predict(
        request: Request,
        name: ModelName,
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
            if part.not_kept:
                headers["x-procon-not-kept"] = part.not_kept
            if output == "overlay":
                return Response(answers.overlay_png(part), media_type="image/png", headers=headers)
            if output == "map":
                return Response(answers.map_npy(part), media_type="application/x-npy", headers=headers)
            answer = answers.prediction_answer(part, map_side, time.perf_counter() - started)
            return Response(answer.model_dump_json(), media_type="application/json", headers=headers)

        service.queue.check()
        with service.metrics.record_time("predict", name):
            return await service.inspect(served, await receive_image(request), request, keep, respond)

    @routes.post("/{name}/explain", openapi_extra=_IMAGE)
    async def explain(
        request: Request,
        name: ModelName,
        xy: Annotated[
            str | None,
            Query(pattern=pixel_pattern(2), description="Pixel, as X,Y; default: the peak of the heat map."),
        ] = None,
        region: Annotated[
            str | None,
            Query(pattern=pixel_pattern(4), description="Box, as LEFT,TOP,RIGHT,BOTTOM: explains the peak inside it."),
        ] = None,
    ) -> schemas.ExplanationAnswer:
        """The normal patches that a pixel of an image was compared with."""
        served = service.models.get(name)
        _ = served.detector  # an exported model is refused before the image is received
        if xy is not None and region is not None:
            raise RequestError(422, "give xy or region, not both")
        pixel: Any = xy and tuple(map(int, xy.split(",")))
        box: Any = region and tuple(map(int, region.split(",")))
        service.queue.check()
        with service.metrics.record_time("explain", name):
            upload = await receive_image(request)
            return await service.explain(served, upload, request, pixel, box, answers.explanation_answer)

    @routes.get("/{name}/good-images")
    def good_images(name: ModelName) -> schemas.GoodImagesAnswer:
        """The good images behind the threshold, highest score first."""
        return good_images_answer(service.models.get(name))

    @routes.get("/{name}/good-images/{number}/picture", response_class=Response, responses=content("image/jpeg"))
    async def good_image(
        name: ModelName, number: Annotated[int, Path(ge=0, le=2**53, description="Number of the good image.")]
    ) -> Response:
        """A good image behind the threshold, small, if it can still be read."""
        picture = await service.in_pool(good_picture, service.models.get(name), number)
        return Response(picture, media_type="image/jpeg", headers={"cache-control": "no-store"})

    @routes.put("/{name}/threshold")
    def threshold(name: ModelName, wanted: schemas.ThresholdByScore | schemas.ThresholdByRate) -> schemas.ModelAnswer:
        """Set the threshold by hand, or by a false-alarm rate and a rule."""
        _ = service.models.get(name).detector
        _set_threshold(service, name, wanted)
        service.models.scan()
        return answers.model_answer(service, name, service.models.entries[name])

    @routes.post("/{name}/partial_fit", status_code=202, openapi_extra=_IMAGES)
    async def partial_fit(request: Request, name: ModelName) -> schemas.PartialFitAnswer:
        """Add good images to the memory. They are on disk before the response, and learned in the background."""
        _ = service.models.get(name).detector
        feedback = await _accept_images(service, request, name)
        await asyncio.to_thread(service.jobs.queue_learning, name)
        rows = [service.store.feedback(number) for number in feedback]
        return schemas.PartialFitAnswer(feedback=[schemas.FeedbackAnswer(**row) for row in rows if row])

    return routes


def _set_threshold(service: Service, name: str, wanted: schemas.ThresholdByScore | schemas.ThresholdByRate) -> None:
    path = service.models.path(name)
    with service.models.editing(name):
        calibration = read_calibration(path)
        if calibration is None:
            raise RequestError(409, "the model has no calibration; fit it on more images")
        try:
            if isinstance(wanted, schemas.ThresholdByScore):
                changed = calibration.at_score(wanted.score)
            else:
                changed = calibration.at_rate(wanted.false_alarm_rate, wanted.rule)
        except ConfigError as error:
            raise RequestError(422, str(error)) from None
        write_threshold(path, calibration, changed)


async def _accept_images(service: Service, request: Request, name: str) -> list[int]:
    """Store the images of a request as feedback; returns the numbers of the feedback."""
    limits = service.settings.limits
    if not is_form(request):
        data = (await receive_image(request)).data
        header = await service.in_pool(check_image, data, limits)
        return [await service.in_pool(service.accept_good, name, data, header.ending)]
    folder, numbers = service.jobs.new_fit_folder(name), []
    async with form_of(request, limits.fit_images) as fields:
        try:
            for path in await store_images(fields, folder, limits):
                data = await service.in_pool(path.read_bytes)
                numbers.append(await service.in_pool(service.accept_good, name, data, path.suffix))
        finally:
            await service.in_pool(shutil.rmtree, folder, True)
    return numbers
