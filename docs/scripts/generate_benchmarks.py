"""Write docs/measure/benchmarks.md and docs/images/kcenter.svg from benchmarks/results.

    python docs/scripts/generate_benchmarks.py

Every number and every sentence about numbers comes from the files there; a test compares the page with them.
"""

import csv
import importlib
import io
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PEER = ROOT / "benchmarks" / "peers" / "kcenter-cpu.json"
PAGE = ROOT / "docs" / "measure" / "benchmarks.md"
PLOT = ROOT / "docs" / "images" / "kcenter.svg"

COMMANDS = {
    "mpdd": "python benchmarks/mpdd.py --data mpdd --weights dinov2_vits14_dav2_fp16.safetensors",
    "reproduce": "python benchmarks/reproduce.py --data mpdd --weights dinov2_vits14_dav2_fp16.safetensors",
    "suspects": "python benchmarks/suspects.py --weights FILE mpdd/metal_plate mpdd/bracket_white",
    "metrics": "python benchmarks/metrics.py",
    "gpu": "python benchmarks/gpu.py --weights FILE --category DIR",
    "cpu": "make bench",
    "memory": "python benchmarks/memory.py",
    "compression": "python benchmarks/compression.py --data DIR --weights FILE",
}
PEER_COMMAND = ".venvs/peers/bin/python benchmarks/peers/kcenter.py --json benchmarks/peers/kcenter-cpu.json"
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
ENVIRONMENT = ("device", "cpu", "threads", "torch", "transformers", "python", "commit")
GROWTH = "k-center, growth"  # the measure of the rows that are plotted


REPRODUCE = (
    "`procon reproduce all` with a ViT-S/14 (Depth Anything V2), in percent. ProCon was not tuned on MPDD. "
    "These are two of its six categories, so the results may not hold elsewhere. The paper gives its own "
    "values only for the operating point with one bank and 1 % (ViT-B/14: metal_plate P-AP 97.17, pAUROC30 98.05; "
    "bracket_white P-AP 7.86, pAUROC30 98.95). The paper prints pAUROC30 as AUPRO. A difference of less than "
    "0.2 points counts as no difference."
)

SUSPECTS = (
    "Defective test images are mixed into the training images, 5, 10 and 20 % of them, and the rest of the test set is "
    "scored (5 % coreset, five banks, ViT-S/14 of Depth Anything V2, means over the seeds). *as it is* is a plain "
    "fit; *without suspects* is `procon fit --suspects leave-out`; *density-biased pruning* is the method that "
    "failed in the paper; *good images alone* is the result of a perfect cleaning. The limit above which an image is a "
    "suspect was chosen on these two categories."
)
FIGURES = """\
`procon figures RUN -o DIR` draws these for any run; `docs/scripts/make_figures.py` made the ones below. The pictures
show rendered parts, because we may not publish MPDD's images; the curves are of bracket_white.

![Four flanges in rows; columns: input, ground truth, maps of hard NN, SPM and ProCon, with scales.](../images/maps.png)

![Four flanges in rows; columns: input, ground truth, maps of four layers and their mean.](../images/layers.png)

![Histogram of image scores on bracket_white, good and defective on one axis.](../images/run-histogram.svg)
![ROC curves of images and pixels on bracket_white.](../images/run-roc.svg)
![Precision and recall of images and pixels on bracket_white.](../images/run-pr.svg)
![PRO curve on bracket_white to a false positive rate of 0.3.](../images/run-pro.svg)
"""
METRICS_TEXT = (
    "All nine metrics, exact and streaming, over the pixels of a Real-IAD category; and AUPRO compared with anomalib's "
    "on the same maps. Processor seconds are summed over all threads and hardly depend on other work on the machine."
)

INTRODUCTION = """\
# Benchmarks

![Accuracy over the time to score an image, mean over five real parts.](../images/accuracy-cost.svg)

The chart is of the [comparison with other methods](peers.md); this page has what ProCon was measured alone on.

Written by `python docs/scripts/generate_benchmarks.py` from `benchmarks/results`; a test compares the two. Do not edit.
"""

