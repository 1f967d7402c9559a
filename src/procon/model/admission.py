"""Which images may enter a memory, leave it, or judge it; and which memories may become one."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from procon.config import Config
from procon.errors import ConfigError, ImageError
from procon.model.calibration import Calibration
from procon.model.memory import Memory
from procon.model.training import TrainingImage


def numbers_of(images: str | Path | Iterable[str | Path], memory: Memory) -> set[int]:
    """Positions in the memory of images given by name: the whole path, or its end where only one image has it."""
    given = [images] if isinstance(images, str | Path) else list(images)
    gone: set[int] = set()
    for one in given:
        name = str(one)
        found = {number for number, image in enumerate(memory.images) if image.name == name}
        if not found:
            end = Path(name).parts
            found = {n for n, image in enumerate(memory.images) if Path(image.name).parts[-len(end) :] == end}
            alike = [memory.images[number] for number in sorted(found)]
            if len({image.name for image in alike}) > 1:
                raise ImageError(f"{name}: may be any of {listed(alike)}; give more of the path")
        if not found:
            raise ImageError(
                f"{name}: is not in the memory, which holds {listed(memory.images)}; procon info --json lists all"
            )
        digests = {memory.images[number].digest for number in found}
        gone |= {number for number, image in enumerate(memory.images) if image.digest in digests}
    return gone


def listed(images: Sequence[TrainingImage]) -> str:
    """The names of the first few."""
    names = ", ".join(image.name for image in images[:3])
    return names + (f" and {len(images) - 3} more" if len(images) > 3 else "")


def refuse_known(
    added: Sequence[TrainingImage], memory: Memory, remedy: str = "is in the memory already; leave it out"
) -> None:
    """No image of ``memory`` again, by content or by name."""
    digests, names = {image.digest: image.name for image in memory.images}, set(memory.names)
    for image in added:
        if image.digest in digests:
            other = digests[image.digest]
            same = f" (as {other})" if other != image.name else ""
            raise ImageError(f"{image.name}: {remedy}{same}")
        if image.name in names:
            raise ImageError(f"{image.name}: the memory holds another image of this name; forget that first, or rename")


def refuse_seen(separate: Sequence[TrainingImage], known: Sequence[TrainingImage]) -> None:
    """Only images that are not among those ``known`` to the model can judge it."""
    digests = {image.digest for image in known}
    seen = [image for image in separate if image.digest in digests]
    if seen:
        raise ImageError(
            f"these must be images the model has not seen, got {len(seen)} that it has: {listed(seen)}; leave them out"
        )


def refuse_calibrated(added: Sequence[TrainingImage], calibration: Calibration) -> None:
    """No image on which the threshold was calibrated as one that the memory does not hold."""
    separate = {image.digest for image in calibration.images}
    both = [image for image in added if image.digest in separate]
    if both:
        raise ImageError(
            f"{listed(both)}: the threshold was calibrated on it, as an image the memory does not hold; leave it out, "
            "or go back to leave-one-out first: calibrate() (procon threshold MODEL --leave-one-out)"
        )


def refuse_other_settings(one: Config, other: Config) -> None:
    """Memories can be joined if their anchors mean the same."""
    free = ("weights", "false_alarm_rate", "precision")  # do not change what an anchor is
    mine, theirs = asdict(one), asdict(other)
    differing = [name for name in mine if name not in free and mine[name] != theirs[name]]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"both models must have the same settings, got {name}={mine[name]!r} and {name}={theirs[name]!r}; "
            "fit one of them again"
        )


def refuse_other_region(one: Memory, other: Memory) -> None:
    """Memories can be joined if they look at the same region of an image."""
    masks = [None if memory.roi is None else (memory.roi.shape, memory.roi.tobytes()) for memory in (one, other)]
    if masks[0] != masks[1]:
        raise ConfigError("both models must have the same region of interest; fit one of them again")
