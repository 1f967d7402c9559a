"""One safe file: tensors and JSON in the safetensors format, written atomically and checked when read."""

import hashlib
import json
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from procon.documents import sealed
from procon.errors import ModelFileError
from procon.files import atomic_path
from procon.model.metadata import KEY, MODEL_FORMAT, PLAIN_FORMAT, check_written, pack_header, read_metadata
from procon.vision.weights import read_safetensors

_TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.float16, torch.int32, torch.float32, torch.float64, torch.int64),
)
_TYPE_NAMES = ("BOOL", "U8", "I8", "F16", "I32", "F32", "F64", "I64")  # larger ones come first in a file


def write_model(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write ``tensors`` and JSON-ready ``metadata`` to ``path``; an earlier file there survives any failure."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    version = MODEL_FORMAT if metadata.get("lessons") else PLAIN_FORMAT
    document = sealed({**metadata, "format": version, "tensors_sha256": _tensors_sha256(tensors)})
    with atomic_path(path) as temporary:
        with temporary.open("wb") as stream:
            _write_safetensors(stream, tensors, {KEY: json.dumps(document)})
        check_written(path, temporary)


def _write_safetensors(stream: IO[bytes], tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The bytes that ``safetensors.torch.save_file`` writes, which makes a temporary file of its own.

    A kill would leave that one next to the model, under a name that nobody knows.
    """
    order = sorted(tensors, key=lambda name: (-_TYPES.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        kind = _TYPE_NAMES[_TYPES.index(tensor.dtype)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    stream.write(pack_header(header))
    for name in order:
        stream.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a model file; anything damaged is refused with a sentence that says what."""
    path = Path(path)
    metadata = read_metadata(path)
    try:
        # Copies: the tensors that the reader gives are mapped, and overwriting the file would kill the process.
        tensors = {name: tensor.clone() for name, tensor in read_safetensors(path).items()}
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: is corrupted ({error}); copy it again or fit again") from None
    if _tensors_sha256(tensors) != metadata.get("tensors_sha256"):
        raise ModelFileError(f"{path}: is corrupted: its checksum does not match; copy it again or fit again")
    return tensors, metadata


def _tensors_sha256(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
