"""One picture that shows why a part was flagged: the patch, and the normal patches it was compared with."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from procon.arrays import Box, Bytes
from procon.detector import Detector
from procon.errors import ImageError
from procon.files import write_bytes
from procon.model.lessons import lesson_pixels
from procon.names import show_name
from procon.prediction import Explanation, LayerEvidence, LessonEvidence, NormalPatch, Prediction
from procon.showing.crops import Crop, crop_patch, crop_window
from procon.showing.painting import ColorScale, color_scale, paint, paint_prediction
from procon.showing.sheet import INK, LINE, PAPER, SOFT, Point, Sheet, font
from procon.vision.images import ImageLike, open_image
from procon.vision.pictures import png

_MARGIN, _GAP = 32, 28
_PART, _PATCH, _TILE = 520, 380, 248  # longest sides of the part, the flagged patch and a normal one, in pixels
_SHOWN = 5  # normal patches

_TALLEST = 4000  # pixels; what is not needed is cut off
_BAR, _MARK = (70, 104, 158), (0, 200, 220)
_TYPICAL = (240, 170, 30)
_VERDICT = {True: (200, 30, 60), False: (30, 125, 70), None: SOFT}


def write_evidence(path: Path, detector: Detector, image: ImageLike, explanation: Explanation) -> None:
    """Draw the explanation of ``image`` and write it as PNG."""
    write_bytes(path, png(draw_evidence(detector, image, explanation)))


def draw_evidence(detector: Detector, image: ImageLike, explanation: Explanation) -> Image.Image:
    """The part with its map, the enlarged patch, the residual of each layer, and the heaviest normal patches."""
    prediction = explanation.prediction or detector.predict(image)
    pixels = open_image(image).rgb8()
    sheet = Sheet(2 * _MARGIN + _SHOWN * _TILE + (_SHOWN - 1) * _GAP, _TALLEST, _MARGIN)
    y = sheet.text((_MARGIN, _MARGIN - 8), _short_name(explanation.source or "image", 3), 26) + 4
    y = sheet.text((_MARGIN, y), _verdict(prediction), 18, _VERDICT[prediction.is_anomalous]) + _GAP
    left = _draw_part(sheet, (_MARGIN, y), pixels, prediction, explanation.box, color_scale(detector))
    patch = crop_patch(detector.config, pixels, pixels.shape[:2], explanation.box, _PATCH)
    middle = _draw_patch(sheet, (_MARGIN + _PART + _GAP, y), explanation, patch)
    calibration = detector.calibration if detector.config.normalization == "none" else None
    typical = calibration.typical if calibration is not None else None
    corner = (_MARGIN + _PART + _PATCH + 2 * _GAP, y)
    right = _draw_layers(sheet, corner, explanation, detector.config.layer_fusion, typical)
    y = max(left, middle, right) + _GAP
    if explanation.lesson is not None:
        y = _draw_lesson(sheet, (_MARGIN, y), detector, explanation.lesson) + _GAP
    sheet.draw.line((_MARGIN, y, sheet.width - _MARGIN, y), LINE, 2)
    y = sheet.text((_MARGIN, y + 16), "The normal patches it was compared with", 20) + 2
    banks, patches = len(explanation.layers[0].residuals), explanation.normal_patches(_SHOWN)
    note = (
        f"Of all training patches these have the most weight, {sum(patch.weight for patch in patches):.0%} together. "
        f"A weight is the mean over {len(explanation.layers)} layers x {banks} banks, a distance the mean over those "
        "banks in which the patch was among the nearest."
    )
    y = sheet.text((_MARGIN, y), note, 15, SOFT) + 14
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


def _outline(crop: Crop, box: Box) -> Image.Image:
    """The picture of ``crop`` with ``box``, given in pixels of the image, outlined."""
    draw, shares = ImageDraw.Draw(crop.picture), crop.place(box)
    left, top, right, bottom = (round(share * side) for share, side in zip(shares, crop.picture.size * 2, strict=True))
    for grow, ink in ((2, (0, 0, 0)), (1, _MARK), (0, _MARK), (-1, (0, 0, 0))):  # visible on any background
        if right + 2 * grow > left + 1 and bottom + 2 * grow > top + 1:
            draw.rectangle((left - grow, top - grow, right - 1 + grow, bottom - 1 + grow), outline=ink)
    return crop.picture


def _draw_part(sheet: Sheet, at: Point, pixels: Bytes, prediction: Prediction, box: Box, scale: ColorScale) -> int:
    y = sheet.text(at, "The part and its heat map", 20) + 6
    height, width = pixels.shape[:2]
    whole = crop_window(pixels, (height, width), (0, 0, width, height), _PART)
    painted = Image.fromarray(paint_prediction(np.asarray(whole.picture), prediction, scale))
    y = sheet.paste((at[0], y), _outline(Crop(painted, whole.window), box)) + 14
    return _draw_legend(sheet, (at[0], y), scale)


def _draw_legend(sheet: Sheet, at: Point, scale: ColorScale) -> int:
    """The colours with the values they stand for."""
    width, height, most = 300, 16, 2.0
    span = scale.threshold - scale.typical
    values = np.linspace(scale.typical, scale.typical + most * span, width, dtype=np.float32)
    grey = np.full((height, width, 3), 205, np.uint8)
    bar = paint(grey, np.repeat(values[None], height, axis=0), scale)
    below = sheet.paste(at, Image.fromarray(bar))
    for share, value, word in ((0.0, scale.typical, "typical"), (0.5, scale.threshold, "pixel threshold")):
        x, anchor = at[0] + round(share * width), "ma" if share else "la"
        sheet.draw.line((x, below, x, below + 5), INK)
        sheet.label((x, below + 7), f"{value:.2f}", INK, 14, anchor)
        sheet.label((x, below + 24), word, SOFT, 14, anchor)
    sheet.text((at[0] + width + 14, at[1]), "white outline: a region", 14, SOFT)
    return below + 46


def _draw_patch(sheet: Sheet, at: Point, explanation: Explanation, patch: Crop) -> int:
    y = sheet.text(at, "The patch, with its surroundings", 20) + 6
    y = sheet.paste((at[0], y), _outline(patch, explanation.box)) + 10
    (x_asked, y_asked), (left, top, right, bottom) = explanation.xy, explanation.box
    place = f"around pixel {x_asked}, {y_asked}: columns {left} to {right - 1}, rows {top} to {bottom - 1}"
    return sheet.text((at[0], y), place, 15, SOFT, _PATCH)


def _draw_layers(sheet: Sheet, at: Point, explanation: Explanation, fusion: str, typical: float | None) -> int:
    """A bar for each layer: the residual that its anchors leave, with the range over the banks."""
    (x, y), right = at, sheet.width - _MARGIN
    y = top = sheet.text((x, y), "What each layer cannot explain", 20, width=right - x) + 12
    most = max(max(layer.residuals) for layer in explanation.layers) or 1.0
    names = [_block_name(layer) for layer in explanation.layers]
    start = x + min(round(max(font(15).getlength(name) for name in names)) + 12, 120)
    room = right - start - 62
    values: list[tuple[Point, str]] = []
    for name, layer in zip(names, explanation.layers, strict=True):
        below = sheet.text((x, y + 4), name, 15, width=start - x - 8)
        end = start + round(room * layer.residual / most)
        sheet.draw.rectangle((start, y, end, y + 26), _BAR)
        low, high = (start + round(room * value / most) for value in (min(layer.residuals), max(layer.residuals)))
        sheet.draw.line((low, y + 13, high, y + 13), INK, 2)
        for tick in (low, high):
            sheet.draw.line((tick, y + 8, tick, y + 18), INK, 2)
        values.append(((max(end, high) + 8, y + 4), f"{layer.residual:.3f}"))
        y = max(below, y + 26) + 16
    below = _draw_axis(sheet, (start, top, y), room, most, typical)
    for place, value in values:  # over the line that the axis draws
        sheet.draw.rectangle(sheet.draw.textbbox(place, value, font(15)), PAPER)
        sheet.label(place, value, INK, anchor="la")
    banks = len(explanation.layers[0].residuals)
    rules = {"max": "The patch score is the largest of them", "concat": "The layers are joined; the patch score is"}
    rule = rules.get(fusion, f"The patch score is their {fusion}")
    note = f"Bar: median of {banks} banks; line: from the lowest to the highest bank. {rule}: {explanation.score:.3f}."
    return sheet.text((x, below + 10), note, 15, SOFT, right - x)


def _draw_axis(sheet: Sheet, at: tuple[int, int, int], width: int, most: float, typical: float | None) -> int:
    """The scale under the bars, from 0 to ``most``, with a line at the typical good patch; the y below it."""
    left, top, y = at
    sheet.draw.line((left, y - 8, left + width, y - 8), LINE, 1)
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


def _draw_lesson(sheet: Sheet, at: Point, detector: Detector, evidence: LessonEvidence) -> int:
    """The marked defect that raised the score, in its surroundings, and why."""
    sheet.draw.line((at[0], at[1], sheet.width - _MARGIN, at[1]), LINE, 2)
    y = sheet.text((at[0], at[1] + 16), "The marked defect that decided", 20) + 10
    lesson = next(lesson for lesson in detector.model.lessons if lesson.name == evidence.lesson)
    marked = crop_patch(detector.config, lesson_pixels(lesson), lesson.image.size, evidence.box, _TILE)
    below = sheet.paste((at[0], y), _outline(marked, evidence.box))
    sheet.text((at[0] + _TILE + _GAP, y), evidence.describe(), 17, width=2 * _TILE)
    return below


def _draw_normal(sheet: Sheet, at: Point, detector: Detector, patch: NormalPatch) -> int:
    """A normal patch in its surroundings, or a grey tile that says why it cannot be shown."""
    image = detector.model.memory.images[patch.number]
    picture, kind = detector.sources.picture(image), ""
    if isinstance(picture, ImageError):
        y = sheet.paste(at, Image.new("RGB", (_TILE, _TILE), (225, 227, 230)))
        why = "The training image cannot be read any more, and the model has no thumbnail of it (fit with thumbnails)."
        sheet.text((at[0] + 16, at[1] + 70), why, 15, SOFT, _TILE - 32)
    else:
        y = sheet.paste(
            at, _outline(crop_patch(detector.config, picture.rgb8(), image.size, patch.box, _TILE), patch.box)
        )
        kind = ", from a thumbnail" if picture.size != image.size else ""
    y = sheet.text((at[0], y + 8), f"weight {patch.weight:.1%}", 17, width=_TILE)
    y = sheet.text((at[0], y), f"distance {patch.distance:.3f}{kind}", 15, SOFT, _TILE)
    place = f"{_short_name(patch.image, 2)} at {patch.box[0]}, {patch.box[1]}"
    return sheet.text((at[0], y), place, 15, SOFT, _TILE)
