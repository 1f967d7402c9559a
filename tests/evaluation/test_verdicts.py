"""Verdicts at the threshold of the model: counts by kind, regions, and what is said where the threshold is unknown."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from procon.config import Config
from procon.evaluation.data.datasets import Sample
from procon.evaluation.runs.raw import Raw
from procon.evaluation.runs.verdicts import ImageVerdicts, explain_unknown, judge_images, tally_pixels
from tests.evaluation.sample_run import BASE, make_run

GOOD = np.array([[score, score + 0.1, score / 2] for score in (0.10, 0.11, 0.12, 0.13, 0.14)])
"""Too few to aim at a rate: the threshold is the highest score, 0.14, the pixel threshold the highest peak, 0.24."""


def made_raw(good: np.ndarray | None = GOOD) -> Raw:
    """Two kinds of defects and three good images with chosen scores."""
    scores = {"dent": [0.5, 0.14], "scratch": [0.05, 0.15, 0.9], "good": [0.14, 0.1, 0.2]}
    samples = [
        Sample(Path(f"{kind}{n}.png"), kind, None) for kind, values in scores.items() for n in range(len(values))
    ]
    values = np.array([score for values in scores.values() for score in values])
    maps = np.zeros((len(values), 1, 1), np.float32)
    return Raw(values, maps, tuple(samples), (1, 1), 0.0, None, {"system": "procon"}, good)


def judged(raw: Raw, config: Config) -> ImageVerdicts | None:
    return judge_images(raw.calibrate(config), raw.scores, raw.samples)


def test_counts_by_kind_are_those_of_the_threshold() -> None:
    verdicts = judged(made_raw(), BASE)
    assert verdicts is not None
    assert verdicts.calibration.threshold == 0.14
    assert [tuple(tally) for tally in verdicts.defects] == [("dent", 2, 1), ("scratch", 3, 2)]  # 0.14 is not above 0.14
    assert tuple(verdicts.good) == ("good", 3, 1)
    assert (verdicts.found, verdicts.defective) == (3, 5)
    assert verdicts.f1 == pytest.approx(2 * 3 / (4 + 5))
    assert verdicts.flagged.tolist() == [True, False, False, True, True, False, False, True]


def test_another_rule_is_computed_from_the_same_scores() -> None:
    half = judged(made_raw(), replace(BASE, threshold_rule="guarantee", false_alarm_rate=0.5))
    assert half is not None
    assert half.calibration.threshold == 0.12
    assert tuple(half.good) == ("good", 3, 2)


def test_one_training_image_is_a_mirrored_calibration() -> None:
    calibration = made_raw(GOOD[:1]).calibrate(BASE)
    assert calibration is not None and (calibration.kind, calibration.threshold) == ("mirrored", 0.10)


def test_regions_and_pixels_above_the_pixel_threshold() -> None:
    mask = np.zeros((6, 8), bool)
    mask[0, 0] = mask[1, 1] = True  # one region: diagonals touch
    mask[4:6, 4:6] = True
    values = np.zeros((6, 8), np.float32)
    values[1, 1] = 0.3
    values[0, 7] = 0.3  # above, but not a defect
    values[4, 4] = 0.24  # at the threshold, not above it
    good = np.full((6, 8), 0.1, np.float32)
    good[2, 2] = 0.5
    tally = tally_pixels([values, good], [mask, None], 0.24)
    assert tally is not None
    assert (tally.regions, tally.hit) == (2, 1)
    assert tally.f1 == pytest.approx(2 * 1 / (3 + 6))
    assert tally_pixels([good], [None], 0.24) is None


def test_an_unknown_threshold_is_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    older, few = made_raw(None), made_raw(np.zeros((0, 3)))
    assert judged(older, BASE) is None and judged(few, BASE) is None
    assert "with --verdicts" in explain_unknown(run, older)
    assert "use more training images" in explain_unknown(run, few)
    peer = replace(older, about={"system": "another system"})
    assert explain_unknown(run, peer) == "threshold unknown: another system stored no scores of its training images"


def test_scores_of_training_images_survive_the_way_through_the_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    raw = run.load("flange", "coreset_ratio=0.01")
    assert raw.good is not None and raw.good.shape == (12, 3)
    run.verdicts = True
    assert run.has("flange", replace(BASE, coreset_ratio=0.01))
    older = make_run(tmp_path / "old", categories=("flange",), verdicts=False)
    assert older.has("flange", replace(BASE, coreset_ratio=0.01))
    older.verdicts = True
    assert not older.has("flange", replace(BASE, coreset_ratio=0.01))  # so that the command computes them
    assert older.load("flange", "coreset_ratio=0.01").good is None
