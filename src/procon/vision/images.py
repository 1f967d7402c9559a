"""Pixels in: any image a user may hold becomes an upright RGB picture.

Needs numpy and Pillow only. Nothing here depends on a model.
"""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

try:
    import simplejpeg
except ImportError:  # an extra: the same pixels, decoded faster
    simplejpeg = None

from procon.arrays import Bytes
from procon.errors import ImageError
from procon.names import show_name

# What Pillow may decode, whatever the suffix of the file. Decoders of other formats (EPS ...) can start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF", "JPEG2000", "PPM")
_ORIENTATION = 0x0112  # EXIF tag; its value is what a viewer has to do, and 1 is upright
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

MIN_SIDE = 14  # pixels: one patch
MAX_SIDE = 32_768
MAX_PIXELS = 2**27  # 134 megapixels; a heat map of that size is already half a gigabyte
MAX_BYTES = 2**31  # of a file; no image of MAX_PIXELS needs more

WORKERS, AHEAD = 2, 4  # threads that decode, and images that may wait: the backbone needs the cores
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
ImageLike = Any  # path, PIL image, numpy array or torch tensor; a type checker cannot see torch from here
ImageLikes = ImageLike | Iterable[ImageLike]  # one image, a folder, or several images


@dataclass(frozen=True)
class Picture:
    """A decoded image, upright and RGB."""

    pixels: NDArray[Any]  # [height, width, 3] uint8, or float32 in 0..1 where the source had more than 8 bits
    source: str | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape[:2]
        return int(height), int(width)

    def rgb8(self) -> Bytes:
        """[height, width, 3] uint8, for display."""
        if self.pixels.dtype == np.uint8:
            return self.pixels.astype(np.uint8, copy=False)
        return np.asarray(np.rint(self.pixels * 255), np.uint8)


def open_image(image: ImageLike) -> Picture:
    """Decode a path, PIL image, numpy array or torch tensor, or say why it cannot be used.

    Arrays are [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; tensors [H, W] or [1|3|4, H, W]. uint8 counts to 255, uint16
    to 65535, floats to 1. EXIF orientation is applied; transparent areas become black.
    """
    if isinstance(image, Picture):
        return image
    if isinstance(image, ImageError):  # in place of an image that could not be found or decoded
        raise image
    if isinstance(image, str | Path):
        return read_file(Path(image))[0]
    if isinstance(image, Image.Image):
        return _open_pil(image)
    if isinstance(image, np.ndarray):
        return _checked_picture(_from_array(image, "array"), None)
    if hasattr(image, "detach") and hasattr(image, "cpu"):  # a torch tensor, without importing torch
        return _checked_picture(_from_array(_channels_last(image), "tensor"), None)
    raise ImageError(f"an image must be a path, PIL image, numpy array or torch tensor, got {type(image).__name__}")


def _channels_last(tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse, quantised ...
        raise ImageError(f"tensor: has no numpy counterpart ({error}); convert it to uint8 or float32") from None
    if array.ndim == 3 and array.shape[0] not in (1, 3, 4):
        raise ImageError(
            f"tensor: shape must be [H, W] or [1, 3 or 4, H, W], got {list(array.shape)}; "
            "one image at a time, channels first"
        )
    return np.moveaxis(array, 0, -1) if array.ndim == 3 else array


def read_file(path: Path) -> tuple[Picture, bytes]:
    """Decode an image file; also returns its bytes, so that a caller that needs both reads the file once."""
    name = show_name(path)
    try:
        if not path.exists():
            if path.is_symlink():
                raise ImageError(
                    f"{name}: is a link to a file that does not exist; remove the link or restore the file"
                )
            raise ImageError(f"{name}: no such file; check the path")
        if path.is_dir():
            raise ImageError(f"{name}: is a folder where one image was expected; pass the images inside it")
        if not path.is_file():  # reading a pipe or a device could wait for ever
            raise ImageError(f"{name}: is not a regular file; pass an image file")
        size = path.stat().st_size
        if size == 0:
            raise ImageError(f"{name}: is empty (0 bytes); copy the file again")
        if size > MAX_BYTES:
            raise ImageError(f"{name}: has {size:,} bytes, more than any image of a camera; export it as PNG or JPEG")
        content = path.read_bytes()
    except PermissionError:
        raise ImageError(f"{name}: may not be read; check its permissions") from None
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror}); check the path and the disk") from None
    except MemoryError:
        raise ImageError(f"{name}: does not fit into memory; scale it down or cut it") from None
    return _checked_picture(_decode(content, name), str(path)), content


