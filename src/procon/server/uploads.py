"""Images as they arrive: multipart or raw, counted while they stream, known by their content and not by their name."""

import asyncio
import hashlib
import io
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect

from procon.errors import ImageError
from procon.server.refusal import Refusal
from procon.server.settings import Limits
from procon.vision.images import MAX_SIDE, Picture, open_image

# Formats that are decoded, with the ending under which a file of each is kept.
_ENDINGS = {
    "PNG": ".png",
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "WEBP": ".webp",
    "GIF": ".gif",
    "JPEG2000": ".jp2",
    "PPM": ".ppm",
}
_FORMATS = tuple(name for name in _ENDINGS if name != "MPO")  # Pillow finds those among the JPEGs
_MOST_FIELDS = 16


@dataclass(frozen=True)
class Upload:
    """One image file as it was sent."""

    data: bytes
    name: str
    """What the sender calls it; shown, never used as a path."""

    @property
    def digest(self) -> str:
        """sha256 of the file."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image say."""

    width: int
    height: int
    ending: str

    @property
    def cost(self) -> int:
        """Bytes that its pixels, its heat map and their copies need."""
        return 10 * self.width * self.height


async def read_image(request: Request, limits: Limits) -> Upload:
    """The image of a request: the file ``image`` of a form, or the body itself."""
    async with receiving(limits.read_seconds):
        if not is_form(request):
            return Upload(_not_empty(await request.body()), "image")
        async with form(request, files=1) as fields:
            return await _from_form(fields, "image")


def is_form(request: Request) -> bool:
    """Whether the body is ``multipart/form-data``."""
    return request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data")


@asynccontextmanager
async def receiving(seconds: float) -> AsyncIterator[None]:
    """Turn what goes wrong while a body arrives into answers."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refusal(408, f"the body must arrive within {seconds:.0f} seconds") from None
    except ClientDisconnect:
        raise Refusal(400, "the connection was lost before the whole body had arrived") from None


@asynccontextmanager
async def form(request: Request, files: int) -> AsyncIterator[FormData]:
    """The fields of a form; large files wait on disk, and are gone afterwards."""
    async with request.form(max_files=files, max_fields=_MOST_FIELDS, max_part_size=64 * 1024) as fields:
        yield fields


async def _from_form(fields: FormData, name: str) -> Upload:
    sent = fields.get(name)
    if not isinstance(sent, UploadFile):
        raise Refusal(422, f"the form must have a file called {name!r}")
    return Upload(_not_empty(await sent.read()), clean_name(sent.filename))


def _not_empty(data: bytes) -> bytes:
    if not data:
        raise Refusal(422, "an image must be sent, got an empty body")
    return data


def clean_name(name: str | None) -> str:
    """A name to show: the last part of a path, without control characters."""
    last = re.split(r"[/\\]", name or "")[-1]
    return re.sub(r"[^\w .()+,-]", "_", last)[-80:] or "image"


def read_header(data: bytes, limits: Limits) -> Header:
    """Format and size of an image, before any pixel is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            kind = image.format or ""
    except UnidentifiedImageError:
        raise Refusal(422, "this is no image that can be read here; send PNG, JPEG, WebP, TIFF or BMP") from None
    except Image.DecompressionBombError:
        raise too_many_pixels(limits) from None
    except Exception as error:  # decoders fail on damaged files with whatever they ran into
        raise Refusal(422, f"the image is damaged or incomplete ({error}); send it again") from error
    if width * height > limits.pixels or max(width, height) > MAX_SIDE:
        raise too_many_pixels(limits)
    return Header(width, height, _ENDINGS[kind])


def too_many_pixels(limits: Limits) -> Refusal:
    """The refusal of an image that is too large."""
    return Refusal(413, f"an image must have at most {limits.pixels:,} pixels; scale it down")


def decode(data: bytes) -> Picture:
    """The pixels; only after :func:`read_header` has agreed to them."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return open_image(image)
    except ImageError as error:
        raise Refusal(422, "the image " + str(error).removeprefix("PIL image: ")) from None
    except Exception as error:
        raise Refusal(422, f"the image is damaged or incomplete ({error}); send it again") from error


def check_image(data: bytes, limits: Limits) -> Header:
    """The header of an image that can be decoded; one that cannot is refused before any work is built on it."""
    header = read_header(data, limits)
    decode(data)
    return header


def write_durable(path: Path, data: bytes) -> None:
    """Write a file that is whole and on the disk when this returns, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def store_images(fields: FormData, folder: Path, limits: Limits, name: str) -> list[Path]:
    """Write the files ``name`` of a form into ``folder``, each after a look at its content."""
    sent = [file for file in fields.getlist(name) if isinstance(file, UploadFile)]
    if not sent:
        raise Refusal(422, f"the form must have at least one file called {name!r}")
    paths = []
    for number, file in enumerate(sent):
        shown = clean_name(file.filename)
        if (file.size or 0) > limits.body_bytes:
            raise Refusal(413, f"{shown}: an image must have at most {limits.body_bytes:,} bytes")
        data = _not_empty(await file.read())
        try:
            header = await asyncio.to_thread(check_image, data, limits)
        except Refusal as refusal:
            raise Refusal(refusal.status_code, f"{shown}: {refusal.detail}") from None
        path = folder / f"{number:04d}-{Path(shown).stem[:40].strip('. ') or 'image'}{header.ending}"
        await asyncio.to_thread(write_durable, path, data)
        paths.append(path)
    return paths
