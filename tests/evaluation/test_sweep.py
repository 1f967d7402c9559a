"""Many variants at once: each has the scores of a detector of its own, to the bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon import Config, ConfigError, Detector
from procon.evaluation.runs import sweep as sweep_module
from procon.evaluation.runs.sweep import Sweep, VariantScores
from procon.evaluation.runs.tokens import TokenCache
from procon.model.verdict import place_map
from procon.progress import Progress
from procon.vision.backbone import Backbone
from tests.conftest import part_pixels, tiny_config

CPU = torch.device("cpu")
GOOD, TEST = 6, 4
VARIANTS: dict[str, dict[str, object]] = {
    "procon": {},
    "one bank": {"banks": 1},
    "two banks": {"banks": 2},
    "smaller": {"coreset_ratio": 0.1},
    "hard": {"readout": "hard"},
    "hard, one bank": {"readout": "hard", "banks": 1, "layers": (-2,)},
    "uniform": {"readout": "uniform"},
    "fixed temperature": {"tau": 0.02},
    "subsampled temperature": {"tau_patches": 5},
    "three neighbours": {"num_neighbors": 3},
    "one layer": {"layers": (-1,)},
    "concat": {"layer_fusion": "concat"},
    "concat, projected": {"layer_fusion": "concat", "projection_dim": 16, "selection_dim": 8},
    "median": {"layer_fusion": "median"},
    "max": {"layer_fusion": "max"},
    "robust": {"normalization": "robust"},
    "normal statistics": {"normalization": "train"},
    "normal statistics, one bank": {"normalization": "train", "banks": 1},
    "relative score": {"score_relative_to": "anchors"},
    "shifted map": {"map_offset": 1.0},
    "map shifted a quarter": {"map_offset": 0.25},
    "relative score, shifted map": {"score_relative_to": "anchors", "map_offset": 1.0, "banks": 1},
    "max patch": {"top_ratio": 1e-6},
    "random": {"coreset": "random"},
    "dense": {"coreset": "dense"},
    "dense, smaller": {"coreset": "dense", "coreset_ratio": 0.1},
    "other banks": {"bank_seed": 100},
    "other projections": {"seed": 7, "projection_dim": 16},
    "fp16 anchors": {"compression": "fp16"},
    "capped": {"max_anchors": 11},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / f"{index}.png" for index in range(GOOD + TEST)]
    for index, path in enumerate(paths):
        Image.fromarray(part_pixels(index, defect=index >= GOOD + TEST // 2)).save(path)
    return paths


def make_tokens(folder: Path, images: list[Path], weights: Path) -> tuple[TokenCache, Backbone, Config]:
    base = tiny_config(weights, layers=(-1, -2, -3))
    backbone = Backbone.load(base, CPU)
    rows, columns = base.grid
    cache = TokenCache(folder, images, rows * columns, backbone.architecture.hidden, backbone.sha256)
    return cache, backbone, base


def ignore(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def swept(
    tmp_path_factory: pytest.TempPathFactory, images: list[Path], tiny_backbone: Path
) -> dict[Config, VariantScores]:
    folder = tmp_path_factory.mktemp("sweep")
    cache, backbone, _ = make_tokens(folder / "tokens", images, tiny_backbone)
    cache.fill(backbone, tiny_config(tiny_backbone), ignore)
    configs = [tiny_config(tiny_backbone, **{"layers": (-1, -2, -3), **settings}) for settings in VARIANTS.values()]
    results: dict[Config, VariantScores] = {}
    sweep = Sweep(folder / "residuals", cache, GOOD, backbone)
    sweep.run(configs, results.__setitem__, ignore, verdicts=True)
    return results


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_scores_as_a_detector_of_its_own(
    name: str, swept: dict[Config, VariantScores], images: list[Path], tiny_backbone: Path
) -> None:
    config = tiny_config(tiny_backbone, **{"layers": (-1, -2, -3), **VARIANTS[name]})
    detector = Detector(config, device="cpu").fit(images[:GOOD])
    found = detector.predict(images[GOOD:])
    assert swept[config].scores.tolist() == [result.score for result in found]
    maps = detector.reader.input_maps(torch.from_numpy(swept[config].maps).flatten(1)).numpy()
    for mine, result in zip(maps, found, strict=True):
        placed = place_map(config, mine, result.heatmap.shape).whole()
        assert np.array_equal(placed, result.heatmap)
    good = swept[config].good
    assert good is not None and good.shape == (GOOD, 3)
    assert detector.calibration is not None
    np.testing.assert_allclose(good, detector.calibration.good_scores, rtol=1e-6)


def test_work_that_is_done_is_not_done_again(
    images: list[Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, backbone, base = make_tokens(tmp_path / "tokens", images, tiny_backbone)
    cache.fill(backbone, base, ignore)
    sweep = Sweep(tmp_path / "residuals", cache, GOOD, backbone)
    first: dict[Config, VariantScores] = {}
    sweep.run([base], first.__setitem__, ignore)
    monkeypatch.setattr(sweep_module, "read_neighbors", _fail)
    monkeypatch.setattr(sweep_module, "select_anchors", _fail)
    again: dict[Config, VariantScores] = {}
    fewer = tiny_config(tiny_backbone, layers=(-2, -3), banks=1, top_ratio=0.1)  # parts of what is there
    sweep.run([base, fewer], again.__setitem__, ignore)
    assert np.array_equal(again[base].maps, first[base].maps)
    assert fewer in again
    with pytest.raises(AssertionError, match="done again"):
        sweep.run([tiny_config(tiny_backbone, banks=3)], again.__setitem__, ignore)


def _fail(*_: object, **__: object) -> None:
    raise AssertionError("done again")


def test_a_larger_bank_is_taken_from_scratch_and_a_smaller_one_from_its_beginning(
    images: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    cache, backbone, base = make_tokens(tmp_path / "tokens", images, tiny_backbone)
    cache.fill(backbone, base, ignore)
    results: dict[Config, VariantScores] = {}
    for ratio in (0.2, 0.4, 0.1):  # each in a sweep of its own, as separate commands would
        config = tiny_config(tiny_backbone, coreset_ratio=ratio)
        Sweep(tmp_path / "shared", cache, GOOD, backbone).run([config], results.__setitem__, ignore)
        alone: dict[Config, VariantScores] = {}
        Sweep(tmp_path / str(ratio), cache, GOOD, backbone).run([config], alone.__setitem__, ignore)
        assert np.array_equal(results[config].maps, alone[config].maps)


def test_statistics_of_too_few_images_are_refused(images: list[Path], tiny_backbone: Path, tmp_path: Path) -> None:
    cache, backbone, base = make_tokens(tmp_path / "tokens", [images[0], *images[GOOD:]], tiny_backbone)
    cache.fill(backbone, base, ignore)
    sweep = Sweep(tmp_path / "residuals", cache, 1, backbone)
    with pytest.raises(ConfigError, match="normalization='train' needs more training images"):
        sweep.run([tiny_config(tiny_backbone, normalization="train")], ignore, ignore)


def test_training_images_are_scored_only_where_it_is_asked_for(
    images: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    cache, backbone, base = make_tokens(tmp_path / "tokens", images, tiny_backbone)
    cache.fill(backbone, base, ignore)
    results: dict[Config, VariantScores] = {}
    Sweep(tmp_path / "residuals", cache, GOOD, backbone).run([base], results.__setitem__, ignore)
    assert results[base].good is None


def test_one_training_image_is_scored_by_its_mirror_image(
    images: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    cache, backbone, _ = make_tokens(tmp_path / "tokens", [images[0], *images[GOOD:]], tiny_backbone)
    config = tiny_config(tiny_backbone, layers=(-3, -1))  # other blocks than those in use
    cache.fill(backbone, config, ignore)
    results: dict[Config, VariantScores] = {}
    Sweep(tmp_path / "residuals", cache, 1, backbone).run([config], results.__setitem__, ignore, verdicts=True)
    calibration = Detector(config, device="cpu").fit(images[:1]).calibration
    assert calibration is not None and calibration.kind == "mirrored"
    good = results[config].good
    assert good is not None
    np.testing.assert_allclose(good, calibration.good_scores, rtol=1e-6)


def test_training_images_that_are_too_few_give_no_scores(
    images: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    cache, backbone, _ = make_tokens(tmp_path / "tokens", [*images[:2], *images[GOOD:]], tiny_backbone)
    config = tiny_config(tiny_backbone, coreset_ratio=0.01)
    cache.fill(backbone, config, ignore)
    results: dict[Config, VariantScores] = {}
    Sweep(tmp_path / "residuals", cache, 2, backbone).run([config], results.__setitem__, ignore, verdicts=True)
    assert Detector(config, device="cpu").fit(images[:2]).calibration is None
    good = results[config].good
    assert good is not None and good.shape == (0, 3)


# ----------------------------------------------------------------------------------------------------------- tokens


def all_tokens(cache: TokenCache, backbone: Backbone) -> list[list[torch.Tensor]]:
    return list(cache.load_tokens(backbone.layers, range(len(cache.images))))


class Killed(Exception):  # noqa: N818
    pass


def kill_at(count: int) -> Progress:
    def progress(_stage: str, done: int, _total: int) -> None:
        if done == count:
            raise Killed

    return progress


@pytest.mark.parametrize("killed_at", [1, 8, 9])
def test_tokens_go_on_where_a_kill_stopped_them(
    images: list[Path], tiny_backbone: Path, tmp_path: Path, killed_at: int
) -> None:
    whole, backbone, base = make_tokens(tmp_path / "whole", images, tiny_backbone)
    whole.fill(backbone, base, ignore)
    cache, _, _ = make_tokens(tmp_path / "cut", images, tiny_backbone)
    with pytest.raises(Killed):
        cache.fill(backbone, base, kill_at(killed_at))
    cache, _, _ = make_tokens(tmp_path / "cut", images, tiny_backbone)  # a new process knows only what is on disk
    assert cache.missing(backbone.layers)
    seen: list[int] = []
    cache.fill(backbone, base, lambda _stage, done, _total: seen.append(done))
    assert seen[0] == (1 if killed_at < 8 else 9)  # noted every eight images
    assert not cache.missing(backbone.layers)
    for mine, expected in zip(all_tokens(cache, backbone), all_tokens(whole, backbone), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))


def test_tokens_of_other_images_or_weights_are_not_taken_for_ours(
    images: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    cache, backbone, base = make_tokens(tmp_path, images, tiny_backbone)
    cache.fill(backbone, base, ignore)
    rows, columns = base.grid
    for others, identity in ((images[1:], backbone.sha256), (images, "other weights")):
        other = TokenCache(tmp_path, others, rows * columns, backbone.architecture.hidden, identity)
        assert other.missing(backbone.layers) == sorted(backbone.layers)


def test_more_blocks_are_added_to_those_that_are_there(images: list[Path], tiny_backbone: Path, tmp_path: Path) -> None:
    cache, backbone, base = make_tokens(tmp_path, images, tiny_backbone)
    cache.fill(backbone, base, ignore)
    deeper = Backbone.load(tiny_config(tiny_backbone, layers=(-4,)), CPU)
    assert cache.missing((*backbone.layers, *deeper.layers)) == list(deeper.layers)
    before = all_tokens(cache, backbone)
    cache.fill(deeper, base, ignore)
    assert not cache.missing((*backbone.layers, *deeper.layers))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(before, all_tokens(cache, backbone), strict=True))


def test_an_unreadable_image_is_named(images: list[Path], tiny_backbone: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    shutil.copy(__file__, bad)
    cache, backbone, base = make_tokens(tmp_path / "tokens", [images[0], bad], tiny_backbone)
    with pytest.raises(Exception, match=r"bad\.png"):
        cache.fill(backbone, base, ignore)
