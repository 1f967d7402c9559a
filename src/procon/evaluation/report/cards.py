"""The part of a report about one variant on one category: lists of cards, the worst first, then its charts."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from procon.evaluation.report import page
from procon.evaluation.report.cases import SMALLEST, Case, false_alarms, hidden, misses
from procon.evaluation.report.charts import safe_text
from procon.evaluation.report.lineup import title_of
from procon.evaluation.report.page import CaseCard
from procon.evaluation.report.pictures import data_uri, outline, painted, seen, truth
from procon.evaluation.report.views import View

MOST = 12
"""Misses and false alarms of a category that are shown at most; of hidden regions, half as many."""


def view_section(view: View, title: str, variant: str, allowance: int, again: str) -> str:
    """Metrics, cards and charts. Pictures take ``allowance`` bytes; ``again`` is how to get more of this variant."""
    scale = view.survey.scale
    lists = {
        "Worst misses": (misses(view.raw, MOST), _miss_intro(view)),
        "Worst false alarms": (false_alarms(view.raw, MOST), _alarm_intro(view)),
        "Least visible regions": (
            hidden(view.raw, view.survey, view.masks, MOST // 2),
            "Regions of the ground truth that the map covers last, the worst first; the one that is meant is white. "
            f"Regions below {SMALLEST} pixels are left out.",
        ),
    }
    name = "" if title == title_of(variant, {}) else f" <code>{safe_text(variant)}</code>"
    parts = [f"<p>{safe_text(title)}{name}</p>", page.metric_strip(view.metrics)]
    cards = _cards(view, [cases for cases, _ in lists.values()], allowance)
    if not any(cards):
        parts.append(f"<p>Pictures of this variant were left out to keep the page small: {safe_text(again)}</p>")
    for (heading, (_, intro)), made in zip(lists.items(), cards, strict=True):
        if made:
            parts.append(page.card_list(heading, intro, made, scale))
    parts.append(f'<h3>Scores and curves</h3><div class="charts">{"".join(view.draw().values())}</div>')
    return f'<div style="--bar:{scale.gradient()}">{"".join(parts)}</div>'


def _miss_intro(view: View) -> str:
    wrong = f"{view.wrong()[0]} of {sum(view.raw.labels)} are missed."
    return f"Defective images with the lowest scores, the lowest first. {_at(view, wrong)}"


def _alarm_intro(view: View) -> str:
    wrong = f"{view.wrong()[1]} of {len(view.raw.labels) - sum(view.raw.labels)} are false alarms."
    return f"Good images with the highest scores, the highest first. {_at(view, wrong)}"


def _at(view: View, wrong: str) -> str:
    if view.threshold is None:
        return "All test images are of one kind, so there is no threshold to judge them by."
    return f"At the threshold with the best F1 ({view.threshold:.4f}) {wrong}"


def _cards(view: View, lists: Sequence[Sequence[Case]], allowance: int) -> list[list[CaseCard]]:
    """The worst of each list in turn, until the next would not fit."""
    made: list[list[CaseCard]] = [[] for _ in lists]
    for place, case in _in_turn(lists):
        card = make_card(view, case)
        allowance -= card.size()
        if allowance < 0:
            break
        made[place].append(card)
    return made


def _in_turn(lists: Sequence[Sequence[Case]]) -> Iterator[tuple[int, Case]]:
    for row in zip_longest(*lists):
        yield from ((place, case) for place, case in enumerate(row) if case is not None)


def make_card(view: View, case: Case) -> CaseCard:
    """The pictures and words of one image."""
    raw, sample = view.raw, view.raw.samples[case.index]
    part = seen(raw, case.index)
    mask = view.masks.get(case.index)
    if mask is None and sample.mask is not None:
        mask = truth(raw, case.index)
    drawn = "" if mask is None else outline(mask, _away(raw.size))
    region = "" if case.region is None else outline(case.region, _away(raw.size))
    verdict = ""
    if view.threshold is not None:
        verdict = ("missed" if sample.defective else "false alarm") if case.wrong else "called right"
    return CaseCard(
        sample.path.name,
        sample.kind,
        float(raw.scores[case.index]),
        f"rank {case.rank} of {len(raw.scores)}",
        case.note,
        verdict,
        case.wrong,
        None if part is None else data_uri(part),
        data_uri(painted(raw, case.index, view.survey.scale, part)),
        page.outlines(raw.size, drawn, region),
    )


def _away(size: tuple[int, int]) -> int:
    """Pixels between a defect and its outline, so that a small one is not covered by it."""
    return max(1, round(max(size) / 130))
