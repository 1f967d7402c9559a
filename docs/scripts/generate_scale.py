"""Write the measured parts of docs/use/scale.md and docs/measure/peers.md: python docs/scripts/generate_scale.py

The numbers come from ``benchmarks/results`` and, for published ones, from the package; a test compares the pages.
"""

import csv
import json
import statistics
from collections.abc import Collection
from functools import partial
from pathlib import Path

import measured_parts
import scale_plans

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAPER = DOCS.parent / "src" / "procon" / "evaluation" / "paper" / "paper.json"
COMMANDS = {
    "cluster": "python benchmarks/cluster.py --weights dinov2_vits14_dav2_fp16.safetensors --part mpdd/metal_plate",
    "sharded": "python benchmarks/sharded.py --weights dinov2_vits14_dav2_fp16.safetensors --part mpdd/metal_plate",
    "peers": "benchmarks/peers/run.py --data hazelnut_toy mpdd --weights FILE --lite FILE --run DIR --limit 600",
}
PLACES = {"use/scale.md": ("cluster", "factory", "realiad", "sharded"), "measure/peers.md": ("peers",)}
METRICS = {"i_auroc": "I-AUROC", "p_auroc": "P-AUROC", "p_ap": "P-AP", "p_f1": "P-F1", "aupro": "AUPRO"}
COSTS = {"fit_s": "fit, s", "score_ms": "score, ms", "peak_mib": "peak, MiB", "model_mib": "model, MiB"}
NUMBERS = (*METRICS.values(), *COSTS.values())
OURS = ("procon", "procon-1")
TUNED = ("procon-best",)  # on these very parts, so words compare the others
MARGIN = 0.2  # points; less is called none

Row = dict[str, str]
wrap = partial(measured_parts.wrap, width=120)


def main() -> None:
    """Write the pages."""
    for page in PLACES:
        (DOCS / page).write_text(render(page), encoding="utf-8")


def render(page: str) -> str:
    """A page with its measured parts as the results have them."""
    return measured_parts.fill(DOCS / page, "generate_scale.py", PLACES[page], section)


def section(name: str) -> str:
    """One measured part: table, words about it, command and machine."""
    if name in ("factory", "realiad"):
        missing = [f"`{COMMANDS[one]}`" for one in ("cluster",) if not (RESULTS / f"{one}.csv").is_file()]
        if missing:
            return f"Not measured yet: {', '.join(missing)}"
        steps, words = getattr(scale_plans, name)(RESULTS)
        return "\n\n".join([table(["step", "each", "from", "in all, one at a time"], steps), wrap(words)])
    path = RESULTS / f"{name}.csv"
    if not path.is_file():
        return f"Not measured yet: `{COMMANDS[name]}`"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    words = {"cluster": cluster, "sharded": sharded, "peers": peers}[name](rows)
    machine = f"{rows[0]['cpu']}, {rows[0]['threads']} threads, torch {rows[0]['torch']}"
    return "\n\n".join([*words, wrap(f"`{COMMANDS[name]}` on {machine}.")])


def cluster(rows: list[Row]) -> list[str]:
    """What a local cluster costs and gains."""
    value = {row["measure"]: float(row["value"]) for row in rows}
    ratio = value["predict, Ray"] / value["predict, one process"]
    equal = "equal, bit for bit" if value["scores equal to those of one process"] else "NOT equal"
    words = f"On one machine `predict` over Ray does {ratio:.2f} times the images of one process, whose threads "
    words += "already keep the cores busy: a cluster is for several machines." if ratio < 1.1 else "leave cores idle."
    shown = table(["measure", "value", "", "note"], [[r["measure"], r["value"], r["unit"], r["note"]] for r in rows])
    return [shown, wrap(f"{words} The scores are {equal}.")]


def sharded(rows: list[Row]) -> list[str]:
    """k-center of k-centers compared with the exact loop."""
    head = ["set", "points", "picks", "shards", "radius", "times exact", "at most ... of the best", "s", "peak, MiB"]
    head += ["I-AUROC", "P-AP", "AUPRO"]
    keys = ["set", "points", "picks", "shards", "radius", "times_exact", "factor", "seconds", "peak_mib"]
    keys += ["i_auroc", "p_ap", "aupro"]
    cells = [[thousands(row[key]) if key in ("points", "picks") else row[key] for key in keys] for row in rows]
    cut = [row for row in rows if row["shards"] != "exact" and row["times_exact"]]
    words = []
    if cut:
        worst = max(cut, key=lambda row: float(row["times_exact"]))
        words.append(
            f"The radius is at most {float(worst['times_exact']):.3f} times that of the exact loop "
            f"({worst['shards']} shards, {thousands(worst['points'])} points); the proof allows four times."
        )
    exact = {(row["set"], row["points"]): row for row in rows if row["shards"] == "exact"}
    for row in rows:
        alone = exact.get((row["set"], row["points"]))
        if row["shards"] != "exact" and row["p_ap"] and alone is not None:
            words.append(
                f"{row['set']} in {row['shards']} shards: P-AP {float(row['p_ap']) - float(alone['p_ap']):+.2f}, "
                f"AUPRO {float(row['aupro']) - float(alone['aupro']):+.2f}."
            )
    return [table(head, cells), wrap(" ".join(words))]