MPDD = """\
Accuracy of ProCon and of a hard nearest neighbour on MPDD, with the expected figures of a correct pipeline. MPDD shows
metal parts. It played no role in the choice of the layers: the paper chose them on MVTec-AD and VisA. Unpack it so that
`mpdd/metal_plate/train/good` exists, and run
"""

MPDD_COLUMNS = """\
The weights are ViT-S/14 (Depth Anything V2): the encoder of Depth Anything V2 Small, a DINOv2 that was fine-tuned for
depth, not Meta's original checkpoint. Settings: 392 pixels, three banks, everything else as in `Config`.

| column | meaning, all in percent |
|---|---|
| ratio | share of the training patches each bank keeps |
| readout | soft: ProCon; hard: the baseline, distance to the nearest anchor, otherwise the same |
| I-AUROC, I-AP, I-F1 | image level: area under the ROC, average precision, best F1 |
| P-AUROC, P-AP, P-F1 | the same over all pixels |
| AUPRO | overlap per connected region (8-connected), every threshold, up to a false-positive rate of 0.3 |
| pauroc30 | area under the pixel ROC up to a false-positive rate of 0.3, divided by 0.3 |

The paper's column "AUPRO" is called pauroc30 here; compare it with that column only.

Each cell is our figure, then the expected one in brackets. The limit is in points and holds for every column of a row.
"""

GPU = """\
Speed on a CUDA device, and agreement with exact fp32. A random ViT-B/14 in bf16, 20 banks of 8,192 anchors in 512
dimensions, 784 patches an image; the paper's form and the plain loop ran in the same process. The rows on real images
use ViT-S/14 weights and the images of one category. The rows are of an earlier form of the kernels, which did not
return neighbors; the present form is tested in Triton's interpreter (`tests/method/test_interpreted_kernels.py`) and
was compiled for the H200, but has not been timed. The command was
"""

CPU = """\
Speed on the CPU of k-center and of scoring, against the plain forms in the same process. Points are unit vectors near a
24-dimensional subspace with isotropic noise, as tokens are. Run
"""

PEER_TEXT = """\
anomalib's own greedy k-center on the same points, in a separate environment
([setup](../../benchmarks/peers/README.md)). Run
"""

MEMORY = """\
The peak memory of a large fit compared with the estimate of `procon fit`. Random features of that size replace those of
a backbone, and few anchors are selected. Run
"""

COMPRESSION = """\
What a smaller or faster memory costs in accuracy, and what it gains in size and time, on real images with ViT-S/14. The
recipe at 5 % with five banks; the memory is selected once and shared. Run
"""

PEER_LOOPS = {
    "anomalib": "anomalib as shipped: it projects the points first",
    "anomalib_unprojected": "anomalib without its projection: the like-for-like row",
    "textbook": "textbook loop, by differences",
    "textbook_product": "textbook loop, by one matrix-vector product a pick",
}

Row = dict[str, str]
Expected = dict[tuple[str, float, str], tuple[float, ...]]


class Growth(NamedTuple):
    """One measurement of k-center: points N, picks M and seconds."""

    points: int
    picks: int
    seconds: float


def main() -> None:
    """Write the page and the plot."""
    PAGE.write_text(render_page(), encoding="utf-8")
    growth = read_growth(read_rows("cpu"))
    if growth:
        PLOT.write_text(render_plot(growth), encoding="utf-8")
    else:
        PLOT.unlink(missing_ok=True)


def render_page(results: Path = RESULTS, peer: Path = PEER) -> str:
    """The page of benchmarks, a section per file of results."""
    sections: list[tuple[str, str, Callable[[list[Row]], list[str]]]] = [
        ("mpdd", "Accuracy on MPDD", mpdd_section),
        ("reproduce", "The paper's tables on two MPDD categories", reproduce_section),
        ("suspects", "Defects among the training images", suspects_section),
        ("metrics", "Metrics over many pixels", metrics_section),
        ("gpu", "Speed on a GPU", gpu_section),
        ("cpu", "Speed on the CPU", cpu_section),
        ("memory", "Memory of fitting", memory_section),
        ("compression", "Compression of the memory", compression_section),
    ]
    parts = [INTRODUCTION]
    for name, title, section in sections:
        rows = read_rows(name, results)
        body = section(rows) if rows else [f"Not measured yet: `{COMMANDS[name]}`\n"]
        parts += [f"## {title}\n", *body]
        if name == "cpu" and peer.is_file():
            parts += peer_section(json.loads(peer.read_text(encoding="utf-8")))
    return "\n".join(parts)


