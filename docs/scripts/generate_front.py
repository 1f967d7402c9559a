"""Write the measured parts of README.md and docs/images/accuracy-cost.svg: python docs/scripts/generate_front.py

The numbers come from ``benchmarks/results``; a test compares the page and the chart with them.
"""

import csv
import json
import math
import re
import statistics
import textwrap
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PEER_LOOP = ROOT / "benchmarks" / "peers" / "kcenter-cpu.json"
README, CHART = ROOT / "README.md", ROOT / "docs" / "images" / "accuracy-cost.svg"
BEGIN, END = "<!-- {}: written by docs/scripts/generate_front.py -->", "<!-- end of {} -->"
METRICS = {"i_auroc": "I-AUROC", "p_auroc": "P-AUROC", "aupro": "AUPRO"}
COSTS = {"fit_s": "fit, s", "score_ms": "score, ms", "model_mib": "model, MiB"}
OURS = ("procon", "procon-1")
TUNED = ("procon-best",)  # on these very parts: no fair comparison
WIDTH, HEIGHT, LEFT, RIGHT = 600, 590, 44, 584  # pixels of the chart, and where its panels begin and end
TOP, PANEL, GAP = 40, 210, 72  # pixels: above the first panel, each panel, and between them
LOWEST, HIGHEST = 60.0, 6000.0  # ms on the axis
FLOORS = {"i_auroc": 80.0, "aupro": 60.0}  # percent at the foot of each panel


class System(NamedTuple):
    """Means over the parts of one system."""

    key: str
    name: str
    values: dict[str, float]  # by metric, and by cost where all parts have it

    @property
    def ours(self) -> bool:
        """Whether it is ProCon."""
        return self.key in OURS


def main() -> None:
    """Write the README's parts and the chart."""
    README.write_text(render_readme(), encoding="utf-8")
    CHART.write_text(render_chart(read_systems()), encoding="utf-8")


