"""One picture that says why a part was flagged: the patch, and the normal patches it was compared with."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from procon.arrays import Box, Bytes
from procon.detector import Detector
from procon.errors import ImageError
from procon.files import write_bytes
from procon.model.lessons import lesson_pixels
from procon.names import show_name
from procon.prediction import Explanation, LayerEvidence, LessonEvidence, NormalPatch, Prediction
from procon.showing.painting import ColorScale, color_scale, paint, paint_prediction
from procon.vision.framing import patch_size
from procon.vision.images import ImageLike, open_image
from procon.vision.pictures import png

_Window = tuple[float, float, float, float]  # (left, top, right, bottom) in pixels of an image
_Point = tuple[int, int]  # (x, y) on the sheet
_Ink = tuple[int, int, int]

_MARGIN, _GAP = 32, 28
_PART, _PATCH, _TILE = 520, 380, 248  # longest sides of the part, the flagged patch and a normal one, in pixels
_AROUND = 2  # patches of surroundings on each side: alone, a patch of 14 pixels says little
_SHOWN = 5  # normal patches

_INK, _SOFT, _PAPER, _LINE = (28, 32, 36), (104, 110, 120), (255, 255, 255), (214, 218, 224)
_BAR, _SPREAD, _MARK = (70, 104, 158), (28, 32, 36), (0, 200, 220)
_TYPICAL = (240, 170, 30)
_VERDICT = {True: (200, 30, 60), False: (30, 125, 70), None: _SOFT}


def write_evidence(path: Path, detector: Detector, image: ImageLike, explanation: Explanation) -> None:
    """Draw the explanation of ``image`` and write it as PNG."""
    write_bytes(path, png(draw_evidence(detector, image, explanation)))


def draw_evidence(detector: Detector, image: ImageLike, explanation: Explanation) -> Image.Image:
    """The part with its map, the enlarged patch, the residual of each layer, and the heaviest normal patches."""
    prediction = explanation.prediction or detector.predict(image)
    pixels = open_image(image).rgb8()
    sheet = _Sheet(2 * _MARGIN + _SHOWN * _TILE + (_SHOWN - 1) * _GAP)
    y = sheet.text((_MARGIN, _MARGIN - 8), _short_name(explanation.source or "image", 3), 26) + 4
    y = sheet.text((_MARGIN, y), _verdict(prediction), 18, _VERDICT[prediction.is_anomalous]) + _GAP
    left = _draw_part(sheet, (_MARGIN, y), pixels, prediction, explanation.box, color_scale(detector))
    around = _surroundings(explanation.box, patch_size(detector.config, pixels.shape[:2]), pixels.shape[:2])
    middle = _draw_patch(sheet, (_MARGIN + _PART + _GAP, y), pixels, explanation, around)
    calibration = detector.calibration if detector.config.normalization == "none" else None
    typical = calibration.typical if calibration is not None else None
    corner = (_MARGIN + _PART + _PATCH + 2 * _GAP, y)
    right = _draw_layers(sheet, corner, explanation, detector.config.layer_fusion, typical)
    y = max(left, middle, right) + _GAP
    if explanation.lesson is not None:
        y = _draw_lesson(sheet, (_MARGIN, y), detector, explanation.lesson) + _GAP
    sheet.draw.line((_MARGIN, y, sheet.width - _MARGIN, y), _LINE, 2)
    y = sheet.text((_MARGIN, y + 16), "The normal patches it was compared with", 20) + 2
    banks, patches = len(explanation.layers[0].residuals), explanation.normal_patches(_SHOWN)
    note = (
        f"Of all training patches these have the most weight, {sum(patch.weight for patch in patches):.0%} together. "
        f"A weight is the mean over {len(explanation.layers)} layers x {banks} banks, a distance the mean over those "
        "banks in which the patch was among the nearest."
    )
    y = sheet.text((_MARGIN, y), note, 15, _SOFT) + 14
    places = [(_MARGIN + number * (_TILE + _GAP), y) for number in range(len(patches))]
    ends = [_draw_normal(sheet, place, detector, patch) for place, patch in zip(places, patches, strict=True)]
    return sheet.image.crop((0, 0, sheet.width, max(y, *ends) + _MARGIN))


def _verdict(prediction: Prediction) -> str:
    if prediction.threshold is None or prediction.p_value is None:
        return f"score {prediction.score:.4f}; the model has no threshold"
    word = "ANOMALOUS" if prediction.is_anomalous else "good"
    return f"{word}: score {prediction.score:.4f}, threshold {prediction.threshold:.4f}, p = {prediction.p_value:.3f}"


def _short_name(name: str, parts: int) -> str:
    return show_name("/".join(Path(name).parts[-parts:]))


class _Sheet:
    """A white page; its methods draw at a point and return the y below what they drew."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.image = Image.new("RGB", (width, 4000), _PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def text(self, at: _Point, words: str, size: int, ink: _Ink = _INK, width: int | None = None) -> int:
        """Write ``words``, broken into lines of at most ``width``."""
        font = ImageFont.load_default(size=size)
        y = at[1]
        for line in _lines(words, width or self.width - _MARGIN - at[0], font):
            self.draw.text((at[0], y), line, ink, font)
            y += round(size * 1.3)
        return y

    def label(self, at: _Point, words: str, ink: _Ink = _SOFT, size: int = 15, anchor: str = "ma") -> None:
        """Write one short line; by default it is centred on the x of the point."""
        self.draw.text(at, words, ink, ImageFont.load_default(size=size), anchor=anchor)

    def paste(self, at: _Point, picture: Image.Image) -> int:
        """Put a picture with a thin frame on the page."""
        self.image.paste(picture, at)
        self.draw.rectangle((at[0] - 1, at[1] - 1, at[0] + picture.width, at[1] + picture.height), outline=_LINE)
        return at[1] + picture.height


