"""The bridge to anomalib, in anomalib's own environment, with random weights; README.md has the command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("anomalib")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from anomalib.data import Folder
from anomalib.engine import Engine
from PIL import Image
from tests.conftest import part_pixels, write_tiny_backbone

from procon import Config, Detector
from procon.bridges.anomalib import Procon, ProconModel


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "part"
    for place in ("good", "bad", "mask"):
        (root / place).mkdir(parents=True)
    for number in range(12):
        Image.fromarray(part_pixels(number)).save(root / f"good/{number:03d}.png")
    mask = np.zeros((96, 80), np.uint8)
    mask[40:60, 30:50] = 255
    for number in range(4):
        Image.fromarray(part_pixels(100 + number, defect=True)).save(root / f"bad/{number:03d}.png")
        Image.fromarray(mask).save(root / f"mask/{number:03d}.png")
    return root


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    weights = write_tiny_backbone(tmp_path_factory.mktemp("weights") / "tiny")
    return {"backbone": "dinov2-custom", "weights": str(weights), "image_size": 70, "layers": [-1, -3], "banks": 2,
            "coreset_ratio": 0.3, "num_neighbors": 3}  # fmt: skip


def folder(part: Path) -> Folder:
    return Folder(name="part", root=part, normal_dir="good", abnormal_dir="bad", mask_dir="mask", num_workers=0,
                  train_batch_size=4, eval_batch_size=4, seed=1)  # fmt: skip


def pixels_of(path: Path) -> torch.Tensor:
    """An image as anomalib's datasets give it: [1, 3, H, W] in 0..1."""
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).unsqueeze(0) / 255


def test_scores_and_maps_are_those_of_the_detector(part: Path, settings: dict[str, Any]) -> None:
    model, images = ProconModel(Config.from_dict(settings), "cpu"), sorted((part / "good").iterdir())
    for path in images:
        model(pixels_of(path))
    model.fit()
    own = Detector(Config.from_dict(settings), device="cpu").fit(images)
    for path in (part / "bad/000.png", part / "good/003.png"):
        answer, alone = model.eval()(pixels_of(path)), own.predict(path)
        assert float(answer.pred_score[0]) == pytest.approx(alone.score, rel=1e-6)
        assert np.array_equal(answer.anomaly_map[0, 0].numpy(), alone.heatmap)


def test_the_engine_fits_tests_predicts_and_loads(part: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    engine = Engine(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    model, data = Procon(settings, device="cpu"), folder(part)
    engine.fit(model, datamodule=data)
    memory = model.model.detector.memory
    assert memory is not None and len(memory.images) == len(data.train_data) > 4
    (found,) = engine.test(model, datamodule=data)
    assert found["image_AUROC"] == pytest.approx(1.0) and found["pixel_AUROC"] > 0.9
    predicted = engine.predict(model, dataset=data.test_data, return_predictions=True)
    assert sum(len(batch.image_path) for batch in predicted) == len(data.test_data)
    answer = model.model.eval()(pixels_of(part / "bad/000.png"))
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    again = Procon.load_from_checkpoint(checkpoint, weights_only=True)
    assert float(again.model.eval()(pixels_of(part / "bad/000.png")).pred_score[0]) == float(answer.pred_score[0])


def test_the_command_line_takes_it_as_a_model(part: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "anomalib"
    words = [program, "train", "--model", "procon.bridges.anomalib.Procon", "--model.device", "cpu"]
    words += ["--model.settings", json.dumps(settings), "--data", "anomalib.data.Folder", "--data.name", "part"]
    words += ["--data.root", part, "--data.normal_dir", "good", "--data.abnormal_dir", "bad", "--data.mask_dir", "mask"]
    words += ["--data.num_workers", "0", "--default_root_dir", tmp_path, "--trainer.accelerator", "cpu"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "image_AUROC" in done.stdout
