"""Write the measured parts of docs/use/threshold.md from benchmarks/results/verdicts.csv."""

import csv
from pathlib import Path

from measured_parts import fill

DOCS = Path(__file__).resolve().parent.parent
PAGE = DOCS / "use" / "threshold.md"
RESULTS = DOCS.parent / "benchmarks" / "results" / "verdicts.csv"
FEW = RESULTS.with_name("few_images.csv")
MACHINE = (
    "MPDD, MVTec-AD, KolektorSDD2 and hazelnut_toy, ViT-S/14 (Depth Anything V2), bf16 on an NVIDIA H200: "
    "`python benchmarks/research/thresholds.py FILE --data DATA --weights WEIGHTS`, then "
    "`python benchmarks/verdicts.py summarize FILE`."
)
RULES = {
    ("robust", "0.01"): "default",
    ("robust, own anchors hidden", "0.01"): "default, but own anchors only hidden",
    ("robust", "0.05"): "default rule at 5 %",
    ("guarantee", "0.01"): "guarantee at 1 %",
    ("guarantee", "0.05"): "guarantee at 5 %",
    ("best that labels could choose", ""): "best that labels could choose",
}


def main() -> None:
    """Replace every part."""
    rows = read_rows()
    parts = {"verdicts": verdicts, "few": few, "stand_ins": stand_ins, "odd": odd}
    text = fill(PAGE, Path(__file__).name, list(parts), lambda name: parts[name](rows))
    PAGE.write_text(text, encoding="utf-8")


def read_rows() -> list[dict[str, str]]:
    """The measured rows."""
    with RESULTS.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def percent(text: str) -> str:
    """A share as the tables show it."""
    return f"{100 * float(text):.1f} %"


def table_of_means(rows: list[dict[str, str]], ending: str, recipes: tuple[str, ...], rules: list[str]) -> str:
    """Mean false alarms, defects found and balanced accuracy by rule."""
    lines = [
        "| recipe | rule | false alarms | defects found | balanced accuracy | lowest of a part |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        rule = RULES.get((row["rule"], row["rate"]))
        if (
            row["part"].startswith("mean")
            and row["part"].endswith(ending)
            and row["recipe"] in recipes
            and rule in rules
        ):
            numbers = f"{float(row['balanced_accuracy']):.3f} | {float(row['lowest_balanced_accuracy']):.3f}"
            alarms, found = percent(row["false_alarms"]), percent(row["found"])
            lines.append(f"| `{row['recipe']}` | {rule} | {alarms} | {found} | {numbers} |")
    return "\n".join(lines)


def verdicts(rows: list[dict[str, str]]) -> str:
    """All training images."""
    table = table_of_means(rows, ", full", ("Config.best()", "Config()"), list(RULES.values()))
    draws = ["", "Random training sets of fewer images (`Config.best()`, default rule):", "", "| images | parts |"]
    draws[-1] += " false alarms | defects found | balanced accuracy | best that labels could choose |"
    draws.append("|---:|---:|---:|---:|---:|---:|")
    for size in (2, 4, 8, 16, 32, 64):
        found = [row for row in rows if row["part"].endswith(f", n{size}") and row["recipe"] == "Config.best()"]
        named = {RULES.get((row["rule"], row["rate"])): row for row in found}
        row, best = named["default"], named["best that labels could choose"]
        parts = row["part"].split()[2].rstrip(",")
        numbers = f"{percent(row['false_alarms'])} | {percent(row['found'])} | {float(row['balanced_accuracy']):.3f}"
        draws.append(f"| {size} | {parts} | {numbers} | {float(best['balanced_accuracy']):.3f} |")
    return "\n".join([table, *draws, "", MACHINE])


def few(_rows: list[dict[str, str]]) -> str:
    """One to seven good images, part by part."""
    lines = ["| part | images | false alarms | defects found | balanced accuracy | best that labels could choose |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    with FEW.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            images = f"1, mirrored x {float(row['margin']):.2f}" if row["margin"] else row["images"]
            spread = f"{float(row['lowest']):.2f} to {float(row['highest']):.2f}"
            numbers = (
                f"{percent(row['false_alarms'])} | {percent(row['found'])} | {float(row['balanced_accuracy']):.2f}"
            )
            lines.append(f"| {row['part']} | {images} | {numbers} ({spread}) | {float(row['best_with_labels']):.2f} |")
    machine = (
        "Four draws of each; `Config()`, ViT-S/14 (Depth Anything V2), at most 12 test images of a kind, on two cores: "
        "`python benchmarks/few_images.py --data DATA --weights WEIGHTS hazelnut_toy mpdd/bracket_brown`."
    )
    return "\n".join([*lines, "", machine])


def stand_ins(rows: list[dict[str, str]]) -> str:
    """Bias against refits."""
    lines = ["| part | recipe | own anchors hidden | with stand-ins |", "|---|---|---:|---:|"]
    for row in rows:
        if row["bias_hidden"]:
            hidden, spare = (f"{100 * float(row[name]):+.1f} %" for name in ("bias_hidden", "bias_stand_ins"))
            lines.append(f"| {row['part']} | `{row['recipe']}` | {hidden} | {spare} |")
    return "\n".join([*lines, "", MACHINE])


def odd(rows: list[dict[str, str]]) -> str:
    """One odd image among 30."""
    kinds = {"odd_part": "An image of another part:", "odd_defect": "A defect:"}
    rules = ["default", "guarantee at 1 %", "best that labels could choose"]
    tables = [f"{words}\n\n{table_of_means(rows, kind, ('Config.best()',), rules)}" for kind, words in kinds.items()]
    return "\n\n".join([*tables, MACHINE])


if __name__ == "__main__":
    main()