def _lines(words: str, width: int, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> list[str]:
    """Words broken into lines of at most ``width`` pixels; a longer word loses its start."""
    lines: list[str] = []
    for word in words.split(" "):
        while len(word) > 4 and font.getlength(word) > width:  # a path: its end tells more than its start
            word = "..." + word.removeprefix("...")[1:]  # noqa: PLW2901
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True)
class _View:
    """A window of an image, enlarged."""

    picture: Image.Image
    window: _Window

    def outline(self, box: Box) -> None:
        """Outline ``box``, given in pixels of the image."""
        draw = ImageDraw.Draw(self.picture)
        left, top, right, bottom = self.window
        zoom_x, zoom_y = self.picture.width / (right - left), self.picture.height / (bottom - top)
        for grow, ink in ((2, (0, 0, 0)), (1, _MARK), (0, _MARK), (-1, (0, 0, 0))):  # visible on any background
            x0, y0 = round((box[0] - left) * zoom_x) - grow, round((box[1] - top) * zoom_y) - grow
            x1, y1 = round((box[2] - left) * zoom_x) - 1 + grow, round((box[3] - top) * zoom_y) - 1 + grow
            if x1 > x0 and y1 > y0:
                draw.rectangle((x0, y0, x1, y1), outline=ink)


def _view(pixels: Bytes, window: _Window, longest: int, scale: float = 1.0) -> _View:
    """A window of an image of which ``pixels`` is a copy ``scale`` times the size."""
    left, top, right, bottom = window
    factor = longest / max(right - left, bottom - top)
    size = (max(1, round((right - left) * factor)), max(1, round((bottom - top) * factor)))
    box = (left * scale, top * scale, min(right * scale, pixels.shape[1]), min(bottom * scale, pixels.shape[0]))
    return _View(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC, box=box), window)


def _surroundings(box: Box, patch: tuple[float, float], size: tuple[int, int]) -> _Window:
    """_AROUND patches of size (width, height) on each side of ``box``, moved into an image of ``size``."""
    edges = []
    for start, end, side, length in ((box[0], box[2], patch[0], size[1]), (box[1], box[3], patch[1], size[0])):
        span = min(side * (2 * _AROUND + 1), length)
        begin = min(max((start + end - span) / 2, 0), length - span)
        edges.append((begin, begin + span))
    return edges[0][0], edges[1][0], edges[0][1], edges[1][1]