def read_rows(name: str, results: Path = RESULTS) -> list[Row]:
    """The rows of one file of results, or none."""
    path = results / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# ---------------------------------------------------------------------------------------------------------------- MPDD


def mpdd_section(rows: list[Row]) -> list[str]:
    """Our figures with the expected ones, then a list of the rows that miss them and where the baseline is better."""
    expected = read_expected()
    cells: list[list[str]] = []
    counts: list[list[str]] = []
    for row in rows:
        wanted = expected.get(key(row))
        aims = [f" ({value:.2f})" for value in wanted] if wanted else [""] * len(METRICS)
        figures = [points(row[name]) + aim for name, aim in zip(METRICS, aims, strict=True)]
        names = [row["category"], percent(row["ratio"]), row["readout"]]
        verdict = "no" if misses(row, wanted) is not None else "yes" if wanted else "–"
        cells.append([*names, *figures, row["limit"], verdict])
        counts.append([row["category"], row["train"], row["test"]])
    head = ["category", "ratio", "readout"]
    return [
        MPDD,
        code(mpdd_command(rows)),
        MPDD_COLUMNS,
        table([*head, *METRICS.values(), "limit", "within"], cells, 3),
        limit_text(rows, expected),
        baseline_text(rows),
        table(["category", "train images", "test images"], [list(one) for one in unique(map(tuple, counts))], 1),
        measured_on(rows),
    ]


def mpdd_command(rows: list[Row]) -> str:
    """The command with the categories that the rows show."""
    return f"{COMMANDS['mpdd']} \\\n    --categories {' '.join(unique(row['category'] for row in rows))}"


def read_expected() -> Expected:
    """The figures to reach, from the script that measures."""
    expected: Expected = load(ROOT / "benchmarks" / "mpdd.py").EXPECTED
    return expected


def load(script: Path) -> Any:
    """A script as a module."""
    sys.path.insert(0, str(script.parent))
    try:
        return importlib.import_module(script.stem)
    finally:
        sys.path.remove(str(script.parent))


# ------------------------------------------------------------------------------------------------------------- metrics


def metrics_section(rows: list[Row]) -> list[str]:
    """Time, memory and exactness, as measured."""
    names = {"measure": "measure", "settings": "settings", "seconds": "s", "processor_s": "processor s"}
    names |= {"peak_gib": "peak, GiB", "load": "load", "note": "note"}
    shown = {name: title for name, title in names.items() if name in rows[0]}
    cells = [[row[name] or "–" for name in shown] for row in rows]
    return [
        paragraph(METRICS_TEXT),
        code(COMMANDS["metrics"]),
        table(list(shown.values()), cells, 2, (len(shown) - 1,)),
        measured_on(rows),
    ]


# ------------------------------------------------------------------------------------------------------------ suspects


