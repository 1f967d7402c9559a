"""The HTML page of a lesson that is not accepted yet: the marked defect, and the good images that it would flag."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from procon.arrays import Box, Bytes
from procon.detector import Detector
from procon.errors import ImageError
from procon.files import write_text
from procon.model.lessons import Lesson, lesson_pixels
from procon.model.teaching import Proposal
from procon.results.gallery import Card, Mark, render_gallery
from procon.vision.pictures import jpeg, shrink

_SIDE = 448  # pixels
_MARK = (0, 200, 220)


def write_price(path: Path, detector: Detector, proposal: Proposal) -> None:
    """Write the page for what ``detector.propose_lesson`` returned."""
    price, lesson = proposal.price, proposal.lesson
    threshold = price.threshold if price is not None else None
    plain, outlined = lesson_pictures(lesson)
    cards = [Card(lesson.image.name, proposal.score[1], True, None, None, plain, outlined)]
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
            pictures = outlined_pictures(picture.rgb8(), price.boxes[place], scale)
            cards.append(Card(price.names[place], price.after[place], True, None, None, *pictures))
    facts = [
        *proposal.describe(),
        "The first picture is the marked defect. The others are training images that only the lesson flags; outlined: "
        "the patch that looks most like the defect.",
        "The axis shows the scores that the training images would have, each without its own anchors.",
    ]
    write_text(path, render_gallery("What the lesson costs", cards, marks or cards[:1], threshold, facts))


def lesson_pictures(lesson: Lesson) -> tuple[bytes, bytes]:
    """The image of a lesson and the same with the marked region outlined, as JPEG."""
    pixels = lesson_pixels(lesson)
    return outlined_pictures(pixels, lesson.box, pixels.shape[0] / lesson.image.size[0])


def outlined_pictures(pixels: Bytes, box: Box | None, scale: float) -> tuple[bytes, bytes]:
    """A picture and the same with a ``box`` outlined, as JPEG; ``scale`` leads from the box to these pixels."""
    small = shrink(pixels, _SIDE)
    canvas = Image.fromarray(small)
    if box is not None:
        factor = scale * small.shape[0] / pixels.shape[0]
        left, top, right, bottom = (side * factor for side in box)
        ImageDraw.Draw(canvas).rectangle((left - 2, top - 2, right + 1, bottom + 1), outline=_MARK, width=2)
    return jpeg(small), jpeg(np.asarray(canvas))
