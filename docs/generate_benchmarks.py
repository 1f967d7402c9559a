"""Write docs/benchmarks.md and the accuracy table of the README: python docs/generate_benchmarks.py

Numbers are copied from benchmarks/results as they are; a test compares the pages with them.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mpdd.csv"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"

COMMAND = "python benchmarks/mpdd.py --data mpdd --weights dinov2_vits14_dav2_fp16.safetensors"
METRICS = {
    "i_auroc": "I-AUROC",
    "i_ap": "I-AP",
    "i_f1": "I-F1",
    "p_auroc": "P-AUROC",
    "p_ap": "P-AP",
    "p_f1": "P-F1",
    "aupro": "AUPRO",
    "pauroc30": "pauroc30",
}
ENVIRONMENT = ("device", "cpu", "threads", "torch", "transformers", "python")

BEGIN, END = "<!-- accuracy: written by docs/generate_benchmarks.py -->", "<!-- end of accuracy -->"
NOT_YET = "Not measured yet; [docs/benchmarks.md](docs/benchmarks.md) has the command."

INTRODUCTION = f"""\
# Benchmarks

Written by `python docs/generate_benchmarks.py` from `benchmarks/results`; a test compares the two. Do not edit.

## Accuracy on MPDD

MPDD shows metal parts, and nobody chose the layers of the method on it: the paper chose them on MVTec-AD and VisA.
Unpack it so that `mpdd/metal_plate/train/good` exists, and run

```bash
{COMMAND}
```

The weights are ViT-S/14 (Depth Anything V2): the encoder of Depth Anything V2 Small, a DINOv2 that was fine-tuned for
depth, and not Meta's untouched checkpoint. Settings: 392 pixels, three banks, everything else as in `Config`.

| column | meaning, all in percent |
|---|---|
| ratio | share of the training patches each bank keeps |
| readout | soft: ProCon; hard: distance to the nearest anchor, otherwise the same |
| I-AUROC, I-AP, I-F1 | image level: area under the ROC, average precision, best F1 |
| P-AUROC, P-AP, P-F1 | the same over all pixels |
| AUPRO | overlap per connected region (8-connected), every threshold, up to a false-positive rate of 0.3 |
| pauroc30 | area under the pixel ROC up to a false-positive rate of 0.3, divided by 0.3 |

The paper's column "AUPRO" is what is called pauroc30 here: compare it with that column only.
"""


def main() -> None:
    """Write the page and the part of the README between the markers."""
    PAGE.write_text(render_page(), encoding="utf-8")
    README.write_text(render_readme(), encoding="utf-8")


def render_page() -> str:
    """The page of benchmarks."""
    rows = read_rows()
    if not rows:
        return INTRODUCTION + "\nNo results are stored yet.\n"
    machines = sorted({", ".join(f"{name} {row[name]}" for name in ENVIRONMENT) for row in rows})
    where = "\n".join(["Measured on:", "", *(f"- {machine}" for machine in machines)])
    return "\n".join([INTRODUCTION, table(rows, list(METRICS)), "", where, ""])


def render_readme() -> str:
    """The README with the accuracy table of the results."""
    rows = read_rows()
    body = NOT_YET
    if rows:
        told = (
            f"MPDD, in percent, with ViT-S/14 (Depth Anything V2), three banks: `{COMMAND}`.\n"
            "[Benchmarks](docs/benchmarks.md) has all columns, what they mean, and the machine.\n"
        )
        body = told + "\n" + table(rows, ["i_auroc", "i_ap", "p_auroc", "p_ap", "aupro"])
    text = README.read_text(encoding="utf-8")
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{body}\n{END}", text, count=1, flags=re.DOTALL
    )


def read_rows() -> list[dict[str, str]]:
    """The stored rows, or none."""
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def table(rows: list[dict[str, str]], metrics: list[str]) -> str:
    """A Markdown table, a line per row."""
    head = ["category", "ratio", "readout", *(METRICS[name] for name in metrics)]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|" + "---:|" * len(metrics)]
    for row in rows:
        cells = [row["category"], f"{float(row['ratio']):.0%}", row["readout"]]
        cells += [f"{float(row[name]):.2f}" for name in metrics]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
