"""The manifest of an exported model: its files, how to call it, and checksums that show any change."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.config import Config
from procon.documents import parse_json, sealed
from procon.errors import ConfigError, ModelFileError
from procon.files import sha256_of

MANIFEST_FORMAT = 1
MANIFEST = "manifest.json"
RUNTIMES = ("onnx", "openvino")
PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class ExportedCalibration:
    """The part of a :class:`procon.model.calibration.Calibration` that a verdict needs, under the same names."""

    threshold: float
    pixel_threshold: float
    typical: float
    usual_peak: float  # makes the colour scale
    scores: tuple[float, ...]
    medians: tuple[float, ...]
    kind: str
    promised_rate: float
    sentences: tuple[str, ...]  # what the threshold can promise

    def p_value(self, score: float) -> float:
        """(1 + number of good images scoring at least ``score``) / (n + 1)."""
        return (1 + sum(good >= score for good in self.scores)) / (len(self.scores) + 1)

    def describe(self) -> list[str]:
        """What the threshold is and what it can promise, in sentences for people."""
        return list(self.sentences)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "ExportedCalibration":
        """From ``threshold`` of a manifest; a KeyError, TypeError or ValueError says what is wrong."""
        numbers: dict[str, Any] = {
            name: float(stored[name]) for name in ("threshold", "pixel_threshold", "typical", "promised_rate")
        }
        numbers["usual_peak"] = float(stored.get("usual_peak", stored["pixel_threshold"]))  # older exports have none
        numbers |= {name: tuple(map(float, stored[name])) for name in ("scores", "medians")}
        return cls(**numbers, kind=str(stored["kind"]), sentences=tuple(map(str, stored["sentences"])))


@dataclass(frozen=True)
class Manifest:
    """``manifest.json`` of an exported folder."""

    entries: Mapping[str, Any]  # all of it, as stored
    model: Path  # the file that a runtime opens
    runtime: str
    precision: str
    config: Config
    calibration: ExportedCalibration | None

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        promises = self.calibration.describe() if self.calibration else ["no threshold: fit on more images to get one"]
        return [*map(str, self.entries["facts"]), *promises]


def is_exported(path: Path) -> bool:
    """Whether ``path`` is a folder that ``procon export`` wrote."""
    return (path / MANIFEST).is_file()


def write_manifest(folder: Path, entries: Mapping[str, Any], files: Sequence[str]) -> None:
    """Write ``entries`` with the sizes and checksums of ``files``, and a checksum of all entries."""
    described = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in files}
    document = sealed({"format": MANIFEST_FORMAT, **entries, "files": described})
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest and the checksums of all files; anything missing or damaged is refused."""
    entries = _read_entries(folder)
    try:
        runtime, precision, model = str(entries["runtime"]), str(entries["precision"]), str(entries["model"])
        if runtime not in RUNTIMES or precision not in PRECISIONS:
            raise ValueError(f"unknown runtime {runtime!r} or precision {precision!r}")
        config = Config.from_dict(entries["config"])
        stored = entries["threshold"]
        calibration = None if stored is None else ExportedCalibration.from_dict(stored)
        files = {str(name): (int(file["bytes"]), str(file["sha256"])) for name, file in entries["files"].items()}
        if model not in files or not isinstance(entries["facts"], list):
            raise ValueError("the model is not among its files")
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ModelFileError(f"{folder}: its content does not fit together ({what}); export again") from None
    for name, (size, sha256) in files.items():
        _check_file(folder, name, size, sha256)
    return Manifest(entries, folder / model, runtime, precision, config, calibration)


def _read_entries(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ModelFileError(
            f"{folder}: is not an exported model (no {MANIFEST}); make one with: "
            f"procon export part.procon --to onnx -o {folder.name or 'part'}"
        )
    try:
        entries = parse_json(path.read_text(encoding="utf-8"))
        version = entries["format"]
    except (ValueError, KeyError, TypeError):
        raise ModelFileError(
            f"{path}: is not a manifest or is damaged; copy the folder again or export again"
        ) from None
    if not isinstance(version, int) or version > MANIFEST_FORMAT:
        raise ModelFileError(
            f"{path}: has format {version}, this release reads up to {MANIFEST_FORMAT}; upgrade with: "
            "pip install -U procon"
        )
    if sealed(entries)["checksum"] != entries.get("checksum"):
        raise _corrupted(path)
    return dict(entries)


def _check_file(folder: Path, name: str, size: int, sha256: str) -> None:
    path = folder / name
    if Path(name).name != name:  # a manifest must not point anywhere else
        raise ModelFileError(f"{folder}: its manifest names the file {name!r} outside the folder; export again")
    if not path.is_file():
        raise ModelFileError(f"{path}: is missing; copy the whole folder again or export again")
    actual = path.stat().st_size
    if actual != size:
        raise ModelFileError(f"{path}: has {actual:,} of {size:,} bytes; copy the folder again or export again")
    if sha256_of(path) != sha256:
        raise _corrupted(path)


def _corrupted(path: Path) -> ModelFileError:
    return ModelFileError(f"{path}: is corrupted: its checksum does not match; copy the folder again or export again")
