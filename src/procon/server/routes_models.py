"""What a model can be asked: predict, explain, threshold, partial_fit, and the list of them."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter

from procon.errors import ConfigError
from procon.model.calibration import change_note
from procon.model.file import read_calibration, write_calibration
from procon.model.history import Change, utc
from procon.server import crops
from procon.server.answers import (
    explanation_patches,
    feedback_answer,
    map_npy,
    model_answer,
    overlay_png,
    prediction_answer,
)
from procon.server.refusal import Refusal
from procon.server.schemas import (
    ByRate,
    ByScore,
    ExplanationAnswer,
    LayerAnswer,
    ModelAnswer,
    ModelsAnswer,
    NormalPatchAnswer,
    PartialFitAnswer,
    PredictionAnswer,
    Problem,
)
from procon.server.service import Inspection, Service
from procon.server.settings import NAME_PATTERN
from procon.server.uploads import Upload, check_image, form, is_form, read_image, receiving, store_images
from procon.vision.framing import patch_size

Name = Annotated[str, PathParameter(pattern=NAME_PATTERN, description="Name of the model.")]

_BINARY = {"schema": {"type": "string", "format": "binary"}}


def image_body(name: str = "image", several: bool = False) -> dict[str, Any]:
    """OpenAPI of a body that is an image, or a form with files."""
    one = {"type": "string", "format": "binary"}
    files: dict[str, Any] = {"type": "array", "items": one, "minItems": 1} if several else one
    schema = {"type": "object", "required": [name], "properties": {name: files}}
    content: dict[str, Any] = {"multipart/form-data": {"schema": schema}}
    return {
        "requestBody": {
            "required": True,
            "content": content | dict.fromkeys(("image/png", "image/jpeg", "application/octet-stream"), _BINARY),
        }
    }


def _numbers(count: int) -> str:
    """The pattern of ``count`` pixel positions, separated by commas."""
    return "^" + ",".join(["[0-9]{1,5}"] * count) + "$"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the refusals of a route."""
    return {status: {"model": Problem} for status in statuses}


