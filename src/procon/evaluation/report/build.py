"""One self-contained page about a run: the worst misses and false alarms first, then scores, curves and tables.

Scores, maps and settings come from the raw results. Where the images are gone the page says so and has everything else.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from procon.errors import ImageError
from procon.evaluation.metrics import MetricValues
from procon.evaluation.paper.results import Result, backbone_name, fill_table, row_config
from procon.evaluation.paper.tables import ALL, TABLES, Table, build_table
from procon.evaluation.report import page
from procon.evaluation.report.cards import view_section
from procon.evaluation.report.charts import safe_text
from procon.evaluation.report.lineup import featured, measured, other_systems, title_of
from procon.evaluation.report.views import View, look
from procon.evaluation.runs.raw import Run, variant_name
from procon.files import atomic_text

PICTURES = 6_500_000
"""Bytes of pictures on a page, so that it can be mailed."""
_MAIN_SHARE = 0.6  # of the pictures, for the variant that is shown first

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Brief:
    """What the head of the page says about a variant on a category."""

    metrics: MetricValues
    images: int
    defective: int
    missed: int
    alarms: int
    lost: int
    """Images that are not there any more."""
    unread: bool
    """Whether there should be masks and one cannot be read."""
    about: dict[str, Any]

    @classmethod
    def of(cls, view: View) -> "Brief":
        """The few numbers of ``view`` that are kept while the next one is looked at."""
        samples = view.raw.samples
        missed, alarms = view.wrong()
        lost = sum(not sample.path.is_file() for sample in samples)
        unread = not view.pixel and any(sample.mask is not None for sample in samples)
        about = {name: value for name, value in view.raw.about.items() if name != "images"}
        return cls(view.metrics, len(samples), sum(view.raw.labels), missed, alarms, lost, unread, about)


def write_report(
    run: Run, path: Path, progress: Progress, *, variant: str | None = None, picture_bytes: int = PICTURES
) -> None:
    """Write the page. ``variant`` is shown first; by default the paper's recipe, or the first that is there.

    ``progress`` hears (done, total) steps. Pictures take about ``picture_bytes`` at most; with less there are fewer.
    """
    shown, stored, made = featured(run, variant), run.stored(), _reproduced(run)
    total = sum(one in variants for variants in stored.values() for one in shown) + len(made) + 1
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    sections: list[str] = []
    found: dict[str, dict[str, Brief]] = {one: {} for one in shown}
    for place, (category, variants) in enumerate(stored.items()):
        blocks = []
        for number, (one, title) in enumerate(shown.items()):
            if one not in variants:
                blocks.append(_block(number, f"<p>{safe_text(f'{title} was not run on {category}.')}</p>"))
                continue
            view = look(run, category, one)
            again = f"procon report {run.folder.name} --variant {one}"
            allowance = _allowance(picture_bytes, len(stored), len(shown), number)
            blocks.append(_block(number, view_section(view, title, one, allowance, again)))
            found[one][category] = Brief.of(view)
            tick()
        blocks.append(_variants(run, {category: variants}, f"Every variant on {category}"))
        sections.append(f'<section id="c{place}"><h2>{safe_text(category)}</h2>{"".join(blocks)}</section>')
    tables = _tables(run, made, tick)
    main = next(iter(found.values()))
    anchors = {category: f"c{place}" for place, category in enumerate(stored)}
    body = [
        _gone(run, main),
        f"<p>{safe_text(_about(run, shown))}</p>",
        *(_block(number, _summary(shown[one], briefs, anchors)) for number, (one, briefs) in enumerate(found.items())),
        f"<details><summary>What was run</summary>{page.facts(_facts(run, main, shown))}</details>",
        _SCALE,
        *sections,
        f"<section><h2>Tables of the paper</h2>{tables}{_protocol(run)}</section>" if tables else "",
        _every(run, stored),
    ]
    names = ", ".join(stored) if len(stored) < 4 else f"{len(stored)} categories"
    title = names if run.dataset.title == names else f"{run.dataset.title}, {names}"
    with atomic_text(path) as stream:
        stream.write(page.whole_page(title, _controls(list(shown.values())), "\n".join(body), len(shown)))
    tick()


_SCALE = (
    '<p class="key">Colours mean the same in every picture of a category under a variant. The numbers on a bar are the '
    "median of the good test images (no colour), the value that one in a thousand of their pixels exceeds, and the "
    "highest of any test image. Outlines run just outside the ground truth. The threshold with the best F1 was chosen "
    "with the labels: it tells which images are hard, not how many mistakes to expect on others.</p>"
)


def _allowance(total: int, categories: int, variants: int, number: int) -> int:
    """Bytes of pictures for one variant on one category."""
    if variants == 1:
        return total // categories
    share = _MAIN_SHARE if number == 0 else (1 - _MAIN_SHARE) / (variants - 1)
    return int(total * share) // categories


def _block(number: int, content: str) -> str:
    """Seen when the variant of this number is chosen."""
    return f'<div class="view v{number}">{content}</div>'


def _controls(titles: Sequence[str]) -> str:
    if len(titles) == 1:
        return f'<form class="controls">{_OUTLINES}</form>'
    choices = "".join(
        f'<label><input type="radio" name="variant" id="v{place}"{" checked" if place == 0 else ""}> {safe_text(title)}'
        "</label>"
        for place, title in enumerate(titles)
    )
    return f'<form class="controls"><fieldset><legend>Variant</legend>{choices}</fieldset>{_OUTLINES}</form>'


_OUTLINES = '<label><input type="checkbox" id="truth" checked> outline the ground truth</label>'


def _gone(run: Run, found: Mapping[str, Brief]) -> str:
    """A warning where images or masks are not there any more."""
    texts = []
    lost, images = sum(brief.lost for brief in found.values()), sum(brief.images for brief in found.values())
    if lost:
        texts.append(
            f"{lost} of {images} images are not in the folder {run.dataset.root.name} any more: maps are shown "
            "without them. Scores, maps and charts come from the raw results."
        )
    unread = [category for category, brief in found.items() if brief.unread]
    if unread:
        texts.append(f"Masks of {', '.join(unread)} cannot be read: curves over pixels and regions are left out.")
    return "".join(f'<p class="warn" role="alert">{safe_text(text)}</p>' for text in texts)


def _about(run: Run, shown: Mapping[str, str]) -> str:
    every = {variant for variants in run.stored().values() for variant in variants}
    some = f"{len(every)} variants, {len(shown)} of them with pictures and curves" if len(every) > 1 else "one variant"
    return f"{backbone_name(run.base)}, {some}. Each list begins with the worst."


def _facts(run: Run, found: Mapping[str, Brief], shown: Mapping[str, str]) -> list[tuple[str, str]]:
    base = run.base
    height, width = base.input_size
    size = f"{width} x {height} pixels" + (f", centre of {base.resize} x {base.resize}" if base.resize else "")
    about = next(iter(found.values())).about
    digest = str(about.get("weights", ""))[:12]
    pairs = [
        ("Dataset", run.dataset.title + (f" ({run.dataset.split})" if run.dataset.split else "")),
        ("Folder", run.dataset.root.name),
        ("System", str(about.get("system", "unknown"))),
        ("Backbone", backbone_name(base) + (f", sha256 {digest}..." if digest else "")),
        ("Input", f"{size}, precision {base.precision}"),
    ]
    main, settings = next(iter(shown)), about.get("config")
    if isinstance(settings, dict):
        hidden_ones = ("weights", "backbone", "image_size", "resize", "precision", "false_alarm_rate")
        listed = {name: value for name, value in settings.items() if name not in hidden_ones and value is not None}
        pairs.append(("Main variant", shown[main]))
        pairs += [
            (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in listed.items()
        ]
    return pairs


def _summary(title: str, found: Mapping[str, Brief], anchors: Mapping[str, str]) -> str:
    """A line for each category, and their mean."""
    rows = [(name, anchors[name], dict(brief.metrics)) for name, brief in found.items()]
    extra = {
        "missed": [f"{brief.missed} of {brief.defective}" for brief in found.values()],
        "false alarms": [f"{brief.alarms} of {brief.images - brief.defective}" for brief in found.values()],
    }
    if len(rows) > 1:
        rows.append(("Mean", "", _means([brief.metrics for brief in found.values()])))
        extra = {name: [*texts, ""] for name, texts in extra.items()}
    caption = f"{title}, in percent; missed and false alarms at the threshold with the best F1"
    return page.metrics_table("Category", caption, rows, extra, rivals=False)


def _variants(run: Run, stored: Mapping[str, Sequence[str]], caption: str) -> str:
    """All variants that are stored, with their metrics; nothing where there is only one."""
    names = list(dict.fromkeys(variant for variants in stored.values() for variant in variants))
    if len(names) < 2:
        return ""
    rows, counts, others = [], [], other_systems(run)
    for name in names:
        categories = [category for category, variants in stored.items() if name in variants]
        rows.append((title_of(name, others), "", _means([measured(run, category, name) for category in categories])))
        counts.append(str(len(categories)))
    extra = {"categories": counts} if len(stored) > 1 else {}
    table = page.metrics_table("Variant", f"{caption}, in percent; the best are bold", rows, extra, rivals=True)
    return f"<details><summary>{safe_text(caption)} ({len(names)})</summary>{table}</details>"


def _every(run: Run, stored: Mapping[str, Sequence[str]]) -> str:
    if len(stored) < 2:  # the category has the same table
        return ""
    table = _variants(run, stored, "Every variant, means over the categories it was run on")
    return f"<section><h2>Every variant</h2>{table}</section>" if table else ""


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each metric over those where it is defined."""
    means = {}
    for name in ALL:
        values = [one[name] for one in metrics if not np.isnan(one[name])]
        means[name] = float(np.mean(values)) if values else float("nan")
    return means


