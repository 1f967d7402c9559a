"""The images behind a memory: what is stored of each, and how it is found again."""

import hashlib
import io
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from procon.errors import BatchError, ImageError
from procon.files import is_folder, sha256_of
from procon.model.training_image import TrainingImage
from procon.progress import Progress
from procon.vision.folders import as_list, training_images
from procon.vision.images import (
    AHEAD,
    WORKERS,
    ImageLike,
    ImageLikes,
    Picture,
    in_order,
    open_image,
    read_file,
    try_open,
)
from procon.vision.pictures import jpeg, shrink

THUMBNAIL_SIDE = 384  # pixels; evidence shows a few patches, which are then still some fifty pixels wide


def list_good(images: ImageLikes) -> list[ImageLike]:
    """The good images that are meant: a folder stands for the good images of its layout."""
    if isinstance(images, str | Path) and is_folder(images):
        items: list[ImageLike] = list(training_images(Path(images)))
    else:
        items = as_list(images)
    if not items:
        raise ImageError("at least one good image is needed, got an empty list")
    return items


def open_good(
    items: Sequence[ImageLike],
    prepare: Callable[[Picture], Any],
    workers: int = WORKERS,
    *,
    ahead: int = AHEAD,
    thumbnails: bool = False,
    taken: Iterable[str] = (),
) -> Iterator[tuple[TrainingImage, Any] | ImageError]:
    """Every image, read once, in threads and in order: what a model stores of it, and what ``prepare`` returns.

    Names of images without a path avoid those ``taken``.
    """

    def open_one(item: ImageLike) -> tuple[Picture, str, bytes, Any] | ImageError:
        try:
            picture, digest = open_with_digest(item)
        except ImageError as error:
            return error
        small = jpeg(shrink(picture.rgb8(), THUMBNAIL_SIDE), quality=85) if thumbnails else b""
        return picture, digest, small, prepare(picture)

    used = set(taken)
    for index, opened in enumerate(in_order(open_one, items, workers, ahead)):
        if isinstance(opened, ImageError):
            yield opened
            continue
        picture, digest, small, prepared = opened
        name = name_image(items[index], index, used)
        used.add(name)
        yield TrainingImage(name, picture.size, digest, small), prepared


def open_all_good(
    images: ImageLikes, on_progress: Progress, *, taken: Iterable[str] = ()
) -> tuple[list[ImageLike], tuple[TrainingImage, ...]]:
    """Good images and what a model stores of each; all are opened before any other work is done."""
    items = list_good(images)
    errors: dict[int, ImageError] = {}
    training: list[TrainingImage] = []
    for index, opened in enumerate(open_good(items, lambda _: None, taken=taken)):
        if isinstance(opened, ImageError):
            errors[index] = opened
        else:
            training.append(opened[0])
        on_progress("checking images", index + 1, len(items))
    if errors:
        raise BatchError(errors)
    return items, tuple(training)


def open_with_digest(image: ImageLike) -> tuple[Picture, str]:
    """Decode an image, and identify it: by its file if it is one, as decoders differ in the last bit."""
    if isinstance(image, str | Path):
        picture, content = read_file(Path(image))
        return picture, "file:" + hashlib.sha256(content).hexdigest()
    picture = open_image(image)
    kind = f"{picture.pixels.dtype}{picture.pixels.shape}".encode()
    return picture, "pixels:" + hashlib.sha256(kind + np.ascontiguousarray(picture.pixels).tobytes()).hexdigest()


def digest_of(image: ImageLike) -> str:
    """The digest of an image; a file is not decoded for it."""
    if isinstance(image, str | Path):
        return "file:" + sha256_of(Path(image))
    return open_with_digest(image)[1]


def name_image(image: ImageLike, index: int, used: Container[str]) -> str:
    """How a training image is called in the model: its path, or the first number that is free."""
    if isinstance(image, str | Path):
        return str(image)
    source = getattr(image, "filename", "") or getattr(image, "source", None)
    if source:
        return str(source)
    while f"image {index}" in used:
        index += 1
    return f"image {index}"


