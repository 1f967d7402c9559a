"""Drift is found where every image has moved, and not where some parts are defective or chance is at work."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from procon.results.drift import LEAST, LEVEL, Drift, mann_whitney, measure_drift

values = st.lists(st.integers(0, 9).map(float), min_size=LEAST, max_size=40)  # with ties


@settings(deadline=None)
@given(values, values)
def test_the_size_of_a_shift_is_a_count_of_pairs(new: list[float], known: list[float]) -> None:
    found = measure_drift(new, known)
    wins = sum((a > b) + 0.5 * (a == b) for a in new for b in known)
    assert found.exceeding == pytest.approx(wins / (len(new) * len(known)))
    assert 0 <= (found.p_value or 0) <= 1


@settings(deadline=None)
@given(values, values)
def test_the_p_value_is_that_of_scipy(new: list[float], old: list[float]) -> None:
    expected = mannwhitneyu(new, old, alternative="two-sided", method="asymptotic")
    statistic, p_value = mann_whitney(np.array(new), np.array(old))
    assert statistic == expected.statistic
    assert p_value == pytest.approx(1.0 if len({*new, *old}) == 1 else expected.pvalue, rel=1e-9)


def test_the_shift_is_in_robust_spreads() -> None:
    known = [float(value) for value in range(41)]  # median 20, MAD 10
    found = measure_drift([value + 14.826 for value in known], known)
    assert found.shift == pytest.approx(1.0)
    assert measure_drift([1.0] * 20, [1.0] * 20).shift == 0


def test_chance_is_rarely_called_drift() -> None:
    random = np.random.default_rng(0)
    runs = [measure_drift(random.gamma(9, size=30).tolist(), random.gamma(9, size=50).tolist()) for _ in range(1000)]
    called = np.mean([bool(run.drifted) for run in runs])
    assert called <= LEVEL + 4 * np.sqrt(LEVEL * (1 - LEVEL) / 1000)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_a_shift_of_one_spread_is_found(direction: float) -> None:
    random = np.random.default_rng(1)
    found = [
        measure_drift((random.normal(size=40) + direction).tolist(), random.normal(size=50).tolist())
        for _ in range(200)
    ]
    assert np.mean([bool(run.drifted) for run in found]) > 0.9
    assert np.mean([run.exceeding for run in found if run.exceeding is not None]) == pytest.approx(
        0.5 + direction * 0.26, abs=0.02
    )


def test_a_shift_too_small_to_matter_is_not_called_drift_however_sure() -> None:
    random = np.random.default_rng(2)
    found = measure_drift((random.normal(size=20_000) + 0.2).tolist(), random.normal(size=20_000).tolist())
    assert found.p_value is not None and found.p_value < 1e-20
    assert found.drifted is False


@pytest.mark.parametrize(
    ("new", "left_out", "known", "words"),
    [
        (19, 0, 50, "drift: too few to tell, 19 new parts called good where 20 are needed"),
        (30, 0, 19, "drift: too few to tell, 19 calibration images where 20 are needed"),
        (
            5,
            95,
            50,
            "5 new parts called good where 20 are needed; 95 of 100 were called anomalous: if they are not, the",
        ),
    ],
)
def test_few_images_are_called_few(new: int, left_out: int, known: int, words: str) -> None:
    found = measure_drift([1.0] * new, [2.0] * known, left_out)
    assert found.drifted is None and found.p_value is None
    assert words in found.describe()


def test_what_is_found_in_words_and_json() -> None:
    known = [float(value) for value in range(30)]
    same, moved = measure_drift(known, known), measure_drift([value + 12 for value in known], known, left_out=3)
    assert same.describe() == (
        "drift: none found (a new part called good exceeds a calibration image with probability 0.50, shift +0.0 "
        "spreads, Mann-Whitney p = 1, 30 parts)"
    )
    assert moved.describe().startswith("DRIFT: new images have left the calibration (a new part called good exceeds")
    words = moved.describe()
    assert 0 < words.index("Look at the highest scores first") < words.index("add new good parts")
    stored = json.loads(json.dumps(moved.to_dict()))
    assert stored["drifted"] is True and stored["test"] == "Mann-Whitney U, two-sided"
    assert (stored["images"], stored["left_out"], stored["calibration"]) == (30, 3, 30)
    assert Drift(1, 2, 3).to_dict()["drifted"] is None
