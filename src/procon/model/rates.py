"""Rates from numbers of good scores: the robust spread behind the default threshold, and what n scores can promise."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median, stdev
from typing import Any, NamedTuple

CONFIDENCE = 0.95
SET_ASIDE = 6.0  # robust standard deviations above the median beyond which an image does not set the threshold
_LEAST_SPREAD = 0.005  # of the median: images that are nearly copies do not make all others look far away
_FREEDOM = 5  # degrees of freedom of the Student distribution whose upper tail good scores follow


class Spread(NamedTuple):
    """Where good scores lie, without those that are set aside."""

    mean: float
    deviation: float  # standard deviation; 0 with a single score
    middle: float  # median of all scores
    robust: float  # 1.4826 times the median absolute deviation of all scores
    aside: tuple[int, ...]  # positions of the scores that are set aside

    def deviations(self, score: float) -> float:
        """How many robust standard deviations a score lies above the median."""
        return (score - self.middle) / self.robust if self.robust else math.inf if score > self.middle else 0.0

    def at_rate(self, rate: float) -> float:
        """The score that good parts exceed at ``rate``: mean + t * deviation, with t the Student quantile.

        Normal tails would be too short: scores of good parts exceed three standard deviations in one or two of a
        hundred cases (docs/use/threshold.md), as a Student distribution of five degrees of freedom does.
        """
        from scipy.special import stdtrit

        return self.mean + float(stdtrit(_FREEDOM, 1 - rate)) * self.deviation


def measure_spread(scores: Sequence[float], *, keep_all: bool = False) -> Spread:
    """The spread of good scores; one or a few odd ones, far above the rest, are set aside unless ``keep_all``."""
    middle = median(scores)
    robust = max(1.4826 * median(abs(score - middle) for score in scores), _LEAST_SPREAD * abs(middle))
    limit = math.inf if keep_all else middle + SET_ASIDE * robust
    counted = [score for score in scores if score <= limit]
    aside = tuple(place for place, score in enumerate(scores) if score > limit)
    return Spread(mean(counted), stdev(counted) if len(counted) > 1 else 0.0, middle, robust, aside)


def conformal_rank(count: int, rate: float) -> int:
    """Which of ``count`` ascending scores an exchangeable next one exceeds with probability at most ``rate``.

    That is ceil((n + 1)(1 - rate)), and at most n.
    """
    # 1e-9: (n + 1)(1 - 1 / (n + 1)) must round to n, not to n + 1
    return min(math.ceil((count + 1) * (1 - rate) - 1e-9), count)


def tolerance_rate(count: int, rank: int) -> float:
    """Share of the population above the ``rank``-th smallest of ``count`` draws, at most, with 95 % confidence.

    The share above it is distributed as Beta(n + 1 - r, r) whatever the population, if it has no ties, and is smaller
    with them.
    """
    from scipy.stats import beta

    return 1.0 if rank == 0 else float(beta.ppf(CONFIDENCE, count + 1 - rank, rank))


def images_needed(rate: float, confidence: float | None = None) -> int:
    """How many good images it takes to promise ``rate``: on average, or with ``confidence`` (59 for 5 % at 95 %)."""
    if confidence is None:
        return math.ceil(1 / rate - 1 - 1e-9)
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate) - 1e-9)


@dataclass(frozen=True)
class FalseAlarms:
    """How many good images a threshold flagged, and the rates that agree with it."""

    flagged: int
    images: int
    low: float  # the exact (Clopper-Pearson) interval at 95 % confidence is from low to high
    high: float

    @property
    def rate(self) -> float:
        """The share observed."""
        return self.flagged / self.images

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "rate": self.rate, "confidence": CONFIDENCE, "interval": "Clopper-Pearson"}

    def describe(self, promised: float, confident: float) -> str:
        """The observation compared with the rates promised on average and with confidence, in a sentence."""
        verdict = f"which agrees with the {promised:.1%} promised on average"
        if self.low > promised:
            bound = f"within the {confident:.1%} at {CONFIDENCE:.0%} confidence"
            verdict = f"above the {promised:.1%} promised on average, {bound}"
        if self.low > confident:
            verdict = f"MORE than the {confident:.1%} that hold with {CONFIDENCE:.0%} confidence: these are other parts"
        return f"{self._observation()}, {verdict}"

    def compare_with_aim(self, rate: float) -> str:
        """The observation compared with a rate that a threshold aims at without a promise, in a sentence."""
        verdict = f"which agrees with the {rate:.1%} that it aims at"
        if self.low > rate:
            verdict = (
                f"MORE than the {rate:.1%} that it aims at: look at the highest scores first; if these parts are good, "
                "calibrate on such images (--calibrate FOLDER)"
            )
        return f"{self._observation()}, {verdict}"

    def _observation(self) -> str:
        return (
            f"{self.flagged} of {self.images} good images exceed the threshold: {self.rate:.1%}, "
            f"{CONFIDENCE:.0%} Clopper-Pearson interval {self.low:.1%} to {self.high:.1%}"
        )


def estimate_false_alarms(flagged: int, images: int) -> FalseAlarms:
    """The share of good images flagged, with its exact (Clopper-Pearson) interval."""
    from scipy.stats import beta

    if not 0 <= flagged <= images or images < 1:
        raise ValueError(f"flagged must be from 0 to the number of images, at least 1, got {flagged} of {images}")
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if flagged == 0 else float(beta.ppf(tail, flagged, images - flagged + 1))
    high = 1.0 if flagged == images else float(beta.ppf(1 - tail, flagged + 1, images - flagged))
    return FalseAlarms(flagged, images, low, high)