def _draw_part(sheet: _Sheet, at: _Point, pixels: Bytes, prediction: Prediction, box: Box, scale: ColorScale) -> int:
    y = sheet.text(at, "The part and its heat map", 20) + 6
    height, width = pixels.shape[:2]
    view = _view(pixels, (0, 0, width, height), _PART)
    view = _View(Image.fromarray(paint_prediction(np.asarray(view.picture), prediction, scale)), view.window)
    view.outline(box)
    y = sheet.paste((at[0], y), view.picture) + 14
    return _draw_legend(sheet, (at[0], y), scale)


def _draw_legend(sheet: _Sheet, at: _Point, scale: ColorScale) -> int:
    """The colours with the values they stand for."""
    width, height, most = 300, 16, 2.0
    span = scale.threshold - scale.typical
    values = np.linspace(scale.typical, scale.typical + most * span, width, dtype=np.float32)
    grey = np.full((height, width, 3), 205, np.uint8)
    bar = paint(grey, np.repeat(values[None], height, axis=0), scale)
    below = sheet.paste(at, Image.fromarray(bar))
    for share, value, word in ((0.0, scale.typical, "typical"), (0.5, scale.threshold, "pixel threshold")):
        x, anchor = at[0] + round(share * width), "ma" if share else "la"
        sheet.draw.line((x, below, x, below + 5), _INK)
        sheet.label((x, below + 7), f"{value:.2f}", _INK, 14, anchor)
        sheet.label((x, below + 24), word, _SOFT, 14, anchor)
    sheet.text((at[0] + width + 14, at[1]), "white outline: a region", 14, _SOFT)
    return below + 46


def _draw_patch(sheet: _Sheet, at: _Point, pixels: Bytes, explanation: Explanation, around: _Window) -> int:
    y = sheet.text(at, "The patch, with its surroundings", 20) + 6
    view = _view(pixels, around, _PATCH)
    view.outline(explanation.box)
    y = sheet.paste((at[0], y), view.picture) + 10
    (x_asked, y_asked), (left, top, right, bottom) = explanation.xy, explanation.box
    place = f"around pixel {x_asked}, {y_asked}: columns {left} to {right - 1}, rows {top} to {bottom - 1}"
    return sheet.text((at[0], y), place, 15, _SOFT, _PATCH)


def _draw_layers(sheet: _Sheet, at: _Point, explanation: Explanation, fusion: str, typical: float | None) -> int:
    """A bar for each layer: the residual that its anchors leave, with the range over the banks."""
    (x, y), right = at, sheet.width - _MARGIN
    y = top = sheet.text((x, y), "What each layer cannot explain", 20, width=right - x) + 12
    most = max(max(layer.residuals) for layer in explanation.layers) or 1.0
    font = ImageFont.load_default(size=15)
    names = [_block_name(layer) for layer in explanation.layers]
    start = x + min(round(max(font.getlength(name) for name in names)) + 12, 120)
    room = right - start - 62
    values: list[tuple[_Point, str]] = []
    for name, layer in zip(names, explanation.layers, strict=True):
        below = sheet.text((x, y + 4), name, 15, width=start - x - 8)
        end = start + round(room * layer.residual / most)
        sheet.draw.rectangle((start, y, end, y + 26), _BAR)
        low, high = (start + round(room * value / most) for value in (min(layer.residuals), max(layer.residuals)))
        sheet.draw.line((low, y + 13, high, y + 13), _SPREAD, 2)
        for tick in (low, high):
            sheet.draw.line((tick, y + 8, tick, y + 18), _SPREAD, 2)
        values.append(((max(end, high) + 8, y + 4), f"{layer.residual:.3f}"))
        y = max(below, y + 26) + 16
    below = _draw_axis(sheet, (start, top, y), room, most, typical)
    for place, value in values:  # over the line that the axis draws
        sheet.draw.rectangle(sheet.draw.textbbox(place, value, font), _PAPER)
        sheet.label(place, value, _INK, anchor="la")
    banks = len(explanation.layers[0].residuals)
    rules = {"max": "The patch score is the largest of them", "concat": "The layers are joined; the patch score is"}
    rule = rules.get(fusion, f"The patch score is their {fusion}")
    note = f"Bar: median of {banks} banks; line: from the lowest to the highest bank. {rule}: {explanation.score:.3f}."
    return sheet.text((x, below + 10), note, 15, _SOFT, right - x)


