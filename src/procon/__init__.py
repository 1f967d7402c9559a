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
from procon.method.regions import Region
from procon.prediction import Anchor, Explanation, LayerEvidence, LessonEvidence, NormalPatch, Prediction

if TYPE_CHECKING:
    from procon.detector import Detector
    from procon.evaluation.labelled import evaluate_detector as evaluate
    from procon.results.table import to_pandas

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
    "evaluate",
    "to_pandas",
]

# Imported on first use: they pull in torch, and `import procon` and `procon --help` must not wait for it.
_ON_USE = {
    "Detector": ("procon.detector", "Detector"),
    "evaluate": ("procon.evaluation.labelled", "evaluate_detector"),
    "to_pandas": ("procon.results.table", "to_pandas"),
}


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        module, attribute = _ON_USE[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'procon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
