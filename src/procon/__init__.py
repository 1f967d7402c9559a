"""ProCon: visual anomaly detection from good images alone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from procon.config import Config
from procon.errors import (
    BatchError,
    ConfigError,
    ImageError,
    MissingExtraError,
    ModelFileError,
    NotFittedError,
    OutputError,
    ProconError,
    WeightsError,
)
from procon.prediction import Anchor, Explanation, LayerEvidence, LessonEvidence, NormalPatch, Prediction, Region

if TYPE_CHECKING:
    from procon.detector import Detector

__version__ = "0.1.0"

__all__ = [
    "Anchor",
    "BatchError",
    "Config",
    "ConfigError",
    "Detector",
    "Explanation",
    "ImageError",
    "LayerEvidence",
    "LessonEvidence",
    "MissingExtraError",
    "ModelFileError",
    "NormalPatch",
    "NotFittedError",
    "OutputError",
    "Prediction",
    "ProconError",
    "Region",
    "WeightsError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Detector pulls in torch; `import procon` and `procon --help` must not wait for it.
    if name == "Detector":
        return import_module("procon.detector").Detector
    raise AttributeError(f"module 'procon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
