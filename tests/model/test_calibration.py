"""The promise behind a threshold: how often a good part is called anomalous."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from procon import ConfigError
from procon.model import calibration as calibration_module
from procon.model.calibration import RATES, Calibration
from procon.model.rates import (
    CONFIDENCE,
    Spread,
    conformal_rank,
    estimate_false_alarms,
    images_needed,
    measure_spread,
    tolerance_rate,
)
from tests import reference

REPETITIONS = 5000


def calibrate(scores: list[float], rate: float = 0.01) -> Calibration:
    """The split-conformal promise on these scores."""
    medians = (0.1,) * len(scores)
    return Calibration(tuple(scores), tuple(2 * score for score in scores), medians, rate, rule="guarantee")


def robust(scores: list[float], rate: float = 0.01) -> Calibration:
    return replace(calibrate(scores, rate), rule="robust")


def within_chance(rate: float) -> float:
    """A frequency that true probabilities up to ``rate`` exceed less than once in 30,000 runs: four sigma, binomial."""
    return rate + 4 * math.sqrt(rate * (1 - rate) / REPETITIONS)


scores_lists = st.lists(st.floats(0, 10), min_size=1, max_size=120)
coarse_lists = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=60)  # with ties


@given(scores_lists | coarse_lists, st.integers(1, 99))
def test_the_quantile_equals_the_reference(scores: list[float], percent: int) -> None:
    known = calibrate(scores, percent / 100)
    asked = max(Fraction(percent, 100), Fraction(1, len(scores) + 1))
    assert known.threshold == reference.conformal_quantile(scores, asked)
    above = sum(score > known.threshold for score in scores)
    assert known.promised_rate == pytest.approx((above + 1) / (len(scores) + 1))
    assert known.promised_rate <= asked + Fraction(1, 10**9)
    assert known.pixel_threshold == 2 * known.threshold  # peaks are twice the scores here


@given(scores_lists | coarse_lists, st.integers(1, 99), st.floats(0, 11))
def test_the_verdict_is_the_p_value_at_the_promised_rate(scores: list[float], percent: int, score: float) -> None:
    known = calibrate(scores, percent / 100)
    assert (score > known.threshold) == (known.p_value(score) <= known.promised_rate + 1e-12)


@pytest.mark.parametrize(("images", "rate", "promised"), [(59, 0.01, 1 / 60), (99, 0.01, 0.01), (500, 0.01, 5 / 501)])
def test_no_more_is_promised_than_the_images_carry(images: int, rate: float, promised: float) -> None:
    assert calibrate([float(score) for score in range(images)], rate).promised_rate == pytest.approx(promised)


def test_the_rate_is_that_of_the_threshold_and_not_the_one_asked_for() -> None:
    """The same threshold has the same rate, whatever was asked for."""
    scores = [float(score) for score in range(1, 29)]
    asked = [calibrate(scores, rate) for rate in (0.01, 0.03, 0.05)]
    assert {known.threshold for known in asked} == {28.0}
    assert {known.promised_rate for known in asked} == {1 / 29}
    assert "about 3.4% of good parts" in asked[2].describe()[0]
    assert [(offer.rate, offer.threshold) for offer in asked[2].offers()] == [(1 / 29, 28.0), (2 / 29, 27.0)]
    for rate, threshold, _ in asked[2].offers():
        assert asked[2].at_rate(rate).threshold == threshold  # what is on offer can be asked for


def test_a_rate_that_changes_nothing_is_explained_with_the_next_step() -> None:
    scores = [float(score) for score in range(1, 29)]
    assert calibrate(scores, 0.01).why_unchanged() == (
        "28 images cannot guarantee less than 3.4%; calibrate on 99 good images (--calibrate FOLDER), or use --robust"
    )
    assert calibrate(scores, 0.05).why_unchanged() == (
        "28 images can guarantee 3.4% or 6.9% and nothing between; ask for 6.9% or more, calibrate on more good images "
        "(--calibrate FOLDER), or use --robust"
    )
    assert calibrate([1.0] * 3, 0.9).why_unchanged() == (
        "no good image scores lower than the threshold; set it by hand (--score), or use --robust"
    )
    assert robust(scores[:6], 0.05).why_unchanged() == (
        "6 images are too few to aim at a rate, so it is the highest of their scores; calibrate on at least 8 good "
        "images (--calibrate FOLDER), or set it by hand (--score)"
    )
    assert robust([0.5] * 20).why_unchanged() == (
        "all good images have the same score; calibrate on other good images (--calibrate FOLDER), or set it by hand "
        "(--score)"
    )
    assert robust(scores).why_unchanged() == "it has this rate already; the rates on offer are below"


def test_a_threshold_that_one_image_decides_says_so() -> None:
    scores = [float(score) for score in range(1, 29)]
    names = [f"{score:.0f}.png" for score in scores]
    line = "one image decides: 28.png has the highest score, which is the threshold; without it 27.0000"
    assert line in calibrate(scores).describe(names)
    assert not any(line.startswith("one image") for line in calibrate(scores, 0.1).describe(names))
    assert not any(line.startswith("one image") for line in calibrate([*scores, 28.0]).describe())  # two have it
    assert not any(line.startswith("one image") for line in robust(scores).describe(names))


@pytest.mark.parametrize("images", range(1, 400, 7))
def test_rounding_never_moves_the_rank(images: int) -> None:
    ranks = tuple(float(rank) for rank in range(1, images + 1))
    for percent in range(1, 100):
        promised = max(Fraction(percent, 100), Fraction(1, images + 1))
        exact = math.ceil((images + 1) * (1 - promised))
        assert calibrate(list(ranks), percent / 100).threshold == exact


def test_one_image() -> None:
    known = calibrate([0.4])
    assert known.promised_rate == 0.5
    assert known.threshold == 0.4
    assert (known.p_value(0.3), known.p_value(0.4), known.p_value(0.5)) == (1.0, 1.0, 0.5)


@given(scores_lists, st.floats(0.001, 0.998), st.floats(0.001, 0.998))
def test_a_smaller_rate_never_lowers_the_threshold(scores: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert conformal_rank(len(scores), low) >= conformal_rank(len(scores), high)
    assert calibrate(scores, low).threshold >= calibrate(scores, high).threshold


@given(scores_lists, st.floats(0, 11), st.floats(0, 11))
def test_a_higher_score_never_has_a_higher_p_value(scores: list[float], one: float, other: float) -> None:
    known = calibrate(scores)
    low, high = sorted((one, other))
    assert 0 < known.p_value(high) <= known.p_value(low) <= 1


@pytest.mark.parametrize(("images", "rate"), [(1, 0.01), (9, 0.01), (20, 0.05), (59, 0.01), (99, 0.01), (60, 0.2)])
@pytest.mark.parametrize("digits", [1, 17])  # 1: most scores are tied
def test_good_parts_raise_no_more_estimate_false_alarms_than_promised(images: int, rate: float, digits: int) -> None:
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


# ------------------------------------------------------------------------------------- promises about one threshold


def test_the_tolerance_bound_at_the_maximum() -> None:
    assert tolerance_rate(59, 59) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert tolerance_rate(59, 59) < 0.05 < tolerance_rate(58, 58)
    assert tolerance_rate(299, 299) < 0.01 < tolerance_rate(298, 298)
    assert tolerance_rate(20, 0) == 1.0


@settings(deadline=None)
@given(st.integers(1, 400), st.data())
def test_the_tolerance_bound_is_the_binomial_one(count: int, data: st.DataObject) -> None:
    """At that rate, so few of n good parts above the threshold would be a chance of 5 %."""
    rank = data.draw(st.integers(1, count))
    rate = tolerance_rate(count, rank)
    assert float(stats.binom.cdf(count - rank, count, rate)) == pytest.approx(1 - CONFIDENCE)


@settings(deadline=None)
@given(st.integers(1, 300))
def test_the_images_needed_for_a_rate(percentile: int) -> None:
    rate = percentile / 301
    plain, confident = images_needed(rate), images_needed(rate, CONFIDENCE)
    assert 1 / (plain + 1) <= rate + 1e-9 and (plain == 0 or 1 / plain > rate - 1e-9)
    assert tolerance_rate(confident, confident) <= rate + 1e-9
    assert confident == 1 or tolerance_rate(confident - 1, confident - 1) > rate - 1e-9


def test_the_images_needed_for_the_usual_rates() -> None:
    assert [(images_needed(rate), images_needed(rate, 0.95)) for rate in (0.05, 0.01)] == [(19, 59), (99, 299)]


@pytest.mark.parametrize(("images", "rate"), [(10, 0.01), (59, 0.01), (60, 0.1), (200, 0.05)])
@pytest.mark.parametrize("digits", [1, 17])
def test_a_threshold_keeps_its_confident_rate_19_times_of_20(images: int, rate: float, digits: int) -> None:
    """The true rate of each simulated threshold is known: how often is it above the bound?"""
    random = np.random.default_rng(images)
    known = [calibrate(row.tolist(), rate) for row in random.gamma(3, size=(REPETITIONS, images)).round(digits)]
    thresholds = np.array([one.threshold for one in known])
    above = thresholds if digits == 17 else thresholds + 0.05  # a tie stands for a tenth
    broken = stats.gamma.sf(above, 3) > known[0].confident_rate()
    assert np.mean(broken) <= within_chance(1 - CONFIDENCE)
    if digits == 17:  # and the bound is not loose
        assert np.mean(broken) >= 1 - CONFIDENCE - (within_chance(1 - CONFIDENCE) - (1 - CONFIDENCE))


# -------------------------------------------------------------------------------------------- thresholds set by hand


def test_a_threshold_by_hand_keeps_the_scores_and_tells_their_rate() -> None:
    known = calibrate([float(score) for score in range(1, 100)]).at_score(90.5)
    assert known.threshold == 90.5
    assert known.promised_rate == pytest.approx(10 / 100)  # nine scores and the new one
    assert known.confident_rate() == tolerance_rate(99, 90)
    assert known.p_value(95) == pytest.approx(6 / 100)
    assert known.pixel_threshold == calibrate(list(known.scores)).pixel_threshold
    assert known.at_rate(0.05).threshold == 95
    assert known.at_rate(0.05).fixed is None
    below_all = calibrate([1.0, 2.0]).at_score(0.5)
    assert below_all.promised_rate == below_all.confident_rate() == 1


@pytest.mark.parametrize("score", [-1.0, math.nan, math.inf])
def test_a_threshold_by_hand_must_be_a_score(score: float) -> None:
    with pytest.raises(ConfigError, match=r"the threshold must be a score of at least 0, got"):
        calibrate([1.0]).at_score(score)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_rate_must_be_a_share(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"false_alarm_rate must be a number of at least 0.000001 and below 1, got"):
        calibrate([1.0]).at_rate(rate)


# ----------------------------------------------------------------------------------------------------- in words


def test_what_a_calibration_says_of_itself() -> None:
    scores = [float(score) for score in range(1, 60)]
    assert calibrate(scores).describe() == [
        "threshold 59.0000 (59 good images, leave-one-out): about 1.7% of good parts like these exceed it on average, "
        "about 5.0% at most with 95% confidence",
        "leave-one-out comes close to these rates; they are exact on good images the model has not seen: procon "
        "threshold MODEL --calibrate FOLDER --guarantee",
        "1.0% was asked for and changes nothing below 1.7%: it takes 99 images (299 with 95% confidence)",
        "one image decides: image 59 has the highest score, which is the threshold; without it 58.0000",
    ]
    held_out = replace(calibrate(scores, 0.05), kind="held-out")
    assert held_out.describe() == [
        "threshold 57.0000 (59 good images, held out): at most 5.0% of good parts like these exceed it on average, "
        "at most 10.3% with 95% confidence"
    ]
    by_hand = held_out.at_score(70)
    assert by_hand.describe() == [
        "threshold 70.0000 (set by hand; 59 good images, held out): 0 of them exceed it; at most 1.7% of good parts "
        "like these exceed it on average, at most 5.0% with 95% confidence"
    ]


# ------------------------------------------------------------------------------------------------- the robust rule

ORDINARY = [0.5 + 0.01 * (number % 7) for number in range(30)]


@given(scores_lists | coarse_lists, st.sampled_from(RATES))
def test_the_robust_threshold_equals_the_reference(scores: list[float], rate: float) -> None:
    expected, aside = reference.robust_threshold(scores, rate)
    peak, _ = reference.robust_threshold([2 * score for score in scores], 0.05)
    if len(scores) < 8:
        expected, peak = max(scores), 2 * max(scores)
    known = robust(scores, rate)
    assert known.threshold == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert known.spread.aside == tuple(aside)
    assert known.pixel_threshold == pytest.approx(peak)


@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=60))
def test_a_lower_rate_never_lowers_the_threshold(scores: list[float]) -> None:
    known = robust(scores)
    limits = [known.at_rate(rate).threshold for rate in RATES]
    assert limits == sorted(limits, reverse=True)
    if known.spread.deviation > 1e-9:
        assert len(set(limits)) == len(limits)  # unlike an order statistic, every rate changes something


@pytest.mark.parametrize("odd", [0.9, 5.0, 1e6])
def test_one_odd_image_does_not_set_the_threshold(odd: float) -> None:
    usual = robust(ORDINARY)
    with_odd = robust([*ORDINARY[:4], odd, *ORDINARY[4:]])
    assert with_odd.spread.aside == (4,)
    assert with_odd.threshold == pytest.approx(usual.threshold, rel=1e-12)
    assert with_odd.pixel_threshold == pytest.approx(usual.pixel_threshold, rel=1e-12)
    assert replace(with_odd, rule="guarantee").threshold == odd  # the promise counts every image
    lines = with_odd.describe([f"{number}.png" for number in range(31)])
    assert lines[0].endswith("aims at 1.0% false alarms and guarantees no rate; 1 of them exceeds it")
    assert lines[1].startswith(f"odd: 4.png scores {odd:.4f}, ")
    assert "set aside for the threshold" in lines[2] and "procon forget" in lines[2]


def test_images_that_are_copies_do_not_make_the_others_odd() -> None:
    assert robust([0.5] * 20 + [0.5001, 0.5002]).spread.aside == ()
    assert robust([0.5] * 20).threshold == 0.5
    assert robust([0.4]).threshold == 0.4


def test_the_rule_says_what_it_rests_on() -> None:
    assert robust(ORDINARY).describe() == [
        "threshold 0.5980 (30 good images, leave-one-out): aims at 1.0% false alarms and guarantees no rate; "
        "0 of them exceed it"
    ]
    few = robust(ORDINARY[:6])
    assert few.threshold == max(few.scores) and len(few.offers()) == 1
    assert few.describe()[0].endswith("leave-one-out): the highest of their scores; too few to aim at a rate")
    assert few.describe()[-1] == "weak: it rests on 6 images; with 20 or more it is reliable"
    counted = calibrate([*ORDINARY, 5.0]).describe(["x.png"] * 31)
    assert any(line.startswith("odd: x.png scores 5.0000") for line in counted)
    assert counted[-1] == "it is in the memory and in the guarantee; the robust threshold would be 0.5980"
    assert not any(line.startswith("odd") for line in robust([*ORDINARY, 5.0]).at_score(1).describe())


def test_rates_on_offer_name_the_images_above() -> None:
    offers = robust([*ORDINARY, 0.7, 0.9], 0.03).offers()
    assert [offer.rate for offer in offers] == sorted([*RATES, 0.03])
    assert offers[-1].above[:2] == (31, 30)
    promised = calibrate(ORDINARY, 0.01).offers()
    assert [offer.rate for offer in promised] == [1 / 31]  # several images share the highest score


def test_the_spread_is_measured_once_for_all_that_follows_from_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def count(scores: Sequence[float]) -> Spread:
        measured.append(len(scores))
        return measure_spread(scores)

    monkeypatch.setattr(calibration_module, "measure_spread", count)
    calibration = robust([1 + index / 100 for index in range(60)])
    assert calibration.promised_rate > 0 and calibration.offers() and calibration.p_value(calibration.threshold)
    assert measured == [60]


def test_a_model_from_before_the_choice_keeps_its_threshold() -> None:
    known = calibrate(ORDINARY)
    stored = known.to_dict()
    del stored["rule"]
    assert Calibration.from_dict(stored) == known


def test_about_as_many_good_parts_exceed_it_as_it_aims_at() -> None:
    """On tails like those of real good parts; a check of the arithmetic, not of the promise, which is none."""
    scores = stats.t(5).rvs((400, 60), random_state=1) * 0.02 + 0.5
    shares = [float(stats.t(5).sf((robust(list(row)).threshold - 0.5) / 0.02)) for row in scores]
    assert 0.003 < float(np.mean(shares)) < 0.02


def test_it_survives_a_file() -> None:
    known = calibrate([0.1, 0.30000000000000004, 1 / 3]).at_score(0.2)
    assert Calibration.from_dict(known.to_dict()) == known


# ------------------------------------------------------------------------------------------------- realised rates


def test_a_measured_rate_is_compared_with_what_the_rule_says() -> None:
    """A robust threshold promises nothing, so a measurement is compared with the rate that it aims at."""
    scores = [0.5 + 0.01 * (number % 7) for number in range(30)]
    few, many = estimate_false_alarms(1, 40), estimate_false_alarms(12, 40)
    agrees, exceeds = robust(scores).judge_measured(few), robust(scores).judge_measured(many)
    assert agrees == (
        "1 of 40 good images exceed the threshold: 2.5%, 95% Clopper-Pearson interval 0.1% to 13.2%, which agrees "
        "with the 1.0% that it aims at"
    )
    assert exceeds.endswith(
        "MORE than the 1.0% that it aims at: look at the highest scores first; if these parts are good, calibrate "
        "on such images (--calibrate FOLDER)"
    )
    assert "promised on average" in calibrate(scores).judge_measured(few)
    assert "promised on average" in robust(scores).at_score(0.6).judge_measured(few)
    assert "promised on average" in robust(scores[:6]).judge_measured(few)


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_the_interval_is_that_of_clopper_and_pearson(images: int, data: st.DataObject) -> None:
    flagged = data.draw(st.integers(0, images))
    found = estimate_false_alarms(flagged, images)
    expected = stats.binomtest(flagged, images).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert found.low <= found.rate <= found.high


def test_a_estimate_false_alarms_in_words() -> None:
    assert estimate_false_alarms(1, 26).describe(1 / 55, 0.054) == (
        "1 of 26 good images exceed the threshold: 3.8%, 95% Clopper-Pearson interval 0.1% to 19.6%, which agrees with "
        "the 1.8% promised on average"
    )
    assert "above the 5.3% promised on average, within the 15.3% at 95% confidence" in estimate_false_alarms(
        7, 26
    ).describe(1 / 19, 0.1533)
    assert "MORE than the 5.4% that hold with 95% confidence" in estimate_false_alarms(9, 26).describe(1 / 55, 0.054)
    with pytest.raises(ValueError, match="got 3 of 2"):
        estimate_false_alarms(3, 2)


def test_the_interval_covers_the_true_rate_at_least_19_times_of_20() -> None:
    found = [estimate_false_alarms(count, 40) for count in range(41)]
    for rate in (0.001, 0.01, 0.1, 0.5):
        missed = sum(stats.binom.pmf(one.flagged, 40, rate) for one in found if not one.low <= rate <= one.high)
        assert missed <= 1 - CONFIDENCE
