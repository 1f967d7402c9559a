"""Pixels in: any image a user may hold becomes the normalised input of the backbone.

Needs numpy and Pillow only. Nothing here depends on a model.
"""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from procon.errors import ImageError

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".ppm", ".pgm"})
# What Pillow may decode. Others (EPS, PSD, FITS ...) can start programs or are no photographs; no ending is trusted.
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF", "JPEG2000", "PPM")
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # ImageNet, as DINOv2 was trained
STD = np.array([0.229, 0.224, 0.225], np.float32)
_BYTES = np.ascontiguousarray(((np.arange(256, dtype=np.float32)[:, None] / 255 - MEAN) / STD).T)  # [3, 256]

_ORIENTATION = 0x0112  # of EXIF; 1 is upright

MIN_SIDE = 14  # pixels: one patch
MAX_SIDE = 32_768
MAX_PIXELS = 2**27  # 134 megapixels; a heat map of that size is already half a gigabyte

# Bilinear and antialiased, as anomaly detectors usually resize, so that published figures can be compared.
FILTER = Image.Resampling.BILINEAR

WORKERS, AHEAD = 2, 4  # threads that decode, and images that may wait: the backbone needs the cores
Item = TypeVar("Item")
Done = TypeVar("Done")
ImageLike = Any  # path, PIL image, numpy array or torch tensor; a type checker cannot see torch from here
ImageLikes = ImageLike | Iterable[ImageLike]  # one image, a folder, or several images


@dataclass(frozen=True)
class Picture:
    """A decoded image, upright and RGB."""

    pixels: NDArray[Any]
    """[height, width, 3]; uint8, or float32 in 0..1 where the source had more than 8 bits."""
    source: str | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape[:2]
        return int(height), int(width)

    def rgb8(self) -> NDArray[np.uint8]:
        """[height, width, 3] uint8, for people to look at."""
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
    if isinstance(image, str | Path):
        return read_file(Path(image))[0]
    if isinstance(image, Image.Image):
        return _open_pil(image)
    if isinstance(image, np.ndarray):
        return _finish(_from_array(image, "array"), None)
    if hasattr(image, "detach") and hasattr(image, "cpu"):  # a torch tensor, without importing torch
        try:
            array = image.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:  # bfloat16, sparse, quantised ...
            raise ImageError(f"tensor: has no numpy counterpart ({error}); convert it to uint8 or float32") from None
        if array.ndim == 3:
            if array.shape[0] not in (1, 3, 4):
                raise ImageError(
                    f"tensor: shape must be [H, W] or [1, 3 or 4, H, W], got {list(array.shape)}; "
                    "one image at a time, channels first"
                )
            array = np.moveaxis(array, 0, -1)
        return _finish(_from_array(array, "tensor"), None)
    raise ImageError(f"an image must be a path, PIL image, numpy array or torch tensor, got {type(image).__name__}")


def read_file(path: Path) -> tuple[Picture, bytes]:
    """Decode an image file and return its bytes too: who needs both reads the file once."""
    try:
        if not path.exists():
            raise ImageError(f"{path}: no such file; check the path")
        if path.is_dir():
            raise ImageError(f"{path}: is a folder where one image was expected; pass the images inside it")
        if not path.is_file():  # reading a pipe or a device could wait for ever
            raise ImageError(f"{path}: is not a regular file; pass an image file")
        if path.stat().st_size == 0:
            raise ImageError(f"{path}: is empty (0 bytes); copy the file again")
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_size(image.size, str(path))
            pixels = _from_pil(image, str(path))
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{path}: is not an image Pillow can read; remove it or export it as PNG or JPEG") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path}: {_too_large()}") from None
    except PermissionError:
        raise ImageError(f"{path}: may not be read; check its permissions") from None
    except Exception as error:
        # Decoders fail on damaged files with whatever their parsing ran into (OSError, SyntaxError, struct.error,
        # IndexError, zlib.error, MemoryError ...): here each of them means one thing.
        raise ImageError(f"{path}: is damaged or incomplete ({error}); copy or export it again") from error
    return _finish(pixels, str(path)), content


def _open_pil(image: Image.Image) -> Picture:
    source = getattr(image, "filename", "") or None
    name = source or "PIL image"
    _check_size(image.size, name)
    try:
        return _finish(_from_pil(image, name), source)
    except ImageError:
        raise
    except Exception as error:  # decoded only now, so all that can be wrong with a file can be wrong here
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


def _from_pil(image: Image.Image, name: str) -> NDArray[Any]:
    # MPO is what phones write: a JPEG with a preview behind it. Anything else with frames is ambiguous.
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise ImageError(f"{name}: has {frames} frames or pages; save the one to inspect as PNG")
    image.load()
    upright = image if image.getexif().get(_ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)
    if upright.mode.startswith("I") or upright.mode == "F":
        return _from_array(_deep_pixels(upright, name), name)
    if upright.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in upright.info:
        return _from_array(np.asarray(upright.convert("RGBA")), name)
    return np.asarray(upright if upright.mode == "RGB" else upright.convert("RGB"))


def _deep_pixels(image: Image.Image, name: str) -> NDArray[Any]:
    pixels = np.asarray(image)
    if image.mode == "F":
        return pixels
    if pixels.size and (pixels.min() < 0 or pixels.max() > 65_535):
        raise ImageError(f"{name}: holds integers from {pixels.min()} to {pixels.max()}; save it as 8 or 16 bit")
    return pixels.astype(np.uint16)


