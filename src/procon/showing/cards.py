"""Show predictions and detectors in Python: pictures, plots and the cards of notebooks."""

import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.amounts import count_of
from procon.arrays import Bytes
from procon.errors import ConfigError, ImageError, MissingExtraError
from procon.files import write_bytes
from procon.names import show_name
from procon.prediction import Prediction
from procon.showing.painting import color_scale, data_uri, paint_prediction
from procon.vision.images import open_image
from procon.vision.pictures import jpeg, shrink

CARD_SIDE = 300  # pixels of a picture in a notebook
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_GREEN, _RED, _GREY = "#15803d", "#b91c1c", "#8b95a1"


def open_scored(prediction: Prediction, image: Any = None) -> Bytes:
    """The pixels [H, W, 3] of the image that was scored: from ``image``, the object that was scored, or its path."""
    origin = prediction.origin if image is None else image
    if origin is None and prediction.source is None:
        raise ImageError("the image of this prediction has no path and was not kept; pass it: prediction.plot(image)")
    pixels = open_image(Path(str(prediction.source)) if origin is None else origin).rgb8()
    if pixels.shape[:2] != prediction.heatmap.shape:
        (height, width), (rows, columns) = pixels.shape[:2], prediction.heatmap.shape
        raise ImageError(
            f"the image must be the one that was scored, {columns}x{rows} as its heat map, got {width}x{height}; if "
            "the file has changed, predict again"
        )
    return pixels


def overlay_image(prediction: Prediction, image: Any = None) -> Image.Image:
    """The part under its heat map, with its regions outlined."""
    return Image.fromarray(paint_prediction(open_scored(prediction, image), prediction, color_scale(prediction)))


def save_prediction(prediction: Prediction, path: Path, image: Any = None) -> Path:
    """Write the overlay, the numbers or the heat map to ``path``, by its ending."""
    ending, buffer = path.suffix.lower(), io.BytesIO()
    if ending in PICTURES:
        overlay_image(prediction, image).save(buffer, PICTURES[ending], quality=92)
    elif ending == ".json":
        buffer.write((json.dumps(prediction.to_dict(), indent=2) + "\n").encode())
    elif ending == ".npy":
        np.save(buffer, prediction.heatmap, allow_pickle=False)
    else:
        endings = ", ".join([*PICTURES, ".json", ".npy"])
        raise ConfigError(f"the file of a prediction must end in {endings}, got {path.name}")
    write_bytes(path, buffer.getvalue())
    return path


