"""An HTML page of the suspects among the training images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from procon.detector import Detector
from procon.errors import ImageError
from procon.model.suspects import Suspect
from procon.prediction import Prediction
from procon.results.gallery import Mark, make_card, write_gallery
from procon.results.rendering import ColorScale
from procon.vision.pictures import shrink_map

_CARDS = 24  # images with pictures: the suspects first, then the next ones for comparison


def write_suspects(path: Path, detector: Detector, ranked: Sequence[Suspect], limit: float) -> None:
    """Write the page for what ``detector.suspects(limit=limit)`` returned."""
    quiet = [suspect for suspect in ranked if not suspect.flagged] or list(ranked)
    typical = float(np.median([np.median(suspect.map) for suspect in quiet]))
    scale = ColorScale(typical, max(float(suspect.map.max()) for suspect in quiet))
    cards = []
    for suspect in ranked[:_CARDS]:
        picture = detector.sources.picture(detector.model.memory.images[suspect.number])
        if isinstance(picture, ImageError):
            continue
        heatmap = shrink_map(suspect.map, picture.size)
        prediction = Prediction(suspect.excess, heatmap, suspect.flagged, limit, None)
        cards.append(make_card(suspect.image, prediction, picture.rgb8(), scale))
    flagged = sum(suspect.flagged for suspect in ranked)
    facts = [
        f"{flagged} of {len(ranked)} training images are suspected.",
        "The number of an image is how many spreads its score lies above the median of the others. Each image is "
        "scored without its own anchors and without those of other suspects.",
        "A suspect may be a defect, or a good part of a kind that is rare among these images, so look at it first. "
        "To leave it out: procon fit --suspects leave-out, or procon forget MODEL IMAGE.",
    ]
    marks = [Mark(suspect.image, suspect.excess, suspect.flagged) for suspect in ranked]
    write_gallery(path, "Suspects among the training images", cards, marks, limit, facts)