@dataclass
class TrainingSources:
    """Where training images can be read again."""

    held: dict[str, ImageLike] = field(default_factory=dict)  # images that exist in memory only, by name
    folder: Path | None = None  # where the files are now, if they have moved

    def hold(self, images: Sequence[TrainingImage], items: Sequence[ImageLike]) -> None:
        """Keep those ``items`` that have no path, so that the threshold can follow the memory."""
        pairs = zip(images, items, strict=True)
        self.held |= {image.name: item for image, item in pairs if not isinstance(item, str | Path)}

    def find(self, images: Sequence[TrainingImage]) -> list[ImageLike]:
        """Something to open for each image: what is held, its path, or where it is below ``folder`` now.

        An image that is missing, or no longer the same, has its :class:`ImageError` there instead.
        """
        return [self.held[image.name] if image.name in self.held else _locate(image, self.folder) for image in images]

    def find_all(self, images: Sequence[TrainingImage], why: str) -> list[ImageLike]:
        """Something to open for each image; an error that says ``why`` they are needed if one is missing."""
        sources = self.find(images)
        missing = [source for source in sources if isinstance(source, ImageError)]
        if missing:
            raise ImageError(f"{len(missing)} of {len(sources)} {why}: {missing[0]}")
        return sources

    def picture(self, image: TrainingImage) -> Picture | ImageError:
        """A training image: itself, else its thumbnail, else the reason why neither is there."""
        (source,) = self.find([image])
        picture = source if isinstance(source, ImageError) else try_open(source)
        if isinstance(picture, ImageError) and image.thumbnail:
            with Image.open(io.BytesIO(image.thumbnail)) as thumbnail:
                return Picture(np.asarray(thumbnail.convert("RGB")), image.name)
        return picture


def _locate(image: TrainingImage, folder: Path | None) -> Path | ImageError:
    path = Path(image.name)
    parts = path.parts[1:] if path.is_absolute() else path.parts
    moved = [folder.joinpath(*parts[start:]) for start in range(len(parts))] if folder is not None else []
    present = [place for place in (path, *moved) if place.is_file()]
    for place in present:
        if _is_same(image, place):
            return place
    if present:
        return ImageError(f"{present[0]}: is not the image the model was fitted on; put the original back")
    return ImageError(f"{path}: is no longer there; put it back, or name the folder where the training images are now")


def _is_same(image: TrainingImage, place: Path) -> bool:
    try:
        return image.digest == digest_of(place if image.digest.startswith("file:") else open_image(place))
    except (ImageError, OSError):
        return False


def pack_thumbnails(images: Sequence[TrainingImage]) -> dict[str, Tensor]:
    """All thumbnails one after the other, uint8, and where each ends; nothing if there are none."""
    if not any(image.thumbnail for image in images):
        return {}
    joined = np.frombuffer(b"".join(image.thumbnail for image in images), np.uint8)
    ends = np.cumsum([len(image.thumbnail) for image in images])
    return {"thumbnails.bytes": torch.from_numpy(joined.copy()), "thumbnails.ends": torch.from_numpy(ends)}


def unpack_thumbnails(tensors: Mapping[str, Tensor], count: int) -> list[bytes]:
    """The inverse of :func:`pack_thumbnails` for ``count`` images; a ValueError says what does not fit."""
    if "thumbnails.bytes" not in tensors:
        return [b""] * count
    joined, ends = tensors["thumbnails.bytes"].numpy().tobytes(), tensors["thumbnails.ends"].tolist()
    starts = [0, *ends[:-1]]
    if len(ends) != count or any(end < start for start, end in zip(starts, ends, strict=True)):
        raise ValueError(f"thumbnails must be one per image, got {len(ends)} for {count}")
    return [joined[start:end] for start, end in zip(starts, ends, strict=True)]
