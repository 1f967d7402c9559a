"""A small run made by hand: images, masks, scores and maps of any variants, without a backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon import Config
from procon.evaluation.data.datasets import Sample, open_dataset
from procon.evaluation.runs.run import Run, variant_name
from procon.evaluation.runs.sweep import VariantScores
from tests.conftest import part_pixels

SIZE = 56  # pixels of a map: 4 x 4 patches
BASE = Config(backbone="dinov2-small", image_size=SIZE)
KINDS = ("good", "good", "good", "good", "scratch", "scratch", "scratch", "dent", "dent")
PROCON: dict[str, Any] = {"coreset_ratio": 0.01}


def write_images(root: Path, categories: Sequence[str], names: Mapping[int, str], kinds: Sequence[str] = KINDS) -> None:
    """A tree in the MVTec form with images of 96 x 80 pixels; ``names`` replaces the names of some test images."""
    for category in categories:
        (root / category / "train" / "good").mkdir(parents=True)
        Image.fromarray(part_pixels(0)).save(root / category / "train" / "good" / "000.png")
        for index, kind in enumerate(kinds):
            name = names.get(index, f"{index:03d}.png")
            place = root / category / "test" / kind / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as stream:
                Image.fromarray(part_pixels(index, defect=kind != "good")).save(stream, "PNG")
            if kind != "good":
                mask = np.zeros((96, 80), np.uint8)
                mask[40:60, 30:50] = 255
                mask[4:20, 60 : 70 + index] = 255
                mark = root / category / "ground_truth" / kind / f"{place.stem}_mask.png"
                mark.parent.mkdir(parents=True, exist_ok=True)
                with mark.open("wb") as stream:
                    Image.fromarray(mask).save(stream, "PNG")


def made_scores(samples: Sequence[Sample], seed: int, *, verdicts: bool = True) -> VariantScores:
    """Maps [N, 4, 4] with a bump where the larger defect is, scores that overlap a little, and 12 good scores."""
    random = np.random.default_rng(seed)
    maps = random.uniform(0.2, 0.4, (len(samples), 4, 4)).astype(np.float32)
    for index, sample in enumerate(samples):
        if sample.defective:
            maps[index, 1:3, 1:3] += random.uniform(0.0, 0.5)
    good = np.sort(random.uniform(0.36, 0.46, (12, 3)), axis=1)[:, ::-1] if verdicts else None
    return VariantScores(maps.reshape(len(samples), -1).max(axis=1), maps, good)


def make_run(
    folder: Path,
    variants: Sequence[Mapping[str, Any]] = (PROCON,),
    categories: Sequence[str] = ("flange", "lid"),
    names: Mapping[int, str] | None = None,
    *,
    verdicts: bool = True,
) -> Run:
    """Images below ``folder / "data"`` and raw results of ``variants`` (settings) in ``folder / "run"``."""
    write_images(folder / "data", categories, names or {})
    run = Run(folder / "run", open_dataset(folder / "data", "folder"), BASE)
    for settings in variants:
        add_variant(run, replace(BASE, **settings), verdicts=verdicts)
    return run


def add_variant(run: Run, config: Config, seed: int = 0, *, verdicts: bool = True) -> str:
    """Raw results of a variant on every category; the same for the same seed and name. Without ``verdicts``: as old."""
    name = variant_name(config)
    for place, category in enumerate(run.dataset.categories):
        samples = run.dataset.category(category).test
        scored = made_scores(samples, seed + 17 * place + sum(map(ord, name)), verdicts=verdicts)
        about = {"config": config.to_dict(), "size": config.input_size, "blur_sigma": 1.0, "system": "procon"}
        run.write(category, name, scored, samples, {**about, "resize": config.resize, "weights": "ab" * 32})
    return name
