"""The folder of an exported model: what is in it, how to call it, and that it has arrived unchanged."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.config import Config
from procon.errors import ConfigError, ModelFileError

FORMAT = 1
MANIFEST = "manifest.json"
RUNTIMES = ("onnx", "openvino")
PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Threshold:
    """What a calibration comes down to when a part is judged, under the same names."""

    threshold: float
    """Image score above which a part is called anomalous."""
    pixel_threshold: float
    """Heat-map value above which a pixel belongs to a region."""
    typical: float
    """Median patch score of good images: where the colour scale begins."""
    scores: tuple[float, ...]
    """Image scores of the good images it was calibrated on."""
    medians: tuple[float, ...]
    """Their median patch scores: light and camera move them, defects do not."""
    kind: str
    """``leave-one-out`` or ``held-out``."""
    promised_rate: float
    """Share of good parts that exceed the threshold, at most, on average."""
    sentences: tuple[str, ...] = ()
    """What the threshold can promise."""

    def p_value(self, score: float) -> float:
        """(1 + number of good images scoring at least ``score``) / (n + 1)."""
        return (1 + sum(good >= score for good in self.scores)) / (len(self.scores) + 1)

    def describe(self) -> list[str]:
        """What the threshold is and what it can promise, in sentences for people."""
        return list(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self) | {name: list(getattr(self, name)) for name in ("scores", "medians", "sentences")}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Threshold":
        """The inverse of :meth:`to_dict`; a KeyError, TypeError or ValueError says what does not fit."""
        return cls(
            float(stored["threshold"]),
            float(stored["pixel_threshold"]),
            float(stored["typical"]),
            tuple(float(score) for score in stored["scores"]),
            tuple(float(median) for median in stored["medians"]),
            str(stored["kind"]),
            float(stored["promised_rate"]),
            tuple(map(str, stored["sentences"])),
        )


@dataclass(frozen=True)
class Manifest:
    """``manifest.json`` of an exported folder."""

    folder: Path
    entries: Mapping[str, Any]
    """The whole of it, as stored."""
    config: Config
    calibration: Threshold | None

    @property
    def model(self) -> Path:
        """The file that a runtime opens."""
        return self.folder / str(self.entries["model"])

    @property
    def runtime(self) -> str:
        """``onnx`` or ``openvino``."""
        return str(self.entries["runtime"])

    @property
    def precision(self) -> str:
        """``fp32``, ``fp16`` or ``int8``."""
        return str(self.entries["precision"])

    def describe(self) -> list[str]:
        """The model in a few lines for people."""
        facts = [str(line) for line in self.entries["facts"]]
        if self.calibration is None:
            return [*facts, "no threshold: fit on more images to get one"]
        return [*facts, *self.calibration.describe()]


def is_exported(path: Path) -> bool:
    """Whether ``path`` is a folder that ``procon export`` wrote."""
    return (path / MANIFEST).is_file()


def write_manifest(folder: Path, entries: Mapping[str, Any], files: Sequence[str]) -> None:
    """Write ``entries`` with the sizes and checksums of ``files``, and a checksum over it all."""
    described = {name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in files}
    document = _sealed({"format": FORMAT, **entries, "files": described})
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest and the checksums of all files; anything missing or damaged is refused."""
    folder = Path(folder)
    entries = _read(folder)
    try:
        if entries["runtime"] not in RUNTIMES or entries["precision"] not in PRECISIONS:
            raise ValueError(f"unknown runtime {entries['runtime']!r} or precision {entries['precision']!r}")
        config = Config.from_dict(entries["config"])
        stored = entries["threshold"]
        calibration = None if stored is None else Threshold.from_dict(stored)
        files = {str(name): (int(file["bytes"]), str(file["sha256"])) for name, file in entries["files"].items()}
        model, facts = str(entries["model"]), entries["facts"]
        if model not in files or not isinstance(facts, list):
            raise ValueError("the model is not among its files")
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ModelFileError(f"{folder}: its content does not fit together ({what}); export again") from None
    for name, (size, sha256) in files.items():
        _check_file(folder, name, size, sha256)
    return Manifest(folder, entries, config, calibration)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir() or not path.is_file():
        raise ModelFileError(
            f"{folder}: is not an exported model (no {MANIFEST}); make one with: "
            f"procon export part.procon --to onnx -o {folder.name or 'part'}"
        )
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        version = entries["format"]
    except (ValueError, KeyError, TypeError):
        raise ModelFileError(
            f"{path}: is not a manifest or is damaged; copy the folder again or export again"
        ) from None
    if not isinstance(version, int) or version > FORMAT:
        raise ModelFileError(
            f"{path}: has format {version}, this release reads up to {FORMAT}; upgrade with: pip install -U procon"
        )
    if _sealed(entries)["checksum"] != entries.get("checksum"):
        raise ModelFileError(
            f"{path}: is corrupted: its checksum does not match; copy the folder again or export again"
        )
    return dict(entries)


def _check_file(folder: Path, name: str, size: int, sha256: str) -> None:
    path = folder / name
    if Path(name).name != name:  # a manifest must not point anywhere else
        raise ModelFileError(f"{folder}: its manifest names the file {name!r} outside the folder; export again")
    if not path.is_file():
        raise ModelFileError(f"{path}: is missing; copy the whole folder again or export again")
    if path.stat().st_size != size:
        found = path.stat().st_size
        raise ModelFileError(f"{path}: has {found:,} of {size:,} bytes; copy the folder again or export again")
    if _sha256(path) != sha256:
        raise ModelFileError(
            f"{path}: is corrupted: its checksum does not match; copy the folder again or export again"
        )


def _sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in entries.items() if name != "checksum"}
    return {**rest, "checksum": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
