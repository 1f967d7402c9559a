"""The document of a model file in words, and its calibration; needs neither the tensors nor torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from procon.amounts import count_of
from procon.config import Config
from procon.errors import ModelFileError
from procon.model.calibration import Calibration
from procon.model.history import Change, describe_lesson
from procon.model.metadata import read_metadata, rewrite_metadata
from procon.model.renderings import Renderings


@contextmanager
def mismatch_refused(path: Path) -> Iterator[None]:
    """What does not fit together in a file becomes one sentence that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ModelFileError(f"{path}: its content does not fit together ({what}); fit again") from None


def describe_file(path: Path) -> list[tuple[str, str]]:
    """What a model file holds, as (name, text) for people, without reading its tensors."""
    metadata = read_metadata(path)
    with mismatch_refused(path):
        calibration = calibration_of(metadata)
        config = Config.from_dict(metadata["config"]).to_dict()  # also the settings that an older release did not have
        backbone, thumbnails = metadata["backbone"], metadata["thumbnail_bytes"]
        lines = [
            ("format", str(metadata["format"])),
            ("backbone", f"{config['backbone']} from {backbone['source']}" + " (embedded)" * backbone["embedded"]),
            ("weights sha256", backbone["sha256"]),
            ("images", f"{count_of(len(metadata['images']), 'good image')}, {metadata['patches']} patches each"),
            ("region", f"{roi:.0%} of the image" if (roi := metadata.get("roi")) is not None else "the whole image"),
            ("thumbnails", f"{thumbnails / 2**20:.1f} MiB" if thumbnails else "none"),
        ]
        if calibration is None:
            lines.append(("threshold", "none: fitted on too few images; see procon threshold"))
        else:
            names = ["threshold", *[""] * 9]
            images = [str(image["name"]) for image in metadata["images"]]
            sentences = calibration.describe(images)
            sentences[0] = sentences[0].removeprefix("threshold ")  # the name of the line says it
            lines += zip(names, sentences, strict=False)
            lines.append(("pixel threshold", f"{calibration.pixel_threshold:.4f}"))
        lessons = [describe_lesson(lesson) for lesson in metadata.get("lessons", [])]
        lines += zip(["lessons", *[""] * len(lessons)], lessons, strict=False)
        if (renderings := renderings_of(metadata)) is not None and calibration is not None:
            flags = [is_found for _, is_found in renderings.judged(calibration.threshold)]
            lines.append(("limits", f"{sum(flags)} of {len(flags)} rendered defects found; see procon threshold"))
        changes = [str(Change.from_dict(change)) for change in metadata["history"]] or ["none since the fit"]
        lines += zip(["changes", *[""] * len(changes)], changes, strict=False)
    side = config["image_size"]
    width, height = (side, side) if isinstance(side, int) else (side[1], side[0])
    config = {**config, "image_size": f"{width} x {height} pixels"}
    return lines + [(name.replace("_", " "), _setting(value)) for name, value in config.items() if name != "backbone"]


def _setting(value: object) -> str:
    """The value of a setting as it is typed after ``--set``."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def calibration_of(metadata: Mapping[str, Any]) -> Calibration | None:
    """The calibration in the metadata of a model file."""
    return Calibration.from_dict(metadata["calibration"]) if metadata["calibration"] is not None else None


def read_calibration(path: Path) -> Calibration | None:
    """The calibration in a model file, without reading its tensors."""
    metadata = read_metadata(path)
    with mismatch_refused(path):
        return calibration_of(metadata)


def write_calibration(path: Path, calibration: Calibration, change: Change) -> None:
    """Put another calibration into a model file, with an entry in its log; the tensors stay as they are."""
    metadata = read_metadata(path)
    rewrite_metadata(
        path,
        config={
            **metadata["config"],
            "false_alarm_rate": calibration.false_alarm_rate,
            "threshold_rule": calibration.rule,
        },
        calibration=calibration.to_dict(),
        history=[*metadata["history"], change.to_dict()],
    )


def renderings_of(metadata: Mapping[str, Any]) -> Renderings | None:
    """The scores of rendered defects in the metadata of a model file; None before ``procon limits``."""
    stored = metadata.get("renderings")
    return None if stored is None else Renderings.from_dict(stored)


def read_renderings(path: Path) -> Renderings | None:
    """The scores of rendered defects in a model file, without reading its tensors."""
    metadata = read_metadata(path)
    with mismatch_refused(path):
        return renderings_of(metadata)


def write_renderings(path: Path, renderings: Renderings) -> None:
    """Put the scores of rendered defects into a model file; the tensors and the threshold stay as they are."""
    rewrite_metadata(path, renderings=renderings.to_dict())
