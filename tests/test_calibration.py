"""The promise behind a threshold: how often a good part is called anomalous."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procon.calibration import Calibration, conformal_quantile
from tests import reference

REPETITIONS = 5000


def calibrate(scores: list[float], rate: float = 0.01) -> Calibration:
    ascending = tuple(sorted(scores))
    return Calibration(ascending, tuple(2 * score for score in ascending), 0.1, rate)


def within_chance(rate: float) -> float:
    """A frequency that true probabilities up to ``rate`` exceed less than once in 30,000 runs: four sigma, binomial."""
    return rate + 4 * math.sqrt(rate * (1 - rate) / REPETITIONS)


scores_lists = st.lists(st.floats(0, 10), min_size=1, max_size=120)
coarse_lists = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=60)  # with ties


@given(scores_lists | coarse_lists, st.integers(1, 99))
def test_the_quantile_equals_the_reference(scores: list[float], percent: int) -> None:
    known = calibrate(scores, percent / 100)
    promised = max(Fraction(percent, 100), Fraction(1, len(scores) + 1))
    assert known.promised_rate == pytest.approx(float(promised))
    assert known.threshold == reference.conformal_quantile(scores, promised)
    assert known.pixel_threshold == 2 * known.threshold  # peaks are twice the scores here


@given(scores_lists | coarse_lists, st.integers(1, 99), st.floats(0, 11))
def test_the_verdict_is_the_p_value_at_the_promised_rate(scores: list[float], percent: int, score: float) -> None:
    known = calibrate(scores, percent / 100)
    assert (score > known.threshold) == (known.p_value(score) <= known.promised_rate + 1e-12)


@pytest.mark.parametrize(("images", "rate", "promised"), [(59, 0.01, 1 / 60), (99, 0.01, 0.01), (500, 0.01, 0.01)])
def test_no_more_is_promised_than_the_images_carry(images: int, rate: float, promised: float) -> None:
    assert calibrate([float(score) for score in range(images)], rate).promised_rate == pytest.approx(promised)


@pytest.mark.parametrize("images", range(1, 400, 7))
def test_rounding_never_moves_the_rank(images: int) -> None:
    ranks = tuple(float(rank) for rank in range(1, images + 1))
    for percent in range(1, 100):
        promised = max(Fraction(percent, 100), Fraction(1, images + 1))
        exact = math.ceil((images + 1) * (1 - promised))
        assert Calibration(ranks, ranks, 0.0, percent / 100).threshold == exact


def test_one_image() -> None:
    known = calibrate([0.4])
    assert known.promised_rate == 0.5
    assert known.threshold == 0.4
    assert (known.p_value(0.3), known.p_value(0.4), known.p_value(0.5)) == (1.0, 1.0, 0.5)


@given(scores_lists, st.floats(0.001, 0.998), st.floats(0.001, 0.998))
def test_a_smaller_rate_never_lowers_the_threshold(scores: list[float], one: float, other: float) -> None:
    ascending = tuple(sorted(scores))
    low, high = sorted((one, other))
    assert conformal_quantile(ascending, low) >= conformal_quantile(ascending, high)
    assert calibrate(scores, low).threshold >= calibrate(scores, high).threshold


@given(scores_lists, st.floats(0, 11), st.floats(0, 11))
def test_a_higher_score_never_has_a_higher_p_value(scores: list[float], one: float, other: float) -> None:
    known = calibrate(scores)
    low, high = sorted((one, other))
    assert 0 < known.p_value(high) <= known.p_value(low) <= 1


@pytest.mark.parametrize(("images", "rate"), [(1, 0.01), (9, 0.01), (20, 0.05), (59, 0.01), (99, 0.01), (60, 0.2)])
@pytest.mark.parametrize("digits", [1, 17])  # 1: most scores are tied
def test_good_parts_raise_no_more_false_alarms_than_promised(images: int, rate: float, digits: int) -> None:
    random = np.random.default_rng(images)
    draws = np.sort(random.gamma(3, size=(REPETITIONS, images)).round(digits), axis=1)
    new = random.gamma(3, size=REPETITIONS).round(digits)
    known = [calibrate(row.tolist(), rate) for row in draws]
    alarms = np.mean([score > calibration.threshold for calibration, score in zip(known, new, strict=True)])
    promised = known[0].promised_rate
    assert alarms <= within_chance(promised)
    if digits == 17:  # without ties the threshold is not needlessly high either: at most one rank too much
        assert alarms >= promised - 1 / (images + 1) - (within_chance(promised) - promised)


@pytest.mark.parametrize("images", [1, 9, 50])
@pytest.mark.parametrize("digits", [1, 17])
def test_the_p_value_of_a_good_part_is_never_too_small_too_often(images: int, digits: int) -> None:
    random = np.random.default_rng(images)
    draws, new = random.normal(size=(REPETITIONS, images)).round(digits), random.normal(size=REPETITIONS).round(digits)
    values = np.array([calibrate(row.tolist()).p_value(score) for row, score in zip(draws, new, strict=True)])
    for level in (0.02, 0.1, 0.5, 0.9):
        assert np.mean(values <= level) <= within_chance(level)
