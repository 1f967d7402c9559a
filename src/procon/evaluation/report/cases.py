"""Which test images a person should look at: the worst misses, the worst false alarms, the least visible regions."""

from dataclasses import dataclass

import numpy as np

from procon.arrays import Bools
from procon.evaluation.data.layouts import GOOD
from procon.evaluation.report.views import View, select_region
from procon.evaluation.runs.raw import Raw

SMALLEST = 12  # pixels of a region that is shown: smaller ones are mostly artefacts of a mask that was resized


@dataclass(frozen=True)
class Case:
    """One test image and why it is shown."""

    index: int
    note: str
    region: Bools | None = None  # the region of its mask that the note is about [H, W]; None for the whole image


def worst_scores(view: View, count: int, *, defective: bool) -> list[Case]:
    """The defective images with the lowest scores, lowest first, or the good ones with the highest, highest first."""
    labels, scores = np.array(view.raw.labels), view.raw.scores.astype(np.float64)
    sign, kind, direction = (1, "good", "higher") if defective else (-1, "defective", "lower")
    candidates = np.flatnonzero(labels == defective)
    others = scores[labels != defective]
    cases = []
    for index in candidates[np.argsort(sign * scores[candidates], kind="stable")][:count]:
        beyond = int(np.count_nonzero(sign * others > sign * scores[index]))
        compared = f"{beyond} of {len(others)} {kind} images score {direction}"
        cases.append(Case(int(index), compared if len(others) else f"no {kind} images to compare"))
    return cases


def hidden_regions(view: View, count: int) -> list[Case]:
    """Regions of at least :data:`SMALLEST` pixels, those with the lowest map values first."""
    cases = []
    for region in [region for region in view.regions if region.area >= SMALLEST][:count]:
        note = (
            f"half of this region ({region.area} pixels) is covered from {region.median:.3f} down, "
            f"together with {view.false_positive_rate(region.median):.2%} of all unmarked pixels"
        )
        cases.append(Case(region.index, note, select_region(view.masks[region.index], region.number)))
    return cases


def choose_examples(raw: Raw, count: int) -> list[int]:
    """At most ``count`` images for a figure: of each kind evenly spaced by score, then the good one in the middle."""
    kinds = list(dict.fromkeys(sample.kind for sample in raw.samples if sample.defective))
    good = any(not sample.defective for sample in raw.samples)
    kinds = kinds[: max(1, count - good)]
    each = max(1, (count - good) // max(1, len(kinds)))
    examples = [index for kind in kinds for index in _spaced(raw, kind, each)]
    return [*examples, *_spaced(raw, GOOD, 1)] if good else examples


def _spaced(raw: Raw, kind: str, count: int) -> list[int]:
    """``count`` images of a kind at the middles of as many equal parts of its scores, the highest first."""
    places = [i for i, sample in enumerate(raw.samples) if sample.kind == kind]
    ordered = sorted(places, key=lambda i: (-float(raw.scores[i]), i))
    return list(dict.fromkeys(ordered[(2 * part + 1) * len(ordered) // (2 * count)] for part in range(count)))
