"""Parts of the OpenAPI description that several routes share."""

from typing import Annotated, Any

from fastapi import Path

from procon.server.schemas import Problem
from procon.server.settings import NAME_PATTERN

ModelName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the model.")]
RowNumber = Annotated[int, Path(ge=1, le=2**53, description="Number of the job, verdict or feedback.")]

FILE = {"type": "string", "format": "binary"}
_RAW = {"schema": FILE}
FILES = {"type": "array", "items": FILE, "minItems": 1}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 503, 507)
}
"""The refusals of all routes."""


def content(*media_types: str, schema: dict[str, Any] = FILE) -> dict[int | str, dict[str, Any]]:
    """A response that is not JSON."""
    return {200: {"content": {media_type: {"schema": schema} for media_type in media_types}}}


def form_body(required: list[str], raw: bool = False, **fields: dict[str, Any]) -> dict[str, Any]:
    """A request with a form; with ``raw``, the body may also be an image itself."""
    form = {"schema": {"type": "object", "required": required, "properties": fields}}
    images = ("image/png", "image/jpeg", "application/octet-stream") if raw else ()
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form} | dict.fromkeys(images, _RAW)}}


def pixel_pattern(count: int) -> str:
    """The pattern of ``count`` pixel positions, separated by commas."""
    return "^" + ",".join(["[0-9]{1,5}"] * count) + "$"
