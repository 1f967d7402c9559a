"""Write the measured parts of docs/understand/recipes.md and docs/use/sizes.md.

    python docs/scripts/generate_recipes.py

The numbers come from ``benchmarks/results``; a test compares the pages with them.
"""

import csv
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import measured_parts

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results"
COMMANDS = {
    "recipes": "python benchmarks/recipes.py --data DATA --weights FILE",
    "candidates": "python benchmarks/recipes.py --data DATA --weights FILE --candidates",
    "shapes": "python benchmarks/shapes.py --data DATA --weights FILE",
    "verdicts": "python benchmarks/verdicts.py measure verdicts.jsonl --data DATA --weights FILE",
    "enlarged": "python benchmarks/research --weights FILE PARTS",
}
FILES = {"recipes": "recipes.csv", "candidates": "recipes.csv", "shapes": "shapes.csv"}
FILES |= {"verdicts": "verdicts.csv", "enlarged": "research.csv"}
PLACES = {"understand/recipes.md": ("recipes", "verdicts", "candidates"), "use/sizes.md": ("shapes", "enlarged")}
NAMES = ("fast", "paper", "best")
REFERENCE = "paper, 1 bank of 1 %"
COMPARED = {"i_auroc": "I-AUROC", "p_ap": "P-AP", "aupro": "AUPRO"}
ACCURACY = {**COMPARED, "p_f1": "P-F1"}

ENLARGED = {"paper": "392", "image_size=448": "448", "image_size=518": "518", "image_size=672": "672"}

Row = dict[str, str]
wrap = partial(measured_parts.wrap, width=124)


def main() -> None:
    """Write the pages."""
    for page in PLACES:
        (DOCS / page).write_text(render(page), encoding="utf-8")


def render(page: str) -> str:
    """A page with its measured parts as the results have them."""
    return measured_parts.fill(DOCS / page, "generate_recipes.py", PLACES[page], section)


def section(name: str) -> str:
    """One measured part: table, words about it, command and machine."""
    path = RESULTS / FILES[name]
    rows: list[Row] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    choose, write = SECTIONS[name]
    chosen = choose(rows)
    if not chosen:
        return f"Not measured yet: `{COMMANDS[name]}`"
    if name == "verdicts":  # its file has no machine; the page of the threshold says how it was made
        return "\n\n".join([*write(chosen), wrap(f"ViT-S/14 (Depth Anything V2), `{COMMANDS[name]}`.")])
    where = chosen[0]
    machine = where["device"] if where["device"] != "cpu" else f"{where['cpu']}, {where['threads']} threads"
    few = sorted({int(row["images"]) for row in chosen if int(row.get("images", "0"))})
    subset = f" Only {few[-1]} training and {few[-1]} test images of each part were used." if few else ""
    source = f"ViT-S/14 (Depth Anything V2), `{COMMANDS[name]}` on {machine}, torch {where['torch']}.{subset}"
    return "\n\n".join([*write(chosen), wrap(source)])


def of_recipes(rows: list[Row]) -> list[Row]:
    """The rows of the three recipes."""
    return [row for row in rows if row["recipe"] in NAMES]


def of_candidates(rows: list[Row]) -> list[Row]:
    """The rows that fast is chosen from."""
    return [row for row in rows if row["recipe"] not in NAMES]


def of_verdicts(rows: list[Row]) -> list[Row]:
    """The means over all parts at the default threshold."""
    wanted = {"rule": "robust", "rate": "0.01", "recipe": "Config()"}
    means = [row for row in rows if row["part"].startswith("mean of") and row["part"].endswith("full")]
    return [
        row
        for recipe in ("Config()", "Config.best()")
        for row in means
        if all(row[key] == value for key, value in {**wanted, "recipe": recipe}.items())
    ]


def of_enlarged(rows: list[Row]) -> list[Row]:
    """The paper's recipe on larger inputs, where all parts were measured."""
    return [row for row in rows if row["reading"] in ENLARGED and row["seed"] == "0" and row["p_ap"]]


def verdicts(rows: list[Row]) -> list[str]:
    """Defects found and false alarms of the paper's recipe and of what best was first, on all images."""
    head = ["recipe", "parts", "I-AUROC", "defects found", "false alarms", "balanced accuracy"]
    lines = []
    for name, row in zip(("paper", "best, its [first recipe](best.md#the-first-study-five-parts)"), rows, strict=True):
        numbers = [percent(row[column]) for column in ("image_auroc", "found", "false_alarms", "balanced_accuracy")]
        lines.append([name, row["part"].split()[2].strip(","), *numbers])
    return [table(head, lines, "lrrrrr")]


