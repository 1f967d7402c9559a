"""Shared fixtures: a tiny random DINOv2 on disk and a few small parts, so that every path runs offline in seconds."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from procon import Config, Detector
from tests.chromium import chromium

SIDE = 70  # pixels: a 5 x 5 grid

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `procon ARGS` in this process: (exit code, stdout, stderr)."""
    from procon.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["procon", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def write_tiny_backbone(
    folder: Path, *, registers: int = 0, swiglu: bool = False, seed: int = 0, hidden: int = 32
) -> Path:
    """A random DINOv2 of 4 blocks, ``hidden`` dimensions and a 5 x 5 position grid, as a Hugging Face folder."""
    from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    settings: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
        "use_swiglu_ffn": swiglu,
    }
    torch.manual_seed(seed)
    model = (
        Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**settings, num_register_tokens=registers))
        if registers
        else Dinov2Model(Dinov2Config(**settings))
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda1" in name:
                parameter.fill_(1.0)  # as initialised, the blocks would hardly change their input
            elif parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


def tiny_config(weights: Path, **settings: object) -> Config:
    """A configuration that runs in milliseconds."""
    defaults: dict[str, Any] = {
        "backbone": "dinov2-custom",
        "image_size": SIDE,
        "layers": (-1, -3),
        "banks": 2,
        "coreset_ratio": 0.3,
        "num_neighbors": 3,
    }
    return Config(weights=str(weights), **{**defaults, **settings})


def part_pixels(seed: int, defect: bool = False) -> NDArray[np.uint8]:
    """A grey disc on a dark ground with a little noise, uint8 [96, 80, 3]; a defect is a bright square."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:96, :80]
    disc = ((y - 48) ** 2 + (x - 40) ** 2 < 30**2)[:, :, None] * np.array([120, 110, 100])
    pixels = 40 + disc + random.normal(0, 3, (96, 80, 3))
    if defect:
        pixels[40:60, 30:50] = (250, 30, 30)
    return np.asarray(pixels.clip(0, 255), np.uint8)


def with_model(detector: Detector, **changes: Any) -> Detector:
    """A detector with the same backbone whose model differs by ``changes``."""
    other = Detector(detector.config, device=str(detector.device))
    other._reader, other.sources = detector.reader, detector.sources
    other.model = replace(detector.model, **changes)
    return other


@pytest.fixture(scope="session")
def good_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "good"
    folder.mkdir()
    for index in range(8):
        Image.fromarray(part_pixels(index)).save(folder / f"{index:03d}.png")
    return folder


@pytest.fixture(scope="session")
def detector(tiny_backbone: Path, good_folder: Path) -> Detector:
    """A fitted detector; tests must not change it."""
    return Detector(tiny_config(tiny_backbone), device="cpu").fit(good_folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, for tests marked ``browser``."""
    with chromium() as opened:
        yield opened
