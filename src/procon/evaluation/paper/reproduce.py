"""From a dataset on disk to finished tables: plan the variants, make the raw results, measure, write."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from procon.config import Config, refuse
from procon.errors import ConfigError
from procon.evaluation.paper.protocol import Verdict, judge
from procon.evaluation.paper.results import SPM, Result, fill_table, hardest, known_hardest, row_config
from procon.evaluation.paper.tables import TABLES, Table, TableRow, build_table
from procon.evaluation.paper.writers import to_csv, to_latex, to_markdown
from procon.evaluation.runs.raw import Run
from procon.files import atomic_text

PROTOCOL = "protocol"
NAMES = (*TABLES, PROTOCOL)
_PHASES = ("single-layer", "fusion", "pools", "promotion")

Progress = Callable[[str, str, int, int], None]
"""Hears (category, stage, done, total)."""
Compute = Callable[[Run, dict[str, list[Config]], bool], None]
"""Makes the raw results of the variants needed, by category, and keeps the tokens if told to."""


def choose_categories(run: Run, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The categories asked for, in the order of the dataset; all of them by default."""
    if not wanted:
        return run.dataset.categories
    unknown = [name for name in wanted if name not in run.dataset.categories]
    if unknown:
        known = ", ".join(run.dataset.categories)
        raise ConfigError(f"categories must be among {known} of {run.dataset.root}, got {', '.join(unknown)}")
    return tuple(name for name in run.dataset.categories if name in wanted)


def reproduce(
    run: Run,
    names: Sequence[str],
    categories: Sequence[str],
    device: torch.device,
    progress: Progress,
    *,
    seeds: int = 1,
    keep_work: bool = False,
    compute: Compute | None = None,
) -> list[Result]:
    """The tables ``names``: what is missing is computed, category by category, then all is measured.

    ``compute`` does it elsewhere, on a cluster; ``device`` and ``progress`` are then of no use to it.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ConfigError(f"the table must be one of {', '.join(NAMES)}, got {', '.join(unknown)}")
    make = compute or compute_here(device, progress)
    tables = [build_table(name, run.dataset.name) for name in _expand(names)]
    subset = tuple(categories)
    if any(table.subset for table in tables):
        if known_hardest(run, categories) is None:
            make(run, {name: [row_config(run.base, SPM)] for name in categories}, True)
        subset = hardest(run, categories)
    needed: dict[str, list[Config]] = {name: [] for name in categories}
    for table in tables:
        for category in subset if table.subset else categories:
            needed[category] += _variants(run, table.rows, seeds)
    make(run, needed, keep_work)
    results = []
    for place, table in enumerate(tables):
        results.append(fill_table(run, table, subset if table.subset else categories, seeds))
        progress("all", "measuring", place + 1, len(tables))
    for result in results:
        write_result(run.folder / "tables", result)
    return results


def _expand(names: Sequence[str]) -> list[str]:
    """The protocol is made of four tables; each table once, in the order of the paper."""
    wanted = {table for name in names for table in (_PHASES if name == PROTOCOL else (name,))}
    return [name for name in TABLES if name in wanted]


def _variants(run: Run, rows: Sequence[TableRow], seeds: int) -> list[Config]:
    return [row_config(run.base, row, seed) for row in rows for seed in range(seeds)]


def compute_here(device: torch.device, progress: Progress) -> Compute:
    """Category by category in this process."""

    def compute(run: Run, needed: dict[str, list[Config]], keep_work: bool) -> None:
        for category, variants in needed.items():

            def report(stage: str, done: int, total: int, category: str = category) -> None:
                progress(category, stage, done, total)

            run.compute(category, variants, device, report, keep_work=keep_work)

    return compute


def bench(
    run: Run,
    variant: Config,
    categories: Sequence[str],
    device: torch.device,
    progress: Progress,
    *,
    seeds: int = 1,
    keep_work: bool = False,
    compute: Compute | None = None,
) -> Result:
    """One variant on every category: a line for each and their mean. ``compute`` as in :func:`reproduce`."""
    refuse(variant, "bench")
    settings = {name: value for name, value in variant.to_dict().items() if value != run.base.to_dict()[name]}
    table = build_table("per-category", run.dataset.name)
    if variant != row_config(run.base, table.rows[0]):  # not what the paper's table per category was made with
        table = Table("bench", "ProCon", (TableRow("ProCon", settings),), table.columns, per_category=True)
    make = compute or compute_here(device, progress)
    make(run, {name: _variants(run, table.rows, seeds) for name in categories}, keep_work)
    result = fill_table(run, table, categories, seeds)
    write_result(run.folder / "tables", result)
    return result


def protocol(run: Run, categories: Sequence[str]) -> Verdict:
    """Which recipe survives the four phases; the four tables must have been reproduced."""
    subset = hardest(run, categories)
    filled = {}
    for name in _PHASES:
        table = build_table(name, run.dataset.name)
        filled[name] = fill_table(run, table, subset if table.subset else categories)
    gate = {}
    for row in (*build_table("pools", run.dataset.name).rows, SPM):
        table = Table("gate", "", (row,), ("i_auroc",))
        value = fill_table(run, table, subset[:1]).lines[0].cells["i_auroc"].value
        gate[row.label] = value if value is not None else float("nan")
    verdict = judge({name: _values(result) for name, result in filled.items()}, gate, subset)
    with atomic_text(run.folder / "tables" / "protocol.md") as stream:
        stream.write("\n".join(verdict.lines) + "\n")
    return verdict


def _values(result: Result) -> dict[str, dict[str, float]]:
    return {
        line.label: {name: cell.value for name, cell in line.cells.items() if cell.value is not None}
        for line in result.lines
    }


def write_result(folder: Path, result: Result) -> None:
    """The table as CSV, Markdown and LaTeX."""
    for suffix, text in (("csv", to_csv(result)), ("md", to_markdown(result)), ("tex", to_latex(result))):
        with atomic_text(folder / f"{result.name}.{suffix}") as stream:
            stream.write(text)
