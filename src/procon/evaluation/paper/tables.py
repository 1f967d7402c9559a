"""The tables of the paper: which variants a table compares, on which categories, and what the paper printed.

A row is a label and the settings in which it differs from the paper's recipe; nothing else about a variant exists.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from procon.errors import ConfigError

IMAGE = ("i_auroc", "i_ap", "i_f1")
PIXEL = ("p_auroc", "p_ap", "p_f1")
ALL = (*IMAGE, *PIXEL, "aupro", "pauroc30", "pro200")
FOUR = ("i_auroc", "p_auroc", "p_ap", "aupro", "pauroc30")
THREE = ("i_auroc", "p_ap", "aupro", "pauroc30")

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

POOL = (-3, -6, -8, -9)
WIDE_POOL = (-3, -4, -6, -8, -9)  # the temporary pool of the fusion study
SPM_LAYERS = (-1, -3, -6, -9, -12)  # what the published recipe joined for the numbers the paper prints as SPM
BOTTOM_3 = ("transistor", "pill", "zipper")  # the paper's validation subset of MVTec-AD
FINAL_RATIO = {"realiad": 0.01, "mpdd": 0.01, "btad": 0.01, "medical": 0.01}
FINAL_BANKS = {"mpdd": 1, "btad": 1, "medical": 1}


@dataclass(frozen=True)
class TableRow:
    """One line of a table."""

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    """How the variant differs from ``Config()``."""


@dataclass(frozen=True)
class Table:
    """What to run and what to compare it with."""

    name: str
    title: str
    rows: tuple[TableRow, ...]
    columns: tuple[str, ...] = FOUR
    subset: bool = False
    """On the three hardest categories only."""
    per_category: bool = False
    """One line for each category instead of their mean."""
    note: str = ""


def spm(**settings: Any) -> dict[str, Any]:
    """The five-layer concatenation that the paper's SPM numbers come from."""
    return {"layers": SPM_LAYERS, "layer_fusion": "concat", **settings}


def _pool(layers: Sequence[int]) -> str:
    return "{" + ", ".join(str(layer) for layer in layers) + "}"


def _final(dataset: str) -> dict[str, Any]:
    """The operating point of the paper's results on a dataset."""
    return {"coreset_ratio": FINAL_RATIO.get(dataset, 0.05), "banks": FINAL_BANKS.get(dataset, 5)}


_ONE = {"coreset_ratio": 0.01}
_SPM_NOTE = (
    "SPM joins blocks -1, -3, -6, -9 and -12 in one memory, as the recipe behind the paper's numbers does, although "
    "its text calls SPM single-layer; single-layer rows are ours."
)
_POOLS = ((-8, -9), (-6, -8, -9), (-6, -9), POOL, WIDE_POOL)


