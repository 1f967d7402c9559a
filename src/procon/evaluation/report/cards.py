"""The part of a report about one variant on one category: lists of cards, the worst first, then its charts."""

from collections.abc import Sequence
from itertools import zip_longest

from procon.arrays import Bytes
from procon.evaluation.report import page
from procon.evaluation.report.cases import SMALLEST, Case, hidden_regions, worst_scores
from procon.evaluation.report.lineup import title_of
from procon.evaluation.report.pictures import PeakScale, grow, load_input, load_mask, paint_map
from procon.evaluation.report.views import View
from procon.evaluation.runs.verdicts import BEST_F1, KindTally, show_f1
from procon.names import show_name
from procon.results.contours import outline_path
from procon.showing.markup import safe_text
from procon.showing.painting import data_uri
from procon.vision.pictures import jpeg

_MOST_CASES = 12  # misses and false alarms that are shown at most; of hidden regions, half as many
_UNFOLDED = 4  # cards of a list in view; the others unfold


def view_section(view: View, title: str, variant: str, allowance: int, more: str) -> str:
    """Verdicts, metrics, cards and charts. Cards take ``allowance`` bytes; ``more`` is the command that shows more."""
    lists = (
        (
            "Worst misses",
            f"Defective images with the lowest scores, the lowest first. {_judged(view, 'missed', defective=True)}",
            worst_scores(view, _MOST_CASES, defective=True),
        ),
        (
            "Worst false alarms",
            f"Good images with the highest scores, the highest first. {_judged(view, 'false alarms', defective=False)}",
            worst_scores(view, _MOST_CASES, defective=False),
        ),
        (
            "Least visible regions",
            "Regions of the ground truth with the lowest map values, lowest first; the region of the card is white. "
            f"Regions below {SMALLEST} pixels are left out.",
            hidden_regions(view, _MOST_CASES // 2),
        ),
    )
    name = "" if title == title_of(variant, {}) else f" <code>{safe_text(variant)}</code>"
    parts = [f"<p>{safe_text(title)}{name}</p>", _verdict_table(view), page.metric_strip(view.metrics)]
    cards = _make_cards(view, [cases for _, _, cases in lists], allowance)
    if not any(cards):
        parts.append(f"<p>Pictures of this variant were left out to keep the page small: {safe_text(more)}</p>")
    for (heading, intro, _), items in zip(lists, cards, strict=True):
        if items:
            parts.append(f"<h3>{heading}</h3><p>{safe_text(intro)}</p>{_card_list(items[:_UNFOLDED])}")
        if len(items) > _UNFOLDED:
            rest = items[_UNFOLDED:]
            parts.append(f"<details><summary>{len(rest)} more</summary>{_card_list(rest)}</details>")
    parts.append(f'<h3>Scores and curves</h3><div class="charts">{"".join(view.draw_charts().values())}</div>')
    return f'<div style="--bar:{view.scale.gradient()}">{"".join(parts)}</div>'


def _verdict_table(view: View) -> str:
    """Defects found and missed, by kind, and false alarms at the threshold of the model; then notes about it."""
    if view.verdicts is None:
        return f'<p class="warn">{safe_text(view.unknown)}</p>'
    good, defects, calibration = view.verdicts.good, list(view.verdicts.defects), view.verdicts.calibration
    if len(defects) > 1:
        defects.append(KindTally("all defects", view.verdicts.defective, view.verdicts.found))
    rows = [[safe_text(kind), str(images), str(found), str(images - found), ""] for kind, images, found in defects]
    rows.append(["good", str(good.images), "", "", str(good.flagged)])
    table = page.html_table(
        f"Test images at the threshold of the model, {calibration.threshold:.4f}",
        ["Kind", "images", "found", "missed", "false alarms"],
        rows,
    )
    notes = calibration.describe(view.raw.about.get("training", ()))
    notes.append(f"F1 of images: {show_f1(view.verdicts.f1, view.metrics, 'i_f1')}")
    pixels = view.verdicts.pixels
    if pixels is not None:
        notes.append(
            f"{pixels.hit} of {pixels.regions} regions of the ground truth are hit above the pixel threshold "
            f"{calibration.pixel_threshold:.4f}; F1 of pixels: {show_f1(pixels.f1, view.metrics, 'p_f1')}"
        )
    return table + page.note_list(notes)


def _judged(view: View, errors: str, *, defective: bool) -> str:
    total, sentences = view.raw.labels.count(defective), []
    if view.verdicts is not None:
        wrong = sum(tally.missed for tally in view.verdicts.defects) if defective else view.verdicts.good.flagged
        threshold = view.verdicts.calibration.threshold
        sentences.append(f"At the threshold of the model ({threshold:.4f}) {wrong} of {total} are {errors}.")
    if view.label_threshold is None:
        sentences.append("All test images are of one kind, so labels could choose no threshold.")
    else:
        count = f"{view.count_wrong(defective)} of {total} are {errors}"
        sentences.append(f"At the {BEST_F1} ({view.label_threshold:.4f}) {count}.")
    return " ".join(sentences)


def _verdict(view: View, index: int) -> str:
    """The verdict at the threshold of the model; if that is unknown, at the best F1."""
    defective, chosen = view.raw.labels[index], ""
    if view.verdicts is not None:
        wrong = bool(view.verdicts.flagged[index]) != defective
    elif view.label_threshold is not None:
        wrong, chosen = view.wrong(index), " at the best F1"
    else:
        return ""
    words = ("found", "missed") if defective else ("called good", "false alarm")
    return f'<b class="{"wrong" if wrong else "right"}">{words[wrong]}{chosen}</b>'


def _make_cards(view: View, lists: Sequence[Sequence[Case]], allowance: int) -> list[list[str]]:
    """The worst of each list in turn, until the next card would not fit."""
    cards: list[list[str]] = [[] for _ in lists]
    for row in zip_longest(*lists):
        for place, case in enumerate(row):
            if case is None:
                continue
            card = _make_card(view, case)
            allowance -= len(card)
            if allowance < 0:
                return cards
            cards[place].append(card)
    return cards


def _card_list(cards: Sequence[str]) -> str:
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _make_card(view: View, case: Case) -> str:
    """Input and map of one image side by side, the colour bar under the map, its score and the reason it is shown."""
    raw, sample = view.raw, view.raw.samples[case.index]
    name, score = safe_text(show_name(sample.path.name)), float(raw.scores[case.index])
    part = load_input(raw, case.index)
    outlines = _outlines(view, case)
    first = '<div class="gone">image is gone</div>'
    if part is not None:
        first = f'<div class="stack"><img src="{_source(part)}" alt="{name}, input">{outlines}</div>'
    heat = _source(paint_map(raw, case.index, view.scale, part))
    rank = f"rank {1 + int((raw.scores > raw.scores[case.index]).sum())} of {len(raw.scores)}"
    return (
        f'<li><div class="pair"><figure>{first}<figcaption>input</figcaption></figure>'
        f'<figure><div class="stack"><img src="{heat}" alt="{name}, map of scores">{outlines}</div>'
        f"{_color_bar(view.scale)}</figure></div>"
        f'<p class="say"><b class="score">{score:.4f}</b> {_verdict(view, case.index)} <span>{rank}</span></p>'
        f'<p class="say">{safe_text(case.note)}</p><p class="file">{safe_text(sample.kind)} · {name}</p></li>'
    )


def _outlines(view: View, case: Case) -> str:
    """The outline of the ground truth as SVG, to lay over a picture; the region of the case is white."""
    size = view.raw.size
    mask = view.masks.get(case.index)
    if mask is None:
        mask = load_mask(view.raw, case.index)
    if mask is None:
        return ""
    away = max(1, round(max(size) / 130))  # pixels
    border = outline_path(grow(mask, away))
    paths = f'<path class="halo" d="{border}"></path><path class="edge" d="{border}"></path>'
    if case.region is not None:
        paths += f'<path class="edge meant" d="{outline_path(grow(case.region, away))}"></path>'
    box = f"0 0 {2 * size[1]} {2 * size[0]}"  # outlines are in half pixels
    return f'<svg class="truth" viewBox="{box}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'


def _color_bar(scale: PeakScale) -> str:
    """A bar with its three numbers. Its colours come from ``--bar`` of the element around all of a variant's cards."""
    at = min(68.0, max(32.0, 100 * scale.place(scale.threshold)))  # so that the numbers do not touch
    return (
        '<figcaption class="bar"><i></i><span class="numbers">'
        f'<span>{scale.typical:.3f}</span><span class="mid" style="left:{at:.0f}%">{scale.threshold:.3f}</span>'
        f"<span>{scale.peak:.3f}</span></span></figcaption>"
    )


def _source(pixels: Bytes) -> str:
    """The ``src`` of a picture."""
    return data_uri(jpeg(pixels, quality=80))