def suspects_section(rows: list[Row]) -> list[str]:
    """How many of the planted images were found, and what it gains, on the mean over seeds."""
    memories = unique(row["memory"] for row in rows)
    cells, words = [], []
    for category in unique(row["category"] for row in rows):
        for share in unique(row["share"] for row in rows):
            some = [row for row in rows if (row["category"], row["share"]) == (category, share)]
            if not some:
                continue
            seeds = unique(row["seed"] for row in some)
            means = {
                (memory, name): statistics.fmean(float(row[name]) for row in some if row["memory"] == memory)
                for memory in memories
                for name in ("i_auroc", "p_ap")
            }
            ones = [row for row in some if row["memory"] == memories[0]]
            counts = {name: sum(int(row[name]) for row in ones) for name in ("planted", "found", "false", "train")}
            figures = [f"{means[memory, name]:.2f}" for name in ("i_auroc", "p_ap") for memory in memories]
            found = f"{counts['found']} of {counts['planted']}"
            cells.append(
                [category, percent(share), len(seeds), found, f"{counts['false']} of {counts['train']}", *figures]
            )
            if counts["planted"]:
                words.append(_suspects_text(category, percent(share), counts, means))
    head = ["category", "planted", "seeds", "found", "good ones suspected"]
    head += [f"{name}, {memory}" for name in ("I-AUROC", "P-AP") for memory in memories]
    return [paragraph(SUSPECTS), code(COMMANDS["suspects"]), table(head, cells, 2), bullets(words), measured_on(rows)]


def _suspects_text(category: str, share: str, counts: dict[str, int], means: dict[tuple[str, str], float]) -> str:
    cleaned, dirty, dense = (means[m, "p_ap"] for m in ("without suspects", "as it is", "density-biased pruning"))
    best = "better than" if cleaned > dense else "worse than"
    return (
        f"{category}, {share}: {counts['found']} of {counts['planted']} found. P-AP {dirty:.2f} as it is, "
        f"{cleaned:.2f} without the suspects, which is {best} density-biased pruning ({dense:.2f}); I-AUROC "
        f"{means['as it is', 'i_auroc']:.2f} and {means['without suspects', 'i_auroc']:.2f}."
    )


# ----------------------------------------------------------------------------------------------------------- reproduce


def reproduce_section(rows: list[Row]) -> list[str]:
    """Every table with its answers in words, then the protocol."""
    parts = [paragraph(REPRODUCE), code(COMMANDS["reproduce"])]
    for chapter in load(ROOT / "docs" / "scripts" / "reproduced.py").tell(rows):
        parts += [f"### {chapter.title}\n", table(chapter.head, chapter.cells, 1)]
        parts += [bullets(chapter.words)] if chapter.words else []
    lines = [row["row"] for row in rows if row["table"] == "protocol"]
    if lines:
        parts += ["### Protocol\n", bullets(lines)]
    parts += ["### Figures\n", FIGURES]
    seconds = [float(row["row"]) for row in rows if row["table"] == "time"]
    if seconds:
        parts.append(paragraph(f"The whole set took {seconds[0] / 60:.1f} minutes."))
    return [*parts, measured_on(rows)]


def key(row: Row) -> tuple[str, float, str]:
    """What names a row in the table of expected figures."""
    return row["category"], float(row["ratio"]), row["readout"]


def misses(row: Row, wanted: Sequence[float] | None) -> list[str] | None:
    """The columns in which a row is further from the expected figure than its limit; None if it is within."""
    away = []
    for name, value in zip(METRICS, wanted or (), strict=wanted is not None):
        difference = float(row[name]) - value
        if abs(difference) > float(row["limit"]):
            away.append(f"{METRICS[name]} {row_value(row, name)} instead of {value:.2f}")
    return away if away or row["ok"] != "True" else None


def limit_text(rows: list[Row], expected: Expected) -> str:
    """Which rows are not within their limit, in words."""
    lines = []
    for row in rows:
        away = misses(row, expected.get(key(row)))
        if away is not None:
            lines.append(f"{label(row)}, limit {row['limit']} points: {', '.join(away) or 'said when it was measured'}")
    if not lines:
        return paragraph(f"All {len(rows)} rows are within their limit.")
    verb = "is" if len(lines) == 1 else "are"
    first = paragraph(f"{len(lines)} of {len(rows)} rows {verb} NOT within the limit:")
    return first + "\n" + bullets(lines)


