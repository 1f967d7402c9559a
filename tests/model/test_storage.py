"""A model file is whole or refused, and the refusal says what is wrong."""

import json
import os
import re
import stat
import struct
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from procon.errors import ModelFileError
from procon.files import atomic_path, atomic_text
from procon.model import storage
from procon.model.metadata import KEY, MODEL_FORMAT, read_metadata, rewrite_metadata
from procon.model.storage import read_model, write_model

IMAGES = [{"name": f"{name}.png", "size": [96, 80], "digest": "file:0"} for name in "aü"]
METADATA: dict[str, Any] = {
    "config": {"layers": [-3, -6], "seed": 42},
    "backbone": {
        "source": "path:tiny",
        "sha256": "0",
        "fingerprint": "1",
        "architecture": {"hidden": 32, "depth": 4, "heads": 2, "registers": 0, "swiglu": False, "mlp_ratio": 4},
        "embedded": False,
    },
    "images": IMAGES,
    "thumbnail_bytes": 0,
    "patches": 25,
    "roi": None,
    "calibration": {
        "scores": [0.1, 0.3125],
        "peaks": [0.2, 0.4],
        "medians": [0.01, 0.02],
        "false_alarm_rate": 0.01,
        "kind": "leave-one-out",
        "images": [],
    },
    "history": [],
    "ü": None,
}


