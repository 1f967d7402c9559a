"""Write the measured parts of docs/use/{threshold,memory,sizes}.md: python docs/scripts/generate_line.py

The numbers come from ``benchmarks/results``; a test compares the pages with them.
"""

import csv
from functools import partial
from pathlib import Path

import measured_parts

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results"
COMMANDS = {
    "false_alarms": "python benchmarks/line.py --data DIR --weights dinov2_vits14_dav2_fp16.safetensors",
    "drift": "python benchmarks/line.py --data DIR --weights dinov2_vits14_dav2_fp16.safetensors",
    "living_memory": "python benchmarks/living_memory.py --data DIR --weights dinov2_vits14_dav2_fp16.safetensors",
    "sizes": "python benchmarks/sizes.py --weights dinov2_vits14_dav2_fp16.safetensors CATEGORY_DIR ...",
}
PLACES = {
    "use/threshold.md": ("false_alarms", "drift"),
    "use/memory.md": ("living_memory",),
    "use/sizes.md": ("sizes",),
}

Row = dict[str, str]
wrap = partial(measured_parts.wrap, width=124)


def main() -> None:
    """Write the pages."""
    for page in PLACES:
        (DOCS / page).write_text(render(page), encoding="utf-8")


def render(page: str) -> str:
    """A page with its measured parts as the results have them."""
    return measured_parts.fill(DOCS / page, "generate_line.py", PLACES[page], section)


def section(name: str) -> str:
    """One measured part: table, words about it, command and machine."""
    path = RESULTS / f"{name}.csv"
    if not path.is_file():
        return f"Not measured yet: `{COMMANDS[name]}`"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    words = {"false_alarms": false_alarms, "drift": drift, "living_memory": living_memory, "sizes": sizes}[name](rows)
    machine = f"{rows[0]['cpu']}, {rows[0]['threads']} threads, torch {rows[0]['torch']}"
    data = "MPDD and anomalib's hazelnuts" if name == "sizes" else "MPDD"
    source = f"{data}, ViT-S/14 (Depth Anything V2), `{COMMANDS[name]}` on {machine}."
    return "\n\n".join([*words, wrap(source)])


def false_alarms(rows: list[Row]) -> list[str]:
    """Realised and stated rates."""
    head = ["category", "calibration", "images", "stated rate", "at 95 %", "flagged", "realised", "95 % interval"]
    head += ["defects found", "at rate 5 %", "at 10 %"]
    cells = [
        [
            row["category"],
            row["calibration"],
            row["images"],
            percent(row["promised"]),
            percent(row["confident"]),
            f"{row['flagged']} of {row['good']}",
            percent(row["rate"]),
            f"{percent(row['low'])} to {percent(row['high'])}",
            f"{row['found']} of {row['defects']}",
            row["found_at_0.05"],
            row["found_at_0.1"],
        ]
        for row in rows
    ]
    above = [row for row in rows if float(row["low"]) > float(row["promised"])]
    beyond = [row for row in above if float(row["low"]) > float(row["confident"])]
    words = ["The stated rate lies in the interval, or above it, in every row."]
    if above:
        words = [f"The interval lies above the stated rate for {_names(above)}."]
        words.append("With so few calibration images the threshold may be too low; the rate at 95 % allows for this.")
    if beyond:
        words.append(
            f"For {_names(beyond)} it lies above that rate too: those test images differ from the calibration images, "
            "and no calibration on the latter can account for that. Measure on your own line."
        )
    words.append(
        "The last columns are the defects found at the requested 1 %, at 5 % and at 10 %: a lower rate finds "
        "fewer defects."
    )
    return [table(head, cells, "llrrrrrrrrr"), wrap(" ".join(words))]


def _names(rows: list[Row]) -> str:
    return " and ".join(f"{row['category']} ({row['calibration']}, {row['images']} images)" for row in rows)


def drift(rows: list[Row]) -> list[str]:
    """When drift is reported."""
    head = ["category", "good test images", "called good", "drift", "p", "exceeds", "shift", "p of the image score"]
    cells = [
        [
            row["category"],
            row["images"],
            f"{int(row['count']) - int(row['flagged'])} of {row['count']}",
            {"True": "yes", "False": "no", "": "too few"}[row["drifted"]],
            row["p_value"] or "-",
            row["exceeding"] or "-",
            row["shift"] or "-",
            row["score_p_value"] or "-",
        ]
        for row in rows
    ]
    return [table(head, cells, "llrlrrrr")]


def living_memory(rows: list[Row]) -> list[str]:
    """Edited memories compared with full fits."""
    head = ["edit", "correlation", "median change", "largest change", "I-AUROC", "P-AP", "threshold", "anchors"]
    pairs = ("i_auroc", "p_ap", "threshold", "anchors")
    cells = [
        [
            row["edit"],
            row["correlation"],
            f"{float(row['median_change_percent']):.2f} %",
            f"{float(row['largest_change_percent']):.2f} %",
            *(f"{row[f'{name}_edited']} / {row[f'{name}_rebuilt']}" for name in pairs),
        ]
        for row in rows
    ]
    about = (
        f"Scores of all test images of {rows[0]['category']}, edited memory against the full fit on the same images. "
        "Pairs are edited / full fit. For comparison, the first row has two full fits that differ only in their bank "
        "seeds."
    )
    seeds, *edits = (float(row["median_change_percent"]) for row in rows)
    worst = max(edits)
    verdict = "similar to that of other seeds"
    if worst > 2 * seeds:
        verdict = f"up to {worst / seeds:.1f} times that of other seeds"
    words = f"The median change of a score by an edit is {min(edits):.2f} to {worst:.2f} %, {verdict} ({seeds:.2f} %)."
    return [wrap(about), table(head, cells, "lrrrrrrr"), wrap(words)]


def sizes(rows: list[Row]) -> list[str]:
    """Accuracy and cost of a larger input."""
    names = {"i_auroc": "I-AUROC", "i_ap": "I-AP", "p_ap": "P-AP", "p_f1": "P-F1", "aupro": "AUPRO"}
    head = ["part", "input", *names.values(), "seconds an image", "peak memory, GiB"]
    cells = [
        [row["category"], row["variant"], *(row[name] for name in names), row["score_s"], row["peak_gib"]]
        for row in rows
    ]
    words = []
    for category in dict.fromkeys(row["category"] for row in rows):
        plain, tiles, whole = (row for row in rows if row["category"] == category)
        cost = float(tiles["score_s"]) / float(plain["score_s"])
        gain, lead = (float(tiles["p_ap"]) - float(other["p_ap"]) for other in (plain, whole))
        than = "more" if lead > 0 else "less"
        words.append(
            f"On {category}, tiles change P-AP by {gain:+.1f} points for {cost:.1f} times the time, and have "
            f"{abs(lead):.1f} {than} than the large input at once."
        )
    words.append("The machine was busy with other work: the times allow only a rough comparison of rows of one part.")
    return [table(head, cells, "ll" + "r" * (len(head) - 2)), wrap(" ".join(words))]


def percent(share: str) -> str:
    """0.0182 -> '1.8 %'."""
    return f"{100 * float(share):.1f} %"


def table(head: list[str], rows: list[list[str]], align: str) -> str:
    """A Markdown table; ``align`` has an l or r for each column."""
    rule = "|" + "|".join("---" if one == "l" else "---:" for one in align) + "|"
    first, *lines = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([first, rule, *lines])


if __name__ == "__main__":
    main()
