"""The tables of the paper: which variants a table compares, on which categories, and what the paper printed.

A row is a label and the settings in which it differs from the paper's recipe.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from procon.errors import ConfigError

TITLES = {
    "i_auroc": "I-AUROC",
    "i_ap": "I-AP",
    "i_f1": "I-F1",
    "p_auroc": "P-AUROC",
    "p_ap": "P-AP",
    "p_f1": "P-F1",
    "aupro": "AUPRO",
    "pauroc30": "pAUROC30",
    "pro200": "PRO200",
}
ALL = tuple(TITLES)
FOUR = ("i_auroc", "p_auroc", "p_ap", "aupro", "pauroc30")
THREE = ("i_auroc", "p_ap", "aupro", "pauroc30")

POOL = (-3, -6, -8, -9)
WIDE_POOL = (-3, -4, -6, -8, -9)  # the temporary pool of the fusion study
BOTTOM_3 = ("transistor", "pill", "zipper")  # the paper's validation subset of MVTec-AD
ONE_PERCENT = {"coreset_ratio": 0.01}
CONCAT: dict[str, Any] = {"layer_fusion": "concat"}
SPM_RECIPE: dict[str, Any] = {"layers": (-1, -3, -6, -9, -12), **CONCAT}  # behind the numbers the paper prints as SPM
HARD_RECIPE: dict[str, Any] = {"readout": "hard", "banks": 1}
_SMALL_POINT = {"coreset_ratio": 0.01, "banks": 1}
_FINAL_POINTS = {"realiad": {"coreset_ratio": 0.01, "banks": 5}} | dict.fromkeys(
    ("mpdd", "btad", "medical"), _SMALL_POINT
)


@dataclass(frozen=True)
class TableRow:
    """One row of a table: its label and how the variant differs from ``Config()``."""

    label: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of the paper: its variants, its columns and its categories."""

    name: str
    title: str
    rows: tuple[TableRow, ...]
    columns: tuple[str, ...] = FOUR
    subset: bool = False  # on the three hardest categories only
    per_category: bool = False  # a line for each category in addition to their mean
    final: bool = False  # at the operating point of the paper's results on the dataset
    note: str = ""


def build_table(name: str, dataset: str) -> Table:
    """The table ``name`` as it is for a dataset; :data:`TABLES` lists the names."""
    if name not in TABLES:
        raise ConfigError(f"the table must be one of {', '.join(TABLES)}, got {name!r}")
    table = TABLES[name]
    if not table.final:
        return table
    point = final_point(dataset)
    rows = tuple(replace(row, settings={**row.settings, **point}) for row in table.rows)
    return replace(table, rows=rows, title=table.title.format(**point))


def final_point(dataset: str) -> dict[str, Any]:
    """Coreset ratio and banks of the paper's results on a dataset."""
    return dict(_FINAL_POINTS.get(dataset, {"coreset_ratio": 0.05, "banks": 5}))


def _rows(settings: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any] = ONE_PERCENT) -> tuple[TableRow, ...]:
    """A row for each label, with the settings that all rows share."""
    return tuple(TableRow(label, {**common, **changes}) for label, changes in settings.items())


def _pool(*layers: int) -> dict[str, dict[str, Any]]:
    """The label of a layer pool and its setting."""
    return {"{" + ", ".join(map(str, layers)) + "}": {"layers": layers}}


_SPM_NOTE = (
    "SPM joins blocks -1, -3, -6, -9 and -12 in one memory, as the recipe behind the paper's numbers does, although "
    "its text calls SPM single-layer; single-layer rows are ours."
)
_HARD_BANKS = {"readout": "hard"}
_LAYER_6 = {"layers": (-6,)}

