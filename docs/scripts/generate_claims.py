"""Write docs/measure/claims.md from benchmarks/results/reproduce.csv and the paper's tables.

    python docs/scripts/generate_claims.py

Every verdict on the page follows from the numbers by the rule that the page states; a test compares the page with them.
"""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from procon.evaluation.paper.tables import TITLES, printed_values

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reproduce.csv"
PAGE = ROOT / "docs" / "measure" / "claims.md"
METRICS = ("i_auroc", "p_ap", "pauroc30", "aupro")  # the paper has the first three
LITTLE = 0.2  # points; less is no difference
EIGHT = "eight MVTec-AD categories"

Numbers = dict[str, float]

LADDER_OF_EIGHT: dict[str, tuple[float, float, float, float]] = {
    "Hard NN memory": (98.70, 65.85, 94.09, 93.58),
    "+ bank consensus": (98.78, 66.72, 95.03, 94.77),
    "+ soft projection (SPM)": (98.89, 67.47, 96.43, 96.06),
    "+ layer consensus (ProCon)": (98.97, 68.12, 96.49, 96.01),
    "Layer -3": (98.50, 61.92, 95.67, 95.43),
    "Layer -9": (98.48, 66.77, 94.89, 94.22),
    "Concat": (98.69, 66.54, 95.77, 94.96),
    "ProCon": (98.97, 68.12, 96.49, 96.01),
}
"""As docs/measure/reproduce.md describes them: one seed, which cannot be repeated from the parts at hand."""


@dataclass(frozen=True)
class Step:
    """Two rows of a table, of which the paper says that the first is better."""

    what: str
    table: str
    better: str
    base: str
    paper: str = "mvtec"  # the dataset whose printed values are shown; "" where it prints none


@dataclass(frozen=True)
class Claim:
    """What the paper says, and the comparisons that test it."""

    title: str
    words: str
    steps: tuple[Step, ...]
    metrics: tuple[str, ...] = METRICS
    saturates: bool = False  # the claim is that there is no difference


CLAIMS = (
    Claim(
        "Each step of the ladder helps",
        "Bank consensus, soft projection and layer consensus each add accuracy (its component table).",
        (
            Step("bank consensus", "ladder", "+ bank consensus", "Hard NN memory"),
            Step("soft projection", "ladder", "+ soft projection (SPM)", "+ bank consensus"),
            Step("layer consensus", "ladder", "+ layer consensus (ProCon)", "+ soft projection (SPM)"),
        ),
    ),
    Claim(
        "One memory per layer is better than one joined memory",
        "Independent memories beat concatenated tokens.",
        (Step("independent memories", "concat", "ProCon", "Concat"),),
    ),
    Claim(
        "1 % of ProCon beats 10 % of SPM",
        "A tenth of the memory, and a better result.",
        (Step("ProCon at 1 % over SPM at 10 %", "budget", "ProCon, 1 %", "SPM, 10 %"),),
    ),
    Claim(
        "Banks saturate",
        "More banks help a little, and then no more.",
        (Step("five banks over three", "banks", "B = 5", "B = 3"),),
        saturates=True,
    ),
    Claim(
        "Normalising each map by its own image fails",
        "Robust normalisation per image removes the difference between good and bad images.",
        (Step("no normalisation", "fusion", "Mean", "Mean, robust per-image norm", "mvtec-bottom3"),),
    ),
    Claim(
        "Block -12 is toxic",
        "Shallow layers can be toxic: block -12 collapses as a single layer, and is kept out of every pool.",
        (Step("block -9 over block -12", "single-layer", "Layer -9", "Layer -12"),),
    ),
    Claim(
        "Density-biased pruning fails",
        "A coreset that keeps the dense centres loses what is rare (said in words, without a table).",
        (Step("k-center over dense pruning", "coreset", "k-center", "density-biased pruning", ""),),
    ),
)


def read_rows() -> list[dict[str, str]]:
    """The rows of the results file."""
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def differences(step: Step, rows: Sequence[Mapping[str, str]], metric: str) -> dict[str, list[float]]:
    """By category, the better row less the base in points, one number for each seed."""
    found: dict[tuple[str, str, str], float] = {
        (row["row"], row["category"], row.get("seed", "0")): float(row[metric])
        for row in rows
        if row["table"] == step.table
    }
    parts: dict[str, list[float]] = {}
    for (label, category, seed), value in found.items():
        if label == step.better and (step.base, category, seed) in found:
            parts.setdefault(category, []).append(value - found[step.base, category, seed])
    if step.better in LADDER_OF_EIGHT and step.base in LADDER_OF_EIGHT and step.table in ("ladder", "concat"):
        place = METRICS.index(metric)
        parts[EIGHT] = [LADDER_OF_EIGHT[step.better][place] - LADDER_OF_EIGHT[step.base][place]]
    return parts


def judge(values: Sequence[float], saturates: bool = False) -> str:
    """What differences, one for each category and metric, say about a claim."""
    if saturates:
        if all(abs(value) <= LITTLE for value in values):
            return "supports"
        return "contradicts" if statistics.fmean(values) > 5 * LITTLE else "weakens"
    gains, losses = sum(value > LITTLE for value in values), sum(value < -LITTLE for value in values)
    if losses == 0 and gains:
        return "supports"
    return "contradicts" if gains == 0 and losses else "weakens"


