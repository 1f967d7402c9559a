"""All scores on one axis, with the threshold and the scores of the good images behind it, as HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from procon.names import show_name


@dataclass(frozen=True)
class Mark:
    """The result of one image on the axis of scores."""

    name: str
    score: float
    is_anomalous: bool | None


def render_axis(marks: Sequence[Mark], limit: tuple[str, float] | None, good: Sequence[float], digits: int) -> str:
    """Marks above the line, the scores of ``good`` images below it, and the limit with its name.

    Lines are SVG that stretches, labels are text that does not. Of several marks at one place, the first is drawn.
    """
    values = [*(mark.score for mark in marks), *good, *([limit[1]] if limit else [])]
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return 1000 * (value - low) / span

    lines: dict[tuple[str, str], str] = {}
    for mark in marks:
        place, verdict = f"{x(mark.score):.0f}", "bad" if mark.is_anomalous else "ok"
        name = html.escape(f"{show_name(mark.name)}: {mark.score:.{digits}f}")
        lines.setdefault((place, verdict), f'<path d="M{place},4V30" class={verdict}><title>{name}</title></path>')
    for score in good:
        place = f"{x(score):.0f}"
        lines.setdefault((place, "known"), f'<path d="M{place},34V48" class=known />')
    labels = [f"<span style='left:0'>{low:.{digits}f}</span>", f"<span style='right:0'>{high:.{digits}f}</span>"]
    if limit is not None:
        share = x(limit[1]) / 10
        lines["", "limit"] = f'<path d="M{10 * share:.1f},0V56" class=limit />'
        side = f"right:{100 - share:.1f}%" if share > 50 else f"left:{share:.1f}%"
        labels.append(f"<span class=limit style='{side}'>{html.escape(limit[0])} {limit[1]:.{digits}f}</span>")
    return (
        "<div class=axis><svg viewBox='0 0 1000 56' preserveAspectRatio=none role=img "
        f"aria-label='Scores from {low:.{digits}f} to {high:.{digits}f}'>"
        f"<path d='M0,32H1000' class=base />{''.join(lines.values())}</svg><p>{''.join(labels)}</p></div>"
    )