def make_tensors() -> dict[str, Tensor]:
    return {
        "anchors": torch.arange(48, dtype=torch.float32).view(12, 4) / 7,
        "banks": torch.arange(10, dtype=torch.int32).view(2, 5),
        "half": torch.ones(3, dtype=torch.float16),
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "part.procon"
    write_model(path, make_tensors(), METADATA)
    return path


def header_length(path: Path) -> int:
    return int(struct.unpack("<Q", path.read_bytes()[:8])[0])


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_round_trip(model: Path) -> None:
    tensors, metadata = read_model(model)
    assert {name: metadata[name] for name in METADATA} == METADATA
    assert metadata["format"] == 1
    assert read_metadata(model) == metadata
    assert tensors.keys() == make_tensors().keys()
    for name, tensor in make_tensors().items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_the_same_content_is_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = tmp_path / "folder" / "that" / "is" / "new.procon"
    write_model(again, dict(reversed(make_tensors().items())), METADATA)
    assert again.read_bytes() == model.read_bytes()


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    kinds = (torch.bool, torch.uint8, torch.int8, torch.float16, torch.int32, torch.float32, torch.float64, torch.int64)
    tensors = {f"ü {kind} {shape}": torch.ones(shape).to(kind) for kind in kinds for shape in ((), (0,), (3, 2), (1,))}
    write_model(tmp_path / "own.procon", tensors, METADATA)
    metadata = {KEY: json.dumps(read_metadata(tmp_path / "own.procon"))}
    save_file(tensors, tmp_path / "theirs.procon", metadata=metadata)
    assert (tmp_path / "own.procon").read_bytes() == (tmp_path / "theirs.procon").read_bytes()
    read_model(tmp_path / "own.procon")


def test_transposed_tensors_keep_their_values(tmp_path: Path) -> None:
    write_model(tmp_path / "t.procon", {"t": torch.arange(6.0).view(2, 3).T}, METADATA)
    assert torch.equal(read_model(tmp_path / "t.procon")[0]["t"], torch.arange(6.0).view(2, 3).T)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    before = model.read_bytes()

    def write_half(stream: IO[bytes], *_: object) -> None:
        stream.write(before[:50])
        raise error

    monkeypatch.setattr(storage, "_write_safetensors", write_half)
    with pytest.raises(error):
        write_model(model, make_tensors(), METADATA)
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_atomic_text_appears_whole_or_not_at_all(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "report.csv"
    with atomic_text(path) as stream:
        stream.write("ä\r\n")
        assert not path.exists()
    assert path.read_bytes() == "ä\r\n".encode()
    with pytest.raises(error), atomic_text(path) as stream:
        stream.write("half")
        raise error
    assert path.read_bytes() == "ä\r\n".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="no umask")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with atomic_path(tmp_path / "file") as temporary:
            temporary.write_bytes(b"content")
        assert os.umask(mask) == mask  # asking for the mask has not changed it
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_file_cut_anywhere_is_called_truncated(model: Path) -> None:
    content, header = model.read_bytes(), header_length(model)
    cuts = {9, 20, header // 2, 7 + header, 8 + header, 9 + header, (8 + header + len(content)) // 2, len(content) - 1}
    for cut in sorted(cuts):
        model.write_bytes(content[:cut])
        assert "is truncated" in refusal(model), cut
    for cut in (1, 7):  # not even a length
        model.write_bytes(content[:cut])
        assert "is not a ProCon model" in refusal(model)


def test_one_flipped_bit_in_the_data_is_called_corrupted(model: Path) -> None:
    content = bytearray(model.read_bytes())
    for position in range(8 + header_length(model), len(content)):
        content[position] ^= 1 << position % 8
        model.write_bytes(content)
        assert "is corrupted: its checksum does not match" in refusal(model), position
        content[position] ^= 1 << position % 8


def test_one_flipped_bit_in_the_header_is_refused(model: Path) -> None:
    content = bytearray(model.read_bytes())
    for position in range(8 + header_length(model)):
        for bit in (0, 4):
            content[position] ^= 1 << bit
            model.write_bytes(content)
            assert re.search("corrupted|truncated|not a ProCon model|has format", refusal(model)), (position, bit)
            content[position] ^= 1 << bit
    model.write_bytes(content)
    read_model(model)  # every bit was put back, so each refusal above was for its own bit


def test_a_changed_threshold_is_called_corrupted(model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content.replace(b"0.3125", b"0.9125"))
    assert model.read_bytes() != content
    assert "is corrupted: its checksum does not match" in refusal(model)


def test_trailing_bytes_are_called_corrupted(model: Path) -> None:
    model.write_bytes(model.read_bytes() + b"more")
    assert "is corrupted" in refusal(model)


def test_a_newer_format_asks_for_an_upgrade(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MODEL_FORMAT", MODEL_FORMAT + 1)
    lesson = {"name": "lesson 1", "image": IMAGES[0], "box": [0, 0, 9, 9], "patches": [3]}
    monkeypatch.setattr(storage, "check_written", lambda *_: None)
    write_model(model, make_tensors(), {**METADATA, "lessons": [lesson]})
    monkeypatch.undo()
    assert (
        f"has format {MODEL_FORMAT + 1}, this release reads up to {MODEL_FORMAT}; upgrade with: pip install"
        in refusal(model)
    )


@pytest.mark.parametrize(
    "metadata", [None, {"format": "pt"}, {"procon": "no JSON"}, {"procon": "[1]"}, {"procon": "{}"}]
)
def test_other_safetensors_files_are_told_apart(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(3)}, path, metadata=metadata)
    assert "is a safetensors file but not a ProCon model" in refusal(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"hello", "is not a ProCon model"),
        (b"just some text that is no model at all\n" * 10, "is not a ProCon model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a ProCon model"),
        (struct.pack("<Q", 4) + b"[12]", "is not a ProCon model"),
        (struct.pack("<Q", 2) + b"{}", "not a ProCon model"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "thing.procon"
    path.write_bytes(content)
    assert complaint in refusal(path)


@pytest.mark.parametrize("offsets", [[0.64], [], "ab", [0, None], [0, "64"], 7])
def test_offsets_of_another_kind_are_refused(tmp_path: Path, offsets: object) -> None:
    path = tmp_path / "odd.procon"
    header = json.dumps({"weight": {"dtype": "F32", "shape": [16], "data_offsets": offsets}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    assert "not a ProCon model" in refusal(path)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    assert "no such model file; make one with: procon fit" in refusal(tmp_path / "absent.procon")
    assert "no such model file" in refusal(tmp_path)  # a folder


# ------------------------------------------------------------------------------------------------- changed metadata


def test_changed_metadata_gives_the_file_that_would_have_been_written(model: Path, tmp_path: Path) -> None:
    many = {**METADATA["calibration"], "scores": [7, 1.5e-300] * 50, "ä": "ö"}
    for changes in ({"calibration": None}, {"calibration": many}):
        written = rewrite_metadata(model, **changes)
        write_model(tmp_path / "whole.procon", make_tensors(), {**METADATA, **changes})
        assert model.read_bytes() == (tmp_path / "whole.procon").read_bytes()
        assert read_model(model)[1] == written
        write_model(model, make_tensors(), METADATA)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_while_changing_leaves_the_old_file(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    before = model.read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("shutil.copyfileobj", fail)
    with pytest.raises(error):
        rewrite_metadata(model, calibration=None)
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_changing_metadata_does_not_heal_damaged_tensors(model: Path) -> None:
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    rewrite_metadata(model, calibration=None)
    assert "is corrupted: its checksum does not match" in refusal(model)


def test_metadata_alone_is_checked_too(model: Path) -> None:
    model.write_bytes(model.read_bytes().replace(b"0.3125", b"0.9125"))
    for attempt in (read_metadata, rewrite_metadata):
        with pytest.raises(ModelFileError, match="is corrupted: its checksum does not match"):
            attempt(model)
