"""One picture that says why a part was flagged: the patch, and the normal patches it was compared with."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from procon.arrays import Box
from procon.detector import Detector
from procon.errors import ImageError
from procon.files import atomic_path
from procon.prediction import Explanation, LayerEvidence, NormalPatch, Prediction
from procon.results.rendering import ColorScale, color_scale, paint, painted
from procon.vision.framing import patch_size
from procon.vision.images import ImageLike, open_image

Window = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of an image."""

MARGIN, GAP = 32, 28
PART, PATCH, TILE = 520, 380, 248  # longest sides of the part, the flagged patch and a normal one, in pixels
AROUND = 2  # patches of surroundings on each side: alone, a patch of 14 pixels says little
SHOWN = 5  # normal patches

_INK, _SOFT, _PAPER, _LINE = (28, 32, 36), (104, 110, 120), (255, 255, 255), (214, 218, 224)
_BAR, _SPREAD, _MARK = (70, 104, 158), (28, 32, 36), (0, 200, 220)
_TYPICAL = (240, 170, 30)
_VERDICT = {True: (200, 30, 60), False: (30, 125, 70), None: _SOFT}


def write_evidence(path: Path, detector: Detector, image: ImageLike, found: Explanation) -> None:
    """Draw the explanation of ``image`` and write it as PNG."""
    drawn = draw_evidence(detector, image, found)
    with atomic_path(path) as temporary:
        drawn.save(temporary, "PNG")


def draw_evidence(detector: Detector, image: ImageLike, found: Explanation) -> Image.Image:
    """The part with its map, the patch enlarged, what each layer says, and the normal patches with most weight."""
    prediction = found.prediction or detector.predict(image)
    pixels = open_image(image).rgb8()
    sheet = _Sheet(2 * MARGIN + SHOWN * TILE + (SHOWN - 1) * GAP)
    y = sheet.text((MARGIN, MARGIN - 8), _short(found.source or "image", 3), 26) + 4
    y = sheet.text((MARGIN, y), _verdict(prediction), 18, _VERDICT[prediction.is_anomalous]) + GAP
    scale = color_scale(detector)
    left = _draw_part(sheet, (MARGIN, y), pixels, prediction, found, scale)
    around = _surroundings(found.box, patch_size(detector.config, pixels.shape[:2]), pixels.shape[:2])
    middle = _draw_patch(sheet, (MARGIN + PART + GAP, y), pixels, found, around)
    x = MARGIN + PART + PATCH + 2 * GAP
    known = detector.calibration if detector.config.normalization == "none" else None
    typical = known.typical if known is not None else None
    right = _draw_layers(sheet, (x, y, sheet.width - MARGIN), found, detector.config.layer_fusion, typical)
    y = max(left, middle, right) + GAP
    sheet.draw.line((MARGIN, y, sheet.width - MARGIN, y), _LINE, 2)
    y = sheet.text((MARGIN, y + 16), "The normal patches it was compared with", 20) + 2
    banks, patches = len(found.layers[0].residuals), found.normal_patches(SHOWN)
    note = (
        f"Of all training patches these have the most weight, {sum(patch.weight for patch in patches):.0%} together. "
        f"A weight is the mean over {len(found.layers)} layers x {banks} banks, a distance the mean over those banks "
        "in which the patch was among the nearest."
    )
    y = sheet.text((MARGIN, y), note, 15, _SOFT) + 14
    bottom = y
    for place, patch in enumerate(patches):
        bottom = max(bottom, _draw_normal(sheet, (MARGIN + place * (TILE + GAP), y), detector, patch))
    return sheet.cut(bottom + MARGIN)


def _verdict(prediction: Prediction) -> str:
    if prediction.threshold is None or prediction.p_value is None:
        return f"score {prediction.score:.4f}; the model has no threshold"
    word = "ANOMALOUS" if prediction.is_anomalous else "good"
    return f"{word}: score {prediction.score:.4f}, threshold {prediction.threshold:.4f}, p = {prediction.p_value:.3f}"


def _short(name: str, parts: int) -> str:
    return "/".join(Path(name).parts[-parts:])