def _draw_axis(sheet: _Sheet, at: tuple[int, int, int], width: int, most: float, typical: float | None) -> int:
    """The scale under the bars, from 0 to ``most``, with a line at the typical good patch; the y below it."""
    left, top, y = at
    sheet.draw.line((left, y - 8, left + width, y - 8), _LINE, 1)
    sheet.label((left, y - 2), "0")
    sheet.label((left + width, y - 2), f"{most:.2f}")
    if typical is None or not 0 < typical < most:
        return y + 16
    mark = left + round(width * typical / most)
    for dash in range(top - 6, y - 8, 8):
        sheet.draw.line((mark, dash, mark, dash + 4), _TYPICAL, 2)
    sheet.label((mark, y + 14), f"typical good patch {typical:.2f}")
    return y + 34


def _block_name(layer: LayerEvidence) -> str:
    return f"block {layer.blocks[0]}" if len(layer.blocks) == 1 else "joined"


def _draw_lesson(sheet: _Sheet, at: _Point, detector: Detector, evidence: LessonEvidence) -> int:
    """The marked defect that raised the score, in its surroundings, and what decided."""
    sheet.draw.line((at[0], at[1], sheet.width - _MARGIN, at[1]), _LINE, 2)
    y = sheet.text((at[0], at[1] + 16), "The marked defect that decided", 20) + 10
    lesson = next(lesson for lesson in detector.model.lessons if lesson.name == evidence.lesson)
    pixels, size = lesson_pixels(lesson), lesson.image.size
    around = _surroundings(evidence.box, patch_size(detector.config, size), size)
    view = _view(pixels, around, _TILE, pixels.shape[0] / size[0])
    view.outline(evidence.box)
    below = sheet.paste((at[0], y), view.picture)
    sheet.text((at[0] + _TILE + _GAP, y), evidence.describe(), 17, width=2 * _TILE)
    return below


def _draw_normal(sheet: _Sheet, at: _Point, detector: Detector, patch: NormalPatch) -> int:
    """A normal patch in its surroundings, or a grey tile that says why it cannot be shown."""
    image = detector.model.memory.images[patch.number]
    picture, kind = detector.sources.picture(image), ""
    if isinstance(picture, ImageError):
        y = sheet.paste(at, Image.new("RGB", (_TILE, _TILE), (225, 227, 230)))
        why = "The training image cannot be read any more, and the model has no thumbnail of it (fit with thumbnails)."
        sheet.text((at[0] + 16, at[1] + 70), why, 15, _SOFT, _TILE - 32)
    else:
        around = _surroundings(patch.box, patch_size(detector.config, image.size), image.size)
        view = _view(picture.rgb8(), around, _TILE, picture.size[0] / image.size[0])  # a thumbnail is smaller
        view.outline(patch.box)
        y = sheet.paste(at, view.picture)
        kind = ", from a thumbnail" if picture.size != image.size else ""
    y = sheet.text((at[0], y + 8), f"weight {patch.weight:.1%}", 17, width=_TILE)
    y = sheet.text((at[0], y), f"distance {patch.distance:.3f}{kind}", 15, _SOFT, _TILE)
    place = f"{_short_name(patch.image, 2)} at {patch.box[0]}, {patch.box[1]}"
    return sheet.text((at[0], y), place, 15, _SOFT, _TILE)