def _from_array(array: NDArray[Any], name: str) -> NDArray[Any]:
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


def _finish(pixels: NDArray[Any], source: str | None) -> Picture:
    height, width = pixels.shape[:2]
    _check_size((width, height), source or "image")
    return Picture(np.ascontiguousarray(pixels), source)


def to_input(picture: Picture, size: tuple[int, int], resize: int | None = None) -> NDArray[np.float32]:
    """The picture as the backbone sees it: float32 [3, height, width], ImageNet mean and standard deviation.

    The whole image becomes ``size``; with ``resize`` it becomes that square first and its centre is cut out.
    """
    if resize is None:
        return framed_input(picture, size, (0, 0), size)
    return framed_input(picture, size, crop_origin(size, resize), (resize, resize))


def framed_input(
    picture: Picture, size: tuple[int, int], origin: tuple[int, int], scaled: tuple[int, int]
) -> NDArray[np.float32]:
    """:func:`to_input` where the image is resized to ``scaled`` and the input of ``size`` begins at ``origin`` of that.

    Where the input reaches beyond the image, its edge is repeated: a border of another colour would be an edge to see.
    """
    pixels = resample(picture.pixels, scaled)
    if size != scaled:
        rows, columns = (
            np.clip(np.arange(start, start + side), 0, length - 1)
            for start, side, length in zip(origin, size, scaled, strict=True)
        )
        pixels = pixels[rows][:, columns]
    if pixels.dtype != np.uint8:
        return np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1), np.float32)
    planes = np.empty((3, *pixels.shape[:2]), np.float32)
    for channel in range(3):  # a byte has 256 values: looking them up is four times as fast, and the same to the bit
        np.take(_BYTES[channel], pixels[:, :, channel], out=planes[channel], mode="clip")
    return planes


def crop_origin(size: tuple[int, int], resize: int) -> tuple[int, int]:
    """(top, left) of the centre crop of ``size`` in a square of side ``resize``."""
    return (resize - size[0]) // 2, (resize - size[1]) // 2


def resample(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """[H, W, 3] to [height, width, 3], antialiased; uint8 stays uint8, float32 stays float32 in 0..1."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.dtype == np.uint8:
        return np.asarray(Image.fromarray(pixels).resize((width, height), FILTER))
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(pixels[:, :, channel])).resize((width, height), FILTER))
        for channel in range(3)
    ]
    return np.stack(planes, axis=2).clip(0, 1)


def is_batch(images: object) -> bool:
    """Whether ``images`` stands for several images: a folder, or a list, tuple or iterator of images."""
    if isinstance(images, str | Path):
        return Path(images).is_dir()
    return not isinstance(images, np.ndarray | Image.Image | Picture) and not hasattr(images, "detach")


def as_list(images: ImageLike | Iterable[ImageLike]) -> list[ImageLike]:
    """A folder, one image or several, as a list of single images."""
    if isinstance(images, str | Path):
        path = Path(images)
        return list(list_images(path)) if path.is_dir() else [path]
    if not is_batch(images):
        return [images]
    if not isinstance(images, Iterable):
        raise ImageError(f"images must be a folder, an image or a list of images, got {type(images).__name__}")
    return list(images)


def list_images(folder: Path, recursive: bool = False) -> Sequence[Path]:
    """Image files in ``folder`` in natural order (2 before 10), hidden ones left out."""
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder; check the path")
    names = {path: path.relative_to(folder) for path in (folder.rglob("*") if recursive else folder.iterdir())}
    return sorted(
        (
            path
            for path, name in names.items()
            if path.suffix.lower() in EXTENSIONS
            and not any(part.startswith(".") for part in name.parts)
            and path.is_file()
        ),
        key=lambda path: (_natural(str(names[path])), str(names[path])),  # 1 and 01 are equal numbers, not equal names
    )


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(run), "") if run.isdecimal() else (-1, run) for run in _digit_runs(text)]


def _digit_runs(text: str) -> list[str]:
    runs = [""]
    for character in text:
        # isdecimal, not isdigit: int() must accept the run
        if runs[-1] and runs[-1][-1].isdecimal() == character.isdecimal():
            runs[-1] += character
        else:
            runs.append(character)
    return runs[1:]


def open_each(images: Iterable[ImageLike], ahead: int = AHEAD) -> Iterator[Picture | ImageError]:
    """Decode images in order, a few ahead in threads; one that cannot be used yields its error and the rest goes on."""
    return in_order(try_open, images, ahead=ahead)


def try_open(image: ImageLike) -> Picture | ImageError:
    """:func:`open_image`, with the error as the result."""
    try:
        return open_image(image)
    except ImageError as error:
        return error


def in_order(
    work: Callable[[Item], Done], items: Iterable[Item], workers: int = WORKERS, ahead: int = AHEAD
) -> Iterator[Done]:
    """``work`` done on items by threads, in the order of the items; at most ``ahead`` results wait to be taken."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="procon-decode") as pool:
        waiting: deque[Future[Done]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # a consumer that stops early must not wait for work nobody wants
            for future in waiting:
                future.cancel()