def open_bytes(content: bytes, name: str) -> Picture:
    """Decode the bytes of an image file; ``name`` is what errors call it."""
    if not content:
        raise ImageError(f"{name}: is empty (0 bytes); send the image again")
    return _checked_picture(_decode(content, name), None)


def _decode(content: bytes, name: str) -> NDArray[Any]:
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_size(image.size, name)
            return _from_pil(image, name, content)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: is not an image Pillow can read; remove it or export it as PNG or JPEG") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the warning where warnings are errors
        raise ImageError(f"{name}: {_too_large()}") from None
    except Exception as error:
        # Decoders raise whatever their parsing of a damaged file ran into (OSError, SyntaxError, struct.error,
        # IndexError, zlib.error, MemoryError ...).
        raise ImageError(f"{name}: is damaged or incomplete ({error}); copy or export it again") from error


def read_size(image: ImageLike) -> tuple[int, int] | None:
    """(height, width) of an image as :func:`open_image` shows it, or None where it cannot be told.

    Of a file the header is read, not the pixels; of a PNG file what stands before the pixels.
    """
    try:
        if isinstance(image, str | Path):
            if not Path(image).is_file():  # reading a pipe or a device could wait for ever
                return None
            with Image.open(image, formats=_FORMATS) as header:
                return _upright_size(header)
        return open_image(image).size
    except Exception:  # whatever a damaged file makes a decoder raise; opening it says what is wrong
        return None


def _upright_size(header: Image.Image) -> tuple[int, int]:
    if header.format == "PNG" and "exif" not in header.info:  # Pillow would decode it to look behind the pixels
        return header.size[::-1]
    turned = header.getexif().get(_ORIENTATION, 1) >= 5  # the values of _UPRIGHT that swap the sides
    # Depending on its release, Pillow has swapped the sides of a TIFF already.
    size = (header.tag_v2[256], header.tag_v2[257]) if isinstance(header, TiffImageFile) else header.size
    return size if turned else size[::-1]


def _open_pil(image: Image.Image) -> Picture:
    source = getattr(image, "filename", "") or None
    name = show_name(source) if source else "PIL image"
    _check_size(image.size, name)
    try:
        return _checked_picture(_from_pil(image, name), source)
    except ImageError:
        raise
    except Exception as error:  # a file that is decoded only now can have every defect of a file
        raise ImageError(f"{name}: cannot be decoded ({error}); open it again or convert it to RGB") from error


def _too_large() -> str:
    return f"is larger than {MAX_SIDE} pixels on a side or {MAX_PIXELS // 10**6} megapixels; scale it down or cut it"


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if min(size) < MIN_SIDE:
        raise ImageError(
            f"{name}: is {width} x {height} pixels; each side must have at least {MIN_SIDE}; use the original image"
        )
    if max(size) > MAX_SIDE or width * height > MAX_PIXELS:
        raise ImageError(f"{name}: is {width} x {height} pixels and {_too_large()}")


def _decode_jpeg(image: Image.Image, content: bytes) -> NDArray[Any] | None:
    """The pixels of an upright grey or RGB file: those of Pillow, in a quarter of the time; None: ask Pillow.

    Both use libjpeg-turbo. Pillow copies pixels while it holds the interpreter's lock; simplejpeg does neither.
    """
    if simplejpeg is None or image.format != "JPEG" or image.mode not in ("L", "RGB"):
        return None
    if image.getexif().get(_ORIENTATION, 1) in _UPRIGHT:
        return None
    try:
        return np.asarray(simplejpeg.decode_jpeg(content, colorspace="RGB"))
    except ValueError:  # damaged: Pillow knows how
        return None


