"""The study of recipes: metrics against the package's, voters against plain loops and against the detector."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon import Config, Detector
from procon.evaluation.metrics import evaluate
from procon.method.maps import gaussian_blur
from research import candidates, choose, plan, strict
from research.bench import Reading
from research.judge import Judge, blur, guided
from research.leaderboard import Board
from research.rendered import KINDS, draw_defect
from research.voters import (
    Neighbors,
    far_anchors,
    measure_good,
    position_read,
    project,
    read_test,
    read_without,
    search,
    values_of,
)
from tests.conftest import part_pixels, tiny_config
from tests.method.layers import soft_residual

IMAGES, PLACES, DIMS = 5, 12, 6
GRID = (3, 4)


@pytest.fixture(scope="module")
def good() -> torch.Tensor:
    values = torch.randn(IMAGES, PLACES, DIMS, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(values, dim=2)


@pytest.fixture(scope="module")
def new() -> torch.Tensor:
    values = torch.randn(3, PLACES, DIMS, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.normalize(values, dim=2)


PICKS = torch.arange(0, IMAGES * PLACES, 2)


@pytest.mark.parametrize("steps", [10, 4096])
def test_the_judge_agrees_with_the_package(steps: int) -> None:
    random = np.random.default_rng(3)
    maps = random.random((4, 20, 24)).astype(np.float32)
    masks = np.zeros((4, 20, 24), bool)
    masks[0, 2:6, 3:9] = masks[0, 10:15, 12:20] = masks[2, 5:8, 5:8] = True
    maps[masks] += 0.3
    maps = (np.round(maps * steps) / steps).astype(np.float32)
    labels = masks.any((1, 2)).astype(int)
    expected = evaluate(np.zeros(4), labels, maps, masks)
    found = Judge(torch.from_numpy(masks)).measure(torch.from_numpy(maps))
    for name in ("p_auroc", "p_ap", "p_f1", "aupro"):
        assert found[name] == pytest.approx(100 * expected[name], abs=2e-3), name
    chosen = evaluate(np.zeros(2), labels[:2], maps[:2], masks[:2])
    some = Judge(torch.from_numpy(masks)).measure(torch.from_numpy(maps), torch.tensor([0, 1]))
    assert some["aupro"] == pytest.approx(100 * chosen["aupro"], abs=2e-3)


def test_a_blur_along_both_sides_is_the_package_s() -> None:
    maps = torch.rand(2, 15, 18)
    torch.testing.assert_close(blur(blur(maps, -2, 2.0), -1, 2.0), gaussian_blur(maps, 2.0))
    assert torch.equal(blur(maps, -1, 0.0), maps)


def test_the_guided_filter_keeps_an_edge_of_the_image() -> None:
    guide = torch.zeros(1, 21, 21)
    guide[:, :, 11:] = 1.0
    noisy = guide + 0.1 * torch.randn(1, 21, 21, generator=torch.Generator().manual_seed(0))
    found = guided(noisy, guide, 4, 0.01)
    assert float((found - guide).abs().mean()) < 0.5 * float((noisy - guide).abs().mean())


def test_soft_values_are_those_of_the_method(good: torch.Tensor, new: torch.Tensor) -> None:
    anchors = good.flatten(0, 1)[PICKS]
    bank = measure_good(good, anchors, PICKS)[0]
    found = read_test(new, search(new, anchors), bank, ("soft", "hard", "plane", "spread", "mass", "high"))
    for image in range(len(new)):
        torch.testing.assert_close(found["soft"][image], soft_residual(new[image], anchors, 5), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["hard"], torch.cdist(new, anchors.expand(3, -1, -1)).amin(2), rtol=1e-4, atol=1e-5)
    assert (found["plane"] <= found["hard"] + 1e-5).all()


def test_the_plane_of_the_neighbors_is_that_of_least_squares(good: torch.Tensor, new: torch.Tensor) -> None:
    anchors = good.flatten(0, 1)[PICKS]
    near = search(new, anchors)
    soft = project(new, near.rows, anchors)
    bank = measure_good(good, anchors, PICKS)[0]
    found = values_of(soft, near.rows, bank, torch.ones(3, len(anchors)), ("plane",))["plane"]
    differences = soft.differences[1, 4].double()
    ridge = 0.1 * float(differences.square().sum(1).mean())
    gram = differences @ differences.T + ridge * torch.eye(5, dtype=torch.float64)
    weights = torch.linalg.inv(gram) @ torch.ones(5, dtype=torch.float64)
    expected = (weights / weights.sum()) @ differences
    assert float(found[1, 4]) == pytest.approx(float(expected.norm()), rel=1e-4)


def test_near_anchors_come_first(good: torch.Tensor, new: torch.Tensor) -> None:
    anchors = good.flatten(0, 1)[PICKS]
    place = PICKS % PLACES
    far = far_anchors(place, GRID, 0.4)
    for patch in range(PLACES):
        for anchor in range(len(PICKS)):
            row, column = divmod(int(place[anchor]), 4)
            expected = abs(patch // 4 - row) > 1.2 or abs(patch % 4 - column) > 1.6
            assert bool(far[patch, anchor]) == expected
    rows = search(new, anchors, far=far).rows
    inside = ~far[torch.arange(PLACES)[None, :, None], rows]
    enough = (~far).sum(1) >= 5
    assert inside[:, enough].all()


def test_positions_are_read_as_by_plain_loops(good: torch.Tensor, new: torch.Tensor) -> None:
    seen = torch.tensor([[True, False, True, True, False]] * 3)
    found = position_read(new, good, GRID, seen, 1)
    for image in range(3):
        for patch in range(PLACES):
            row, column = divmod(patch, 4)
            near = [r * 4 + c for r in range(3) for c in range(4) if abs(r - row) <= 1 and abs(c - column) <= 1]
            best = max(float(new[image, patch] @ good[n, p]) for n in (0, 2, 3) for p in near)
            assert float(found[image, patch]) == pytest.approx(1 - best, abs=1e-5)


def test_scores_with_and_without_own_anchors_are_the_detector_s(tmp_path: Path, tiny_backbone: Path) -> None:
    for number in range(8):
        Image.fromarray(part_pixels(number)).save(tmp_path / f"{number}.png")
    settings = {"score_relative_to": "anchors", "banks": 1, "layers": (-2,), "num_neighbors": 5}
    config: Config = tiny_config(tiny_backbone, **settings)
    detector = Detector(config, device="cpu").fit(tmp_path)
    assert detector.memory is not None and detector.calibration is not None
    layer = detector.memory.layers[0]
    features = torch.cat([image[0][0] for image in detector.reader.embed_each(sorted(tmp_path.iterdir()))])
    bank, near, weights, lengths = measure_good(features, layer.anchors.float(), layer.origin)
    everyone = torch.arange(len(features))
    good = read_without(features, everyone, near, bank, (near, weights, lengths), ("high",))["high"]
    scores = good.topk(max(1, round(config.top_ratio * good.shape[1])), dim=1).values.mean(1)
    assert scores.tolist() == pytest.approx(list(detector.calibration.scores), rel=1e-3)
    test = read_test(features, search(features, layer.anchors.float()), bank, ("high",))["high"]
    found = detector.predict(sorted(tmp_path.iterdir())[0]).score
    assert float(test[0].topk(1).values.mean()) == pytest.approx(found, rel=1e-3)


def test_hidden_anchors_are_not_found(good: torch.Tensor) -> None:
    anchors = good.flatten(0, 1)[PICKS]
    near: Neighbors = measure_good(good, anchors, PICKS)[1]
    for image in range(IMAGES):
        assert (PICKS[near.rows[image]] // PLACES != image).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_defect_changes_the_image_where_it_says(kind: str) -> None:
    pixels, donor = part_pixels(0), 255 - part_pixels(1)
    drawn, mask = draw_defect(pixels, donor, kind, np.random.RandomState(5))
    assert drawn.shape == pixels.shape and drawn.dtype == np.uint8
    assert 0 < mask.mean() < 0.2
    changed = np.abs(drawn.astype(int) - pixels).max(2) > 0
    assert changed[mask].mean() > 0.8 and changed[~mask].mean() < 0.1


def test_candidates_have_different_names() -> None:
    maps, scores = candidates.map_readings(), candidates.score_readings()
    assert len({one.name for one in maps}) == len(maps) > 500
    assert len({one.name for one in scores}) == len(scores) > 80
    assert {candidates.CONFIG.name, candidates.BEST.name} <= {one.name for one in maps}


def test_a_choice_that_loses_nowhere_is_made_without_the_part() -> None:
    def rows(table: dict[str, dict[str, tuple[float, float]]]) -> list[dict[str, str]]:
        return [
            {"reading": name, "part": part, "seed": "0", "p_ap": str(ap), "p_f1": "50", "aupro": str(aupro)}
            for name, parts in table.items()
            for part, (ap, aupro) in parts.items()
        ]

    table = {
        "paper": {"a": (50.0, 90.0), "b": (50.0, 90.0), "c": (50.0, 90.0)},
        "today": {"a": (55.0, 90.0), "b": (55.0, 90.0), "c": (55.0, 90.0)},
        "loses on c": {"a": (70.0, 90.0), "b": (70.0, 90.0), "c": (60.0, 88.5)},
        "dear": {"a": (80.0, 90.0), "b": (80.0, 90.0), "c": (80.0, 90.0)},
    }
    board = Board(rows(table), strict.MAP)
    readings = {"paper": Reading(), "today": plan.MAP, "loses on c": plan.MAP, "dear": Reading(image_size=784, banks=5)}
    assert strict.least_gain(board, "loses on c", "paper", "abc") == pytest.approx(-1.5)
    assert strict.choose(board, list(table)[:3], "paper", "abc") == "today"
    found = strict.choose_without_each(
        board, readings, "abc", "paper", "today", lambda reading: strict.is_affordable(reading, plan.MAP)
    )
    assert [one.reading for one in found] == ["today", "today", "loses on c"]
    assert found[2].least == pytest.approx(-1.5) and found[2].gain == pytest.approx((5 - 1.5) / 3)


def test_costs_are_those_of_patches_blocks_and_anchors() -> None:
    best = strict.cost_of(plan.MAP)
    assert best.anchors == 3 * 0.02 * 2304 * 200
    assert best.operations == 10 * (12 * 2304 * 384**2 + 2 * 2304**2 * 384) + 2304 * best.anchors * 384
    assert strict.cost_of(replace(plan.MAP, views="mirror")).operations == 2 * best.operations
    assert not strict.is_affordable(replace(plan.MAP, coreset_ratio=0.05), plan.MAP)
    assert strict.is_affordable(replace(plan.MAP, coreset_ratio=0.026), plan.MAP)
    tiled = strict.cost_of(replace(plan.MAP, tile=392))
    assert tiled.operations == 10 * 9 * (12 * 784 * 384**2 + 2 * 784**2 * 384) + 2304 * best.anchors * 384


def test_a_structure_score_counts_deviations_above_good_images() -> None:
    good = np.array([[1.0, 10.0], [3.0, 10.2], [2.0, 9.8]])
    found = choose.structure(np.array([[2.0, 10.0], [0.0, 0.0], [4.0, 10.0]]), good)
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] == pytest.approx(np.sqrt(((4 - 2) / 1) ** 2 / 2), rel=1e-3)


def test_the_results_of_a_study_have_a_row_for_every_score(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bad = np.array([False, False, True, True])
    numbers = random.random((1, 4, 8)) + 5 * bad[None, :, None]
    np.savez(tmp_path / "scores-0.npz", **{"part:test": numbers, "part:good": random.random((1, 9, 8))})
    rows = list(choose.score_rows(tmp_path, {"scores": ["soft"], "part": {"good": list(~bad)}}))
    assert [row["taken"] for row in rows] == [*choose.TAKEN, "structure", "top 0.5% and structure"]
    assert all(row["i_auroc"] == 100.0 and row["seed"] == "0" and row["verdict"] > 50 for row in rows)