def baseline_text(rows: list[Row]) -> str:
    """Where the hard baseline is better than ProCon, in words."""
    soft = {key(row)[:2]: row for row in rows if row["readout"] == "soft"}
    pairs = [(row, soft[key(row)[:2]]) for row in rows if row["readout"] == "hard" and key(row)[:2] in soft]
    if not pairs:
        return paragraph("The hard baseline was not measured, so there is no comparison with ProCon.")
    lines, lost, total = [], 0, 0
    for hard, ours in pairs:
        better, equal, worse = compare(hard, ours)
        lost, total = lost + len(better), total + len(METRICS)
        said = [f"hard beats ProCon on {', '.join(better)}" if better else "hard beats ProCon on nothing"]
        said += [f"ProCon beats hard on {', '.join(worse)}"] if worse else ["ProCon beats hard on nothing"]
        said += [f"equal: {', '.join(equal)}"] if equal else []
        lines.append(f"{ours['category']}, {percent(ours['ratio'])}: {'; '.join(said)}.")
    if lost:
        first = f"The hard baseline, a plain nearest neighbour, is better than ProCon in {lost} of {total} comparisons."
    else:
        first = f"The hard baseline, a plain nearest neighbour, is better than ProCon in none of {total} comparisons."
    return paragraph(f"{first} The better figure comes first in each bracket:") + ("\n" + bullets(lines))


def compare(hard: Row, soft: Row) -> tuple[list[str], list[str], list[str]]:
    """The metrics in which hard is better than soft, equal, and worse."""
    better, equal, worse = [], [], []
    for name, shown in METRICS.items():
        difference = float(hard[name]) - float(soft[name])
        if difference > 0:
            better.append(f"{shown} ({row_value(hard, name)} against {row_value(soft, name)})")
        elif difference < 0:
            worse.append(f"{shown} ({row_value(soft, name)} against {row_value(hard, name)})")
        else:
            equal.append(shown)
    return better, equal, worse


def row_value(row: Row, name: str) -> str:
    """A figure of a row, two decimals."""
    return points(row[name])


def label(row: Row) -> str:
    """A row of MPDD in words."""
    return f"{row['category']}, {percent(row['ratio'])}, {row['readout']}"


# ----------------------------------------------------------------------------------------------------------------- GPU


def gpu_section(rows: list[Row]) -> list[str]:
    """The measures as they are."""
    cells = [[row["measure"], number(row["value"]), spread(row), row["unit"], row["note"]] for row in rows]
    told = "Spread is the largest minus the smallest of the repeats; – where nothing was repeated."
    if any(float(row["value"]) == 0 for row in rows):
        told += " A 0 may be a difference that was too small for the stored digits."
    times = {row["measure"]: float(row["value"]) for row in rows}
    batches = {"batch 64": times.get("scoring, batch 64"), "batch 1": times.get("scoring, batch 1")}
    paper = times.get("scoring, the paper's form")
    said = [f"{paper / ours:.1f} times as long as ours at {name}" for name, ours in batches.items() if ours and paper]
    if said:
        told += f" The paper's form works image by image; it takes {' and '.join(said)}."
    return [
        GPU,
        code(COMMANDS["gpu"]),
        table(["measure", "value", "spread", "unit", "note"], cells, 1, (3, 4)),
        paragraph(told),
        measured_on(rows),
    ]


# ----------------------------------------------------------------------------------------------------------------- CPU


def cpu_section(rows: list[Row]) -> list[str]:
    """Ours against the plain forms, then the growth of k-center."""
    plain = [row for row in rows if row["measure"] != GROWTH]
    cells = [[row["measure"], row["settings"], number(row["seconds"]), spread(row), row["note"]] for row in plain]
    parts = [CPU, code(COMMANDS["cpu"])]
    if cells:
        parts.append(table(["measure", "settings", "seconds", "spread", "note"], cells, 2, (4,)))
        parts.append(
            paragraph(
                "Spread is the largest minus the smallest of the repeats; – where nothing was repeated. Where a note "
                "says extrapolated, the seconds are scaled up from a measured prefix of the picks."
            )
        )
    if any("anomalib" in row["measure"] for row in plain):
        parts.append(
            paragraph(
                "The rows of anomalib use its seconds per pick from a separate run and environment; the limits "
                "described [below](#anomalibs-k-center) also apply to their ratios to ours."
            )
        )
    growth = read_growth(rows)
    if growth:
        parts += growth_section(growth)
    return [*parts, measured_on(rows)]


