"""Fill the tables: our numbers from the raw results of a run, next to the paper's where they are comparable."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from procon.config import Config
from procon.evaluation.data.datasets import BENCHMARKS
from procon.evaluation.paper.tables import (
    BOTTOM_3,
    ONE_PERCENT,
    SPM_RECIPE,
    TITLES,
    Table,
    TableRow,
    printed_values,
)
from procon.evaluation.runs.run import Run, variant_name

SEED_STEP = 100  # between the bank seeds of two repeats: more than any number of banks
SPM = TableRow("SPM", {**SPM_RECIPE, **ONE_PERCENT})


@dataclass(frozen=True)
class Cell:
    """One number of a table, in percent."""

    value: float | None = None  # ours: mean over categories and repeats
    spread: float | None = None  # standard deviation over repeats, where there are several
    paper: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper

    def format(self, compared: str) -> str:
        """Ours, followed by ``compared``, a format of ``paper`` and ``difference``, if the paper has a value."""
        if self.value is None:
            return "" if self.paper is None else show_percent(self.paper)
        ours = show_percent(self.value) + (f" ± {self.spread:.2f}" if self.spread is not None else "")
        if self.paper is None:
            return ours
        return ours + compared.format(paper=show_percent(self.paper), difference=f"{self.value - self.paper:+.2f}")


@dataclass(frozen=True)
class Line:
    """One line of a finished table."""

    label: str
    cells: dict[str, Cell]
    published: bool = False  # a system that we did not run; its numbers are as its authors printed them


@dataclass(frozen=True)
class Result:
    """A finished table."""

    name: str
    title: str
    columns: tuple[str, ...]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    def headings(self) -> list[str]:
        """The heading of each column."""
        label = "Category" if self.name in ("per-category", "bench") else "Variant"
        return [label, *(TITLES[column] for column in self.columns)]

    def rows(self, star: str, compared: str, escape: Callable[[str], str] = str) -> list[list[str]]:
        """The texts of each line: its label, with ``star`` after published systems, then its cells."""
        return [
            [
                escape(line.label) + (star if line.published else ""),
                *(line.cells.get(column, Cell()).format(compared) for column in self.columns),
            ]
            for line in self.lines
        ]


def show_percent(value: float) -> str:
    """A number in percent as tables print it."""
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def mean_where_defined(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN; NaN where there are none."""
    defined = [value for value in values if not math.isnan(value)]
    return statistics.fmean(defined) if defined else math.nan


def row_config(base: Config, row: TableRow, seed: int = 0) -> Config:
    """The variant behind a row; ``seed`` numbers the repeat."""
    config = replace(base, **row.settings)
    return replace(config, bank_seed=config.bank_seed + SEED_STEP * seed)


def subset_without_measuring(run: Run, categories: Sequence[str]) -> tuple[str, ...] | None:
    """The paper's validation subset of MVTec-AD, or all of three or fewer; None if it must be measured."""
    if run.dataset.name == "mvtec" and set(BOTTOM_3) <= set(categories):
        return BOTTOM_3
    return tuple(categories) if len(categories) <= len(BOTTOM_3) else None


def choose_subset(run: Run, categories: Sequence[str]) -> tuple[str, ...]:
    """The categories of quick studies: all, the paper's subset, or the three where SPM detects worst."""
    variant = variant_name(row_config(run.base, SPM))
    return subset_without_measuring(run, categories) or tuple(
        sorted(categories, key=lambda name: (run.measure(name, variant)["i_auroc"], name))[: len(BOTTOM_3)]
    )


def fill_table(run: Run, table: Table, categories: Sequence[str], seeds: int = 1) -> Result:
    """Measure every row of ``table`` on ``categories``; the raw results must be there."""
    dataset, notes = run.dataset.name, list[str]()
    if table.per_category:
        paper = {**printed_values(table.name, dataset)}
        groups = [(category, table.rows[0], [category]) for category in categories]
        if len(categories) > 1:
            groups.append(("Mean", table.rows[0], list(categories)))
            paper["Mean"] = _same_categories(dataset, categories) if paper else {}
    else:
        paper = _comparable_values(run, table, categories, notes)
        groups = [(row.label, row, list(categories)) for row in table.rows]
    lines = _systems(dataset) if table.name == "main" else []
    for label, row, group in groups:
        configs = [row_config(run.base, row, seed) for seed in range(seeds)]
        means = [_means(run, table.columns, group, variant_name(config), notes) for config in configs]
        lines.append(Line(label, _cells(table.columns, means, paper.get(label, {}))))
    where = run.dataset.title if dataset in BENCHMARKS else f"folder {run.dataset.title}"
    many = f"{len(categories)} categories: " if len(categories) > 1 else ""
    title = f"{table.title} ({where}; {many}{', '.join(categories)})"
    empty = Cell()
    columns = tuple(name for name in table.columns if any(line.cells.get(name, empty) != empty for line in lines))
    return Result(table.name, title, columns, lines, [*_notes(run, table, lines, seeds), *dict.fromkeys(notes)])


def _means(
    run: Run, columns: Sequence[str], categories: Sequence[str], variant: str, notes: list[str]
) -> dict[str, float]:
    """The mean of each metric over the categories where it is defined, in percent; ``notes`` gets the others."""
    measured = {category: run.measure(category, variant) for category in categories}
    means = {}
    for column in columns:
        values = {category: metrics[column] for category, metrics in measured.items()}
        for category in (name for name, value in values.items() if math.isnan(value)):
            why = measured[category].reasons.get(column, "?")
            notes.append(f"{TITLES[column]} of {category} is undefined: {why}.")
        means[column] = 100 * mean_where_defined(values.values())
    return means


def _cells(
    columns: Sequence[str], repeats: Sequence[Mapping[str, float]], paper: Mapping[str, float]
) -> dict[str, Cell]:
    """The cells of a line from the means of each repeat."""
    cells = {}
    for column in columns:
        values = [means[column] for means in repeats]
        spread = statistics.stdev(values) if len(values) > 1 else None
        cells[column] = Cell(statistics.fmean(values), spread, paper.get(column))
    return cells


def _comparable_values(
    run: Run, table: Table, categories: Sequence[str], notes: list[str]
) -> dict[str, dict[str, float]]:
    """The paper's values for the same rows on the same categories, where it prints them."""
    dataset = run.dataset.name
    if table.subset:
        same = dataset == "mvtec" and set(categories) == set(BOTTOM_3)
        return printed_values(table.name, "mvtec-bottom3") if same else {}
    values = printed_values(table.name, dataset)
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
    printed = printed_values("per-category", dataset)
    if any(category not in printed for category in categories):
        return {}
    metrics = printed[categories[0]]
    return {name: statistics.fmean(printed[category][name] for category in categories) for name in metrics}


def _systems(dataset: str) -> list[Line]:
    """Other systems of the paper's main table. Their AUPRO is that of their own papers: over regions, not pixels."""
    lines = []
    for label, values in printed_values("main", dataset).items():
        if label not in ("SPM", "ProCon"):
            own = {"aupro" if name == "pauroc30" else name: value for name, value in values.items()}
            lines.append(Line(label, {name: Cell(paper=value) for name, value in own.items()}, published=True))
    return lines


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
    """The name of the backbone for notes, with the weights file where one is given."""
    source = f" ({config.weights.replace(chr(92), '/').rsplit('/', 1)[-1]})" if config.weights else ""
    return f"{config.backbone}{source}"