def peers(rows: list[Row]) -> list[str]:
    """A table for each part, where a peer wins, and what is published only."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    texts = overall(rows, parts)
    for part in parts:
        here = [row for row in rows if row["part"] == part]
        texts.append(f'<details markdown="1">\n<summary>{part}: every system</summary>')
        head = ["system", "backbone", "input", *METRICS.values(), *COSTS.values(), "note"]
        best = {key: max(float(row[key]) for row in here if row[key]) for key in METRICS}
        cells = []
        for row in here:
            cells.append(
                [row["title"], row["backbone"], row["input"]]
                + [
                    f"**{row[key]}**" if row[key] and float(row[key]) == best[key] else row[key] or "–"
                    for key in METRICS
                ]
                + [*(row[key] or "–" for key in COSTS), row["note"]]
            )
        texts += [table(head, cells, NUMBERS), bullets(wins(here)), "</details>"]
    return [*texts, "### Published only", published()]


def overall(rows: list[Row], parts: list[str]) -> list[str]:
    """Means over the parts of every system that has numbers on all of them, and which is highest in what."""
    lines: list[tuple[str, dict[str, float]]] = []
    for system in dict.fromkeys(row["system"] for row in rows):
        ran = [row for row in rows if row["system"] == system and row["i_auroc"]]
        if len(ran) == len(parts):
            name = f"{ran[0]['title']} on {ran[0]['backbone'].split(' ')[0]}"
            known = [key for key in (*METRICS, *COSTS) if all(row[key] for row in ran)]
            lines.append((name, {key: statistics.mean(float(row[key]) for row in ran) for key in known}))
    best = {key: max(means[key] for _, means in lines) for key in METRICS}
    cells = []
    for name, means in lines:
        scores = [f"**{means[key]:.1f}**" if means[key] == best[key] else f"{means[key]:.1f}" for key in METRICS]
        cells.append([name, *scores, *(f"{means[key]:,.0f}" if key in means else "–" for key in COSTS)])
    shown = table(["mean over the parts", *METRICS.values(), *COSTS.values()], cells, NUMBERS)
    return [
        f"### All {len(parts)} parts",
        shown,
        "Bold is the best value of a column; – was not measured on these cores.",
    ]


def wins(rows: list[Row]) -> list[str]:
    """Where a peer is better than the better of ours on a part, in sentences."""
    ran = [row for row in rows if row["i_auroc"]]
    ours, others = (
        [row for row in ran if row["system"] in OURS],
        [row for row in ran if row["system"] not in (*OURS, *TUNED)],
    )
    if not ours:
        return ["Ours was not run on this part."]
    sentences = []
    for key, name in METRICS.items():
        mine = max(float(row[key]) for row in ours)
        above = [row for row in others if float(row[key]) > mine + MARGIN]
        if above:
            listed = ", ".join(f"{row['title']} on {row['backbone'].split(' ')[0]} ({row[key]})" for row in above)
            sentences.append(f"{name}: {listed} above our {mine:g}.")
    if not sentences:
        sentences.append(f"No peer is more than {MARGIN} points above ours in any of these metrics.")
    for key, name in (
        ("fit_s", "to fit"),
        ("score_ms", "per image"),
        ("peak_mib", "of memory"),
        ("model_mib", "of model"),
    ):
        mine = min(float(row[key]) for row in ours)
        timed = [row for row in others if row[key]]  # what was trained elsewhere has no times here
        below = sorted((row for row in timed if float(row[key]) < mine), key=lambda row: float(row[key]))
        if below:
            unit = key.rpartition("_")[2].replace("mib", "MiB")
            listed = ", ".join(f"{row['title']} on {row['backbone'].split(' ')[0]} ({row[key]})" for row in below)
            sentences.append(f"Less {name} than our {mine:g} {unit}: {listed}.")
    return sentences


def published() -> str:
    """Systems of the paper's main table that are not run here: the numbers their authors or the paper print."""
    paper = json.loads(PAPER.read_text(encoding="utf-8"))["main"]
    names = {"mvtec": "MVTec-AD", "visa": "VisA", "realiad": "Real-IAD"}
    cells = []
    for system in ("RD4AD", "SimpleNet", "Dinomaly", "INP-Former"):
        for key, name in names.items():
            values = paper[key][system]
            cells.append([system, name, *(str(values.get(column, "")) for column in ("i_auroc", "p_ap", "pauroc30"))])
    head = ["published", "dataset", "I-AUROC", "P-AP", "pAUROC30 (printed as AUPRO)"]
    return table(head, cells, head[2:])


def table(head: list[str], cells: list[list[str]], numbers: Collection[str] = ()) -> str:
    """A Markdown table; the columns ``numbers`` are aligned to the right."""
    lines = ["| " + " | ".join(line) + " |" for line in (head, *cells)]
    rule = "".join("---:|" if title in numbers else "---|" for title in head)
    return "\n".join([lines[0], f"|{rule}", *lines[1:]])


def bullets(sentences: list[str]) -> str:
    """A list with a line or more for each sentence."""
    return "\n".join(wrap(f"- {sentence}", subsequent_indent="  ") for sentence in sentences)


def thousands(text: str) -> str:
    """1568000 -> 1,568,000."""
    return f"{int(text):,}" if text else ""


if __name__ == "__main__":
    main()
