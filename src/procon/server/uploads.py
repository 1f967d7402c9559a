"""Images in requests: multipart or raw; the format is taken from the content, never from the name."""

import asyncio
import hashlib
import io
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import FormData, UploadFile

from procon.errors import ImageError
from procon.server.disk import write_durable
from procon.server.request_errors import RequestError
from procon.server.settings import Limits
from procon.vision.images import MAX_SIDE, Picture, open_image

# Formats that are decoded: the file ending and the media type of each.
_KINDS = {
    "PNG": (".png", "image/png"),
    "JPEG": (".jpg", "image/jpeg"),
    "MPO": (".jpg", "image/jpeg"),
    "BMP": (".bmp", "image/bmp"),
    "TIFF": (".tif", "image/tiff"),
    "WEBP": (".webp", "image/webp"),
    "GIF": (".gif", "image/gif"),
    "JPEG2000": (".jp2", "image/jp2"),
    "PPM": (".ppm", "image/x-portable-pixmap"),
}
MEDIA_TYPES = dict(_KINDS.values())  # by file ending
_FORMATS = tuple(name for name in _KINDS if name != "MPO")  # Pillow detects MPO files itself, among the JPEGs
_MOST_FIELDS = 16


@dataclass(frozen=True)
class Upload:
    """One image file as it was sent; ``name`` comes from the sender: it is shown, but never used as a path."""

    data: bytes
    name: str = "image"

    @property
    def digest(self) -> str:
        """sha256 of the file."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Header:
    """Format and size of an image."""

    width: int
    height: int
    ending: str

    @property
    def cost(self) -> int:
        """Bytes of memory for its pixels, its heat map and their copies."""
        return 10 * self.width * self.height


async def receive_image(request: Request) -> Upload:
    """The image of a request: the file ``image`` of a form, or the body itself."""
    if not is_form(request):
        return Upload(_check_not_empty(await request.body()))
    async with form_of(request, files=1) as fields:
        file = fields.get("image")
        if not isinstance(file, UploadFile):
            raise RequestError(422, "the form must have a file called 'image'")
        return Upload(_check_not_empty(await file.read()), clean_name(file.filename))


def is_form(request: Request) -> bool:
    """Whether the body is ``multipart/form-data``."""
    return request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data")


def form_of(request: Request, files: int) -> AbstractAsyncContextManager[FormData]:
    """The fields of a form; large files are on disk until the block ends."""
    return request.form(max_files=files, max_fields=_MOST_FIELDS, max_part_size=64 * 1024)


def _check_not_empty(data: bytes) -> bytes:
    if not data:
        raise RequestError(422, "an image must be sent, got an empty body")
    return data


def clean_name(name: str | None) -> str:
    """A name to show: the last part of a path, without control characters."""
    last = re.split(r"[/\\]", name or "")[-1]
    return re.sub(r"[^\w .()+,-]", "_", last)[-80:] or "image"


def read_header(data: bytes, limits: Limits) -> Header:
    """Format and size of an image, before any pixel is decoded."""
    too_large = RequestError(413, f"an image must have at most {limits.pixels:,} pixels; scale it down")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            kind = image.format or ""
    except UnidentifiedImageError:
        raise RequestError(422, "unsupported image format; send PNG, JPEG, WebP, TIFF or BMP") from None
    except Image.DecompressionBombError:
        raise too_large from None
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        raise _damaged(error) from error
    if width * height > limits.pixels or max(width, height) > MAX_SIDE:
        raise too_large
    return Header(width, height, _KINDS[kind][0])


def _damaged(error: Exception) -> RequestError:
    return RequestError(422, f"the image is damaged or incomplete ({error}); send it again")


def decode(data: bytes) -> Picture:
    """The pixels of an image that :func:`read_header` has accepted."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return open_image(image)
    except ImageError as error:
        raise RequestError(422, "the image " + str(error).removeprefix("PIL image: ")) from None
    except Exception as error:
        raise _damaged(error) from error


def check_image(data: bytes, limits: Limits) -> Header:
    """The header of an image, after decoding it completely: a damaged image is refused."""
    header = read_header(data, limits)
    decode(data)
    return header


async def store_images(fields: FormData, folder: Path, limits: Limits) -> list[Path]:
    """Check the files ``images`` of a form and write them into ``folder``."""
    files = [file for file in fields.getlist("images") if isinstance(file, UploadFile)]
    if not files:
        raise RequestError(422, "the form must have at least one file called 'images'")
    paths = []
    for number, file in enumerate(files):
        shown = clean_name(file.filename)
        try:
            if (file.size or 0) > limits.body_bytes:
                raise RequestError(413, f"an image must have at most {limits.body_bytes:,} bytes")
            data = _check_not_empty(await file.read())
            header = await asyncio.to_thread(check_image, data, limits)
        except RequestError as error:
            raise RequestError(error.status_code, f"{shown}: {error.detail}") from None
        path = folder / f"{number:04d}-{Path(shown).stem[:40].strip('. ') or 'image'}{header.ending}"
        await asyncio.to_thread(write_durable, path, data)
        paths.append(path)
    return paths
