"""One self-contained HTML page of results that loads nothing else, so it can be mailed."""

import html
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image

from procon.amounts import count_of, human_bytes
from procon.arrays import Bytes
from procon.names import show_name
from procon.prediction import Prediction
from procon.results.contours import outline_path
from procon.results.drift import Drift
from procon.results.score_axis import Mark, render_axis
from procon.showing.markup import page_head, safe_text
from procon.showing.painting import ColorScale, color_tables, data_uri, outline_mask
from procon.vision.pictures import jpeg, shrink, shrink_map

MOST_CARDS = 2000
_PICTURE, _LEAST_PICTURE = 448, 160  # pixels; of a square picture on a page of few and of many images
_FEW = 200  # images up to which pictures have the full size
_LONG = 2.0  # images with sides in this ratio, or a larger one, get their own row
_HIGHEST, _STEPS = 2.5, 50  # the map of a card: levels up to this, in so many steps
_STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Wording:
    """The words that a page uses for its images and their scores."""

    noun: str = "image"
    flagged: str = "anomalous"
    unflagged: str = "good"
    limit: str = "threshold"
    unit: str = ""  # after a score, such as "spreads above the median"
    digits: int = 3
    outlined: str = (
        "above the pixel threshold of this model; where an anomalous part has nothing above it, "
        "the area around its peak"
    )


@dataclass(frozen=True)
class Card(Mark):
    """The result of one image with its pictures."""

    p_value: float | None
    relative_score: float | None
    size: tuple[int, int]  # (height, width) of the image
    part: bytes  # JPEG
    levels: bytes  # grey PNG: the heat map on the colour scale of the model, 0 to _HIGHEST
    outline: str  # SVG path around the regions
    outline_size: tuple[int, int]  # (height, width) of the path's coordinates
    picture: str = ""  # the overlay at full size, relative to the page


@dataclass(frozen=True)
class Failure:
    """An image that could not be scored."""

    name: str
    error: str


def picture_side(images: int) -> int:
    """Side of a square picture on a page of so many images, in pixels, so that the page can still be mailed."""
    return max(_LEAST_PICTURE, min(_PICTURE, round(_PICTURE * math.sqrt(_FEW / max(images, 1)))))


