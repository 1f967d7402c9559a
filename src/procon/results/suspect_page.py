"""HTML pages of training images that stand out: suspects, and odd images that were set aside for the threshold."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from procon.detector import Detector
from procon.errors import ImageError
from procon.files import write_text
from procon.model.rates import SET_ASIDE
from procon.model.suspects import Suspect
from procon.prediction import Prediction
from procon.results.gallery import Wording, make_card, render_gallery
from procon.results.score_axis import Mark
from procon.showing.painting import ColorScale, color_scale
from procon.vision.pictures import shrink_map

_SUSPECTS = Wording(
    "training image",
    "suspected",
    "like the others",
    "suspected above",
    "spreads above the median",
    1,
    "above every value on the images that are not suspected",
)
_ODD = replace(
    _SUSPECTS,
    flagged="odd",
    limit="set aside above",
    unit="robust deviations above the median",
    outlined="above a value that few good images reach",
)
_CARDS = 24  # images with pictures: the suspects first, then the next ones for comparison


def write_suspects(path: Path, detector: Detector, ranked: Sequence[Suspect], limit: float) -> None:
    """Write the page for what ``detector.suspects(limit=limit)`` returned."""
    flagged = sum(suspect.flagged for suspect in ranked)
    facts = [
        f"{flagged} of {len(ranked)} training images are suspected.",
        "The number of an image is how many spreads its score lies above the median of the others. Each image is "
        "scored without its own anchors and without those of other suspects.",
        "A suspect may be a defect, or a good part of a kind that is rare among these images, so look at it first. "
        "To leave it out: procon fit --suspects leave-out, or procon forget MODEL IMAGE.",
    ]
    quiet = [suspect for suspect in ranked if not suspect.flagged] or list(ranked)
    typical = float(np.median([np.median(suspect.map) for suspect in quiet]))
    scale = ColorScale(typical, max(float(suspect.map.max()) for suspect in quiet))
    _write_page(path, detector, ranked, limit, scale, "Suspects among the training images", facts, _SUSPECTS)


def write_odd_images(path: Path, detector: Detector, odd: Sequence[Suspect]) -> None:
    """Write the page for what ``detector.odd_images()`` returned."""
    assert detector.calibration is not None
    one = len(odd) == 1
    score, they = ("scores", "It stays") if one else ("score", "They stay")
    rule = ("but does not set" if one else "but do not set", "and counts for" if one else "and count for")
    sets = rule[detector.calibration.rule == "guarantee"]
    facts = [
        f"{len(odd)} of {len(detector.calibration.scores)} training images {score} far above the others. {they} in "
        f"the memory, {sets} the threshold.",
        "The number of an image is how many robust standard deviations its score lies above the median.",
        *detector.calibration.describe(detector.model.memory.names),
    ]
    title = "Odd images among the training images"
    _write_page(path, detector, odd, SET_ASIDE, color_scale(detector), title, facts, _ODD)


def _write_page(
    path: Path,
    detector: Detector,
    ranked: Sequence[Suspect],
    limit: float,
    scale: ColorScale,
    title: str,
    facts: Sequence[str],
    wording: Wording,
) -> None:
    cards = []
    for suspect in ranked[:_CARDS]:
        picture = detector.sources.picture(detector.model.memory.images[suspect.number])
        if isinstance(picture, ImageError):
            continue
        heatmap = shrink_map(suspect.map, picture.size)
        prediction = Prediction(suspect.excess, heatmap, suspect.flagged, None, None)
        cards.append(make_card(suspect.image, prediction, picture.rgb8(), scale))
    marks = [Mark(suspect.image, suspect.excess, suspect.flagged) for suspect in ranked]
    write_text(path, render_gallery(title, cards, marks, limit, facts, wording=wording))
