"""Fit many parts with one command: a unit is the folder of a part, its result a model file of the same name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.config import Config
from procon.detector import Detector
from procon.errors import ImageError, ModelFileError
from procon.model.metadata import read_metadata
from procon.model.training import digest_of
from procon.progress import Progress
from procon.scale.cluster import Unit, WorkerProgress, Workers
from procon.vision.folders import list_subfolders, read_layout
from procon.vision.shape import resolve_shape


@dataclass(frozen=True)
class Fitted:
    """The outcome of one part."""

    name: str
    model: Path
    images: int = 0
    fresh: bool = True  # False: there already was a model with the same settings and images
    error: str | None = None
    size: tuple[int, int] = (0, 0)  # (height, width) of the input


def find_parts(folder: Path) -> list[Path]:
    """The folders directly below ``folder`` that hold good images in a known layout."""
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder; expected one with a folder of good images for each part")
    if read_layout(folder).train:
        raise ImageError(
            f"{folder}: holds the good images of one part; name the folder above it, or fit without --each"
        )
    parts = [path for path in list_subfolders(folder) if read_layout(path).train]
    if not parts:
        raise ImageError(f"{folder}: no folder in it holds good images; expected one for each part")
    return parts


def fit_parts(
    workers: Workers,
    config: Config,
    parts: Sequence[Path],
    output: Path,
    on_progress: WorkerProgress,
    *,
    skip_bad: bool = False,
) -> Iterator[Fitted]:
    """Fit every part and write ``output/PART.procon``; a part that fails gets its error, and the others continue.

    A model with the same settings and the same image digests is not fitted again, so that repeating the command
    continues what was interrupted.
    """
    weights = [] if config.weights is None else [Path(config.weights)]
    workers.check_shared(output, *parts, *weights)
    models = {part.name: output / f"{part.name}.procon" for part in parts}
    units = (Unit(part.name, _fit_part, (config, part, models[part.name], workers.device, skip_bad)) for part in parts)
    for result in workers.run(units, on_progress):
        images, fresh, size = result.value or (0, True, (0, 0))
        yield Fitted(result.unit.name, models[result.unit.name], images, fresh, result.error, size)


def _fit_part(
    config: Config, part: Path, model: Path, device: str, skip_bad: bool, on_progress: Progress
) -> tuple[int, bool, tuple[int, int]]:
    """Fit one part: the number of images, whether a new model was written, and the (height, width) of its input."""
    images = read_layout(part).train
    shaped = resolve_shape(config, images)
    if _is_current(model, shaped, images):
        return len(images), False, shaped.input_size
    detector = Detector(shaped, device=device).fit(list(images), progress=on_progress, skip_bad=skip_bad)
    detector.save(model)
    assert detector.memory is not None
    return len(detector.memory.images), True, shaped.input_size


def _is_current(model: Path, config: Config, images: Sequence[Path]) -> bool:
    """Whether ``model`` has the same settings, and the same images in the same order, as a fit would give it."""
    if not model.exists():
        return False
    try:
        stored = read_metadata(model)
    except ModelFileError:  # damaged: fit again
        return False
    same = Config.from_dict(stored["config"]) == config and not stored["history"]
    return same and [image["digest"] for image in stored["images"]] == [digest_of(path) for path in images]
