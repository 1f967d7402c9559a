"""Model files: refused with a sentence, or usable in every command that reads them."""

import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from procon import Detector
from procon.config import ThresholdRule
from procon.documents import sealed
from procon.errors import ModelFileError
from procon.model.calibration import RATES
from procon.model.document import describe_file, read_calibration
from procon.model.file import load_model
from procon.model.metadata import KEY
from procon.model.storage import _tensors_sha256, read_model
from procon.vision.weights import read_safetensors
from tests.conftest import part_pixels, tiny_config, write_tiny_backbone
from tests.fuzz.targets import Check, Source, Target, change_document

RAW = b"raw:"
"""How an input begins that is a file as it is; any other is a list of changes of a valid document."""


def _change_tensor(tensors: dict[str, torch.Tensor], source: Source) -> None:
    """Change values, type or shape of one tensor, or remove it."""
    name = sorted(tensors)[source.number(len(tensors))]
    tensor = tensors[name].clone()
    kind = source.number(6)
    if kind == 0:
        del tensors[name]
        return
    if kind == 1:
        tensor = tensor.flatten()
    elif kind == 2:
        tensor = tensor[: source.number(3)] if tensor.ndim else tensor
    elif kind == 3:
        tensor = tensor.to((torch.float16, torch.int8, torch.int64, torch.float64, torch.bool)[source.number(5)])
    elif tensor.numel():
        values = (
            (-1, 0, 127, 2**31 - 1, -(2**31)) if not tensor.is_floating_point() else (math.nan, math.inf, -1, 1e38, 0)
        )
        value = values[source.number(5)]
        with np.errstate(all="ignore"):
            flat = tensor.flatten()
            flat[source.number(flat.numel())] = torch.tensor(value).to(tensor.dtype)
            tensor = flat.view(tensor.shape)
    tensors[name] = tensor


def pack(tensors: dict[str, torch.Tensor], document: dict[str, Any], header_source: Source | None = None) -> bytes:
    """A file with this content, whose checksums are right."""
    entries: dict[str, Any] = {}
    body = b""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
             torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        content = tensors[name].contiguous().numpy().tobytes()
        span = [len(body), len(body) + len(content)]
        entries[name] = {"dtype": kinds[tensors[name].dtype], "shape": list(tensors[name].shape), "data_offsets": span}
        body += content
    document = sealed({**document, "tensors_sha256": _tensors_sha256(tensors)})
    header = {"__metadata__": {KEY: json.dumps(document)}, **entries}
    if header_source is not None and header_source.left:
        change_document(header, header_source)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


@contextmanager
def _open(folder: Path) -> Iterator[Check]:
    (folder / "good").mkdir()
    for number in range(8):
        Image.fromarray(part_pixels(number)).save(folder / "good" / f"{number}.png")
    weights = write_tiny_backbone(folder / "tiny")
    detector = Detector(tiny_config(weights), device="cpu").fit(folder / "good", thumbnails=True)
    detector.teach(part_pixels(9, defect=True), (30, 40, 50, 60))
    valid = detector.save(folder / "valid.procon")
    text = json.dumps(read_model(valid)[1])
    tensors = {name: tensor.clone() for name, tensor in read_safetensors(valid).items()}
    path = folder / "changed.procon"

    def check(data: bytes) -> None:
        if data.startswith(RAW):
            path.write_bytes(data.removeprefix(RAW))
        else:
            source = Source(data)
            document, changed = json.loads(text), dict(tensors)
            wanted = source.number(8)
            for _ in range(source.number(4)):
                change_document(document, source)
            if wanted & 1 and changed:
                _change_tensor(changed, source)
            path.write_bytes(pack(changed, document, source if wanted & 4 else None))
        use_model(path)

    check(b"\x00")
    yield check


def use_model(path: Path) -> None:
    """Whatever commands do with a file; only a :class:`ModelFileError` may be raised, and none after a full read."""
    for reader in (describe_file, read_calibration):
        try:
            reader(path)
        except ModelFileError as error:
            assert str(error).startswith(f"{path}: ")
    try:
        model, _ = load_model(path)
    except ModelFileError as error:
        assert str(error).startswith(f"{path}: ")
        return
    known = model.calibration
    if known is not None:
        assert math.isfinite(known.threshold) and math.isfinite(known.pixel_threshold)
        rules: tuple[ThresholdRule, ...] = ("robust", "guarantee")
        for rule in rules:
            for rate in RATES[::2]:
                changed = known.at_rate(rate, rule)
                assert math.isfinite(changed.threshold)
                changed.describe(model.memory.names)
        assert 0 < known.p_value(known.threshold) <= 1
    describe_file(path)
    model.describe()


def _seeds() -> dict[str, bytes]:
    seeds = {
        f"change-{place}-{value}": bytes([0, 1, place, 0, value]) for place in range(0, 250, 25) for value in range(3)
    }
    seeds |= {f"tensor-{name}-{kind}": bytes([1, 0, name, kind, 1]) for name in range(12) for kind in range(6)}
    seeds["header"] = bytes([4, 0, 9, 0, 30])
    seeds["brackets"] = RAW + struct.pack("<Q", 200_000) + b"[" * 200_000
    seeds["empty"] = RAW
    seeds["other"] = RAW + struct.pack("<Q", 2) + b"{}"
    return seeds


TARGET = Target(_open, _seeds, ())
