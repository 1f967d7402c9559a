"""One safe file: tensors and JSON in the safetensors format, written atomically and checked when read."""

import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from procon.errors import ModelFileError
from procon.files import atomic_path
from procon.model.metadata import KEY, MODEL_FORMAT, PLAIN_FORMAT, check_written, read_metadata, sealed
from procon.vision.weights import read_safetensors


def write_model(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write ``tensors`` and JSON-ready ``metadata`` to ``path``; an earlier file there survives any failure."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    version = MODEL_FORMAT if metadata.get("lessons") else PLAIN_FORMAT
    document = sealed({**metadata, "format": version, "tensors_sha256": _tensors_sha256(tensors)})
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={KEY: json.dumps(document)})
        except SafetensorError as error:  # the number of the system's error is in its text only
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from error
        check_written(path, temporary)


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
