"""The paper's four phases from single layers to a promoted recipe, with its decisions written as rules.

The paper describes the decisions in words. As rules, which choose the paper's recipe from the paper's own tables:

1. A layer is usable unless its image AUROC collapses: more than 10 points below that of the best layer.
2. The fusion rule is the one with the highest mean of I-AUROC, P-AP and pAUROC30 on the subset.
3. A pool is promoted if all its layers are usable and it passes the sanity gate: image AUROC on the gate category of at
   least 99 (MVTec-AD: transistor), or of what SPM reaches there if that is less.
4. A promoted pool survives if on the full set it improves P-AUROC, P-AP and pAUROC30 over SPM and keeps the image AUROC
   (to 0.05 points, which is how the paper rounds). Of several the one with the highest mean of the four wins.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

Percents = Mapping[str, Mapping[str, float]]
"""Label -> metric -> percent."""

GATE = 99.0  # image AUROC on the gate category
COLLAPSE = 10.0  # points of image AUROC below the best layer
ROUNDING = 0.05  # points of image AUROC
_RULES = ("Mean", "Median", "Max", "Mean, robust per-image norm", "Mean, train-statistics norm", "Concat, one bank")
_FUSION = ("i_auroc", "p_ap", "pauroc30")
_IMPROVED = ("p_auroc", "p_ap", "pauroc30")


def apply_protocol(tables: Mapping[str, Percents], gate: Mapping[str, float], subset: Sequence[str]) -> list[str]:
    """The decisions that follow from the tables ``single-layer``, ``fusion``, ``pools`` and ``promotion``, as lines.

    ``gate`` is the image AUROC of each pool and of SPM on the gate category, the first of ``subset``.
    """
    layers = {label.removeprefix("Layer "): values["i_auroc"] for label, values in tables["single-layer"].items()}
    best = max(layers.values())
    toxic = [layer for layer, value in layers.items() if value < best - COLLAPSE]
    lines = [
        "# Protocol",
        "",
        f"Phase 1, single layers: I-AUROC from {min(layers.values()):.2f} to {best:.2f}; "
        + (f"excluded, as they collapse: {', '.join(toxic)}." if toxic else "none collapses."),
    ]
    fusion = {label: _mean(values, *_FUSION) for label, values in tables["fusion"].items() if label in _RULES}
    rule = max(fusion, key=fusion.__getitem__)
    lines.append(
        f"Phase 2, fusion on {', '.join(subset)}: {rule} is best (mean of I-AUROC, P-AP, pAUROC30 "
        f"{fusion[rule]:.2f}; " + ", ".join(f"{k} {v:.2f}" for k, v in fusion.items() if k != rule) + ")."
    )
    limit = min(GATE, gate.get("SPM", GATE))
    promoted = []
    for pool in tables["pools"]:
        bad = sorted(set(re.findall(r"-\d+", pool)) & set(toxic))
        value = gate.get(pool, float("nan"))
        passes = value >= limit and not bad
        promoted += [pool] if passes else []
        reason = f"holds {', '.join(bad)}" if bad else f"I-AUROC {value:.2f} on {subset[0]}, gate {limit:.2f}"
        lines.append(
            f"Phase 3, pool {pool}: P-AP {tables['pools'][pool]['p_ap']:.2f}, {reason}: "
            + ("promoted." if passes else "not promoted.")
        )
    reference = tables["promotion"]["SPM"]
    alive = {}
    for pool, values in tables["promotion"].items():
        if pool == "SPM" or pool not in promoted:
            continue
        failed = [name for name in _IMPROVED if values[name] <= reference[name]]
        failed += ["i_auroc"] if values["i_auroc"] < reference["i_auroc"] - ROUNDING else []
        lines.append(
            f"Phase 4, pool {pool}: " + (f"does not beat SPM in {', '.join(failed)}." if failed else "survives.")
        )
        if not failed:
            alive[pool] = _mean(values, "i_auroc", *_IMPROVED)
    if alive:
        lines.append(f"Surviving recipe: pool {max(alive, key=alive.__getitem__)}, fusion by {rule}.")
    else:
        lines.append("No pool survives on this data.")
    return lines


def _mean(values: Mapping[str, float], *names: str) -> float:
    return fmean(values[name] for name in names)
