"""One self-contained page about a run: found, missed and false alarms, the worst of them, then curves and tables.

Scores, maps and settings come from the raw results. If the images are gone, the page says so and shows everything else.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from procon.errors import ImageError
from procon.evaluation.data.datasets import Sample
from procon.evaluation.paper.results import Result, backbone_name, fill_table, mean_where_defined, row_config
from procon.evaluation.paper.tables import TABLES, TITLES, build_table
from procon.evaluation.report import page
from procon.evaluation.report.cards import view_section
from procon.evaluation.report.lineup import choose_variants, load_metrics, name_other_systems, title_of
from procon.evaluation.report.views import View, open_view
from procon.evaluation.runs.run import Run, variant_name
from procon.evaluation.runs.settings import SHARED, THRESHOLD_SETTINGS
from procon.evaluation.runs.verdicts import BEST_F1
from procon.files import write_text
from procon.progress import Progress
from procon.showing.markup import safe_text

PAGE_BYTES = 6_500_000  # of cards on a page, so that it can be mailed
_MAIN_SHARE = 0.6  # of these bytes, for the variant that is shown first
_HIDDEN_SETTINGS = {*SHARED, *THRESHOLD_SETTINGS} - {"aspect", "tile"}  # the list says them in words


def write_report(run: Run, path: Path, on_progress: Progress, *, variant: str | None = None) -> None:
    """Write the page. ``variant`` is shown first; by default the paper's recipe, or the first one stored.

    Cards take at most :data:`PAGE_BYTES`; if they would take more, fewer cards are shown.
    """
    titles, stored = choose_variants(run, variant), run.list_variants()
    tables = [name for name in TABLES if (run.folder / "tables" / f"{name}.csv").exists()]
    total = sum(name in variants for variants in stored.values() for name in titles) + 1
    done = 0

    def count_step() -> None:
        nonlocal done
        done += 1
        on_progress("drawing the report", done, total)

    sections: list[str] = []
    rows: list[list[page.MetricsRow]] = [[] for _ in titles]
    samples: list[Sample] = []
    unreadable: list[str] = []
    for place, (category, variants) in enumerate(stored.items()):
        blocks = []
        for number, (name, title) in enumerate(titles.items()):
            if name not in variants:
                blocks.append(_block(number, f"<p>{safe_text(f'{title} was not run on {category}.')}</p>"))
                continue
            view = open_view(run, category, name)
            more = f"procon report {run.folder.name} --variant {name}"
            allowance = _allowance(len(stored), len(titles), number)
            blocks.append(_block(number, view_section(view, title, name, allowance, more)))
            rows[number].append(_summary_row(view, category, place))
            if number == 0:
                samples += view.raw.samples
                unreadable += [category] if view.masks_unreadable else []
            count_step()
        blocks.append(_variants_table(run, {category: variants}, f"Every variant on {category}"))
        sections.append(f'<section id="c{place}"><h2>{safe_text(category)}</h2>{"".join(blocks)}</section>')
    paper_tables = _paper_tables(run, tables)
    body = [
        _warnings(run, samples, unreadable),
        f"<p>{safe_text(_introduction(run, len(titles)))}</p>",
        *(_block(number, _summary(title, rows[number])) for number, title in enumerate(titles.values())),
        f"<details><summary>What was run</summary>{page.term_list(_settings(run, titles))}</details>",
        _SCALE,
        *sections,
        f"<section><h2>Tables of the paper</h2>{paper_tables}{_protocol(run)}</section>" if paper_tables else "",
    ]
    if len(stored) > 1:  # with one category, its own section has the same table
        table = _variants_table(run, stored, "Every variant, means over the categories it was run on")
        body.append(f"<section><h2>Every variant</h2>{table}</section>" if table else "")
    names = ", ".join(stored) if len(stored) < 4 else f"{len(stored)} categories"
    title = names if run.dataset.title == names else f"{run.dataset.title}, {names}"
    write_text(path, page.whole_page(title, _controls(list(titles.values())), "\n".join(body), len(titles)))
    count_step()


_SCALE = (
    '<p class="key">Colours mean the same in every picture of a category under a variant. The numbers on a bar are the '
    "median of the good test images (no colour), the value that one in a thousand of their pixels exceeds, and the "
    "highest of any test image. Outlines run just outside the ground truth. The threshold of the model "
    "comes from training images alone. The best F1 that labels could choose tells which images are hard, not how many "
    "mistakes to expect on others.</p>"
)


def _allowance(categories: int, variants: int, number: int) -> int:
    """Bytes of cards for one variant on one category."""
    if variants == 1:
        return PAGE_BYTES // categories
    share = _MAIN_SHARE if number == 0 else (1 - _MAIN_SHARE) / (variants - 1)
    return int(PAGE_BYTES * share) // categories


def _block(number: int, content: str) -> str:
    """Visible while the variant of this number is selected."""
    return f'<div class="view v{number}">{content}</div>'


def _controls(titles: Sequence[str]) -> str:
    outlines = '<label><input type="checkbox" id="truth" checked> outline the ground truth</label>'
    if len(titles) == 1:
        return f'<form class="controls">{outlines}</form>'
    choices = "".join(
        f'<label><input type="radio" name="variant" id="v{place}"{" checked" if place == 0 else ""}> {safe_text(title)}'
        "</label>"
        for place, title in enumerate(titles)
    )
    return f'<form class="controls"><fieldset><legend>Variant</legend>{choices}</fieldset>{outlines}</form>'


def _warnings(run: Run, samples: Sequence[Sample], unreadable: Sequence[str]) -> str:
    """Warnings about images that no longer exist, and about categories with ``unreadable`` masks."""
    texts = []
    lost = sum(not sample.path.is_file() for sample in samples)
    if lost:
        texts.append(
            f"{lost} of {len(samples)} images are not in the folder {run.dataset.root.name} any more: maps are shown "
            "without them. Scores, maps and charts come from the raw results."
        )
    if unreadable:
        texts.append(f"Masks of {', '.join(unreadable)} cannot be read: curves over pixels and regions are left out.")
    return "".join(f'<p class="warn" role="alert">{safe_text(text)}</p>' for text in texts)


def _introduction(run: Run, drawn: int) -> str:
    count = len({variant for variants in run.list_variants().values() for variant in variants})
    variants = f"{count} variants, {drawn} of them with pictures and curves" if count > 1 else "one variant"
    return f"{backbone_name(run.base)}, {variants}. Each list begins with the worst."


def _settings(run: Run, titles: Mapping[str, str]) -> list[tuple[str, str]]:
    """The dataset, the backbone and the settings of the main variant."""
    main, title = next(iter(titles.items()))
    about = next(
        run.load_about(category, main) for category, variants in run.list_variants().items() if main in variants
    )
    base = run.base
    size = _input_sizes(run, main) + (f", centre of {base.resize} x {base.resize}" if base.resize else "")
    digest = str(about.get("weights", ""))[:12]
    pairs = [
        ("Dataset", run.dataset.title + (f" ({run.dataset.split})" if run.dataset.split else "")),
        ("Folder", run.dataset.root.name),
        ("System", str(about.get("system", "unknown"))),
        ("Backbone", backbone_name(base) + (f", sha256 {digest}..." if digest else "")),
        ("Input", f"{size}, precision {base.precision}"),
        ("Threshold", f"{base.threshold_rule}, false-alarm rate {base.false_alarm_rate:g}"),
    ]
    if isinstance(about.get("config"), dict):
        pairs.append(("Main variant", title))
        for name, value in about["config"].items():
            if name not in _HIDDEN_SETTINGS and value is not None:
                pairs.append((name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return pairs


def _input_sizes(run: Run, variant: str) -> str:
    """The input of each category that has results of a variant; one size where it is the same for all."""
    about = {
        name: run.load_about(name, variant)["size"] for name, stored in run.list_variants().items() if variant in stored
    }
    sizes = {name: f"{width} x {height} pixels" for name, (height, width) in about.items()}
    distinct = set(sizes.values())
    return distinct.pop() if len(distinct) == 1 else "; ".join(f"{name}: {size}" for name, size in sizes.items())


def _summary_row(view: View, category: str, place: int) -> page.MetricsRow:
    defective = sum(view.raw.labels)
    in_force = ["unknown"] * 3
    if view.verdicts is not None:
        found, good = view.verdicts.found, view.verdicts.good
        threshold = f"{view.verdicts.calibration.threshold:.4f}"
        in_force = [threshold, f"{defective - found} of {defective}", f"{good.flagged} of {good.images}"]
    best = [str(view.count_wrong(defective=True)), str(view.count_wrong(defective=False))]
    if view.label_threshold is None:
        best = ["n/a"] * 2
    return f'<a href="#c{place}">{safe_text(category)}</a>', [*in_force, *best], view.metrics


def _summary(title: str, rows: Sequence[page.MetricsRow]) -> str:
    """A line for each category, and their mean."""
    mean = [("Mean", [""] * 5, _means([metrics for _, _, metrics in rows]))] if len(rows) > 1 else []
    caption = (
        f"{title}: missed and false alarms at the threshold of the model, then at the {BEST_F1}; in percent: metrics"
    )
    headings = ["Category", "threshold", "missed", "false alarms", "best F1: missed", "best F1: false alarms"]
    return page.metrics_table(caption, headings, [*rows, *mean], rivals=False)


def _variants_table(run: Run, stored: Mapping[str, Sequence[str]], caption: str) -> str:
    """All stored variants with their metrics; empty if there is only one."""
    names = list(dict.fromkeys(variant for variants in stored.values() for variant in variants))
    if len(names) < 2:
        return ""
    rows: list[page.MetricsRow] = []
    others = name_other_systems(run)
    for name in names:
        categories = [category for category, variants in stored.items() if name in variants]
        metrics = _means([load_metrics(run, category, name) for category in categories])
        count = [str(len(categories))] if len(stored) > 1 else []
        rows.append((safe_text(title_of(name, others)), count, metrics))
    headings = ["Variant", "categories"] if len(stored) > 1 else ["Variant"]
    table = page.metrics_table(f"{caption}, in percent; the best are bold", headings, rows, rivals=True)
    return f"<details><summary>{safe_text(caption)} ({len(names)})</summary>{table}</details>"


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric where it is defined."""
    return {name: mean_where_defined(values[name] for values in metrics) for name in TITLES}