def _reproduced(run: Run) -> list[str]:
    """The tables of the paper that were made in this run."""
    return [name for name in TABLES if (run.folder / "tables" / f"{name}.csv").exists()]


def _tables(run: Run, names: Sequence[str], tick: Callable[[], None]) -> str:
    """The tables of the paper from the raw results; what is to be said about several of them is said once."""
    results, parts = [], []
    for name in names:
        result = _result(run, build_table(name, run.dataset.name))
        results += [result] if result else []
        tick()
    counts = Counter(note for result in results for note in result.notes)
    for result in results:
        parts.append(page.result_table(result, [note for note in result.notes if counts[note] == 1]))
    common = page.note_list([note for note, count in counts.items() if count > 1])
    return "".join(parts) + (f"<p>About several of these tables:</p>{common}" if common else "")


def _result(run: Run, table: Table) -> Result | None:
    """A table on the categories that have all of its variants; None where it cannot be filled."""
    stored = run.stored()

    def complete(category: str, seed: int) -> bool:
        return all(variant_name(row_config(run.base, row, seed)) in stored[category] for row in table.rows)

    categories = [category for category in stored if complete(category, 0)]
    if not categories:
        return None
    seeds = 1
    while all(complete(category, seeds) for category in categories):
        seeds += 1
    try:
        return fill_table(run, table, categories, seeds)
    except ImageError:  # to be measured again, and the masks are gone: the page says so already
        return None


def _protocol(run: Run) -> str:
    """The decisions of the paper's protocol, as the run wrote them."""
    path = run.folder / "tables" / "protocol.md"
    return f"<h3>Protocol</h3><pre>{_lines(path)}</pre>" if path.is_file() else ""


def _lines(path: Path) -> str:
    return "\n".join(safe_text(line) for line in path.read_text(encoding="utf-8").splitlines()[2:])
