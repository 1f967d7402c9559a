"""Tables with numbers in them: ours from the raw results of a run, the paper's where they may stand beside them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from procon.config import Config
from procon.evaluation.data.datasets import BENCHMARKS
from procon.evaluation.paper.tables import BOTTOM_3, TITLES, Table, TableRow, published, spm
from procon.evaluation.runs.raw import Run, variant_name

SEED_STEP = 100  # between the bank seeds of two repeats: more than any number of banks


@dataclass(frozen=True)
class Cell:
    """One number, in percent."""

    value: float | None = None
    """Mean over categories and repeats; None where there is nothing of ours."""
    spread: float | None = None
    """Standard deviation over repeats, where there are several."""
    paper: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper


@dataclass(frozen=True)
class Line:
    """One row of a finished table."""

    label: str
    cells: dict[str, Cell]
    published: bool = False
    """A system we did not run; its numbers are as its authors printed them."""


@dataclass(frozen=True)
class Result:
    """A finished table."""

    name: str
    title: str
    columns: tuple[str, ...]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    def column_titles(self) -> list[str]:
        """The headings of the numbers."""
        return [TITLES[column] for column in self.columns]


def row_config(base: Config, row: TableRow, seed: int = 0) -> Config:
    """The variant behind a row; ``seed`` numbers the repeat."""
    config = replace(base, **row.settings)
    return replace(config, bank_seed=config.bank_seed + SEED_STEP * seed)


def known_hardest(run: Run, categories: Sequence[str]) -> tuple[str, ...] | None:
    """The paper's validation subset of MVTec-AD, or all where they are no more; None if it takes a measurement."""
    if run.dataset.name == "mvtec" and set(BOTTOM_3) <= set(categories):
        return BOTTOM_3
    return tuple(categories) if len(categories) <= len(BOTTOM_3) else None


def hardest(run: Run, categories: Sequence[str]) -> tuple[str, ...]:
    """The subset for quick studies: :func:`known_hardest`, or the three categories where SPM detects worst."""
    known = known_hardest(run, categories)
    if known is not None:
        return known
    variant = variant_name(row_config(run.base, SPM))
    return tuple(sorted(categories, key=lambda name: (run.measure(name, variant)["i_auroc"], name))[: len(BOTTOM_3)])


SPM = TableRow("SPM", spm(coreset_ratio=0.01))


def fill_table(run: Run, table: Table, categories: Sequence[str], seeds: int = 1) -> Result:
    """Measure every row of ``table`` on ``categories``; the raw results must be there."""
    notes: list[str] = []
    lines: list[Line] = []
    if table.per_category:
        for category in categories:
            paper = published(table.name, run.dataset.name).get(category, {})
            lines.append(Line(category, _cells(run, table, table.rows[0], [category], seeds, paper, notes)))
        if len(categories) > 1:
            paper = _same_categories(run.dataset.name, categories) if table.name == "per-category" else {}
            lines.append(Line("Mean", _cells(run, table, table.rows[0], categories, seeds, paper, notes)))
    else:
        values = _paper_values(run, table, categories, notes)
        for row in table.rows:
            cells = _cells(run, table, row, categories, seeds, values.get(row.label, {}), notes)
            lines.append(Line(row.label, cells))
        if table.name == "main":
            lines = _systems(run.dataset.name) + lines
    where = run.dataset.title if run.dataset.name in BENCHMARKS else f"folder {run.dataset.title}"
    many = f"{len(categories)} categories: " if len(categories) > 1 else ""
    title = f"{table.title} ({where}; {many}{', '.join(categories)})"
    columns = _columns(table, lines)
    return Result(table.name, title, columns, lines, [*_notes(run, table, lines, seeds), *dict.fromkeys(notes)])


def _cells(
    run: Run,
    table: Table,
    row: TableRow,
    categories: Sequence[str],
    seeds: int,
    paper: Mapping[str, float],
    notes: list[str],
) -> dict[str, Cell]:
    repeats: list[dict[str, float]] = []
    for seed in range(seeds):
        variant = variant_name(row_config(run.base, row, seed))
        measured = {category: run.measure(category, variant) for category in categories}
        means = {}
        for column in table.columns:
            defined = [metrics[column] for metrics in measured.values() if not math.isnan(metrics[column])]
            means[column] = 100 * statistics.fmean(defined) if defined else math.nan
            for category, metrics in measured.items():
                if math.isnan(metrics[column]):
                    notes.append(f"{TITLES[column]} of {category} is undefined: {metrics.reasons.get(column, '?')}.")
        repeats.append(means)
    cells = {}
    for column in table.columns:
        values = [means[column] for means in repeats]
        spread = statistics.stdev(values) if len(values) > 1 else None
        cells[column] = Cell(statistics.fmean(values), spread, paper.get(column))
    return cells


