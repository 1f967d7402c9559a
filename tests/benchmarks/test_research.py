"""The bench: readouts against plain loops, readings against the detector, choices that a part had no say in."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon import Config, Detector
from procon.evaluation.data.datasets import Category, open_dataset
from procon.method.levels import PRIOR
from procon.method.maps import pixel_map
from procon.vision.images import open_image
from research import plan
from research.bench import Bench, Reading, image_scores, turn
from research.leaderboard import (
    IMAGE,
    PIXEL,
    Board,
    leave_one_part_out,
    map_metrics,
    samples_of,
    score_metrics,
)
from research.readouts import (
    Neighborhood,
    Normal,
    PatchReadout,
    find_neighbors,
    normal_statistics,
    read_patches,
    residuals,
)
from tests import reference
from tests.conftest import part_pixels, tiny_config
from tests.method.layers import soft_residual

IMAGES, PATCHES, DIMS, ANCHORS, K = 3, 6, 5, 20, 4


@pytest.fixture(scope="module")
def patches() -> torch.Tensor:
    return torch.randn(IMAGES, PATCHES, DIMS, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def anchors() -> torch.Tensor:
    return torch.randn(ANCHORS, DIMS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def near(patches: torch.Tensor, anchors: torch.Tensor) -> Neighborhood:
    return find_neighbors(patches, anchors, K)


# ------------------------------------------------------------------------------------------------------- readouts


def test_neighbors_are_those_of_plain_loops(near: Neighborhood, patches: torch.Tensor, anchors: torch.Tensor) -> None:
    for image in range(IMAGES):
        distances, rows = reference.nearest(patches[image].numpy(), anchors.numpy(), K)
        np.testing.assert_allclose(near.distances[image].numpy(), distances, rtol=1e-5)
        assert np.array_equal(near.rows[image].numpy(), rows)


def test_an_image_does_not_see_its_own_anchors(patches: torch.Tensor, anchors: torch.Tensor) -> None:
    origin = torch.arange(ANCHORS) % IMAGES
    found = find_neighbors(patches, anchors, K, origin)
    for image in range(IMAGES):
        assert (origin[found.rows[image]] != image).all()
        others = anchors[origin != image]
        expected = reference.nearest(patches[image].numpy(), others.numpy(), K)[0]
        np.testing.assert_allclose(found.distances[image].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["nearest", "mean-distance", "uniform"])
def test_residuals_are_those_of_plain_loops(
    near: Neighborhood, patches: torch.Tensor, anchors: torch.Tensor, kind: str
) -> None:
    values, weights = residuals(near, kind)
    for image, patch in ((0, 0), (2, 5)):
        differences = (patches[image, patch] - anchors[near.rows[image, patch]]).numpy()
        expected, shares = reference.neighborhood_residual(differences, kind)
        assert float(values[image, patch]) == pytest.approx(expected, rel=1e-5)
        assert weights[image, patch].tolist() == pytest.approx(shares)


def test_the_soft_residual_is_that_of_the_method(
    near: Neighborhood, patches: torch.Tensor, anchors: torch.Tensor
) -> None:
    values, weights = residuals(near, "soft")
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(IMAGES, PATCHES))
    for image in range(IMAGES):
        torch.testing.assert_close(values[image], soft_residual(patches[image], anchors, K), rtol=1e-4, atol=1e-6)
    fewer = PatchReadout(neighbors=2)
    torch.testing.assert_close(
        read_patches(near, fewer)[0], soft_residual(patches[0], anchors, 2), rtol=1e-4, atol=1e-6
    )


def test_a_relative_readout_divides_by_the_level_of_anchors_or_positions(near: Neighborhood) -> None:
    normal = Normal(torch.linspace(0.5, 2, ANCHORS), torch.linspace(1, 3, PATCHES))
    values, weights = residuals(near, "soft")
    levels = (weights * normal.anchors[near.rows]).sum(dim=2)
    plain = PatchReadout(neighbors=K)
    for power in (0.5, 1.0):
        by_anchor = PatchReadout(neighbors=K, relative_to="anchors", power=power)
        torch.testing.assert_close(read_patches(near, by_anchor, normal), values / levels**power)
        by_place = PatchReadout(neighbors=K, relative_to="positions", power=power)
        torch.testing.assert_close(read_patches(near, by_place, normal), values / normal.positions**power)
    torch.testing.assert_close(read_patches(near, plain, normal), values)
    with pytest.raises(ValueError, match="needs normal statistics, got None"):
        read_patches(near, PatchReadout(relative_to="anchors"))


def test_normal_levels_are_those_of_plain_loops(near: Neighborhood) -> None:
    readout = PatchReadout(neighbors=K, relative_to="anchors", statistic="high", shrinkage=3.0)
    found = normal_statistics(near, readout, ANCHORS)
    values, weights = (part.double().numpy() for part in residuals(near, "soft"))
    overall = float(values.mean()), float(np.square(values).mean())
    rows = near.rows.numpy()
    for anchor in range(ANCHORS):
        image, patch, slot = np.nonzero(rows == anchor)
        expected = reference.normal_level(list(values[image, patch]), list(weights[image, patch, slot]), overall, 3.0)
        assert float(found.anchors[anchor]) == pytest.approx(expected, rel=1e-5)
    for place in range(PATCHES):
        expected = reference.normal_level(list(values[:, place]), [1.0] * IMAGES, overall, 3.0)
        assert float(found.positions[place]) == pytest.approx(expected, rel=1e-5)
    mean = normal_statistics(near, PatchReadout(neighbors=K, shrinkage=0.0), ANCHORS)
    assert mean.positions.tolist() == pytest.approx(list(values.mean(axis=0)), rel=1e-5)


# ------------------------------------------------------------------------------------------------------- the bench


@pytest.fixture(scope="module")
def category(tmp_path_factory: pytest.TempPathFactory) -> Category:
    root = tmp_path_factory.mktemp("research") / "disc"
    for folder, seeds, defect in (("train/good", range(6), False), ("test/good", range(6, 8), False),
                                  ("test/square", range(8, 11), True)):  # fmt: skip
        (root / folder).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(part_pixels(seed, defect)).save(root / folder / f"{seed:03d}.png")
    (root / "ground_truth/square").mkdir(parents=True)
    mask = np.zeros((96, 80), np.uint8)
    mask[40:60, 30:50] = 255
    for seed in range(8, 11):
        Image.fromarray(mask).save(root / "ground_truth/square" / f"{seed:03d}_mask.png")
    dataset = open_dataset(root)
    return dataset.category(dataset.categories[0])


def tiny_reading(**settings: object) -> Reading:
    defaults: dict[str, object] = {"image_size": 70, "layers": (-1, -3), "banks": 2, "coreset_ratio": 0.3}
    return Reading(**{**defaults, **settings})  # type: ignore[arg-type]


def run_bench(category: Category, weights: Path, *readings: Reading, seed: int = 0) -> dict[Reading, torch.Tensor]:
    base = Config(backbone="dinov2-custom", weights=str(weights), image_size=70, layers=(-1, -3))
    return dict(Bench(category, base, torch.device("cpu")).run(readings, seed))


@pytest.mark.parametrize("seed", [0, 100])
def test_the_paper_as_a_reading_is_the_detector(category: Category, tiny_backbone: Path, seed: int) -> None:
    reading = tiny_reading()
    values = run_bench(category, tiny_backbone, reading, seed=seed)[reading]
    config = tiny_config(tiny_backbone, num_neighbors=5, bank_seed=seed)
    detector = Detector(config, device="cpu").fit(list(category.train))
    scores = image_scores(values, reading)
    for index, sample in enumerate(category.test):
        found = detector.predict(sample.path)
        assert found.score == pytest.approx(float(scores[index]), rel=1e-4)
        ((_, pixels),) = detector.reader.extractor.batches([open_image(sample.path)])
        expected = detector.scorer.measure_pixels(pixels)[1][0]
        torch.testing.assert_close(
            pixel_map(values[index : index + 1], (70, 70), 4.0)[0], expected, rtol=1e-4, atol=1e-5
        )


def test_the_recipe_as_a_reading_is_config_best(category: Category, tiny_backbone: Path) -> None:
    high = PatchReadout(relative_to="anchors", statistic="high")
    for_map, for_score = tiny_reading(less_median=1.0, typical=0.25), tiny_reading(readout=high)
    values = run_bench(category, tiny_backbone, for_map, for_score)
    settings = {"score_relative_to": "anchors", "map_offset": 1.0, "num_neighbors": 5}
    detector = Detector(tiny_config(tiny_backbone, **settings), device="cpu").fit(list(category.train))
    assert detector.memory is not None and detector.memory.quartile is not None
    for index, sample in enumerate(category.test):
        found = detector.predict(sample.path)
        assert found.score == pytest.approx(float(image_scores(values[for_score], for_score)[index]), rel=1e-4)
        ((_, pixels),) = detector.reader.extractor.batches([open_image(sample.path)])
        expected = detector.scorer.measure_pixels(pixels)[1][0] - detector.memory.quartile
        mine = pixel_map(values[for_map][index : index + 1], (70, 70), 4.0)[0]
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def test_readings_do_not_depend_on_their_company(category: Category, tiny_backbone: Path) -> None:
    relative = PatchReadout(relative_to="anchors")
    readings = [
        tiny_reading(),
        tiny_reading(readout=relative, banks=1),
        tiny_reading(scaled=True),
        tiny_reading(layers=((-1, -2),), channels="standard"),
        tiny_reading(turned="mirror", views="mirror"),
        tiny_reading(coreset_ratio=0.1, less_median=0.5),
        tiny_reading(tile=56),
    ]
    together = run_bench(category, tiny_backbone, *readings)
    assert len({reading.name for reading in readings}) == len(readings)
    for reading in readings:
        alone = run_bench(category, tiny_backbone, reading)[reading]
        torch.testing.assert_close(together[reading], alone, rtol=1e-5, atol=1e-6)
    assert all(not torch.allclose(together[readings[0]], together[other]) for other in readings[1:])


def test_a_turn_can_be_undone() -> None:
    images = torch.rand(2, 4, 4)
    for quarter in range(4):
        for mirrored in (False, True):
            turned = turn(images, quarter, mirrored)
            assert torch.equal(turn(turned, quarter, mirrored, back=True), images)
    assert torch.equal(turn(images, 0, True), images.flip(-1))


def test_metrics_of_a_perfect_map(category: Category) -> None:
    samples = samples_of(category)
    values = torch.zeros(len(samples), 8, 8)
    values[[sample.defective for sample in samples], 3:5, 3:5] = 1.0
    assert score_metrics(samples, image_scores(values, Reading())) == dict.fromkeys(IMAGE, 100.0)
    found = map_metrics(samples, values, 0.0, side=80)
    assert tuple(found) == PIXEL and found["p_auroc"] > 90
    assert map_metrics(samples, -values, 0.0, side=80)["p_auroc"] < 10


# ------------------------------------------------------------------------------------------------------- the choice


def rows(table: Mapping[str, Mapping[str, float]]) -> list[dict[str, str]]:
    return [
        {"reading": name, "part": part, "seed": seed, **{metric: str(value + shift) for metric in PIXEL}}
        for name, parts in table.items()
        for part, value in parts.items()
        for seed, shift in (("0", -1.0), ("1", 1.0))
    ]


TABLE = {
    "paper": {"a": 50.0, "b": 60.0, "c": 70.0},
    "good": {"a": 52.0, "b": 62.0, "c": 72.0},
    "loved by a": {"a": 90.0, "b": 61.0, "c": 71.0},
    "loses on c": {"a": 99.0, "b": 99.0, "c": 68.0},
    "not everywhere": {"a": 99.0},
}


def test_a_board_averages_over_parts_and_seeds() -> None:
    board = Board(rows(TABLE), PIXEL)
    assert board.mean("good", ["a", "b", "c"]) == pytest.approx(62)
    assert board.interval("good", ["a", "b", "c"], "p_ap") == pytest.approx((61, 63))
    assert board.gains("loses on c", "paper", ["a", "c"]) == {"a": pytest.approx(49), "c": pytest.approx(-2)}
    assert "not everywhere" not in board.complete(["a", "b"])


def test_the_best_may_not_lose_more_than_a_point_on_any_part() -> None:
    board = Board(rows(TABLE), PIXEL)
    assert board.best("paper", ["a", "b", "c"]) == "loved by a"
    assert board.best("paper", ["a", "b"]) == "loses on c"
    assert board.best("paper", ["a", "b", "c"], most_lost=2.0) == "loses on c"


def test_a_choice_is_judged_on_the_part_that_had_no_say() -> None:
    found = {one.part: one for one in leave_one_part_out(Board(rows(TABLE), PIXEL), "paper", ["a", "b", "c"])}
    assert found["a"].reading == "good", "a's own favourite must not be chosen without a"
    assert (found["a"].value, found["a"].baseline) == pytest.approx((52, 50))
    assert found["c"].reading == "loses on c" and found["c"].value < found["c"].baseline


# ------------------------------------------------------------------------------------------------------- the page


def test_the_page_says_what_the_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setattr("sys.path", [str(root / "benchmarks"), str(root / "docs" / "scripts"), *sys.path])
    script = importlib.import_module("generate_best")
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run: python docs/scripts/generate_best.py"


def test_the_first_recipe_and_the_settings_share_what_the_second_study_kept() -> None:
    best = Config.best()
    for reading in (plan.MAP, plan.SCORE):
        assert (reading.image_size // 14) ** 2 == best.patch_budget and set(reading.layers) < set(best.layers)
        assert (reading.banks, reading.tile) == (best.banks, best.tile)
        anchors = reading.coreset_ratio * len(reading.layers)
        assert anchors == pytest.approx(best.coreset_ratio * len(best.layers)), "the second recipe may cost no more"
    assert plan.MAP.blur_sigma * reading.image_size / 392 == pytest.approx(best.blur_sigma)
    assert plan.SCORE.readout.shrinkage == PRIOR and plan.SCORE.top_ratio == best.top_ratio
