"""The JSON document of a model file: read, checked and rewritten without its tensors, and without torch."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from procon.documents import parse_json, sealed
from procon.errors import ModelFileError
from procon.files import atomic_path
from procon.model.schema import DOCUMENT

MODEL_FORMAT = 2  # the highest that is read: 2 holds lessons, which a reader of format 1 would leave out silently
PLAIN_FORMAT = 1
KEY = "procon"  # the entry of the safetensors metadata that holds our JSON


def rewrite_metadata(path: Path, **changes: Any) -> dict[str, Any]:
    """Replace entries of the metadata; the tensors are copied byte for byte, and the whole file changes at once.

    Gives the metadata now in the file.
    """
    path = Path(path)
    document = sealed({**read_metadata(path), **changes})
    header = {**_read_header(path), "__metadata__": {KEY: json.dumps(document)}}
    with path.open("rb") as source, atomic_path(path) as temporary, temporary.open("wb") as target:
        source.seek(8 + struct.unpack("<Q", source.read(8))[0])
        target.write(pack_header(header))
        shutil.copyfileobj(source, target, 2**20)
        target.flush()
        check_written(path, temporary)
    return document


def pack_header(header: dict[str, Any]) -> bytes:
    """The beginning of a safetensors file."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text


def read_metadata(path: Path) -> dict[str, Any]:
    """The JSON of a model file, after checking that it is one, complete, unchanged, valid, and of a format we read.

    Tensors are not read; :func:`procon.model.storage.read_model` checks them.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file; make one with: procon fit FOLDER -o {path.name}")
    header = _read_header(path)
    try:
        metadata = parse_json(header["__metadata__"][KEY])
    except (KeyError, TypeError, ValueError):
        raise ModelFileError(f"{path}: is a safetensors file but not a ProCon model") from None
    version = metadata.get("format") if isinstance(metadata, dict) else None
    if not isinstance(version, int):
        raise ModelFileError(f"{path}: is a safetensors file but not a ProCon model")
    if version > MODEL_FORMAT:
        raise ModelFileError(
            f"{path}: has format {version}, this release reads up to {MODEL_FORMAT}; upgrade with: "
            "pip install -U procon"
        )
    if sealed(metadata)["checksum"] != metadata.get("checksum"):
        raise ModelFileError(f"{path}: is corrupted: its checksum does not match; copy it again or fit again")
    try:
        DOCUMENT(metadata, "")
    except ValueError as error:
        raise ModelFileError(f"{path}: its content does not fit together ({error}); fit again") from None
    return dict(metadata)


def check_written(path: Path, temporary: Path) -> None:
    """Read back what was written for ``path``, before it takes the place of an earlier model."""
    try:
        read_metadata(temporary)
    except ModelFileError as error:
        reason = str(error).removeprefix(f"{temporary}: ")
        raise ModelFileError(f"{path}: was not written, because it could not be read again: it {reason}") from None


def _read_header(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= 100_000_000:
            kind = "is empty" if size == 0 else "is not a ProCon model"
            raise ModelFileError(f"{path}: {kind}; copy it again or fit again")
        text = stream.read(length)
    if text[:1] == b"{" and len(text) < length:
        raise ModelFileError(f"{path}: is truncated: it ends inside its header; copy it again or fit again")
    try:
        header: dict[str, Any] = parse_json(text)
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        expected = 8 + length + int(end)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ModelFileError(f"{path}: is not a ProCon model, or its header is corrupted") from None
    if size < expected:
        raise ModelFileError(f"{path}: is truncated: {size:,} of {expected:,} bytes; copy it again or fit again")
    return header
