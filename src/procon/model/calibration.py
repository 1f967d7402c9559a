"""A threshold from good images alone, and what it can promise.

Good images are scored as if they were new; an order statistic of those scores is the threshold. The number n of scores
limits the promise:

- on average over calibrations, the next good part exceeds the r-th smallest of n scores with probability at most
  (n + 1 - r) / (n + 1): the split-conformal promise, never below 1 / (n + 1);
- with confidence c, this one threshold is exceeded by at most the c-quantile of Beta(n + 1 - r, r) of good parts:
  the tolerance bound, 1 - 0.05^(1/n) at the maximum and 95 %.

Both hold exactly where the scores and that of a new part are exchangeable: separate good images, ``held-out``. In
``leave-one-out`` each training image meets a memory without its own anchors, a new part meets all of it; both numbers
are then close, without being guaranteed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from procon.errors import ConfigError
from procon.model.training import TrainingImage

CONFIDENCE = 0.95
CALIBRATION_KINDS = ("leave-one-out", "held-out")
LEAST_FOR_OUTLIER = 10  # scores; among fewer, any may be far from the next


class GoodScore(NamedTuple):
    """What a calibration stores of one good image."""

    score: float  # image score
    peak: float  # largest pixel of the heat map
    median: float  # median patch score


@dataclass(frozen=True)
class Calibration:
    """Scores of good images that the memory did not know, and what follows from them."""

    scores: tuple[float, ...]  # image scores, in the order of the training images if "leave-one-out"
    peaks: tuple[float, ...]  # largest pixel of each heat map, in the same order
    medians: tuple[float, ...]  # median patch scores: a defect does not move them, a camera or a lamp does
    false_alarm_rate: float  # the rate asked for; `promised_rate` is the one that the data support
    kind: str = "leave-one-out"  # on the training images; "held-out": on separate good images, with a guarantee
    images: tuple[TrainingImage, ...] = ()  # of a held-out calibration, so that it can be repeated after an edit
    fixed: float | None = None  # a threshold set by hand, in place of the one that follows from the scores
    kept: int = 0  # scores from before an edit of the memory, because their images could not be read again

    def __post_init__(self) -> None:
        count = len(self.scores)
        if not count or len(self.peaks) != count or len(self.medians) != count:
            raise ValueError(
                f"a calibration must have as many peaks and medians as scores and at least one, got {count} scores, "
                f"{len(self.peaks)} peaks and {len(self.medians)} medians"
            )
        if self.kind not in CALIBRATION_KINDS:
            raise ValueError(f"kind must be one of {', '.join(CALIBRATION_KINDS)}, got {self.kind!r}")
        if not all(map(math.isfinite, (*self.scores, *self.peaks, *self.medians))):
            raise ValueError("calibration scores must be finite")

    @classmethod
    def of(cls, scores: Iterable[GoodScore], false_alarm_rate: float) -> "Calibration":
        """A leave-one-out calibration from what was measured on good images."""
        image_scores, peaks, medians = zip(*scores, strict=True)
        return cls(image_scores, peaks, medians, false_alarm_rate)

    @property
    def good_scores(self) -> list[GoodScore]:
        """The scores image by image."""
        return [GoodScore(*row) for row in zip(self.scores, self.peaks, self.medians, strict=True)]

    @cached_property
    def ascending(self) -> tuple[float, ...]:
        """The image scores from small to large."""
        return tuple(sorted(self.scores))

    @cached_property
    def typical(self) -> float:
        """Median over the images of their median patch score: where the colour scale begins."""
        ordered = sorted(self.medians)
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    @property
    def rank(self) -> int:
        """How many of the scores lie at or below the threshold, counted from the smallest."""
        if self.fixed is not None:
            return sum(score <= self.fixed for score in self.scores)
        return conformal_rank(len(self.scores), self._possible_rate)

    @property
    def promised_rate(self) -> float:
        """Share of good parts that exceed the threshold, at most, on average over calibrations of this size."""
        if self.fixed is None:
            return self._possible_rate
        return (len(self.scores) + 1 - self.rank) / (len(self.scores) + 1)

    @property
    def _possible_rate(self) -> float:
        """The rate asked for, as far as the number of scores can promise it."""
        return max(self.false_alarm_rate, 1 / (len(self.scores) + 1))

    def confident_rate(self) -> float:
        """Share of good parts that exceed this very threshold, at most, with 95 % confidence."""
        return tolerance_rate(len(self.scores), self.rank)

    @property
    def threshold(self) -> float:
        """Image score above which a part is called anomalous."""
        return self.ascending[self.rank - 1] if self.fixed is None else self.fixed

    @property
    def pixel_threshold(self) -> float:
        """Heat-map value that a new good image exceeds anywhere as rarely as :attr:`false_alarm_rate` asks."""
        return sorted(self.peaks)[conformal_rank(len(self.peaks), self._possible_rate) - 1]

    def p_value(self, score: float) -> float:
        """(1 + number of good images scoring at least ``score``) / (n + 1)."""
        return (1 + sum(good >= score for good in self.scores)) / (len(self.scores) + 1)

    def at_rate(self, false_alarm_rate: float) -> "Calibration":
        """The same scores at another rate; a threshold set by hand is dropped."""
        if not 0 < false_alarm_rate < 1:
            raise ConfigError(f"false_alarm_rate must be a number above 0 and below 1, got {false_alarm_rate!r}")
        return replace(self, false_alarm_rate=float(false_alarm_rate), fixed=None)

    def at_score(self, score: float) -> "Calibration":
        """The same scores with the threshold set by hand."""
        if not math.isfinite(score) or score < 0:
            raise ConfigError(f"the threshold must be a score of at least 0, got {score!r}")
        return replace(self, fixed=float(score))

    @property
    def outlier(self) -> int | None:
        """Position of the one image that sets the threshold while all others score far lower; None if there is none.

        Far is three robust standard deviations (1.4826 MAD) above the next. Such an image is worth a look.
        """
        if self.fixed is not None or self.rank != len(self.scores) or self.rank < LEAST_FOR_OUTLIER:
            return None
        middle = self.ascending[len(self.scores) // 2]
        spread = 1.4826 * sorted(abs(score - middle) for score in self.scores)[len(self.scores) // 2]
        far = self.ascending[-1] - self.ascending[-2] > 3 * spread
        return self.scores.index(self.ascending[-1]) if far else None

    def describe(self, names: Sequence[str] = ()) -> list[str]:
        """What the threshold is and what it can promise, in sentences for people.

        ``names`` are those of the training images; with them, one that sets the threshold alone can be named.
        """
        count, how = len(self.scores), self.kind.replace("held-out", "held out")
        origin = f"{count} good image{'s' if count > 1 else ''}, {how}"
        if self.fixed is not None:
            origin = f"set by hand; {count - self.rank} of {origin}, exceed it"
        average, most = ("at most", "at most {}") if self.kind == "held-out" else ("about", "about {} at most")
        lines = [
            f"threshold {self.threshold:.4f} ({origin}): {average} {self.promised_rate:.1%} of good parts like these "
            f"exceed it on average, {most.format(f'{self.confident_rate():.1%}')} with {CONFIDENCE:.0%} confidence"
        ]
        if self.kind == "leave-one-out":
            lines.append(
                "leave-one-out comes close to these rates and guarantees none; for a guarantee calibrate on good "
                "images the model has not seen: procon threshold MODEL --calibrate FOLDER"
            )
        if self.fixed is None and self.promised_rate > self.false_alarm_rate:
            lines.append(
                f"{self.false_alarm_rate:.1%} was asked for: that takes {images_needed(self.false_alarm_rate)} images "
                f"({images_needed(self.false_alarm_rate, CONFIDENCE)} with {CONFIDENCE:.0%} confidence)"
            )
        if self.outlier is not None:
            held_out = [image.name for image in self.images]
            name = dict(enumerate(held_out or names)).get(self.outlier, "one image")
            lines.append(
                f"{name} alone sets the threshold: it scores {self.ascending[-1]:.4f}, the next "
                f"{self.ascending[-2]:.4f}; look at it, and if it is not a good part, forget it (procon forget)"
            )
        if self.kept:
            lines.append(
                f"{self.kept} of the scores are from before the memory changed, because their images could not be "
                "read: the threshold is approximate"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """What a model file holds, JSON-ready."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "images"},
            **{name: list(getattr(self, name)) for name in ("scores", "peaks", "medians")},
            "images": [image.to_dict() for image in self.images],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Calibration":
        """The inverse of :meth:`to_dict`; a KeyError, TypeError or ValueError says what does not fit."""
        numbers = {name: tuple(float(value) for value in stored[name]) for name in ("scores", "peaks", "medians")}
        images = tuple(TrainingImage.from_dict(image) for image in stored["images"])
        return cls(**{**stored, **numbers, "images": images})


def change_note(old: Calibration | None, new: Calibration) -> str:
    """A changed threshold, as the log writes it."""
    before = "none" if old is None else f"{old.threshold:.4f}"
    how = f"{new.kind} on {len(new.scores)} images at rate {new.false_alarm_rate:g}" if new.fixed is None else "by hand"
    return f"{before} -> {new.threshold:.4f} ({how})"


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
        return (
            f"{self.flagged} of {self.images} good images exceed the threshold: {self.rate:.1%}, "
            f"{CONFIDENCE:.0%} Clopper-Pearson interval {self.low:.1%} to {self.high:.1%}, {verdict}"
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