def read_systems(results: Path = RESULTS) -> list[System]:
    """The systems with numbers on all parts, in the order of the file."""
    with (results / "peers.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["system"] not in TUNED]
    parts, systems = {row["part"] for row in rows}, []
    for key in dict.fromkeys(row["system"] for row in rows):
        ran = [row for row in rows if row["system"] == key and row["i_auroc"]]
        if len(ran) == len(parts):
            known = [name for name in (*METRICS, *COSTS) if all(row[name] for row in ran)]
            values = {name: statistics.mean(float(row[name]) for row in ran) for name in known}
            systems.append(System(key, f"{ran[0]['title']} on {ran[0]['backbone'].split(' ')[0]}", values))
    return systems


def render_readme(results: Path = RESULTS, loop: Path = PEER_LOOP) -> str:
    """The README with its measured parts."""
    systems = read_systems(results)
    text = fill(README.read_text(encoding="utf-8"), "why", wrap(explain_why(systems, results, loop)))
    wins = "\n".join(wrap(f"- {sentence}", "  ") for sentence in describe_wins(systems))
    parts = [render_table(systems), f"Compared with the better of our two rows:\n\n{wins}"]
    return fill(text, "measured", "\n\n".join([*parts, wrap(describe_coreset(results, loop))]))


def fill(text: str, name: str, body: str) -> str:
    """The text with another body between two markers."""
    begin, end = BEGIN.format(name), END.format(name)
    between = f"{re.escape(begin)}.*?{re.escape(end)}"
    return re.sub(between, lambda _: f"{begin}\n{body}\n{end}", text, count=1, flags=re.DOTALL)


def explain_why(systems: list[System], results: Path, loop: Path) -> str:
    """Why not PatchCore or anomalib, and where another is better, in numbers."""
    named = {system.key: system.values for system in systems}
    ours, patchcore = named["procon-1"], named["patchcore"]
    best = max((system for system in systems if not system.ours), key=lambda system: system.values["aupro"])
    trained = "" if "score_ms" in best.values else ", trained on a GPU for each part,"
    found = f"has an I-AUROC of {ours['i_auroc']:.1f} and an AUPRO of {ours['aupro']:.1f}"
    return (
        "**Why not PatchCore or anomalib?** On five real parts, with the same backbone and 1 % of the patches, ProCon "
        f"{found}, PatchCore {patchcore['i_auroc']:.1f} and {patchcore['aupro']:.1f}; it selects patches "
        f"{coreset_ratio(results, loop):.0f} times as fast as anomalib's loop, and every verdict comes with its "
        f"evidence; for the outline of a defect alone, {best.name.partition(' on ')[0]}{trained} is better "
        f"(AUPRO {best.values['aupro']:.1f})."
    )


def render_table(systems: list[System]) -> str:
    """A row per system; the best value of each metric is bold."""
    best = {metric: max(system.values[metric] for system in systems) for metric in METRICS}
    lines = [f"| mean over five real parts | {' | '.join([*METRICS.values(), *COSTS.values()])} |"]
    lines.append("|---|" + "---:|" * (len(METRICS) + len(COSTS)))
    for system in systems:
        scores = [f"{system.values[metric]:.1f}" for metric in METRICS]
        bold = [
            f"**{shown}**" if system.values[metric] == best[metric] else shown
            for metric, shown in zip(METRICS, scores, strict=True)
        ]
        costs = [f"{system.values[cost]:,.0f}" if cost in system.values else "–" for cost in COSTS]
        lines.append(f"| {system.name} | {' | '.join([*bold, *costs])} |")
    return "\n".join(lines)


def describe_wins(systems: list[System]) -> list[str]:
    """Where a peer is better than the better of ours, in sentences."""
    sentences = []
    for metric, title in METRICS.items():
        ours = max(system.values[metric] for system in systems if system.ours)
        better = [system for system in systems if not system.ours and system.values[metric] > ours]
        if better:
            better.sort(key=lambda system: -system.values[metric])
            names = ", ".join(f"{system.name.partition(' on ')[0]} ({system.values[metric]:.1f})" for system in better)
            sentences.append(f"{title}: {names} above our {ours:.1f}.")
        else:
            sentences.append(f"{title}: no peer is above our {ours:.1f}.")
    for cost, words in (("fit_s", "to fit"), ("score_ms", "to score an image")):
        ours = min(system.values[cost] for system in systems if system.ours)
        names = [system.name for system in systems if not system.ours and system.values.get(cost, math.inf) < ours]
        sentences.append(f"Less time {words} than our fastest: {', '.join(names) or 'none'}.")
    return sentences


def describe_coreset(results: Path, loop: Path) -> str:
    """What the selection of anchors takes, compared with anomalib's loop on the same points."""
    peer, ours = read_coresets(results, loop)
    full = peer["extrapolated_to"]
    return (
        f"{full['banks']} coresets of {full['picks']:,} from {peer['points']:,} patches take {ours:.0f} s; anomalib's "
        f"loop takes {coreset_ratio(results, loop):.0f} times as long on the same points (extrapolated from "
        f"{max(peer['prefixes'])} picks)."
    )


def coreset_ratio(results: Path, loop: Path) -> float:
    """The time of anomalib's loop, without its own projection, over ours."""
    peer, ours = read_coresets(results, loop)
    return float(peer["loops"]["anomalib_unprojected"]["extrapolated_s"]) / ours


def read_coresets(results: Path, loop: Path) -> tuple[dict[str, Any], float]:
    """What was measured of anomalib's loop, and our seconds for the same coresets."""
    peer = json.loads(loop.read_text(encoding="utf-8"))
    full = peer["extrapolated_to"]
    shape = f"N={peer['points']} d={peer['dims']} picks={full['picks']} banks={full['banks']}"
    with (results / "cpu.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    (ours,) = (float(row["seconds"]) for row in rows if (row["measure"], row["settings"]) == ("k-center, ours", shape))
    return peer, ours


# ------------------------------------------------------------------------------------------------------------- chart


def render_chart(systems: list[System]) -> str:
    """Two panels, image and pixel accuracy, over the time to score an image; every dot has the name of its system."""
    panels = [draw_panel(systems, metric, TOP + place * (PANEL + GAP)) for place, metric in enumerate(FLOORS)]
    words = "Time to score an image on two cores, mean over five real parts"
    style = (
        "text{font:15px system-ui,sans-serif;fill:#1b2026}.n{paint-order:stroke;stroke:#fff;stroke-width:4px}"
        ".t{font-weight:700;font-size:16px}.s{fill:#5a6470;"
        "font-size:14px}.o{font-weight:700;fill:#2b5c8a}.d{stroke:#b3193f;stroke-dasharray:5 4}.g{stroke:#e2e6eb}"
        ".a{stroke:#8a94a0}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="Accuracy of {len(systems)} systems over the {words[0].lower()}{words[1:]}">'
    )
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>'
    foot = f'<text x="{(LEFT + RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle" class="s">{words}</text>'
    return "\n".join([head, f"<style>{style}</style>", ground, *panels, foot, "</svg>\n"])


def draw_panel(systems: list[System], metric: str, top: int) -> str:
    """One metric; a system whose time was not measured on these cores is a line."""
    floor, bottom = FLOORS[metric], top + PANEL

    def place(milliseconds: float, percent: float) -> tuple[float, float]:
        share = math.log(milliseconds / LOWEST) / math.log(HIGHEST / LOWEST)
        return LEFT + (RIGHT - LEFT) * share, bottom - PANEL * (percent - floor) / (100 - floor)

    lines = [f'<text x="{LEFT}" y="{top - 12}" class="t">{METRICS[metric]}, % (up and left is better)</text>']
    for percent in range(int(floor), 101, 5 if floor >= 80 else 10):
        _, y = place(LOWEST, percent)
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end" class="s">{percent}</text>')
    for milliseconds, words in ((100, "0.1 s"), (300, "0.3 s"), (1000, "1 s"), (3000, "3 s")):
        x, _ = place(milliseconds, floor)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" class="a"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle" class="s">{words}</text>')
    lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{bottom}" y2="{bottom}" class="a"/>')
    dots = [place(system.values.get("score_ms", HIGHEST), system.values[metric]) for system in systems]
    for system, (_, y) in zip(systems, dots, strict=True):
        if "score_ms" not in system.values:
            lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="d"/>')
    lines += draw_names(systems, dots)
    for system, (x, y) in zip(systems, dots, strict=True):
        if "score_ms" in system.values:
            color = "#2b5c8a" if system.ours else "#697380"
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{color}" stroke="#fff"/>')
    return "\n".join(lines)


def draw_names(systems: list[System], dots: list[tuple[float, float]]) -> list[str]:
    """The name of each system at its dot, on the first side where it covers no dot and no other name."""
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in dots]
    lines = []
    for system, (x, y) in zip(systems, dots, strict=True):
        name = short_name(system)
        width = (1.1 if system.ours else 1) * sum(10.8 if letter.isupper() else 8.1 for letter in name)  # about
        sides = [(x + 10, y + 5), (x - 10 - width, y + 5)]
        sides = sides if "score_ms" in system.values else [(LEFT + 4, y - 6), (LEFT + 4, y + 18)]
        sides += [(x + shift - width / 2, y + down) for down in (-12, 22, -28, 38) for shift in (0, 30, -30, 60, -60)]
        boxes = [(left, base - 13, left + width, base + 3) for left, base in sides]
        free = [
            box
            for box in boxes
            if box[0] >= LEFT and box[2] <= WIDTH - 4 and not any(overlaps(box, other) for other in taken)
        ]
        box = (free or boxes)[0]
        taken.append(box)
        style = "n o" if system.ours else "n"
        lines.append(f'<text x="{box[0]:.1f}" y="{box[3] - 3:.1f}" class="{style}">{escape(name)}</text>')
    return lines


def short_name(system: System) -> str:
    """A name for the chart: the backbone only where it is not that of ProCon, and where a GPU trained it."""
    name, _, backbone = system.name.partition(" on ")
    other = "" if backbone.startswith("ViT") else f", {backbone.rpartition('-')[2]}"
    return (
        name.partition(",")[0]
        + (", 1 %" if ", 1 %" in name else ", 5 %" if ", 5 %" in name else "")
        + other
        + ("" if "score_ms" in system.values else " (trained on a GPU)")
    )


def overlaps(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, top, right, bottom) share a point."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def wrap(text: str, subsequent_indent: str = "") -> str:
    """A paragraph, 120 characters wide, its lines after the first indented."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent=subsequent_indent)


if __name__ == "__main__":
    main()