def build_table(name: str, dataset: str) -> Table:
    """The table ``name`` as it is for a dataset; :data:`TABLES` lists the names."""
    if name not in TABLES:
        raise ConfigError(f"the table must be one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name](dataset)


def _main(dataset: str) -> Table:
    final = _final(dataset)
    rows = (TableRow("SPM", spm(**final)), TableRow("ProCon", final))
    return Table("main", "Final operating point", rows, ALL, note=_SPM_NOTE)


def _ladder(dataset: str) -> Table:
    rows = (
        TableRow("Hard NN memory", spm(**_ONE, readout="hard", banks=1)),
        TableRow("+ bank consensus", spm(**_ONE, readout="hard")),
        TableRow("+ soft projection (SPM)", spm(**_ONE)),
        TableRow("+ layer consensus (ProCon)", _ONE),
        TableRow("Layer -6, hard NN", {**_ONE, "layers": (-6,), "readout": "hard", "banks": 1}),
        TableRow("Layer -6, + bank consensus", {**_ONE, "layers": (-6,), "readout": "hard"}),
        TableRow("Layer -6, + soft projection", {**_ONE, "layers": (-6,)}),
        TableRow("Four layers, hard NN", {**_ONE, "readout": "hard", "banks": 1}),
        TableRow("Four layers, hard NN, + bank consensus", {**_ONE, "readout": "hard"}),
    )
    return Table("ladder", "From hard retrieval to projection consensus, 1 % coreset", rows, note=_SPM_NOTE)


def _per_layer(dataset: str) -> Table:
    rows = [TableRow(f"Layer {layer}", {**_ONE, "layers": (layer,)}) for layer in POOL]
    rows += [TableRow("Concat", {**_ONE, "layer_fusion": "concat"}), TableRow("ProCon", _ONE)]
    return Table("per-layer", "Single depths, joined and independent memories, 1 % coreset", tuple(rows))


def _concat(dataset: str) -> Table:
    rows = (TableRow("Concat", {**_ONE, "layer_fusion": "concat"}), TableRow("ProCon", _ONE))
    return Table("concat", "One joined memory or one for each layer, 1 % coreset", rows, ALL)


def _banks(dataset: str) -> Table:
    rows = tuple(TableRow(f"B = {banks}", {**_ONE, "banks": banks}) for banks in range(1, 6))
    return Table("banks", "Number of banks, 1 % coreset", rows, ALL)


def _budget(dataset: str) -> Table:
    rows = []
    for method, settings in (("ProCon", {}), ("SPM", spm())):
        for ratio in (0.01, 0.05, 0.1):
            rows.append(TableRow(f"{method}, {ratio * 100:.0f} %", {**settings, "coreset_ratio": ratio}))
    return Table("budget", "Coreset budget", tuple(rows), ALL, note=_SPM_NOTE)


def _single_layer(dataset: str) -> Table:
    rows = tuple(TableRow(f"Layer {layer}", {**_ONE, "layers": (layer,)}) for layer in range(-1, -13, -1))
    return Table("single-layer", "Every single layer, 1 % coreset", rows)


def _fusion(dataset: str) -> Table:
    wide = {**_ONE, "layers": WIDE_POOL}
    rows = [TableRow("Concat, one bank", {**wide, "layer_fusion": "concat", "banks": 1})]
    rows += [TableRow("Concat", {**wide, "layer_fusion": "concat"})]
    rows += [TableRow(rule.title(), {**wide, "layer_fusion": rule}) for rule in ("mean", "median", "max")]
    rows += [TableRow("Mean, robust per-image norm", {**wide, "normalization": "robust"})]
    rows += [TableRow("Mean, train-statistics norm", {**wide, "normalization": "train"})]
    rows += [TableRow("Mean, image score: max", {**wide, "top_ratio": 1e-6})]
    rows += [TableRow(f"Mean, top-mean {ratio:g}", {**wide, "top_ratio": ratio}) for ratio in (0.002, 0.01, 0.02, 0.05)]
    note = (
        "The image score is the top-mean at 0.005 where nothing else is said; the paper prints no value for the others."
    )
    return Table(
        "fusion", f"Fusion rule on the pool {_pool(WIDE_POOL)}, 1 %", tuple(rows), THREE, subset=True, note=note
    )


def _pools(dataset: str) -> Table:
    rows = tuple(TableRow(_pool(pool), {**_ONE, "layers": pool}) for pool in _POOLS)
    return Table("pools", "Layer pools, 1 % coreset", rows, THREE, subset=True)


def _promotion(dataset: str) -> Table:
    rows = [TableRow(_pool(pool), {**_ONE, "layers": pool}) for pool in (POOL, (-6, -9), (-6, -8, -9), (-8, -9))]
    return Table("promotion", "Promoted pools, 1 % coreset", (*rows, TableRow("SPM", spm(**_ONE))), note=_SPM_NOTE)


def _crossdomain(dataset: str) -> Table:
    rows = (TableRow("ProCon, B = 1, 1 %", {**_ONE, "banks": 1}),)
    return Table("crossdomain", "The unchanged recipe, B = 1, 1 % coreset", rows, ALL)


def _per_category(dataset: str) -> Table:
    final = _final(dataset)
    title = f"Categories at {final['coreset_ratio']:.0%}, B = {final['banks']}"
    return Table("per-category", title, (TableRow("ProCon", final),), ALL, per_category=True)


def _readout(dataset: str) -> Table:
    rows = [TableRow("ProCon (k = 5, own temperature)", _ONE)]
    rows += [TableRow(f"k = {k}", {**_ONE, "num_neighbors": k}) for k in (1, 2, 3, 9, 15)]
    rows += [TableRow("temperature from 512 patches", {**_ONE, "tau_patches": 512})]
    rows += [TableRow(f"temperature fixed at {tau:g}", {**_ONE, "tau": tau}) for tau in (0.01, 0.1, 1.0)]
    rows += [TableRow("uniform weights", {**_ONE, "readout": "uniform"})]
    rows += [TableRow("nearest anchor (hard)", {**_ONE, "readout": "hard"})]
    return Table("readout", "How a memory is read, 1 % coreset", tuple(rows), note="The paper prints no such table.")


def _coreset(dataset: str) -> Table:
    rows = (
        TableRow("k-center", _ONE),
        TableRow("random", {**_ONE, "coreset": "random"}),
        TableRow("density-biased pruning", {**_ONE, "coreset": "dense"}),
    )
    note = "The paper reports that density-biased pruning failed, without figures."
    return Table("coreset", "How a memory is chosen, 1 % coreset", rows, note=note)


TABLES = {
    "main": _main,
    "ladder": _ladder,
    "per-layer": _per_layer,
    "concat": _concat,
    "banks": _banks,
    "budget": _budget,
    "single-layer": _single_layer,
    "fusion": _fusion,
    "pools": _pools,
    "promotion": _promotion,
    "crossdomain": _crossdomain,
    "per-category": _per_category,
    "readout": _readout,
    "coreset": _coreset,
}
"""What ``procon reproduce`` knows beside ``protocol``."""


@cache
def _published() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    text = (files("procon.evaluation.paper") / "paper.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(text)
    return found


def published(table: str, dataset: str) -> dict[str, dict[str, float]]:
    """What the paper printed, in percent: label -> metric -> value; its "AUPRO" is ``pauroc30``, "PRO" ``pro200``."""
    return _published().get(table, {}).get(dataset, {})