_ALL_TABLES = (
    Table(
        "main", "Final operating point", _rows({"SPM": SPM_RECIPE, "ProCon": {}}, {}), ALL, final=True, note=_SPM_NOTE
    ),
    Table(
        "ladder",
        "From hard retrieval to projection consensus, 1 % coreset",
        _rows(
            {
                "Hard NN memory": {**SPM_RECIPE, **HARD_RECIPE},
                "+ bank consensus": {**SPM_RECIPE, **_HARD_BANKS},
                "+ soft projection (SPM)": SPM_RECIPE,
                "+ layer consensus (ProCon)": {},
                "Layer -6, hard NN": {**_LAYER_6, **HARD_RECIPE},
                "Layer -6, + bank consensus": {**_LAYER_6, **_HARD_BANKS},
                "Layer -6, + soft projection": _LAYER_6,
                "Four layers, hard NN": HARD_RECIPE,
                "Four layers, hard NN, + bank consensus": _HARD_BANKS,
            }
        ),
        note=_SPM_NOTE,
    ),
    Table(
        "per-layer",
        "Single depths, joined and independent memories, 1 % coreset",
        _rows({f"Layer {layer}": {"layers": (layer,)} for layer in POOL} | {"Concat": CONCAT, "ProCon": {}}),
    ),
    Table(
        "concat", "One joined memory or one for each layer, 1 % coreset", _rows({"Concat": CONCAT, "ProCon": {}}), ALL
    ),
    Table(
        "banks", "Number of banks, 1 % coreset", _rows({f"B = {banks}": {"banks": banks} for banks in range(1, 6)}), ALL
    ),
    Table(
        "budget",
        "Coreset budget",
        _rows(
            {
                f"{method}, {ratio:.0%}".replace("%", " %"): {**settings, "coreset_ratio": ratio}
                for method, settings in (("ProCon", {}), ("SPM", SPM_RECIPE))
                for ratio in (0.01, 0.05, 0.1)
            }
        ),
        ALL,
        note=_SPM_NOTE,
    ),
    Table(
        "single-layer",
        "Every single layer, 1 % coreset",
        _rows({f"Layer {layer}": {"layers": (layer,)} for layer in range(-1, -13, -1)}),
    ),
    Table(
        "fusion",
        f"Fusion rule on the pool {next(iter(_pool(*WIDE_POOL)))}, 1 %",
        _rows(
            {"Concat, one bank": {**CONCAT, "banks": 1}, "Concat": CONCAT}
            | {rule.title(): {"layer_fusion": rule} for rule in ("mean", "median", "max")}
            | {"Mean, robust per-image norm": {"normalization": "robust"}}
            | {"Mean, train-statistics norm": {"normalization": "train"}}
            | {"Mean, image score: max": {"top_ratio": 1e-6}}
            | {f"Mean, top-mean {ratio:g}": {"top_ratio": ratio} for ratio in (0.002, 0.01, 0.02, 0.05)},
            {**ONE_PERCENT, "layers": WIDE_POOL},
        ),
        THREE,
        subset=True,
        note="The image score is the top-mean at 0.005 unless the row says otherwise; the paper prints no value for "
        "the others.",
    ),
    Table(
        "pools",
        "Layer pools, 1 % coreset",
        _rows(_pool(-8, -9) | _pool(-6, -8, -9) | _pool(-6, -9) | _pool(*POOL) | _pool(*WIDE_POOL)),
        THREE,
        subset=True,
    ),
    Table(
        "promotion",
        "Promoted pools, 1 % coreset",
        _rows(_pool(*POOL) | _pool(-6, -9) | _pool(-6, -8, -9) | _pool(-8, -9) | {"SPM": SPM_RECIPE}),
        note=_SPM_NOTE,
    ),
    Table("crossdomain", "The unchanged recipe, B = 1, 1 % coreset", _rows({"ProCon, B = 1, 1 %": {"banks": 1}}), ALL),
    Table(
        "per-category",
        "Categories at {coreset_ratio:.0%}, B = {banks}",
        _rows({"ProCon": {}}, {}),
        ALL,
        per_category=True,
        final=True,
    ),
    Table(
        "readout",
        "How a memory is read, 1 % coreset",
        _rows(
            {"ProCon (k = 5, own temperature)": {}}
            | {f"k = {k}": {"num_neighbors": k} for k in (1, 2, 3, 9, 15)}
            | {"temperature from 512 patches": {"tau_patches": 512}}
            | {f"temperature fixed at {tau:g}": {"tau": tau} for tau in (0.01, 0.1, 1.0)}
            | {"uniform weights": {"readout": "uniform"}, "nearest anchor (hard)": _HARD_BANKS}
        ),
        note="The paper prints no such table.",
    ),
    Table(
        "coreset",
        "How a memory is chosen, 1 % coreset",
        _rows({"k-center": {}, "random": {"coreset": "random"}, "density-biased pruning": {"coreset": "dense"}}),
        note="The paper reports that density-biased pruning failed, without figures.",
    ),
)
TABLES = {table.name: table for table in _ALL_TABLES}
"""What ``procon reproduce`` can make in addition to ``protocol``."""


@cache
def _load_paper() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    text = (files("procon.evaluation.paper") / "paper.json").read_text(encoding="utf-8")
    values: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(text)
    return values


def printed_values(table: str, dataset: str) -> dict[str, dict[str, float]]:
    """The paper's values in percent: label -> metric -> value; its "AUPRO" is ``pauroc30``, its "PRO" is ``pro200``."""
    return _load_paper().get(table, {}).get(dataset, {})