def plot_prediction(prediction: Prediction, image: Any = None) -> Any:
    """The part, the part under its heat map, and the score on the scale of the model, as a matplotlib figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plot needs matplotlib; install it with: pip install 'procon[notebook]'") from None

    pixels = open_scored(prediction, image)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes: dict[str, Any] = figure.subplot_mosaic([["part", "map"], ["score", "score"]], height_ratios=[6, 1])
    axes["part"].imshow(pixels)
    axes["part"].set_title(show_name(Path(prediction.source).name) if prediction.source else "part")
    axes["map"].imshow(paint_prediction(pixels, prediction, color_scale(prediction)))
    axes["map"].set_title(verdict_words(prediction))
    for name in ("part", "map"):
        axes[name].set_axis_off()
    good = prediction.calibration.scores if prediction.calibration else ()
    axes["score"].plot(good, np.zeros(len(good)), "|", color=_GREY, label="good images")
    if prediction.threshold is not None:
        axes["score"].axvline(prediction.threshold, color=_RED, label="threshold")
    color = _RED if prediction.is_anomalous else _GREEN
    axes["score"].plot([prediction.score], [0], "o", color=color, label="this part")
    axes["score"].set_yticks([])
    axes["score"].set_xlabel("score")
    axes["score"].legend(loc="upper center", ncols=3, frameon=False, bbox_to_anchor=(0.5, 1.6))
    return figure


def verdict_words(prediction: Prediction) -> str:
    """Verdict and score in a line."""
    word = {None: "no threshold", True: "ANOMALOUS", False: "good"}[prediction.is_anomalous]
    relative = "" if prediction.relative_score is None else f", {prediction.relative_score:.2f} x the threshold"
    return f"{word}, score {prediction.score:.4f}{relative}"


def prediction_html(prediction: Prediction) -> str:
    """A card for notebooks: the part, its heat map, verdict, and score on the scale of the model."""
    color = {None: _GREY, True: _RED, False: _GREEN}[prediction.is_anomalous]
    try:
        pixels = open_scored(prediction)
        painted = paint_prediction(pixels, prediction, color_scale(prediction))
        pictures = "".join(_picture(shown, words) for shown, words in ((pixels, "part"), (painted, "heat map")))
    except ImageError as error:
        pictures = f"<p>{html.escape(str(error))}</p>"
    facts = [] if prediction.p_value is None else [f"p = {prediction.p_value:.3f}"]
    facts.append(count_of(len(prediction.regions), "region"))
    name = show_name(prediction.source) if prediction.source else "image without a path"
    scores = prediction.calibration.scores if prediction.calibration else ()
    return (
        f"<div style='font-family:sans-serif;max-width:{2 * CARD_SIDE + 30}px'>"
        f"<div style='color:{_GREY};font-size:12px'>{html.escape(name)}</div>"
        f"<div><b style='color:{color}'>{html.escape(verdict_words(prediction))}</b> "
        f"<span style='font-size:12px'>({html.escape('; '.join(facts))})</span></div>"
        f"<div style='display:flex;gap:8px;flex-wrap:wrap'>{pictures}</div>"
        f"{_axis(scores, prediction.threshold, prediction.score, color)}</div>"
    )


def detector_html(title: str, lines: Sequence[str], scores: Sequence[float], threshold: float | None) -> str:
    """A card for notebooks: what a detector was fitted on, ``scores`` of good images, and what it promises."""
    listed = "".join(f"<li>{html.escape(show_name(line))}</li>" for line in lines)
    axis = "" if threshold is None else _axis(scores, threshold, None, _GREY)
    return (
        f"<div style='font-family:sans-serif;max-width:{2 * CARD_SIDE + 30}px'>"
        f"<b>{html.escape(title)}</b><ul style='font-size:12px;margin:4px 0'>{listed}</ul>{axis}</div>"
    )


def _picture(pixels: Bytes, words: str) -> str:
    small = data_uri(jpeg(shrink(pixels, CARD_SIDE), quality=85))
    return f"<img alt='{words}' style='max-width:{CARD_SIDE}px' src='{small}'>"


def _axis(good: Sequence[float], threshold: float | None, score: float | None, color: str) -> str:
    """Scores of good images as ticks, the threshold as a line, and a score as a dot, on one axis as SVG."""
    values = [*good, *(value for value in (threshold, score) if value is not None)]
    low, high, width = min(values), max(values), 2 * CARD_SIDE
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0

    def x(value: float) -> str:
        return f"{width * (value - low + margin) / (high - low + 2 * margin):.1f}"

    parts = [f"<path d='M{x(value)} 12V26' stroke='{_GREY}'/>" for value in good]
    if threshold is not None:
        side = "end" if float(x(threshold)) > width / 2 else "start"
        parts.append(
            f"<path d='M{x(threshold)} 4V34' stroke='{_RED}' stroke-width='2'/><text x='{x(threshold)}' y='48' "
            f"font-size='12' fill='currentColor' text-anchor='{side}'>threshold {threshold:.4f}</text>"
        )
    if score is not None:
        parts.append(f"<circle cx='{x(score)}' cy='19' r='6' fill='{color}'/>")
    return (
        f"<svg viewBox='0 0 {width} 54' style='width:100%' role='img' aria-label='scores of {len(good)} good images'>"
        f"<path d='M0 30H{width}' stroke='{_GREY}'/>{''.join(parts)}</svg>"
    )