def enlarged(rows: list[Row]) -> list[str]:
    """Accuracy by the size of the input."""
    head = ["input", "parts", *ACCURACY.values()]
    lines = []
    for reading, size in ENLARGED.items():
        mine = {row["part"]: row for row in rows if row["reading"] == reading}
        lines.append([size, str(len(mine)), *(f"{mean(list(mine.values()), metric):.1f}" for metric in ACCURACY)])
    return [table(head, lines, "lrrrrr")]


def percent(share: str) -> str:
    """0.9652 -> '96.5'; nothing where it was not measured."""
    return f"{100 * float(share):.1f}" if share else ""


def recipes(rows: list[Row]) -> list[str]:
    """The three recipes: means over the parts, then every part."""
    head = ["part", "recipe", *ACCURACY.values(), "found", "false alarms", "an image, ms", "fit, s", "file, MB"]
    parts = list(dict.fromkeys(row["part"] for row in rows))
    means = []
    for name in NAMES:
        mine = [row for row in rows if row["recipe"] == name]
        if {row["part"] for row in mine} == set(parts):
            means.append([f"**mean of {len(parts)}**", name, *describe(mine)])
    lines = [[row["part"], row["recipe"], *describe([row])] for row in rows]
    return [table(head, [*means, *lines], "ll" + "r" * (len(head) - 2))]


def describe(rows: list[Row]) -> list[str]:
    """Means of accuracy and cost, and sums of verdicts."""
    cells = [f"{mean(rows, metric):.1f}" for metric in ACCURACY]
    cells += [f"{total(rows, 'found')} of {total(rows, 'defective')}"]
    cells += [f"{total(rows, 'false_alarms')} of {total(rows, 'good')}"]
    return [*cells, f"{1000 * mean(rows, 'image_s'):.0f}", f"{mean(rows, 'fit_s'):.0f}", f"{mean(rows, 'file_mb'):.1f}"]


def candidates(rows: list[Row]) -> list[str]:
    """How far each candidate is from the small recipe it has to keep up with."""
    known: dict[str, list[Row]] = {}
    for row in rows:
        known.setdefault(row["recipe"], []).append(row)
    reference = {row["part"]: row for row in known.pop(REFERENCE, [])}
    head = ["recipe", "times as fast", *COMPARED.values(), "worst part", "balanced accuracy"]
    lines = []
    for name, mine in known.items():
        pairs = [(row, reference[row["part"]]) for row in mine if row["part"] in reference]
        if len(pairs) < len(reference):
            continue
        metrics = (*COMPARED, "balanced_accuracy")
        gains = {metric: [float(a[metric]) - float(b[metric]) for a, b in pairs] for metric in metrics}
        speed = statistics.fmean(float(b["cpu_s"]) / float(a["cpu_s"]) for a, b in pairs)
        means = [f"{statistics.fmean(gains[metric]):+.2f}" for metric in metrics]
        worst, metric, place = min((value, metric, n) for metric in COMPARED for n, value in enumerate(gains[metric]))
        where = f"{worst:+.1f} {COMPARED[metric]}, {pairs[place][0]['part']}"
        lines.append([name, f"{speed:.2f}", *means[:-1], where, means[-1]])
    return [table(head, lines, "lrrrrlr")]


def shapes(rows: list[Row]) -> list[str]:
    """Square and long inputs."""
    head = ["part", "recipe", "input", "pixels", "scale across, down", *ACCURACY.values(), "found", "false alarms"]
    lines = []
    for row in rows:
        accuracy = [f"{float(row[metric]):.1f}" for metric in ACCURACY]
        scale = f"{float(row['across']):.2f}, {float(row['down']):.2f}"
        verdict = [f"{row['found']} of {row['defective']}", f"{row['false_alarms']} of {row['good']}"]
        pixels = f"{row['width']} x {row['height']}"
        lines.append([row["part"], row["recipe"], row["input"], pixels, scale, *accuracy, *verdict])
    return [table(head, lines, "llllrrrrrrr")]


def mean(rows: list[Row], name: str) -> float:
    """The mean of a column."""
    return statistics.fmean(float(row[name]) for row in rows)


def total(rows: list[Row], name: str) -> int:
    """The sum of a column."""
    return sum(int(row[name]) for row in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A Markdown table; ``align`` has an l or r for each column."""
    rule = "|" + "|".join("---" if one == "l" else "---:" for one in align) + "|"
    first, *lines = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([first, rule, *lines])


SECTIONS: dict[str, tuple[Callable[[list[Row]], list[Row]], Callable[[list[Row]], list[str]]]] = {
    "recipes": (of_recipes, recipes),
    "verdicts": (of_verdicts, verdicts),
    "candidates": (of_candidates, candidates),
    "shapes": (list, shapes),
    "enlarged": (of_enlarged, enlarged),
}


if __name__ == "__main__":
    main()