def parse_settings(text: str) -> dict[str, int]:
    """``N=25000 d=192 picks=1000 banks=1`` by name; words that are not ``name=integer`` are left out."""
    found = re.findall(r"(?<!\S)(\w+)=(\d[\d_,]*)(?!\S)", text)
    return {name: int(value.replace(",", "").replace("_", "")) for name, value in found}


def read_growth(rows: Iterable[Row]) -> list[Growth]:
    """The plotted measurements among the rows, by N and then M."""
    growth = []
    for row in rows:
        if row["measure"] != GROWTH:
            continue
        settings = parse_settings(row["settings"])
        if not {"N", "picks"} <= settings.keys():
            raise ValueError(f"a row of {GROWTH!r} needs N= and picks= in its settings, not {row['settings']!r}")
        growth.append(Growth(settings["N"], settings["picks"], float(row["seconds"])))
    return sorted(growth)


def growth_section(growth: list[Growth]) -> list[str]:
    """A table of N against M, and the plot."""
    seconds = {(point.points, point.picks): point.seconds for point in growth}
    sizes, picks = sorted({point.points for point in growth}), sorted({point.picks for point in growth})
    cells = [[f"{n:,}", *(number(seconds[n, m]) if (n, m) in seconds else "–" for m in picks)] for n in sizes]
    told = []
    if len(sizes) > 1 and {(sizes[0], picks[-1]), (sizes[-1], picks[-1])} <= seconds.keys():
        times = seconds[sizes[-1], picks[-1]] / seconds[sizes[0], picks[-1]]
        told.append(f"{sizes[-1] / sizes[0]:.1f} times the points take {times:.1f} times as long (M = {picks[-1]:,}).")
    if len(picks) > 1 and {(sizes[-1], picks[0]), (sizes[-1], picks[-1])} <= seconds.keys():
        times = seconds[sizes[-1], picks[-1]] / seconds[sizes[-1], picks[0]]
        told.append(f"{picks[-1] / picks[0]:.1f} times the picks take {times:.1f} times as long (N = {sizes[-1]:,}).")
    words = " ".join(["Seconds for one bank of M picks from N points:", *told])
    return [
        "### Growth of k-center\n",
        paragraph(words),
        table(["N", *(f"M = {m:,}" for m in picks)], cells, 0),
        "![Seconds of k-center against N and against M, both axes logarithmic, with a dashed line for growth in "
        f"proportion.](../images/{PLOT.name})\n",
    ]


def describe_growth(growth: list[Growth]) -> str:
    """The plotted numbers in one line; the plot carries it, so that a test sees which numbers were drawn."""
    return "; ".join(f"N={point.points} M={point.picks} {point.seconds:g} s" for point in growth)


