"""From a dataset on disk to finished tables: plan the variants, make the raw results, measure, write."""

from collections.abc import Callable, Sequence
from pathlib import Path

from procon.config import Config, refuse
from procon.errors import ConfigError
from procon.evaluation.paper.protocol import apply_protocol
from procon.evaluation.paper.results import SPM, Result, choose_subset, fill_table, row_config, subset_without_measuring
from procon.evaluation.paper.tables import TABLES, Table, TableRow, build_table
from procon.evaluation.paper.writers import to_csv, to_latex, to_markdown
from procon.evaluation.runs.run import Run
from procon.files import write_text
from procon.progress import Progress

PROTOCOL = "protocol"
NAMES = (*TABLES, PROTOCOL)
_PHASES = ("single-layer", "fusion", "pools", "promotion")

Compute = Callable[[Run, dict[str, list[Config]], bool], None]
"""Makes the raw results of the given variants, by category; the last argument says whether to keep the tokens."""


def choose_categories(folder: Path, categories: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Those of the ``categories`` of a folder that are ``wanted``, in their order; by default all."""
    unknown = [name for name in wanted or () if name not in categories]
    if unknown:
        raise ConfigError(f"{folder}: categories must be among {', '.join(categories)}, got {', '.join(unknown)}")
    return tuple(name for name in categories if not wanted or name in wanted)


def reproduce(
    run: Run,
    names: Sequence[str],
    categories: Sequence[str],
    compute: Compute,
    on_progress: Progress,
    *,
    seeds: int = 1,
    keep_work: bool = False,
) -> list[Result]:
    """Make the tables ``names``: ``compute`` makes the missing raw results, then every row is measured."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(f"the table must be one of {', '.join(NAMES)}, got {', '.join(unknown)}")
    tables = [build_table(name, run.dataset.name) for name in _expand(names)]
    subset = tuple(categories)
    if any(table.subset for table in tables):
        if subset_without_measuring(run, categories) is None:
            compute(run, {name: [row_config(run.base, SPM)] for name in categories}, True)
        subset = choose_subset(run, categories)
    needed: dict[str, list[Config]] = {name: [] for name in categories}
    for table in tables:
        for category in subset if table.subset else categories:
            needed[category] += _variants(run, table.rows, seeds)
    compute(run, needed, keep_work)
    results = []
    for place, table in enumerate(tables):
        results.append(fill_table(run, table, subset if table.subset else categories, seeds))
        on_progress("measuring the tables", place + 1, len(tables))
    for result in results:
        _write_result(run, result)
    return results


def _expand(names: Sequence[str]) -> list[str]:
    """Each table once, in the order of the paper; the protocol consists of four tables."""
    wanted = {table for name in names for table in (_PHASES if name == PROTOCOL else (name,))}
    return [name for name in TABLES if name in wanted]


def _variants(run: Run, rows: Sequence[TableRow], seeds: int) -> list[Config]:
    return [row_config(run.base, row, seed) for row in rows for seed in range(seeds)]


def bench(
    run: Run,
    variant: Config,
    categories: Sequence[str],
    compute: Compute,
    *,
    seeds: int = 1,
    keep_work: bool = False,
) -> Result:
    """Measure one variant on every category: a line for each and their mean; ``compute`` makes the raw results."""
    refuse(variant, "bench")
    if run.verdicts:
        run.use_threshold(variant)
    else:
        refuse(variant, "bench without verdicts")
    settings = {name: value for name, value in variant.to_dict().items() if value != run.base.to_dict()[name]}
    table = build_table("per-category", run.dataset.name)
    if variant != row_config(run.base, table.rows[0]):  # not what the paper's table per category was made with
        table = Table("bench", "ProCon", (TableRow("ProCon", settings),), table.columns, per_category=True)
    compute(run, {name: _variants(run, table.rows, seeds) for name in categories}, keep_work)
    result = fill_table(run, table, categories, seeds)
    _write_result(run, result)
    return result


def protocol(run: Run, categories: Sequence[str]) -> list[str]:
    """Report which recipe survives the four phases; the four tables must have been reproduced."""
    subset = choose_subset(run, categories)

    def percents(table: Table, categories: Sequence[str]) -> dict[str, dict[str, float]]:
        return {
            line.label: {name: cell.value for name, cell in line.cells.items() if cell.value is not None}
            for line in fill_table(run, table, categories).lines
        }

    tables = {name: build_table(name, run.dataset.name) for name in _PHASES}
    gate = percents(Table("gate", "", (*tables["pools"].rows, SPM), ("i_auroc",)), subset[:1])
    lines = apply_protocol(
        {name: percents(table, subset if table.subset else categories) for name, table in tables.items()},
        {label: values["i_auroc"] for label, values in gate.items()},
        subset,
    )
    write_text(run.folder / "tables" / "protocol.md", "\n".join(lines) + "\n")
    return lines


def _write_result(run: Run, result: Result) -> None:
    """The table as CSV, Markdown and LaTeX."""
    for suffix, text in (("csv", to_csv(result)), ("md", to_markdown(result)), ("tex", to_latex(result))):
        write_text(run.folder / "tables" / f"{result.name}.{suffix}", text)