def cell(values: Sequence[float]) -> str:
    """The mean over seeds, with the lowest and highest where there are several."""
    mean = f"{statistics.fmean(values):+.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):+.2f} to {max(values):+.2f})"


def paper_cell(step: Step, metric: str) -> str:
    """The same difference as the paper prints it."""
    table = printed_values(step.table, step.paper) if step.paper else {}
    better, base = table.get(step.better, {}).get(metric), table.get(step.base, {}).get(metric)
    return "-" if better is None or base is None else f"{better - base:+.2f}"


def table(header: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "".join("| " + " | ".join(line) + " |\n" for line in [header, ["---"] * len(header), *lines])


def section(claim: Claim, rows: Sequence[Mapping[str, str]]) -> tuple[str, list[str]]:
    """The text about a claim, and its line in the summary."""
    lines, judged = [], []
    for step in claim.steps:
        by_metric = {metric: differences(step, rows, metric) for metric in claim.metrics}
        lines.append([step.what, "the paper", *(paper_cell(step, metric) for metric in claim.metrics), ""])
        for category in next(iter(by_metric.values())):
            values = [by_metric[metric][category] for metric in claim.metrics]
            means = [statistics.fmean(one) for one in values]
            judged.append(means)
            lines.append([step.what, category, *map(cell, values), judge(means, claim.saturates)])
    verdict = judge([value for means in judged for value in means], claim.saturates)
    flat = [value for means in judged for value in means]
    summary = [
        claim.title,
        f"**{verdict}**",
        f"{sum(v > LITTLE for v in flat)} / {sum(abs(v) <= LITTLE for v in flat)} / {sum(v < -LITTLE for v in flat)}",
    ]
    titles = [TITLES[metric] for metric in claim.metrics]
    text = f"## {claim.title}\n\n{claim.words} Here the numbers say: **{verdict}**.\n\n"
    return text + table(["comparison", "measured on", *titles, "says"], lines) + "\n", summary


def categories(rows: Sequence[Mapping[str, str]]) -> str:
    """Our values for single categories beside the paper's."""
    lines = []
    for name, values in printed_values("per-category", "mpdd").items():
        ours = [row for row in rows if row["table"] == "per-category" and row["category"] == name]
        if ours:
            cells = [f"{float(ours[0][metric]):.2f} / {values[metric]:.2f}" for metric in METRICS[:3]]
            lines.append([f"MPDD {name}", "1 %, B = 1", *cells])
    return table(["category", "memory", *(f"{TITLES[metric]}, ours / paper" for metric in METRICS[:3])], lines)


def printed(metric: str) -> str:
    """What the paper has for bottle, cable and pill."""
    values = printed_values("per-category", "mvtec")
    return ", ".join(f"{values[name][metric]:.2f}" for name in ("bottle", "cable", "pill"))


WANTED = ("bottle", "cable", "pill", "metal_plate", "bracket_white", "bracket_brown", "bracket_black")


def missing(names: Sequence[str]) -> str:
    """What was not measured yet."""
    absent = [name for name in WANTED if name not in names]
    if not absent:
        return "The command:\n"
    first = f"**Not measured yet**: {', '.join(absent)}, and more than one bank seed.\n"
    return first + "The command for all, not run so far:\n"


def page() -> str:
    """The text of docs/measure/claims.md."""
    rows = read_rows()
    seeds = sorted({row.get("seed", "0") for row in rows if row["category"]})
    names = list(dict.fromkeys(row["category"] for row in rows if row["category"]))
    told = [section(claim, rows) for claim in CLAIMS]
    return f"""# The paper's claims on real parts

Written by `python docs/scripts/generate_claims.py` from `benchmarks/results/reproduce.csv`; a test compares the two. Do
not edit.

What the paper says, what the parts that were measured say, and whether that supports it. The backbone differs: the
paper has a ViT-B/14 of DINOv2, these numbers have a ViT-S/14 (Depth Anything V2). A claim that fails here may hold with
the paper's backbone, and the other way round.

**Measured on**: {", ".join(names)} with `benchmarks/reproduce.py`, bank seeds: {len(seeds)}. For the ladder
and the joined memory also the mean of {EIGHT}, which [Reproduce the paper](reproduce.md) describes
(one seed, not repeatable from the parts at hand).

{missing(names)}
```bash
python benchmarks/reproduce.py --data DATA/mvtec DATA/mpdd --weights FILE --device cuda --seeds 3 --processes 7 \\
    --categories bottle cable pill metal_plate bracket_white bracket_brown bracket_black
```

**How it is judged.** Differences in points, positive where the claim holds. Less than {LITTLE} points is no difference.
*Supports*: at least one metric gains and none loses, on every category. *Contradicts*: at least one loses and none
gains. *Weakens*: anything else. "Banks saturate" is supported where no metric changes by more than {LITTLE} points.
With one seed there is no interval, so a difference of a few tenths proves nothing.

{table(["claim", "here", "gains / equal / losses"], [summary for _, summary in told])}
{"".join(text for text, _ in told)}## Categories beside the paper's

ViT-S/14 (Depth Anything V2) here, ViT-B/14 there. The paper's column "AUPRO" is pAUROC30.

{categories(rows)}
`Config()` on bottle, cable and pill: its verdicts are on [the threshold page](../use/threshold.md), and the paper's
values for them (5 %, B = 5, ViT-B/14) are I-AUROC {printed("i_auroc")}, P-AP {printed("p_ap")} and pAUROC30
{printed("pauroc30")}.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
