"""Parts of the OpenAPI description that several routes share."""

from typing import Annotated, Any

from fastapi import Path

from procon.server.schemas import Problem
from procon.server.settings import NAME_PATTERN

Name = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the model.")]
Number = Annotated[int, Path(ge=1, le=2**53, description="Number of the job, verdict or feedback.")]

FILE = {"type": "string", "format": "binary"}
FILES = {"type": "array", "items": FILE, "minItems": 1}
BINARY = {"schema": FILE}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route."""
    return {status: {"model": Problem} for status in statuses}


def content(*media_types: str, schema: dict[str, Any] = FILE) -> dict[int | str, dict[str, Any]]:
    """A response that is not JSON."""
    return {200: {"content": {media_type: {"schema": schema} for media_type in media_types}}}


def form_body(required: list[str], raw: bool = False, **fields: dict[str, Any]) -> dict[str, Any]:
    """A request with a form; with ``raw``, the body may also be an image itself."""
    form = {"schema": {"type": "object", "required": required, "properties": fields}}
    images = ("image/png", "image/jpeg", "application/octet-stream") if raw else ()
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form} | dict.fromkeys(images, BINARY)}}


def numbers(count: int) -> str:
    """The pattern of ``count`` pixel positions, separated by commas."""
    return "^" + ",".join(["[0-9]{1,5}"] * count) + "$"


COMMON = problems(401, 403)
"""Every route may refuse a request without a token or from another origin."""
IMAGE_PROBLEMS = problems(400, 404, 408, 409, 413, 422, 503)
"""Refusals of a route that receives images."""
