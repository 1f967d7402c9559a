"""The paper's tables on real images: the numbers, and sentences computed from the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

Row = dict[str, str]

SHOWN = {"i_auroc": "I-AUROC", "p_ap": "P-AP", "aupro": "AUPRO", "pauroc30": "pAUROC30"}
TITLES = {
    "main": "Final operating point (1 %, B = 1, as the paper has it for MPDD)",
    "ladder": "From hard retrieval to projection consensus (1 %)",
    "per-layer": "Single depths, joined and independent memories (1 %)",
    "concat": "One joined memory or one for each layer (1 %)",
    "banks": "Number of banks (1 %)",
    "budget": "Coreset budget",
    "single-layer": "Every single layer (1 %)",
    "fusion": "Fusion rule, five-layer pool (1 %)",
    "pools": "Layer pools (1 %)",
    "promotion": "Promoted pools (1 %)",
    "readout": "How a memory is read (1 %)",
    "coreset": "How a memory is chosen (1 %)",
}
LITTLE = 0.2  # points; less is called no difference
QUESTIONS: dict[str, list[tuple[str, str, str]]] = {  # what is asked, the row that has it, the row that has not
    "ladder": [
        ("Bank consensus on hard retrieval", "+ bank consensus", "Hard NN memory"),
        ("Soft projection (SPM)", "+ soft projection (SPM)", "+ bank consensus"),
        ("Layer consensus (ProCon) over SPM", "+ layer consensus (ProCon)", "+ soft projection (SPM)"),
        ("Soft projection in layer -6", "Layer -6, + soft projection", "Layer -6, + bank consensus"),
        (
            "Soft projection with four layers",
            "+ layer consensus (ProCon)",
            "Four layers, hard NN, + bank consensus",
        ),
    ],
    "concat": [("Independent memories over one joined", "ProCon", "Concat")],
    "banks": [("Five banks over one", "B = 5", "B = 1")],
    "budget": [
        ("Five times the anchors (ProCon, 5 % over 1 %)", "ProCon, 5 %", "ProCon, 1 %"),
        ("Ten times the anchors (ProCon, 10 % over 1 %)", "ProCon, 10 %", "ProCon, 1 %"),
        ("ProCon at 1 % over SPM at 10 %", "ProCon, 1 %", "SPM, 10 %"),
    ],
    "fusion": [
        ("Median over layers in place of the mean", "Median", "Mean"),
        ("Maximum over layers in place of the mean", "Max", "Mean"),
        ("Robust per-image normalisation", "Mean, robust per-image norm", "Mean"),
        ("Normalisation by the statistics of good images", "Mean, train-statistics norm", "Mean"),
    ],
    "readout": [
        ("Uniform weights in place of the softmax", "uniform weights", "ProCon (k = 5, own temperature)"),
        ("Nearest anchor in place of the projection", "nearest anchor (hard)", "ProCon (k = 5, own temperature)"),
        ("A temperature from 512 patches", "temperature from 512 patches", "ProCon (k = 5, own temperature)"),
        ("Fifteen neighbours", "k = 15", "ProCon (k = 5, own temperature)"),
    ],
    "coreset": [
        ("A random memory in place of k-center", "random", "k-center"),
        ("Density-biased pruning", "density-biased pruning", "k-center"),
    ],
}


@dataclass(frozen=True)
class Chapter:
    """One table of the page."""

    title: str
    head: list[str]
    cells: list[list[str]]
    words: list[str]


def tell(rows: Sequence[Row]) -> list[Chapter]:
    """A chapter for each table, in the order of the paper."""
    categories = list(dict.fromkeys(row["category"] for row in rows if row["category"]))
    head = ["variant", *(f"{category} {title}" for category in categories for title in SHOWN.values())]
    chapters = []
    for name, title in TITLES.items():
        found = {
            (row["row"], row["category"]): row
            for row in rows
            if row["table"] == name and row.get("seed", "0") == "0"  # the page has the first bank seed
        }
        labels = list(dict.fromkeys(label for label, _ in found))
        if not labels:
            continue
        cells = [
            [label, *(f"{float(found[label, one][metric]):.2f}" for one in categories for metric in SHOWN)]
            for label in labels
        ]
        words = [
            answer(what, found, better, base, categories)
            for what, better, base in QUESTIONS.get(name, [])
            if better in labels and base in labels
        ]
        chapters.append(Chapter(title, head, cells, words))
    return chapters


def answer(what: str, found: dict[tuple[str, str], Row], better: str, base: str, categories: Sequence[str]) -> str:
    """One sentence: the differences on every category, and what follows."""
    parts, verdicts = [], {}
    for category in categories:
        delta = {
            metric: float(found[better, category][metric]) - float(found[base, category][metric])
            for metric in ("i_auroc", "p_ap", "aupro")
        }
        verdicts[category] = judge(list(delta.values()))
        figures = ", ".join(f"{SHOWN[metric]} {round(value, 2) + 0.0:+.2f}" for metric, value in delta.items())
        parts.append(f"{figures} on {category}")
    if len(set(verdicts.values())) == 1:
        verdict = (
            f"it {next(iter(verdicts.values()))} on all of them"
            if len(categories) > 1
            else f"it {verdicts[categories[0]]}"
        )
    else:
        verdict = ", ".join(f"it {said} on {category}" for category, said in verdicts.items())
    return f"{what}: {'; '.join(parts)}. Here {verdict}."


def judge(deltas: Sequence[float]) -> str:
    """``helps`` if something gains and nothing loses, and so on."""
    gains, losses = any(delta > LITTLE for delta in deltas), any(delta < -LITTLE for delta in deltas)
    if gains and losses:
        return "helps in one metric and hurts in another"
    return "helps" if gains else "hurts" if losses else "makes no difference"