class _Sheet:
    """A white page that grows downwards."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.image = Image.new("RGB", (width, 4000), _PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def text(
        self, at: tuple[int, int], words: str, size: int, ink: tuple[int, int, int] = _INK, width: int | None = None
    ) -> int:
        """Write ``words`` from ``at`` (left, top), broken to ``width``; the y below them."""
        font = ImageFont.load_default(size=size)
        room = width or self.width - MARGIN - at[0]
        y = at[1]
        for line in _lines(words, room, font):
            self.draw.text((at[0], y), line, ink, font)
            y += round(size * 1.3)
        return y

    def paste(self, at: tuple[int, int], picture: Image.Image) -> int:
        """Put a picture with a thin frame at (left, top); the y below it."""
        self.image.paste(picture, at)
        self.draw.rectangle((at[0] - 1, at[1] - 1, at[0] + picture.width, at[1] + picture.height), outline=_LINE)
        return at[1] + picture.height

    def cut(self, height: int) -> Image.Image:
        """The page down to ``height``."""
        return self.image.crop((0, 0, self.width, height))


def _lines(words: str, width: int, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> list[str]:
    """Words broken into lines of at most ``width`` pixels; a word that is longer is cut at its start."""
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
    """A window of an image at a size to look at, with where its pixels went."""

    picture: Image.Image
    window: Window

    def mark(self, box: Box) -> None:
        """Outline ``box``."""
        draw = ImageDraw.Draw(self.picture)
        left, top, right, bottom = self.window
        zoom_x, zoom_y = self.picture.width / (right - left), self.picture.height / (bottom - top)
        corners = (
            round((box[0] - left) * zoom_x),
            round((box[1] - top) * zoom_y),
            round((box[2] - left) * zoom_x) - 1,
            round((box[3] - top) * zoom_y) - 1,
        )
        for grow, ink in ((2, (0, 0, 0)), (1, _MARK), (0, _MARK), (-1, (0, 0, 0))):  # seen on any ground
            x0, y0, x1, y1 = corners[0] - grow, corners[1] - grow, corners[2] + grow, corners[3] + grow
            if x1 > x0 and y1 > y0:
                draw.rectangle((x0, y0, x1, y1), outline=ink)


def _view(pixels: NDArray[np.uint8], window: Window, longest: int, scale: float = 1.0) -> _View:
    """A window of an image of which ``pixels`` is a copy ``scale`` times the size."""
    left, top, right, bottom = window
    factor = longest / max(right - left, bottom - top)
    size = (max(1, round((right - left) * factor)), max(1, round((bottom - top) * factor)))
    box = (left * scale, top * scale, min(right * scale, pixels.shape[1]), min(bottom * scale, pixels.shape[0]))
    return _View(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC, box=box), window)


def _surroundings(box: Box, patch: tuple[float, float], size: tuple[int, int]) -> Window:
    """AROUND patches of size (width, height) on each side of ``box``, moved into an image of ``size``."""
    edges = []
    for start, end, side, length in ((box[0], box[2], patch[0], size[1]), (box[1], box[3], patch[1], size[0])):
        span = min(side * (2 * AROUND + 1), length)
        begin = min(max((start + end - span) / 2, 0), length - span)
        edges.append((begin, begin + span))
    return edges[0][0], edges[1][0], edges[0][1], edges[1][1]


def _draw_part(
    sheet: _Sheet,
    at: tuple[int, int],
    pixels: NDArray[np.uint8],
    prediction: Prediction,
    found: Explanation,
    scale: ColorScale,
) -> int:
    y = sheet.text(at, "The part and its heat map", 20) + 6
    height, width = pixels.shape[:2]
    view = _view(pixels, (0, 0, width, height), PART)
    shown = np.asarray(view.picture)
    view = _View(Image.fromarray(painted(shown, prediction, scale)), view.window)
    view.mark(found.box)
    y = sheet.paste((at[0], y), view.picture) + 14
    return _draw_legend(sheet, (at[0], y), scale)


def _draw_legend(sheet: _Sheet, at: tuple[int, int], scale: ColorScale) -> int:
    """The colours with the values they stand for."""
    width, height, most = 300, 16, 2.0
    span = scale.threshold - scale.typical
    values = np.linspace(scale.typical, scale.typical + most * span, width, dtype=np.float32)
    ground = np.full((height, width, 3), 205, np.uint8)
    bar = paint(ground, np.repeat(values[None], height, axis=0), scale)
    below = sheet.paste(at, Image.fromarray(bar))
    font = ImageFont.load_default(size=14)
    for share, value, word in ((0.0, scale.typical, "typical"), (0.5, scale.threshold, "pixel threshold")):
        x = at[0] + round(share * width)
        sheet.draw.line((x, below, x, below + 5), _INK)
        sheet.draw.text((x, below + 7), f"{value:.2f}", _INK, font, anchor="ma" if share else "la")
        sheet.draw.text((x, below + 24), word, _SOFT, font, anchor="ma" if share else "la")
    sheet.text((at[0] + width + 14, at[1]), "white outline: a region", 14, _SOFT)
    return below + 46


def _draw_patch(
    sheet: _Sheet, at: tuple[int, int], pixels: NDArray[np.uint8], found: Explanation, around: Window
) -> int:
    y = sheet.text(at, "The patch, with its surroundings", 20) + 6
    view = _view(pixels, around, PATCH)
    view.mark(found.box)
    y = sheet.paste((at[0], y), view.picture) + 10
    place = f"around pixel {found.xy[0]}, {found.xy[1]}: columns {found.box[0]} to {found.box[2] - 1}, "
    return sheet.text((at[0], y), f"{place}rows {found.box[1]} to {found.box[3] - 1}", 15, _SOFT, PATCH)


def _draw_layers(
    sheet: _Sheet, at: tuple[int, int, int], found: Explanation, fusion: str, typical: float | None
) -> int:
    """A bar for each layer: what its anchors leave unexplained, with the range over the banks."""
    x, y, right = at
    y = top = sheet.text((x, y), "What each layer cannot explain", 20, width=right - x) + 12
    most = max(max(layer.residuals) for layer in found.layers) or 1.0
    font = ImageFont.load_default(size=15)
    names = [_block_name(layer) for layer in found.layers]
    start = x + min(round(max(font.getlength(name) for name in names)) + 12, 120)
    room = right - start - 62
    values: list[tuple[tuple[int, int], str]] = []
    for name, layer in zip(names, found.layers, strict=True):
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
        sheet.draw.text(place, value, _INK, font)
    banks = len(found.layers[0].residuals)
    rules = {"max": "The patch score is the largest of them", "concat": "The layers are joined; the patch score is"}
    rule = rules.get(fusion, f"The patch score is their {fusion}")
    note = f"Bar: median of {banks} banks; line: from the lowest to the highest bank. {rule}: {found.score:.3f}."
    return sheet.text((x, below + 10), note, 15, _SOFT, right - x)


def _draw_axis(sheet: _Sheet, at: tuple[int, int, int], width: int, most: float, typical: float | None) -> int:
    """The scale under the bars, from 0 to ``most``, with a line at what a typical good patch has; the y below it."""
    left, top, y = at
    font = ImageFont.load_default(size=15)
    sheet.draw.line((left, y - 8, left + width, y - 8), _LINE, 1)
    sheet.draw.text((left, y - 2), "0", _SOFT, font, anchor="ma")
    sheet.draw.text((left + width, y - 2), f"{most:.2f}", _SOFT, font, anchor="ma")
    if typical is None or not 0 < typical < most:
        return y + 16
    mark = left + round(width * typical / most)
    for dash in range(top - 6, y - 8, 8):
        sheet.draw.line((mark, dash, mark, dash + 4), _TYPICAL, 2)
    sheet.draw.text((mark, y + 14), f"typical good patch {typical:.2f}", _SOFT, font, anchor="ma")
    return y + 34


def _block_name(layer: LayerEvidence) -> str:
    return f"block {layer.blocks[0]}" if len(layer.blocks) == 1 else "joined"


def _draw_normal(sheet: _Sheet, at: tuple[int, int], detector: Detector, patch: NormalPatch) -> int:
    """A normal patch in its surroundings, or a grey tile that says why it cannot be shown."""
    assert detector.memory is not None
    size = detector.memory.images[patch.number].size
    picture, from_thumbnail = detector.sources.picture(detector.memory.images[patch.number]), False
    if isinstance(picture, ImageError):
        tile = Image.new("RGB", (TILE, TILE), (225, 227, 230))
        y = sheet.paste(at, tile)
        why = "The training image cannot be read any more, and the model has no thumbnail of it (fit with thumbnails)."
        sheet.text((at[0] + 16, at[1] + 70), why, 15, _SOFT, TILE - 32)
    else:
        around = _surroundings(patch.box, patch_size(detector.config, size), size)
        view = _view(picture.rgb8(), around, TILE, picture.size[0] / size[0])  # a thumbnail is smaller than its image
        view.mark(patch.box)
        y = sheet.paste(at, view.picture)
        from_thumbnail = picture.size != size
    y = sheet.text((at[0], y + 8), f"weight {patch.weight:.1%}", 17, width=TILE)
    kind = ", from a thumbnail" if from_thumbnail else ""
    y = sheet.text((at[0], y), f"distance {patch.distance:.3f}{kind}", 15, _SOFT, TILE)
    return sheet.text((at[0], y), f"{_short(patch.image, 2)} at {patch.box[0]}, {patch.box[1]}", 15, _SOFT, TILE)