def draw_growth(growth: list[Growth]) -> Any:
    """The figure: seconds against N for each M, and against M for each N."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    colors = ("#0072b2", "#d55e00", "#009e73", "#9350a1", "#5b6570", "#a6761d")
    figure = Figure(figsize=(9, 4.2), facecolor="white", layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")
    for axes, along, per, name, other in zip(panels, (0, 1), (1, 0), ("N, points", "M, picks"), "MN", strict=True):
        series = {line: sorted(point for point in growth if point[per] == line) for line in {p[per] for p in growth}}
        for index, line in enumerate(sorted(series, reverse=True)):
            x, y = [point[along] for point in series[line]], [point.seconds for point in series[line]]
            axes.plot(x, y, "o-", color=colors[index % len(colors)], ms=4, lw=1.6, label=f"{other} = {line:,}")
        x, first = [point[along] for point in series[max(series)]], series[max(series)][0].seconds
        axes.plot(
            x, [first * value / x[0] for value in x], "--", color="#5b6570", lw=0.8, zorder=1, label="in proportion"
        )
        axes.set(xscale="log", yscale="log", xlabel=name, facecolor="white")
        axes.xaxis.set_major_locator(FixedLocator(sorted({point[along] for point in growth})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(thousands)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(color="#dde1e5", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3)
    panels[0].set_ylabel("seconds, one bank")
    return figure


def render_plot(growth: list[Growth]) -> str:
    """The plot as an SVG that is the same for the same numbers and release of matplotlib."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "procon"}):
        metadata = {"Date": None, "Creator": None, "Description": describe_growth(growth)}
        draw_growth(growth).savefig(stream, format="svg", metadata=metadata)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def peer_section(peer: dict[str, Any]) -> list[str]:
    """What anomalib's loop and the textbook's cost a pick, and what a whole run would."""
    cells = []
    for name, meaning in PEER_LOOPS.items():
        loop = peer["loops"][name]
        cells.append([meaning, loop["dims"], number(loop["seconds_per_pick"]), number(loop["extrapolated_s"])])
    full, prefixes = peer["extrapolated_to"], " and ".join(str(count) for count in peer["prefixes"])
    told = (
        f"{peer['points']:,} points of {peer['dims']} dimensions, {prefixes} picks, the median of {peer['rounds']} "
        f"rounds. Only the seconds per pick were measured. The totals are extrapolated to {full['banks']} banks of "
        f"{full['picks']:,} picks, as if every pick cost what the measured ones did."
    )
    before, after = peer["load_1min_before"], peer["load_1min_after"]
    if max(before, after) > peer["threads"]:
        told += (
            f" The machine was busy: its load average was {before} before and {after} after, for {peer['threads']} "
            "threads. These rows can be compared roughly with each other, not with our times from a quiet machine."
        )
    where = [f"{name} {peer[name]}" for name in ("cpu", "threads", "anomalib", "torch", "numpy", "python")]
    return [
        "### anomalib's k-center\n",
        PEER_TEXT,
        code(PEER_COMMAND),
        table(["loop", "dimensions", "seconds per pick", "extrapolated total, s"], cells, 1),
        paragraph(told),
        paragraph(f"Measured on: {', '.join(where)}."),
    ]


# -------------------------------------------------------------------------------------------------------------- memory


def memory_section(rows: list[Row]) -> list[str]:
    """Planned against used."""
    shape = ("images", "patches", "layers", "dims", "banks", "max_anchors")
    shares = [float(row["peak_gib"]) / float(row["planned_gib"]) for row in rows]
    cells = []
    for row, share in zip(rows, shares, strict=True):
        figures = [number(row["planned_gib"]), number(row["peak_gib"]), f"{share:.2f}", number(row["seconds"])]
        cells.append([*(number(row[name]) for name in shape), *figures])
    head = [*(name.replace("_", " ") for name in shape), "planned, GiB", "peak, GiB", "peak / planned", "seconds"]
    over = sum(share > 1 for share in shares)
    told = f"The peak was {extent(shares)} times the estimate; {over or 'none'} of {len(rows)} exceeded it."
    return [MEMORY, code(COMMANDS["memory"]), table(head, cells, 0), paragraph(told), measured_on(rows)]


# --------------------------------------------------------------------------------------------------------- compression


def compression_section(rows: list[Row]) -> list[str]:
    """Each form with its differences to the exact memory, and what it costs and gains in words."""
    metrics = [name for name in METRICS if name in rows[0]]
    exact = {row["category"]: row for row in rows if row["compression"] == "none"}
    cells = []
    for row in rows:
        base = exact.get(row["category"])
        figures = []
        for name in (*metrics, "model_mib", "score_ms"):
            shown = points(row[name]) if name in metrics else number(row[name])
            if base is not None and base is not row:
                shown += f" ({change(float(row[name]) - float(base[name]), name in metrics)})"
            figures.append(shown)
        cells.append([row["category"], row["compression"], *figures])
    head = ["category", "compression", *(METRICS[name] for name in metrics), "model, MiB", "score, ms"]
    kinds = unique(row["compression"] for row in rows if row["compression"] != "none" and row["category"] in exact)
    lines = [
        compression_text(kind, [(row, exact[row["category"]]) for row in rows if row["compression"] == kind], metrics)
        for kind in kinds
    ]
    return [
        COMPRESSION,
        code(COMMANDS["compression"]),
        "Accuracy in percent, in brackets the difference to `none` of the same category:\n",
        table(head, cells, 2),
        bullets(lines) if lines else paragraph("Only `none` was measured, so there is no comparison."),
        measured_on(rows),
    ]


