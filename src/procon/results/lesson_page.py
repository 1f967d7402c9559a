"""The HTML page of a lesson that is not yet accepted: the marked defect, and the good images that it would flag."""

from pathlib import Path

import numpy as np
from PIL import Image

from procon.arrays import Box, Bytes
from procon.detector import Detector
from procon.errors import ImageError
from procon.files import write_text
from procon.model.lessons import lesson_pixels
from procon.model.teaching import Proposal
from procon.results.contours import outline_path
from procon.results.gallery import Card, Wording, render_gallery
from procon.results.score_axis import Mark
from procon.vision.pictures import jpeg, png, shrink

_SIDE = 448  # pixels
_WORDING = Wording("image", "flagged with the lesson", "good", outlined="the marked defect, or the patch most like it")


def write_price(path: Path, detector: Detector, proposal: Proposal) -> None:
    """Write the page for what ``detector.propose_lesson`` returned."""
    price, lesson = proposal.price, proposal.lesson
    threshold = price.threshold if price is not None else None
    pixels = lesson_pixels(lesson)
    cards = [_card(lesson.image.name, proposal.score[1], pixels, lesson.box, pixels.shape[0] / lesson.image.size[0])]
    marks: list[Mark] = []
    if price is not None:
        marks = [
            Mark(name, score, score > price.threshold) for name, score in zip(price.names, price.after, strict=True)
        ]
        for place in price.added:
            picture = detector.sources.picture(detector.model.memory.images[place])
            if isinstance(picture, ImageError):
                continue
            scale = picture.size[0] / detector.model.memory.images[place].size[0]
            cards.append(_card(price.names[place], price.after[place], picture.rgb8(), price.boxes[place], scale))
    facts = [
        *proposal.describe(),
        "The first picture is the marked defect. The others are training images that only the lesson flags; outlined: "
        "the patch that looks most like the defect.",
        "The axis shows the scores that the training images would have, each without its own anchors.",
    ]
    page = render_gallery("What the lesson costs", cards, marks or cards[:1], threshold, facts, wording=_WORDING)
    write_text(path, page)


def _card(name: str, score: float, pixels: Bytes, box: Box | None, scale: float) -> Card:
    """A picture with a ``box`` outlined and no heat map; ``scale`` leads from the box to these pixels."""
    small = shrink(pixels, _SIDE)
    outlined = np.zeros(small.shape[:2], bool)
    if box is not None:
        factor = scale * small.shape[0] / pixels.shape[0]
        left, top, right, bottom = (round(side * factor) for side in box)
        outlined[max(top, 0) : bottom + 1, max(left, 0) : right + 1] = True
    level = png(Image.fromarray(np.zeros((1, 1), np.uint8)))
    size = (small.shape[0], small.shape[1])
    return Card(
        name,
        score,
        True,
        None,
        None,
        (pixels.shape[0], pixels.shape[1]),
        jpeg(small),
        level,
        outline_path(outlined),
        size,
    )
