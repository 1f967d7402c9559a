"""A threshold from good images alone, and what it promises.

Good images are scored as if they were new. Two rules make a threshold of their scores:

- ``robust``, the default, aims at a false-alarm rate: mean + t standard deviations, see :mod:`procon.model.rates`.
  Images that score far above the rest are set aside, so that one or a few odd images do not decide. No guarantee.
- ``guarantee`` takes an order statistic of all scores. On average over calibrations, the next good part exceeds the
  r-th smallest of n scores with probability at most (n + 1 - r) / (n + 1): the split-conformal promise, never below
  1 / (n + 1). With confidence c, this one threshold is exceeded by at most the c-quantile of Beta(n + 1 - r, r) of good
  parts: the tolerance bound.

The promise is exact where the scores and that of a new part are exchangeable: separate good images, ``held-out``. In
``leave-one-out`` each training image is scored nearly as if it had not been a training image. A single training image
cannot be left out: ``mirrored`` is 1.12 times the score of its mirror image, measured in docs/use/threshold.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from procon.config import CHOICES, ThresholdRule, check_false_alarm_rate
from procon.errors import ConfigError
from procon.model.rates import (
    CONFIDENCE,
    FalseAlarms,
    Spread,
    conformal_rank,
    images_needed,
    measure_spread,
    tolerance_rate,
)
from procon.model.training_image import TrainingImage

CALIBRATION_KINDS = ("leave-one-out", "held-out", "mirrored")
RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)  # on offer in tables
FEWEST = 8  # scores; from fewer, no rate can be aimed at, and the threshold is the highest of them
PIXEL_RATE = 0.05  # of good images whose heat map exceeds the pixel threshold somewhere
FEW = 20  # images; with fewer the threshold is weak


class GoodScore(NamedTuple):
    """What a calibration stores of one good image."""

    score: float  # image score
    peak: float  # largest pixel of the heat map
    median: float  # median patch score


class Offer(NamedTuple):
    """A false-alarm rate with the threshold it leads to."""

    rate: float
    threshold: float
    above: tuple[int, ...]  # positions of the good images that exceed the threshold, highest first


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
    rule: ThresholdRule = "robust"  # or "guarantee": how the scores make a threshold
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
        if self.rule not in CHOICES["threshold_rule"]:
            raise ValueError(f"rule must be one of {', '.join(CHOICES['threshold_rule'])}, got {self.rule!r}")
        if not all(map(math.isfinite, (*self.scores, *self.peaks, *self.medians))):
            raise ValueError("calibration scores must be finite")

    @classmethod
    def of(cls, scores: Iterable[GoodScore], false_alarm_rate: float, rule: ThresholdRule = "robust") -> "Calibration":
        """A leave-one-out calibration from what was measured on good images."""
        image_scores, peaks, medians = zip(*scores, strict=True)
        return cls(image_scores, peaks, medians, false_alarm_rate, rule=rule)

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

    @cached_property
    def spread(self) -> Spread:
        """Where the scores lie, without those of images that are set aside."""
        return measure_spread(self.scores)

    @cached_property
    def threshold(self) -> float:
        """Image score above which a part is called anomalous."""
        return self._threshold_at(self.false_alarm_rate) if self.fixed is None else self.fixed

    def _threshold_at(self, rate: float) -> float:
        if self.rule == "guarantee":
            return self.ascending[conformal_rank(len(self.scores), max(rate, self.lowest_rate)) - 1]
        return self.ascending[-1] if len(self.scores) < FEWEST else self.spread.at_rate(rate)

    @staticmethod
    def _at_rate(values: Sequence[float], rate: float) -> float:
        """The robust rule. Few leave-one-out scores are high, as a small memory misses each image: no spread on top."""
        return max(values) if len(values) < FEWEST else measure_spread(values).at_rate(rate)

    @property
    def lowest_rate(self) -> float:
        """The lowest rate that so many scores can guarantee."""
        return 1 / (len(self.scores) + 1)

    @cached_property
    def rank(self) -> int:
        """How many of the scores lie at or below the threshold."""
        return sum(score <= self.threshold for score in self.scores)

    @property
    def promised_rate(self) -> float:
        """Share of good parts that exceed the threshold, at most, on average over calibrations of this size."""
        return self._rate_above(self.threshold)

    def _rate_above(self, threshold: float) -> float:
        """(1 + number of scores above ``threshold``) / (n + 1): the rate of the threshold, not the one asked for."""
        return (1 + sum(score > threshold for score in self.scores)) / (len(self.scores) + 1)

    def confident_rate(self) -> float:
        """Share of good parts that exceed this very threshold, at most, with 95 % confidence."""
        return tolerance_rate(len(self.scores), self.rank)

    @cached_property
    def usual_peak(self) -> float:
        """Heat-map value that about one in 20 good images exceeds somewhere: the colour scale is made from it."""
        return self._at_rate(self.peaks, PIXEL_RATE)

    @property
    def pixel_threshold(self) -> float:
        """Heat-map value above which a pixel belongs to a region."""
        if self.rule == "guarantee":
            rank = conformal_rank(len(self.peaks), max(self.false_alarm_rate, self.lowest_rate))
            return sorted(self.peaks)[rank - 1]
        return self.usual_peak

    def offers(self) -> list[Offer]:
        """The threshold at each of the usual rates, and at the rate in force; only rates that the rule can give.

        A guarantee has few thresholds: each is on offer once, at its own rate.
        """
        rates = sorted({*RATES, self.false_alarm_rate})
        if self.rule == "guarantee":
            rates = sorted({self._rate_above(self._threshold_at(rate)) for rate in rates})
        elif len(self.scores) < FEWEST:
            rates = [self.false_alarm_rate]  # all rates lead to the same threshold
        return [Offer(rate, limit, self.above(limit)) for rate in rates if (limit := self._threshold_at(rate))]

    def above(self, threshold: float) -> tuple[int, ...]:
        """Positions of the good images that score above ``threshold``, highest first."""
        places = [place for place, score in enumerate(self.scores) if score > threshold]
        return tuple(sorted(places, key=lambda place: -self.scores[place]))

    def p_value(self, score: float) -> float:
        """(1 + number of good images scoring at least ``score``) / (n + 1)."""
        return (1 + sum(good >= score for good in self.scores)) / (len(self.scores) + 1)

    def at_rate(self, false_alarm_rate: float, rule: ThresholdRule | None = None) -> "Calibration":
        """The same scores at another rate, by another rule if one is given; a threshold set by hand is dropped."""
        check_false_alarm_rate(false_alarm_rate)
        return replace(self, false_alarm_rate=float(false_alarm_rate), rule=rule or self.rule, fixed=None)

    def at_score(self, score: float) -> "Calibration":
        """The same scores with the threshold set by hand."""
        if not math.isfinite(score) or score < 0:
            raise ConfigError(f"the threshold must be a score of at least 0, got {score!r}")
        return replace(self, fixed=float(score))

    def why_unchanged(self) -> str:
        """Why the threshold stays as it was at this rate, and the next step."""
        count, other = len(self.scores), "calibrate on {} (--calibrate FOLDER), or set it by hand (--score)"
        if self.rule == "robust":
            if count < FEWEST:
                step = other.format(f"at least {FEWEST} good images")
                return f"{count} images are too few to aim at a rate, so it is the highest of their scores; {step}"
            if not self.spread.deviation:
                return f"all good images have the same score; {other.format('other good images')}"
            return "it has this rate already; the rates on offer are below"
        if self.false_alarm_rate < self.lowest_rate:
            needed = images_needed(self.false_alarm_rate)
            return (
                f"{count} images cannot guarantee less than {self.lowest_rate:.1%}; calibrate on {needed} good images "
                "(--calibrate FOLDER), or use --robust"
            )
        lower = [score for score in self.scores if score < self.threshold]
        if not lower:
            return "no good image scores lower than the threshold; set it by hand (--score), or use --robust"
        present, following = (f"{self._rate_above(score):.1%}" for score in (self.threshold, max(lower)))
        return (
            f"{count} images can guarantee {present} or {following} and nothing between; ask for {following} or more, "
            "calibrate on more good images (--calibrate FOLDER), or use --robust"
        )

    def describe(self, names: Sequence[str] = ()) -> list[str]:
        """What the threshold is, what it promises and what it rests on, in sentences for people.

        ``names`` are those of the training images, so that images that are set aside can be named.
        """
        count = len(self.scores)
        origin = f"{count} good image{'s' if count > 1 else ''}, {self.kind.replace('held-out', 'held out')}"
        exceed = f"{count - self.rank} of them {'exceeds' if count - self.rank == 1 else 'exceed'} it"
        if self.fixed is not None:
            lines = [f"threshold {self.threshold:.4f} (set by hand; {origin}): {exceed}; {self._bounds()}"]
        elif self.rule == "guarantee":
            lines = [f"threshold {self.threshold:.4f} ({origin}): {self._bounds()}", *self._limits_of_guarantee()]
        elif count < FEWEST:
            lines = [
                f"threshold {self.threshold:.4f} ({origin}): the highest of their scores; too few to aim at a rate"
            ]
        else:
            lines = [
                f"threshold {self.threshold:.4f} ({origin}): aims at {self.false_alarm_rate:.1%} false alarms and "
                f"guarantees no rate; {exceed}"
            ]
        names = [image.name for image in self.images] or names
        lines += [*self._one_decides(names), *self._set_aside(names)]
        if count < FEW and self.fixed is None:
            lines.append(
                f"weak: it rests on {count} image{'s' if count > 1 else ''}; with {FEW} or more it is reliable"
            )
        if self.kept:
            lines.append(
                f"{self.kept} of the scores are from before the memory changed, because their images could not be "
                "read: the threshold is approximate"
            )
        return lines

    def judge_measured(self, measured: FalseAlarms) -> str:
        """False alarms that were measured, compared with what the threshold promises or aims at, in a sentence."""
        if self.rule == "robust" and self.fixed is None and len(self.scores) >= FEWEST:
            return measured.compare_with_aim(self.false_alarm_rate)
        return measured.describe(self.promised_rate, self.confident_rate())

    def _bounds(self) -> str:
        average, most = ("at most", "at most {}") if self.kind == "held-out" else ("about", "about {} at most")
        return (
            f"{average} {self.promised_rate:.1%} of good parts like these exceed it on average, "
            f"{most.format(f'{self.confident_rate():.1%}')} with {CONFIDENCE:.0%} confidence"
        )

    def _limits_of_guarantee(self) -> list[str]:
        lines = []
        if self.kind == "leave-one-out":
            lines.append(
                "leave-one-out comes close to these rates; they are exact on good images the model has not seen: "
                "procon threshold MODEL --calibrate FOLDER --guarantee"
            )
        if self.false_alarm_rate < self.lowest_rate:
            lines.append(
                f"{self.false_alarm_rate:.1%} was asked for and changes nothing below {self.lowest_rate:.1%}: it takes "
                f"{images_needed(self.false_alarm_rate)} images "
                f"({images_needed(self.false_alarm_rate, CONFIDENCE)} with {CONFIDENCE:.0%} confidence)"
            )
        return lines

    def _one_decides(self, names: Sequence[str]) -> list[str]:
        """A guarantee whose threshold is the score of one image, the highest of all."""
        at_or_above = [place for place, score in enumerate(self.scores) if score >= self.threshold]
        if self.rule != "guarantee" or self.fixed is not None or len(at_or_above) > 1 or len(self.scores) == 1:
            return []
        return [
            f"one image decides: {_name(names, at_or_above[0])} has the highest score, which is the threshold; without "
            f"it {self.ascending[-2]:.4f}"
        ]

    def _set_aside(self, names: Sequence[str]) -> list[str]:
        """The images that are far above the rest, with what they would change."""
        aside = sorted(self.spread.aside, key=lambda place: -self.scores[place])
        if not aside or self.fixed is not None or len(self.scores) < FEWEST:
            return []
        lines = [
            f"odd: {_name(names, place)} scores {self.scores[place]:.4f}, "
            f"{self.spread.deviations(self.scores[place]):.1f} robust deviations above the median"
            for place in aside[:5]
        ]
        if len(aside) > 5:
            lines.append(f"odd: {len(aside) - 5} more")
        many = "it is" if len(aside) == 1 else "they are"
        if self.rule == "guarantee":
            robust = replace(self, rule="robust").threshold
            lines.append(f"{many} in the memory and in the guarantee; the robust threshold would be {robust:.4f}")
        else:
            counted = measure_spread(self.scores, keep_all=True).at_rate(self.false_alarm_rate)
            lines.append(
                f"{many} in the memory but set aside for the threshold, which would be {counted:.4f} with all images; "
                "look at each, and if it is not a good part, forget it (procon forget)"
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
        rule = stored.get("rule", "guarantee")  # models from before there was a choice keep their threshold
        return cls(**{**stored, **numbers, "images": images, "rule": rule})


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else f"image {place + 1}"


def change_note(old: Calibration | None, new: Calibration) -> str:
    """A changed threshold, as the log writes it."""
    before = "none" if old is None else f"{old.threshold:.4f}"
    how = "by hand"
    if new.fixed is None:
        how = f"{new.kind} on {len(new.scores)} images, {new.rule} at rate {new.false_alarm_rate:g}"
    return f"{before} -> {new.threshold:.4f} ({how})"