IMAGE_PROBLEMS = problems(400, 401, 403, 404, 408, 409, 413, 422, 503)


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get("", responses=problems(401, 403))
    async def models() -> ModelsAnswer:
        """All models of the folder, with what their thresholds promise."""
        return await asyncio.to_thread(_models, service)

    @routes.get("/{name}", responses=problems(401, 403, 404, 422))
    async def model(name: Name) -> ModelAnswer:
        """One model."""
        entry = service.models.entries.get(name)
        if entry is None:
            raise Refusal(404, "no such model")
        return await asyncio.to_thread(model_answer, service, name, entry)

    @routes.post(
        "/{name}/predict",
        response_model=PredictionAnswer,
        openapi_extra=image_body(),
        responses={200: {"content": {"image/png": _BINARY, "application/x-npy": _BINARY}}, **IMAGE_PROBLEMS},
    )
    async def predict(
        request: Request,
        name: Name,
        output: Annotated[
            Literal["json", "overlay", "map"],
            Query(description="JSON, the part painted (PNG), or the float map (.npy)."),
        ] = "json",
        map_side: Annotated[int, Query(ge=0, le=2048, description="Put a map of this side into the JSON.")] = 0,
        keep: Annotated[bool, Query(description="Remember the verdict, for review.")] = True,
    ) -> Response:
        """Score an image."""
        started = time.perf_counter()
        chosen = service.models.get(name)

        def respond(done: Inspection) -> Response:
            facts = {"x-procon-score": repr(done.prediction.score), "x-procon-id": str(done.number)}
            if output == "overlay":
                return Response(overlay_png(done), media_type="image/png", headers=facts)
            if output == "map":
                return Response(map_npy(done.prediction), media_type="application/x-npy", headers=facts)
            found = prediction_answer(done, map_side, time.perf_counter() - started)
            return Response(found.model_dump_json(), media_type="application/json", headers=facts)

        with service.queue.ticket() as ticket:
            upload = await read_image(request, service.settings.limits)
            answer = await service.inspect(chosen, upload, ticket, request, keep, respond)
        service.metrics.seconds.labels("predict", name).observe(time.perf_counter() - started)
        return answer

    @routes.post("/{name}/explain", openapi_extra=image_body(), responses=IMAGE_PROBLEMS)
    async def explain(
        request: Request,
        name: Name,
        xy: Annotated[
            str | None,
            Query(pattern=_numbers(2), description="Pixel, as X,Y; default: the peak of the heat map."),
        ] = None,
        region: Annotated[
            str | None,
            Query(pattern=_numbers(4), description="Box, as LEFT,TOP,RIGHT,BOTTOM: explains the peak inside it."),
        ] = None,
    ) -> ExplanationAnswer:
        """The normal patches that a pixel of an image was compared with."""
        started = time.perf_counter()
        chosen = service.models.get(name)
        _ = chosen.detector  # an exported model is refused before the image is read
        if xy is not None and region is not None:
            raise Refusal(422, "give xy or region, not both")
        pixel: Any = xy and tuple(map(int, xy.split(",")))
        box: Any = region and tuple(map(int, region.split(",")))
        with service.queue.ticket() as ticket:
            upload = await read_image(request, service.settings.limits)
            found, picture = await service.explain(chosen, upload, ticket, request, pixel, box)
            config, known = chosen.config, chosen.calibration
            cut, inner = await service.off(
                crops.around, picture.rgb8(), picture.size, found.box, patch_size(config, picture.size)
            )
            patches = await service.off(explanation_patches, chosen, found)
        service.metrics.seconds.labels("explain", name).observe(time.perf_counter() - started)
        return ExplanationAnswer(
            model=name,
            revision=chosen.revision,
            xy=found.xy,
            patch=found.patch,
            box=found.box,
            score=found.score,
            typical=known.typical if known else None,
            picture=cut,
            inner=inner,
            layers=[
                LayerAnswer(
                    blocks=list(layer.blocks),
                    residual=layer.residual,
                    residuals=list(layer.residuals),
                    contribution=layer.contribution,
                )
                for layer in found.layers
            ],
            normal_patches=[NormalPatchAnswer(**patch) for patch in patches],
        )

    @routes.put("/{name}/threshold", responses=problems(400, 401, 403, 404, 409, 413, 422, 503))
    async def threshold(name: Name, wanted: ByScore | ByRate) -> ModelAnswer:
        """Set the threshold, by hand or by the share of good parts that may exceed it."""
        _ = service.models.get(name).detector
        await asyncio.to_thread(_set_threshold, service, name, wanted)
        return await asyncio.to_thread(model_answer, service, name, service.models.entries[name])

    @routes.post(
        "/{name}/partial_fit",
        status_code=202,
        openapi_extra=image_body("images", several=True),
        responses=IMAGE_PROBLEMS,
    )
    async def partial_fit(request: Request, name: Name) -> PartialFitAnswer:
        """Add good images to the memory. They are on the disk before the answer, and learned in the background."""
        _ = service.models.get(name).detector
        return await _partial_fit(service, request, name)

    return routes


def _models(service: Service) -> ModelsAnswer:
    found = [model_answer(service, name, entry) for name, entry in service.models.entries.items()]
    return ModelsAnswer(models=found, can_fit=service.settings.only is None)


def _set_threshold(service: Service, name: str, wanted: ByScore | ByRate) -> None:
    path = service.models.path(name)
    with service.models.editing(name):
        known = read_calibration(path)
        if known is None:
            raise Refusal(409, "the model has no calibration; fit it on more images")
        try:
            if isinstance(wanted, ByScore):
                changed = known.at_score(wanted.score)
            else:
                changed = known.at_rate(wanted.false_alarm_rate)
        except ConfigError as error:
            raise Refusal(422, str(error)) from None
        write_calibration(path, changed, Change(utc(), "threshold", note=change_note(known, changed)))
    service.models.scan()


async def _partial_fit(service: Service, request: Request, name: str) -> PartialFitAnswer:
    limits = service.settings.limits
    numbers: list[int] = []
    with service.queue.ticket():
        async with receiving(10 * limits.read_seconds):
            if is_form(request):
                folder = service.jobs.fit_folder(name)
                async with form(request, limits.fit_images) as fields:
                    try:
                        for path in await store_images(fields, folder, limits, "images"):
                            data = await service.off(path.read_bytes)
                            numbers.append(await service.off(_accept, service, name, data, path.suffix))
                    finally:
                        await service.off(_remove, folder)
            else:
                data = await request.body()
                header = await service.off(check_image, data, limits)
                numbers.append(await service.off(_accept, service, name, data, header.ending))
    await asyncio.to_thread(service.jobs.learn, name)
    rows = [service.store.feedback(number) for number in numbers]
    return PartialFitAnswer(feedback=[feedback_answer(row) for row in rows if row])


def _accept(service: Service, name: str, data: bytes, ending: str) -> int:
    return service.accept(name, Upload(data, "image"), ending, "good", None)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