def make_card(
    name: str, prediction: Prediction, pixels: Bytes, scale: ColorScale, side: int = _PICTURE, picture: str = ""
) -> Card:
    """The pictures of one prediction at page size; a long image keeps the area of a square of ``side``."""
    height, width = pixels.shape[:2]
    longest = round(side * min(math.sqrt(max(height, width) / min(height, width)), 3))
    part = shrink(pixels, longest)
    map_size = tuple(max(1, round(length * 0.3)) for length in part.shape[:2])
    level = scale.level(shrink_map(prediction.heatmap, (map_size[0], map_size[1])))
    steps = np.round(np.clip(level / _HIGHEST, 0, 1) * _STEPS) * (255 / _STEPS)
    outlined = outline_mask(prediction, (part.shape[0] // 2 or 1, part.shape[1] // 2 or 1), scale)
    buffer = io.BytesIO()
    Image.fromarray(steps.round().astype(np.uint8)).save(buffer, "PNG", optimize=True)
    return Card(
        name,
        prediction.score,
        prediction.is_anomalous,
        prediction.p_value,
        prediction.relative_score,
        (height, width),
        jpeg(part, quality=82),
        buffer.getvalue(),
        outline_path(outlined),
        (outlined.shape[0], outlined.shape[1]),
        picture,
    )


def render_gallery(
    title: str,
    cards: Sequence[Card],
    marks: Sequence[Mark],
    threshold: float | None,
    facts: Sequence[str],
    drift: Drift | None = None,
    notes: Sequence[str] = (),
    *,
    failures: Sequence[Failure] = (),
    good: Sequence[float] = (),
    wording: Wording = Wording(),  # noqa: B008 - immutable
) -> str:
    """The page: all scores on one axis, a card for each of the images with the highest scores, and facts.

    ``good`` are the scores of the good images behind the threshold; ``failures`` get cards without pictures.
    """
    shown = sorted(cards, key=lambda card: -card.score)[:MOST_CARDS]
    names = [*(card.name for card in shown), *(failure.name for failure in failures)]
    limit = (wording.limit, threshold) if threshold is not None else None
    warning = (
        f"<p class={'warning' if drift.drifted else 'legend'}>{html.escape(drift.describe())}</p>" if drift else ""
    )
    body = [
        f"<h1>{safe_text(title)}</h1>",
        f"<p class=summary>{html.escape(_summary(len(shown), marks, failures, limit is not None, wording))}</p>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        warning,
        render_axis(marks, limit, good, wording.digits) if marks else "",
        _AXIS_LEGEND if good else "",
        _filters(),
        _controls(shown, failures, wording, {_folder(name) for name in names}),
        _LEGEND.format(outlined=wording.outlined),
        "<ul class=cards>",
        *(_card(card, wording) for card in shown),
        *(_failure(failure) for failure in failures),
        "</ul><p class=legend id=none hidden>No image is of this kind.</p>",
        _LIGHTBOX,
        f"<h2>{'Model' if wording.noun == 'image' else 'What this means'}</h2><ul class=facts>",
        *(f"<li>{safe_text(fact)}</li>" for fact in facts),
        "</ul>",
    ]
    body.insert(2, f"<p class=legend>This page is one file of {human_bytes(sum(map(len, body)))}.</p>")
    script, style = ((_STATIC / name).read_text(encoding="utf-8") for name in ("gallery.js", "gallery.css"))
    return "\n".join([page_head(title, style, script) + '<body data-view="map">', *body, "</body>\n</html>\n"])


def _summary(shown: int, marks: Sequence[Mark], failures: Sequence[Failure], judged: bool, wording: Wording) -> str:
    flagged = sum(bool(mark.is_anomalous) for mark in marks)
    called = "called " if wording.flagged == "anomalous" else ""
    parts = [count_of(len(marks) + len(failures), wording.noun)]
    parts += [f"{flagged:,} {called}{wording.flagged}"] if judged else []
    parts += [f"{len(failures):,} could not be read"] if failures else []
    text = ", ".join(parts)
    return text if shown == len(marks) else f"{text}; the {shown:,} with the highest scores are shown"


def _controls(shown: Sequence[Card], failures: Sequence[Failure], wording: Wording, folders: set[str]) -> str:
    """Filter, order and view; hidden until the script works."""
    flagged = sum(card.is_anomalous is True for card in shown)
    kinds = [("all", "all", len(shown) + len(failures)), ("bad", wording.flagged, flagged)]
    kinds += [("ok", wording.unflagged, len(shown) - flagged), ("error", "errors", len(failures))]
    choices = "".join(
        f"<label><input type=radio name=kind value={kind}{' checked' if kind == 'all' else ''}>"
        f"<span>{html.escape(label)} <b>{count:,}</b></span></label>"
        for kind, label, count in kinds
        if count or kind != "error"
    )
    views = "".join(
        f"<label><input type=radio name=view value={view}{mark}><span>{view}</span></label>"
        for view, mark in (("map", " checked"), ("outline", ""), ("plain", ""))
    )
    grouped = "<label class=tick><input type=checkbox name=group> group by folder</label>" if len(folders) > 1 else ""
    return (
        f"<form id=controls hidden><fieldset><legend>Show</legend>{choices}</fieldset>"
        "<label class=pick>Order <select name=order><option value=high>highest score first</option>"
        f"<option value=low>lowest score first</option><option value=name>name</option></select></label>{grouped}"
        f"<fieldset><legend>Pictures</legend>{views}</fieldset>"
        "<label class=tick><input type=checkbox name=weak> show weak evidence</label></form>"
    )


def _filters() -> str:
    """SVG filters that turn grey maps into colours: as everywhere, and with weak evidence made visible."""
    filters = []
    for name, weak in (("map", False), ("weak", True)):
        red, green, blue, opacity = (
            " ".join(f"{value:.3g}" for value in column) for column in color_tables(_HIGHEST, _STEPS, weak=weak)
        )
        filters.append(
            f"<filter id={name} color-interpolation-filters=sRGB x=0 y=0 width=1 height=1>"
            f"<feComponentTransfer in=SourceGraphic result=color><feFuncR type=table tableValues='{red}' />"
            f"<feFuncG type=table tableValues='{green}' /><feFuncB type=table tableValues='{blue}' />"
            f"</feComponentTransfer><feComponentTransfer in=SourceGraphic>"
            f"<feFuncR type=table tableValues='{opacity}' /></feComponentTransfer>"
            "<feColorMatrix values='0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 1 0 0 0 0' result=mask />"
            "<feComposite in=color in2=mask operator=in /></filter>"
        )
    return f"<svg width=0 height=0 class=filters aria-hidden=true>{''.join(filters)}</svg>"


def _card(card: Card, wording: Wording) -> str:
    kind, label = {True: ("bad", wording.flagged), False: ("ok", wording.unflagged), None: ("ok", "no threshold")}[
        card.is_anomalous
    ]
    verdict, details = f"<span class=verdict>{label}</span>", []
    if card.relative_score is not None:
        details.append(f"{card.relative_score:.2f} × the threshold")
    if card.p_value is not None:
        details.append(f"p = {card.p_value:.3f}")
    first, second = (wording.unit, verdict) if wording.unit else (verdict, ", ".join(details).replace(" ", "&nbsp;"))
    second = second.replace(",&nbsp;", ", ")
    name, (height, width) = html.escape(show_name(card.name)), card.size
    path_height, path_width = card.outline_size
    shape = "wide " if width >= _LONG * height else "tall " if height >= _LONG * width else ""
    link = f" data-picture='{quote(os.fsencode(card.picture))}'" if card.picture else ""
    return (
        f"<li class='{shape}{kind}' data-score={card.score:.9g} data-folder='{_folder(card.name)}'{link}>"
        f"<button type=button aria-label='Enlarge {name}'>"
        f"<span class=picture style='aspect-ratio:{width}/{height};--ratio:{width / height:.4f}'>"
        f"<img class=part alt='{name}' loading=lazy decoding=async src='{data_uri(card.part)}'>"
        f"<img class=heat alt='' loading=lazy decoding=async src='{data_uri(card.levels, 'png')}'>"
        f"<svg viewBox='0 0 {2 * path_width} {2 * path_height}' preserveAspectRatio=none aria-hidden=true>"
        f"<path d='{card.outline}' /></svg></span></button>"
        f"<p><b>{card.score:.{wording.digits}f}</b> {first}</p><p class=more>{second}</p><small>{name}</small></li>"
    )


def _failure(failure: Failure) -> str:
    return (
        f"<li class=error data-folder='{_folder(failure.name)}'><p class=verdict>not scored</p>"
        f"<p>{safe_text(failure.error)}</p><small>{html.escape(show_name(failure.name))}</small></li>"
    )


def _folder(name: str) -> str:
    """The folder of an image as an attribute holds it."""
    return html.escape(show_name(name.rpartition(os.sep)[0]))


_AXIS_LEGEND = "<p class=legend>Below the line: the scores of the good images that the threshold comes from.</p>"
_LEGEND = (
    "<p class=legend><span class=ramp></span> Outlined: {outlined}. The colours mean the same in every picture. "
    "Choose a picture to enlarge it: arrow keys go on, M changes the view, W shows weak evidence, which lies below "
    "what the colours show and is found on most good parts too.</p>"
)
_LIGHTBOX = (
    "<dialog id=lightbox aria-label='Enlarged image'><div class=bar><button type=button value=back>← previous</button>"
    "<button type=button value=on>next →</button><button type=button value=view>view: map</button>"
    "<button type=button value=weak aria-pressed=false>weak evidence</button>"
    "<a hidden target=_blank>full size</a><button type=button value=close>close</button></div>"
    "<div class=stage></div><div class=caption></div></dialog>"
)
