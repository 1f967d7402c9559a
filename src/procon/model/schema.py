"""What the document of a model file must hold. It is checked as a whole before anything of it is used."""

from typing import Any

from procon.config import CHOICES, LOWEST_RATE, Config
from procon.documents import Form, choice, fields, flag, list_of, maybe, number, text
from procon.errors import ConfigError

_count = number(0, 2**31, whole=True)
_side = number(1, 2**31, whole=True)
_score = number()

_image = fields({"name": text, "size": list_of(_side, 2, 2), "digest": text})


def _settings(value: Any, place: str) -> None:
    """The settings of a detector."""
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be an object, got {value!r}")
    try:
        config = Config.from_dict(value)
    except (ConfigError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from None
    if config.weights is not None:
        text(config.weights, f"{place}.weights")


def _below_one(shape: Form) -> Form:
    def check(value: Any, place: str) -> None:
        shape(value, place)
        if not value < 1:
            raise ValueError(f"{place} must be below 1, got {value!r}")

    return check


_CALIBRATION = fields(
    {
        "scores": list_of(_score, 1),
        "peaks": list_of(_score, 1),
        "medians": list_of(_score, 1),
        "false_alarm_rate": _below_one(number(LOWEST_RATE, 1)),
        "kind": text,  # which kinds there are is checked with the calibration
        "images": list_of(_image),
    },
    {"fixed": maybe(number(0)), "rule": choice(*CHOICES["threshold_rule"]), "kept": _count},
)

_BACKBONE = fields(
    {
        "source": text,
        "sha256": text,
        "fingerprint": text,
        "architecture": fields(
            {"hidden": _side, "depth": _side, "heads": _side, "registers": _count, "swiglu": flag, "mlp_ratio": _side}
        ),
        "embedded": flag,
    }
)

_CHANGE = fields({"when": text, "what": text, "images": list_of(text)}, {"count": _count, "note": text})

_LESSON = fields(
    {
        "name": text,
        "image": _image,
        "box": list_of(number(-(2**31), 2**31, whole=True), 4, 4),
        "patches": list_of(_count, 1),
    }
)

DOCUMENT = fields(
    {
        "config": _settings,
        "backbone": _BACKBONE,
        "images": list_of(_image, 1),
        "thumbnail_bytes": number(0, 2**62, whole=True),
        "patches": _side,
        "calibration": maybe(_CALIBRATION),
        "history": list_of(_CHANGE),
        "tensors_sha256": text,
    },
    {"roi": maybe(number(0, 1)), "lessons": list_of(_LESSON)},
)