def _from_pil(image: Image.Image, name: str, content: bytes | None = None) -> NDArray[Any]:
    # MPO is what phones write: a JPEG with a preview behind it. Anything else with frames is ambiguous.
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise ImageError(f"{name}: has {frames} frames or pages; save the one to inspect as PNG")
    if content is not None and (pixels := _decode_jpeg(image, content)) is not None:
        return pixels
    image.load()
    method = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    upright = image if method is None else image.transpose(method)
    upright.info = image.info
    if upright.mode.startswith("I") or upright.mode == "F":
        return _from_array(_deep_pixels(upright, name), name)
    if upright.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _from_array(np.asarray(upright.convert("RGBA")), name)
    return np.asarray(upright if upright.mode == "RGB" else upright.convert("RGB"))


def _deep_pixels(image: Image.Image, name: str) -> NDArray[Any]:
    pixels = np.asarray(image)
    if image.mode == "F":
        return pixels
    if pixels.size and (pixels.min() < 0 or pixels.max() > 65_535):
        raise ImageError(f"{name}: holds integers from {pixels.min()} to {pixels.max()}; save it as 8 or 16 bit")
    transparent = image.info.get("transparency")
    return np.where(pixels == transparent, 0, pixels).astype(np.uint16)  # as all transparency, over black


def _from_array(array: NDArray[Any], name: str) -> NDArray[Any]:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ImageError(f"{name}: has masked pixels; fill them before scoring")
    array = np.asarray(array)  # a plain array: subclasses such as np.matrix have other rules for shapes
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"{name}: shape must be [H, W] or [H, W, 1, 3 or 4], got {list(array.shape)}; "
            "pass one image at a time, channels last"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either byte order
        array = array.astype(np.float32) / 65_535
    elif np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ImageError(f"{name}: holds NaN or infinite values; replace them before scoring")
        if array.size and (array.min() < 0 or array.max() > 1):
            raise ImageError(
                f"{name}: float pixels must be in 0..1, got {array.min():.4g} to {array.max():.4g}; "
                "divide by the maximum of your camera or pass uint8 or uint16"
            )
    elif array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif array.dtype != np.uint8:
        raise ImageError(f"{name}: pixels must be uint8, uint16, bool or float, got {array.dtype}; convert them")
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    if array.shape[2] == 4:
        # What lies under transparency is undefined; over black it is the same for every exporter.
        if array.dtype == np.uint8:
            alpha = array[:, :, 3:].astype(np.uint16)
            return np.asarray((array[:, :, :3] * alpha + 127) // 255, np.uint8)
        return np.asarray(array[:, :, :3] * array[:, :, 3:])
    return array


def _checked_picture(pixels: NDArray[Any], source: str | None) -> Picture:
    height, width = pixels.shape[:2]
    _check_size((width, height), show_name(source) if source else "image")
    return Picture(np.ascontiguousarray(pixels), source)


def open_each(
    images: Iterable[ImageLike], workers: int = WORKERS, ahead: int = AHEAD
) -> Iterator[Picture | ImageError]:
    """Decode images in order, a few ahead in threads; an image that cannot be used yields its error."""
    return in_order(try_open, images, workers, ahead)


def try_open(image: ImageLike) -> Picture | ImageError:
    """:func:`open_image`, with the error as the result."""
    try:
        return open_image(image)
    except ImageError as error:
        return error


def in_order(
    work: Callable[[_Item], _Result], items: Iterable[_Item], workers: int = WORKERS, ahead: int = AHEAD
) -> Iterator[_Result]:
    """Results of ``work`` by threads, in the order of the items; at most ``ahead`` results wait to be consumed."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="procon-decode") as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # a consumer that stops early must not wait for the results
            for future in waiting:
                future.cancel()