def _paper_tables(run: Run, names: Sequence[str]) -> str:
    """The tables of the paper from the raw results; a note that several of them share is printed once."""
    results = [result for name in names if (result := _fill_where_complete(run, name)) is not None]
    counts = Counter(note for result in results for note in result.notes)
    parts = [page.result_table(result, [note for note in result.notes if counts[note] == 1]) for result in results]
    common = page.note_list([note for note, count in counts.items() if count > 1])
    return "".join(parts) + (f"<p>About several of these tables:</p>{common}" if common else "")


def _fill_where_complete(run: Run, name: str) -> Result | None:
    """A table on the categories that have all of its variants; None where it cannot be filled."""
    table, stored = build_table(name, run.dataset.name), run.list_variants()

    def is_complete(category: str, seed: int) -> bool:
        return all(variant_name(row_config(run.base, row, seed)) in stored[category] for row in table.rows)

    categories = [category for category in stored if is_complete(category, 0)]
    if not categories:
        return None
    seeds = 1
    while all(is_complete(category, seeds) for category in categories):
        seeds += 1
    try:
        return fill_table(run, table, categories, seeds)
    except ImageError:  # it has to be measured again, and the masks are gone: a warning of the page says so
        return None


def _protocol(run: Run) -> str:
    """The decisions of the paper's protocol, as the run wrote them."""
    path = run.folder / "tables" / "protocol.md"
    if not path.is_file():
        return ""
    lines = path.read_text(encoding="utf-8").splitlines()[2:]
    return f"<h3>Protocol</h3><pre>{chr(10).join(map(safe_text, lines))}</pre>"