def _paper_values(run: Run, table: Table, categories: Sequence[str], notes: list[str]) -> dict[str, dict[str, float]]:
    """What the paper printed for the same rows on the same categories, if it did."""
    dataset = run.dataset.name
    if table.subset:
        same = dataset == "mvtec" and set(categories) == set(BOTTOM_3)
        return published(table.name, "mvtec-bottom3") if same else {}
    values = published(table.name, dataset)
    everything = BENCHMARKS[dataset].categories if dataset in BENCHMARKS else ()
    if not values or set(categories) == set(everything):
        return values
    comparable = {"main": "ProCon", "crossdomain": "ProCon, B = 1, 1 %"}.get(table.name)
    mean = _same_categories(dataset, categories)
    if comparable is None or not mean:
        notes.append(
            f"The paper's values are means over all {len(everything)} categories of {run.dataset.title}, of which "
            f"{len(categories)} are here: not compared."
        )
        return {}
    notes.append(
        f"The paper's values are the means over the same {len(categories)} of {len(everything)} categories, from its "
        "table per category."
    )
    return {comparable: mean}


def _same_categories(dataset: str, categories: Sequence[str]) -> dict[str, float]:
    """The mean of the paper's values over ``categories``; empty if one of them is not in its tables."""
    known = published("per-category", dataset)
    if not known or any(category not in known for category in categories):
        return {}
    metrics = known[categories[0]]
    return {name: statistics.fmean(known[category][name] for category in categories) for name in metrics}


def _systems(dataset: str) -> list[Line]:
    """Other systems of the paper's main table. Their AUPRO is that of their own papers: over regions, not pixels."""
    lines = []
    for label, values in published("main", dataset).items():
        if label not in ("SPM", "ProCon"):
            own = {"aupro" if name == "pauroc30" else name: value for name, value in values.items()}
            lines.append(Line(label, {name: Cell(paper=value) for name, value in own.items()}, published=True))
    return lines


def _columns(table: Table, lines: Sequence[Line]) -> tuple[str, ...]:
    used = {column for line in lines for column, cell in line.cells.items() if cell != Cell()}
    return tuple(column for column in table.columns if column in used)


def _notes(run: Run, table: Table, lines: Sequence[Line], seeds: int) -> list[str]:
    notes = [table.note] if table.note else []
    compared = any(cell.paper is not None for line in lines for cell in line.cells.values())
    if seeds > 1:
        notes.append(f"Mean and standard deviation over {seeds} repeats with other bank seeds.")
    if {"pauroc30", "pro200"} & set(table.columns):
        notes.append(
            "AUPRO is over regions (8-connected, every threshold, to a false positive rate of 0.3). pAUROC30, the "
            "plain pixel ROC to 0.3, is what the paper prints as AUPRO, and PRO200 what it prints as PRO; it has no "
            "value for the true AUPRO."
        )
    if compared and run.base.backbone != "dinov2-base":
        notes.append(f"Ours with {backbone_name(run.base)}, the paper's with DINOv2 ViT-B/14: not the same features.")
    if compared and run.dataset.name in ("mvtec", "visa"):
        notes.append("The paper chose its layer pool on the test labels of MVTec-AD and VisA.")
    if any(line.published for line in lines):
        notes.append("Rows marked * were not run here: published numbers, AUPRO as in their own papers.")
    if run.dataset.split:
        notes.append(f"Split: {run.dataset.split}.")
    return notes


def backbone_name(config: Config) -> str:
    """What to call the backbone in a note: its name and, where given, the weights file."""
    source = f" ({config.weights.replace(chr(92), '/').rsplit('/', 1)[-1]})" if config.weights else ""
    return f"{config.backbone}{source}"


def as_records(result: Result) -> list[dict[str, Any]]:
    """Plain rows, full precision: label, then for each metric ours, spread, the paper's and the difference."""
    records = []
    for line in result.lines:
        record: dict[str, Any] = {"table": result.name, "row": line.label, "published": line.published}
        for column in result.columns:
            cell = line.cells.get(column, Cell())
            record[column] = cell.value
            record[f"{column}_spread"] = cell.spread
            record[f"{column}_paper"] = cell.paper
            record[f"{column}_difference"] = cell.difference
        records.append(record)
    return records
