"""What a model finds of rendered defects, in numbers and in sentences, at each false-alarm rate on offer."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from procon.amounts import count_of
from procon.limits.kinds import DROPPED_KINDS
from procon.limits.plan import CONTRASTS
from procon.limits.statistics import (
    Count,
    Judged,
    Visibility,
    choose_example,
    count_found,
    find_blind_zones,
    judge_visibility,
    map_found,
)
from procon.model.calibration import Calibration
from procon.model.renderings import Renderings

STAND_IN = (
    "rendered defects are not real ones: they compare kinds, sizes, places and rates on this part, and promise nothing "
    "about the defects to come"
)
_LEFT_OUT = (
    "{}s are not rendered: on real parts, the share of rendered ones that is found said nothing certain about real "
    "defects (--kinds renders them all the same)"
)
_FEWEST = 8  # rendered defects, below which a sentence says nothing about a contrast


class LimitsCell(NamedTuple):
    """The defects of one kind, size and contrast at one threshold."""

    kind: str
    size: int  # pixels
    contrast: int  # grey levels of 255
    counted: Count


class RateVisibility(NamedTuple):
    """A rate on offer, and what it finds."""

    rate: float
    threshold: float
    good_above: int  # good images behind the threshold that exceed it
    visibility: Visibility


@dataclass(frozen=True)
class LimitsReport:
    """Which rendered defects a model finds."""

    renderings: Renderings
    calibration: Calibration

    @property
    def threshold(self) -> float:
        """The threshold in force."""
        return self.calibration.threshold

    @property
    def map(self) -> list[list[float | None]]:
        """Found by place, relative to what is expected, over the image; None where few defects lie."""
        ratio = map_found(self.renderings, self.judged()).tolist()
        return [[None if math.isnan(value) else round(value, 3) for value in row] for row in ratio]

    def judged(self, threshold: float | None = None) -> list[Judged]:
        """Every rendered defect, and whether it is found."""
        return list(self.renderings.judged(self.threshold if threshold is None else threshold))

    def cells(self, threshold: float | None = None) -> Iterator[LimitsCell]:
        """The counts of every kind, size and contrast, at the threshold in force or another."""
        groups: dict[tuple[str, int, int], list[Judged]] = {cell: [] for cell in self.renderings.plan.cells}
        for row, found in self.judged(threshold):
            groups[row.kind, row.size, row.contrast].append((row, found))
        for cell, pairs in groups.items():
            yield LimitsCell(*cell, count_found(pairs))

    def visibility(
        self, kind: str | None = None, contrast: int | None = None, threshold: float | None = None
    ) -> Visibility:
        """What a threshold, by default the one in force, finds of a kind, at a contrast, or of all."""
        limit = self.threshold if threshold is None else threshold
        return judge_visibility(self.renderings, limit, kind, contrast)

    def by_rate(self) -> list[RateVisibility]:
        """The rates on offer, and what each finds."""
        return [
            RateVisibility(rate, threshold, len(above), judge_visibility(self.renderings, threshold))
            for rate, threshold, above in self.calibration.offers()
        ]

    def example(self, kind: str, *, found: bool) -> int | None:
        """The number of the smallest defect of a kind that is found, or of the largest that is missed.

        Of equally large ones the fainter that is found, the clearer that is missed.
        """
        flags = [
            (number, row.score > self.threshold)
            for number, row in enumerate(self.renderings.rows)
            if row.score is not None and row.kind == kind and self.renderings.hosts[row.host].score <= self.threshold
        ]
        sign = 1 if found else -1
        return choose_example(self.renderings, flags, found, lambda row: sign * (row.size + row.contrast / 1000))

    def describe_kind(self, kind: str) -> str:
        """What is found of one kind, in a sentence."""
        parts = [self._describe_contrast(kind, name, level) for name, level in reversed(CONTRASTS.items())]
        text = f"{kind}: {'; '.join(parts)}"
        zones = find_blind_zones(self.renderings, self.judged(), kind)
        return text + (f"; blind near the {_listed(zones)}" if zones else "")

    def _describe_contrast(self, kind: str, name: str, level: int) -> str:
        seen, sizes = self.visibility(kind, level), self.renderings.plan.sizes
        if seen.counted.total < _FEWEST:
            return f"too few {name} ones could be rendered"
        for words, size in (("9 of 10", seen.most_from), ("half", seen.half_from)):
            if size is not None:
                return f"finds {words} from {math.ceil(size)} px if {name}"
        return f"fewer than half up to {sizes[-1]} px if {name}"

    def describe(self) -> list[str]:
        """The limits in sentences for people: kinds first, then what they rest on."""
        plan, rows = self.renderings.plan, self.renderings.rows
        judged = self.judged()
        flagged = sum(host.score > self.threshold for host in self.renderings.hosts)
        impossible = sum(row.score is None for row in rows)
        zones = find_blind_zones(self.renderings, judged)
        levels = ", ".join(f"{name} {level}" for name, level in CONTRASTS.items())
        origin = "separate good images" if plan.held_out else "training images, each scored without its own anchors"
        lines = [self.describe_kind(kind) for kind in plan.kinds]
        lines += [f"all kinds: blind near the {_listed(zones)}"] if zones else []
        lines.append(
            f"{count_of(len(judged), 'rendered defect')} of {plan.sizes[0]} to {plan.sizes[-1]} px on "
            f"{count_of(len(self.renderings.hosts) - flagged, 'good image')} ({origin}); grey levels of 255: {levels}"
        )
        if flagged:
            lines.append(f"left out: {count_of(flagged, 'good image')} above the threshold without a defect")
        if impossible:
            lines.append(
                f"{impossible} more could not be rendered: where they would lie, the image leaves no room for the "
                "contrast"
            )
        if plan.whole_image:
            lines.append("no background was told from the part: defects are rendered on the whole image")
        lines += [_LEFT_OUT.format(kind) for kind in DROPPED_KINDS if kind not in plan.kinds]
        return [*lines, STAND_IN]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "threshold": self.threshold,
            "false_alarm_rate": self.calibration.false_alarm_rate,
            "stand_in": STAND_IN,
            "sentences": self.describe(),
            "kinds": {kind: _visible(self.visibility(kind)) for kind in self.renderings.plan.kinds},
            "rates": [
                {"rate": offer.rate, "threshold": offer.threshold, "good_above": offer.good_above}
                | _visible(offer.visibility)
                for offer in self.by_rate()
            ],
            "cells": [
                {"kind": cell.kind, "size": cell.size, "contrast": cell.contrast} | _counted(cell.counted)
                for cell in self.cells()
            ],
            "map": self.map,
            "renderings": self.renderings.to_dict(),
        }


def _counted(count: Count) -> dict[str, Any]:
    low, high = count.interval
    share = None if math.isnan(count.share) else count.share
    return {"found": count.found, "total": count.total, "share": share, "low": low, "high": high}


def _visible(seen: Visibility) -> dict[str, Any]:
    return _counted(seen.counted) | {"half_from": seen.half_from, "nine_of_ten_from": seen.most_from}


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
