"""The document of a model file is checked as a whole before any command uses it."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from procon import Detector
from procon.documents import sealed
from procon.errors import ModelFileError
from procon.model import metadata
from procon.model.metadata import KEY, read_metadata, rewrite_metadata
from tests.conftest import Run, part_pixels

_MODEL_COMMANDS = {
    "info": ["info", "{model}"],
    "info json": ["info", "{model}", "--json"],
    "predict": ["predict", "{model}", "{image}"],
    "explain": ["explain", "{model}", "{image}", "-o", "{out}.png"],
    "threshold": ["threshold", "{model}"],
    "threshold rate": ["threshold", "{model}", "--false-alarm-rate", "0.05"],
    "teach": ["teach", "{model}", "{image}", "--box", "30,40,50,60"],
    "add": ["add", "{model}", "{image}"],
    "forget": ["forget", "{model}", "000.png"],
    "merge": ["merge", "{model}", "{model}", "-o", "{out}.procon"],
    "export": ["export", "{model}", "--to", "onnx", "-o", "{out}"],
    "watch": ["watch", "{good}", "--model", "{model}", "--csv", "{out}.csv"],
}


def forge(model: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The file ``model`` with a changed document, whose checksum is right."""
    content = model.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    document = json.loads(header["__metadata__"][KEY])
    change(document)
    header["__metadata__"][KEY] = json.dumps(sealed(document))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize("kind", ["brackets", "nested", "infinity", "NaN threshold"])
@pytest.mark.parametrize("command", _MODEL_COMMANDS)
def test_a_crafted_file_is_a_sentence_in_every_command(
    command: str, kind: str, run: Run, detector: Detector, good_folder: Path, tmp_path: Path
) -> None:
    valid, model, image = detector.save(tmp_path / "valid.procon"), tmp_path / "m.procon", tmp_path / "a.png"
    Image.fromarray(part_pixels(3)).save(image)
    if kind == "brackets":
        model.write_bytes(struct.pack("<Q", 200_000) + b"[" * 200_000)
    elif kind == "nested":
        header = json.dumps({"__metadata__": {KEY: '{"a":' * 50_000}}).encode()
        model.write_bytes(struct.pack("<Q", len(header)) + header)
    elif kind == "infinity":
        model.write_bytes(struct.pack("<Q", 90) + b'{"a": {"data_offsets": [0, 1e999]}}'.ljust(90))
    else:
        forge(valid, model, lambda document: document["calibration"].update(fixed=math.nan))
    before = sorted(path.name for path in tmp_path.iterdir())
    named = {"model": model, "image": image, "good": good_folder, "out": tmp_path / "out"}
    code, _, err = run(*(word.format(**named) for word in _MODEL_COMMANDS[command]))
    assert code == 2 and "Traceback" not in err and f"error: {model}: " in err, err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_settings_that_an_older_release_did_not_have_are_those_of_today(
    run: Run, detector: Detector, tmp_path: Path
) -> None:
    valid, model = detector.save(tmp_path / "valid.procon"), tmp_path / "m.procon"
    forge(valid, model, lambda document: document["config"].pop("threshold_rule"))
    assert run("info", model)[1] == run("info", valid)[1].replace("valid.procon", "m.procon")
    assert Detector.load(model, device="cpu").config == detector.config


_BAD: tuple[Any, ...] = (-1, math.inf, 1e40, "x", None, True, [], {}, [[]])
_PLACES: dict[str, tuple[Any, ...]] = {
    "config": _BAD,
    "config.image_size": ("x", None, [], {}, [[]], 1e40, -1),
    "config.layers": ("x", None, [], 1e40),
    "config.weights": (1, [], "a\0b"),
    "config.false_alarm_rate": (*_BAD, 1e-7, 1),
    "backbone": _BAD,
    "backbone.source": (1, None, [], "\0"),
    "backbone.embedded": (1, None, "yes", 2**40),
    "backbone.architecture": _BAD,
    "backbone.architecture.heads": (*_BAD, 0, 1.5),
    "images": (*_BAD, ["x"]),
    "images.0.size": (*_BAD, [1], [1, 2, 3], [0, 1], [1.5, 2]),
    "images.0.name": (1, None, "\0"),
    "thumbnail_bytes": (-1, "x", None, 0.5, True),
    "patches": (*_BAD, 0, 1.5),
    "roi": (-1, 1.5, "x", True, [], {}),
    "calibration": (1, "x", [], {}),
    "calibration.scores": (*_BAD, ["x"], [None]),
    "calibration.scores.0": ("x", None, True, [], 1e40),
    "calibration.false_alarm_rate": (*_BAD, 1e-7, 0, 1),
    "calibration.fixed": (-1, 1e40, "x", True, [], {}),
    "calibration.rule": ("x", None, 1, []),
    "calibration.kind": ("x", None, 1, []),
    "calibration.kept": (-1, "x", None, True, 1.5),
    "history": (*_BAD[:6], {}, ["x"], [{}], [{"when": 1, "what": "a", "images": []}]),
    "lessons": (-1, "x", True, {}, ["x"], [{}]),
    "tensors_sha256": (1, [], None),
}


@pytest.mark.parametrize("place", _PLACES)
def test_a_document_that_does_not_fit_is_refused_and_the_place_is_named(
    place: str, detector: Detector, tmp_path: Path
) -> None:
    valid, model = detector.save(tmp_path / "valid.procon"), tmp_path / "m.procon"
    *above, last = place.split(".")

    for value in _PLACES[place]:

        def change(document: dict[str, Any], value: Any = value) -> None:
            parent: Any = document
            for step in above:
                parent = parent[int(step) if step.isdigit() else step]
            parent[int(last) if last.isdigit() else last] = value

        forge(valid, model, change)
        with pytest.raises(ModelFileError) as caught:
            Detector.load(model, device="cpu")
        assert str(caught.value).startswith(f"{model}: ") and len(str(caught.value)) < 600, value


def test_a_model_that_would_not_load_does_not_replace_the_old_one(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = detector.save(tmp_path / "m.procon")
    before = model.read_bytes()
    stored = read_metadata(model)["calibration"]
    with pytest.raises(ModelFileError, match=r"m\.procon: was not written.*false_alarm_rate must be a number from"):
        rewrite_metadata(model, calibration={**stored, "false_alarm_rate": 1e-7})
    monkeypatch.setattr(type(detector.calibration), "to_dict", lambda _: {**stored, "fixed": -1.0})
    with pytest.raises(ModelFileError, match=r"m\.procon: was not written.*calibration\.fixed must be a number from 0"):
        detector.save(model)
    assert model.read_bytes() == before and list(tmp_path.iterdir()) == [model]
    assert metadata.read_metadata(model)["calibration"] == stored
