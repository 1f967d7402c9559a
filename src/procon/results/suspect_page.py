"""A page of the training images that stand out, to be looked at before they are believed or left out."""

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

SHOWN = 24  # images with pictures: the flagged ones first, then the next in line for comparison


def write_suspects(path: Path, detector: Detector, ranked: Sequence[Suspect], limit: float) -> None:
    """Write the page for what ``detector.suspects(limit=limit)`` returned."""
    quiet = [suspect for suspect in ranked if not suspect.flagged] or list(ranked)
    typical = float(np.median([np.median(suspect.map) for suspect in quiet]))
    scale = ColorScale(typical, max(float(suspect.map.max()) for suspect in quiet))
    cards = []
    for suspect in ranked[:SHOWN]:
        picture = detector.sources.picture(detector.model.memory.images[suspect.number])
        if isinstance(picture, ImageError):
            continue
        heatmap = shrink_map(suspect.map, picture.size)
        result = Prediction(suspect.excess, heatmap, suspect.flagged, limit, None, (), suspect.image)
        cards.append(make_card(suspect.image, result, picture.rgb8(), scale))
    flagged = sum(suspect.flagged for suspect in ranked)
    facts = [
        f"{flagged} of {len(ranked)} training images are suspected.",
        "The number of an image is how many spreads its score lies above the median of the others, scored without its "
        "own anchors and without those of other suspects.",
        "A suspect may be a defect, or a good part of a kind that is rare among these images: look before leaving it "
        "out. Leave out: procon fit --suspects leave-out, or procon forget MODEL IMAGE.",
    ]
    marks = [Mark(suspect.image, suspect.excess, suspect.flagged) for suspect in ranked]
    write_gallery(path, "Suspects among the training images", cards, marks, limit, facts)