def compression_text(kind: str, pairs: list[tuple[Row, Row]], metrics: list[str]) -> str:
    """What one form costs and gains against the exact memory."""
    differences = [
        (round(float(row[name]) - float(base[name]), 6), f"{METRICS[name]} of {row['category']}")
        for row, base in pairs
        for name in metrics
    ]
    worst, best = min(differences), max(differences)
    changed = sum(value != 0 for value, _ in differences)
    said = []
    if not changed:
        said.append(f"none of the {len(differences)} accuracy figures changes")
    else:
        said.append(f"{changed} of the {len(differences)} accuracy figures change")
        said.append(f"the largest loss is {-worst[0]:.2f} points ({worst[1]})" if worst[0] < 0 else "none is lower")
        said.append(f"the largest gain is {best[0]:.2f} points ({best[1]})" if best[0] > 0 else "none is higher")
    size = extent([float(row["model_mib"]) / float(base["model_mib"]) for row, base in pairs])
    time = extent([float(row["score_ms"]) / float(base["score_ms"]) for row, base in pairs])
    return f"`{kind}`: the model has {size} times the size, scoring takes {time} times as long; {', '.join(said)}."


# ---------------------------------------------------------------------------------------------------------------- text


def table(head: Sequence[str], cells: Iterable[Sequence[object]], names: int, words: Sequence[int] = ()) -> str:
    """A Markdown table; the first ``names`` columns and those in ``words`` are text, the others numbers."""
    rules = ["---" if index < names or index in words else "---:" for index in range(len(head))]
    lines = [head, *cells]
    written = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([written[0], "|" + "|".join(rules) + "|", *written[1:], ""])


def measured_on(rows: list[Row]) -> str:
    """The environment of the rows, once for all of them, or once for each that differs."""
    places: dict[str, int] = {}
    for row in rows:
        place = ", ".join(f"{name} {row[name]}" for name in ENVIRONMENT if row.get(name))
        places[place] = places.get(place, 0) + 1
    if len(places) == 1:
        return paragraph(f"Measured on: {next(iter(places))}.")
    return "Measured on:\n\n" + bullets([f"{place} ({count} rows)" for place, count in places.items()])


def code(command: str) -> str:
    """A block to copy."""
    return f"```bash\n{command}\n```\n"


def paragraph(text: str, first: str = "", rest: str = "") -> str:
    """Text broken at 120 characters."""
    lines = textwrap.wrap(
        text, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([*lines, ""])


def bullets(texts: Iterable[str]) -> str:
    """A list, each text broken at 120 characters."""
    return "".join(paragraph(text, "- ", "  ") for text in texts)


def unique(values: Iterable[str]) -> list[str]:
    """Each value once, in the order of appearance."""
    return list(dict.fromkeys(values))


def number(value: str | float) -> str:
    """Four significant digits, thousands with commas; other text unchanged, an empty value as a dash."""
    try:
        amount = float(value)
    except ValueError:
        return str(value) if value != "None" else "–"
    if abs(amount) >= 1000:
        return f"{amount:,.0f}"
    return f"{amount:.4g}"


def spread(row: Row) -> str:
    """The spread of a row, or a dash where there was nothing to spread."""
    return number(row["spread"]) if float(row["spread"]) else "–"


def points(value: str) -> str:
    """A figure in percent, two decimals."""
    return f"{float(value):.2f}"


def percent(share: str) -> str:
    """0.05 as 5 %."""
    return f"{100 * float(share):g} %"


def change(difference: float, accuracy: bool) -> str:
    """A signed difference; accuracy with two decimals."""
    return f"{round(difference, 2) + 0.0:+.2f}" if accuracy else f"{difference:+.3g}"


def extent(values: Sequence[float]) -> str:
    """One number, or the smallest to the largest."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
