"""Write docs/understand/best.md from benchmarks/results/research.csv and best.csv.

    python docs/scripts/generate_best.py

Every number on the page comes from the files there; a test compares the page with them.
"""

import csv
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "understand" / "best.md"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs" / "scripts")]

import second_study  # noqa: E402
import studied_parts  # noqa: E402

from procon.config import BEST, Config  # noqa: E402
from research import plan, strict  # noqa: E402
from research.leaderboard import IMAGE, PIXEL, Board, leave_one_part_out  # noqa: E402

PARTS = ("hazelnut_toy", "metal_plate", "bracket_white", "bracket_brown", "bracket_black")
NAMES = {"i_auroc": "I-AUROC", "i_ap": "I-AP", "i_f1": "I-F1", "p_auroc": "P-AUROC", "p_ap": "P-AP", "p_f1": "P-F1"}
NAMES |= {"aupro": "AUPRO"}
PAPER = "paper"
GOAL = 1.0  # points over today's recipe that another one would have to reach

HEAD = """# Config.best()

`Config()` is the paper's recipe, chosen on the test labels of MVTec-AD and VisA. `Config.best()` is our recipe: the
same method with other settings. It needs no training and no labels, and it is the same for every part.

```python
from procon import Config

config = Config.best(backbone="dinov2-small")  # your settings override the recipe's
```

Then call `Detector(config).fit("parts/good")` as usual. On the command line: `procon fit GOOD --recipe best`.
Other flags override the recipe too: `--recipe best --image-size 518`. [Recipes](recipes.md) compares all three.

## What it computes

| `Config.best()` has | `Config()` has | why |
|---|---|---|
"""

WHY = {
    "image_size": "the input has the proportions of the good images",
    "patch_budget": "a square of 672 pixels: most defects are small, and a patch covers a third of the area",
    "max_scale": "these parts gained from patches smaller than 14 of their pixels",
    "layers": "the shallow blocks -9 and -10 see fine structure, -3 sees context",
    "banks": "at this size the median over banks hardly improved maps, and each bank adds the same cost",
    "coreset_ratio": "1.5 % of 2.9 times as many patches: a bank is about as large as before",
    "score_relative_to": "where good patches have large residuals, a defect needs an even larger one",
    "map_offset": "light or focus shifts the whole map of a part, so does a large defect: a quarter is subtracted",
}

MIDDLE = """
Everything else is as in the paper: soft projection on five neighbours, the mean over layers, the mean of the top 0.5 %
of patches, a blur of 4 pixels of the input. The image score and the map use different quantities:

- **Image score.** Each training image is scored without its own anchors. Anchor $j$ of a bank takes part in the
  projections of normal patches with weights $w$ and residuals $r$, which give the mean and the mean square of its
  residuals. Both include 5 patches with the average of the bank, so that an anchor with few patches has a stable
  estimate. The level of the anchor is the mean plus two standard deviations, $a_j = \\mu_j + 2 \\sigma_j$. The value of
  a new patch is $r / \\sum_j w_j a_j$ instead of $r$: few good patches reach 1. The rest is unchanged: median over
  banks, mean over layers, mean of the top 0.5 %. The functions are in `method/levels.py`.
- **Map.** The plain residuals, mean over layers. A constant moves the lower quartile of the map a quarter of the way to
  that of typical good images. A quarter, because a defect that covers most of a part moves the quartile too.

The threshold is calibrated as usual, by leave-one-out: a training image is scored without its own anchors, and without
its contribution to the levels of the other anchors.
"""


def read(name: str) -> list[dict[str, str]]:
    """The rows of a results file; none where it is not there."""
    path = RESULTS / name
    return list(csv.DictReader(path.open(encoding="utf-8"))) if path.is_file() else []


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def settings() -> str:
    """The rows of the settings that differ."""
    plain = Config()
    return "".join(
        f"| `{name}={value!r}` | `{getattr(plain, name)!r}` | {WHY[name]} |\n" for name, value in BEST.items()
    )


def seven(boards: tuple[Board, Board], pair: tuple[str, str], part: str) -> float:
    """The mean of all seven metrics of a recipe, whose map and score read ``pair``, on a part."""
    pixel, image = boards
    return (4 * pixel.part(pair[0], part) + 3 * image.part(pair[1], part)) / 7


def numbers(boards: tuple[Board, Board], best: tuple[str, str]) -> str:
    """Config() and Config.best() on every part."""
    rows = []
    for part in PARTS:
        for label, pair in (("`Config()`", (PAPER, PAPER)), ("first recipe", best)):
            values = [boards[1].part(pair[1], part, metric) for metric in IMAGE]
            values += [boards[0].part(pair[0], part, metric) for metric in PIXEL]
            rows.append([part, label, *(f"{v:.1f}" for v in values), f"{seven(boards, pair, part):.1f}"])
    for label, pair in (("`Config()`", (PAPER, PAPER)), ("first recipe", best)):
        cells = []
        for board, name, metrics in ((boards[1], pair[1], IMAGE), (boards[0], pair[0], PIXEL)):
            for metric in metrics:
                low, high = board.interval(name, PARTS, metric)
                cells.append(f"{board.mean(name, PARTS, metric):.1f} ({low:.1f} to {high:.1f})")
        mean = statistics.fmean(seven(boards, pair, part) for part in PARTS)
        rows.append(["**mean**", label, *cells, f"**{mean:.1f}**"])
    return table(["part", "recipe", *NAMES.values(), "all seven"], rows)


def ablation(boards: tuple[Board, Board]) -> str:
    """The recipe with one thing changed."""
    pixel, image = boards
    pairs = {name: tuple(one.name for one in pair) for name, pair in plan.ABLATIONS.items()}
    pairs["in tiles of 392 pixels"] = tuple(one.name for one in plan.TILED["the whole recipe"])
    pairs = {"`Config()`": (PAPER, PAPER), **pairs}
    whole = pairs["the whole recipe"]
    rows = []
    for name, pair in pairs.items():
        change = [seven(boards, pair, part) - seven(boards, whole, part) for part in PARTS]
        rows.append(
            [
                name,
                *(f"{image.mean(pair[1], PARTS, metric):.1f}" for metric in ("i_auroc", "i_f1")),
                *(f"{pixel.mean(pair[0], PARTS, metric):.1f}" for metric in PIXEL),
                f"{statistics.fmean(seven(boards, pair, part) for part in PARTS):.1f}",
                f"{min(change):+.1f} to {max(change):+.1f}",
            ]
        )
    header = ["recipe", "I-AUROC", "I-F1", *(NAMES[metric] for metric in PIXEL), "all seven", "change on a part"]
    return table(header, rows)


def held_out(rows: list[dict[str, str]]) -> str:
    """What would have been chosen without each part, and how it does there."""
    first = [row for row in rows if row["seed"] == "0"]
    lines = []
    for label, metrics in (("map", PIXEL), ("score", IMAGE)):
        for one in leave_one_part_out(Board(first, metrics), PAPER, PARTS):
            lines.append([label, one.part, f"`{one.reading}`", f"{one.baseline:.1f}", f"{one.value:.1f}",
                          f"{one.value - one.baseline:+.1f}"])  # fmt: skip
    return table(["read for", "part left out", "chosen on the other four", "`Config()`", "chosen", "gain"], lines)


def stricter(rows: list[dict[str, str]]) -> str:
    """The choice that loses nowhere at a limited cost, made without each part."""
    first = [row for row in rows if row["seed"] == "0"]
    readings = {one.name: one for make in plan.ROUNDS.values() for one in make()} | {PAPER: plan.Reading()}
    lines, reached = [], 0.0
    for label, metrics, today in (("map", strict.MAP, plan.MAP), ("score", strict.SCORE, plan.SCORE)):
        board = Board(first, metrics)

        def is_affordable(reading: plan.Reading, today: plan.Reading = today) -> bool:
            return strict.is_affordable(reading, today) and reading.source == today.source

        allowed = [name for name in board.complete(PARTS) if name in readings and is_affordable(readings[name])]
        chosen = strict.choose(board, allowed, PAPER, PARTS)
        reached += strict.aim(board, chosen, PARTS) - strict.aim(board, today.name, PARTS)
        for cost, rule in (("at most 1.3 times", is_affordable), ("any", lambda reading: True)):
            for one in strict.choose_without_each(board, readings, PARTS, PAPER, today.name, rule):
                name = "as today" if one.reading == today.name else f"`{one.reading}`"
                lines.append([label, cost, one.part, name, f"{one.gain:+.2f}", f"{one.least:+.2f}"])
    head = ["read for", "cost", "part left out", "chosen on the other four", "gain over today's", "least change"]
    return table(head, lines) + (
        f"\nWith all five parts in view, the best that is affordable is {reached:+.2f} points from today's recipe. The "
        f"aim was {GOAL:+.0f}: "
        + ("it is not reached, so the settings stay.\n" if reached < GOAL else "it is reached.\n")
    )


def nine(rows: list[dict[str, str]]) -> str:
    """Both recipes on all nine parts, as the default threshold's study measured them."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        if (row["rule"], row["rate"]) == ("robust", "0.01") and not row["part"].startswith("mean"):
            found.setdefault(row["part"], {})[row["recipe"]] = row
    lines, lost = [], []
    for part, pair in found.items():
        cells = []
        for name, title in (("image_auroc", "I-AUROC"), ("best_pixel_f1", "P-F1"), ("balanced_accuracy", "")):
            plain, best = (100 * float(pair[recipe][name]) for recipe in ("Config()", "Config.best()"))
            cells += [f"{plain:.1f}", f"{best:.1f}"]
            if title and best - plain < -1:
                lost.append(f"{part} {title} ({best - plain:+.1f})")
        lines.append([part, *cells])
    titles = [f"{title}, {recipe}" for title in ("I-AUROC", "P-F1", "verdict") for recipe in ("paper", "first")]
    return (
        table(["part", *titles], lines) + f"\nBelow `Config()` by more than a point: {', '.join(lost) or 'nothing'}.\n"
    )


def tried(rows: list[dict[str, str]]) -> str:
    """How many readings each round had."""
    lines, seen = [], set()
    for name, make in plan.ROUNDS.items():
        mine = {row["reading"] for row in rows if row["round"] == name} - seen
        seen |= mine
        parts = {row["part"] for row in rows if row["round"] == name}
        lines.append([name, str(len(mine)), str(len(parts)), str(make.__doc__).rstrip(".")])
    other = len({row["reading"] for row in rows} - seen)
    assert not other, f"{other} readings belong to no round"
    return table(["round", "new readings", "parts", "what it varies"], lines)


def cost(rows: list[dict[str, str]]) -> str:
    """What was measured of the package itself."""
    if not rows:
        return "Not measured yet.\n"
    lines = [
        [row["part"], f"`{'Config()' if row['recipe'] == PAPER else 'first recipe'}`", row["fit_s"], row["image_ms"]]
        + [f"{int(row['anchors']):,}", row["file_mb"]]
        + [row[metric] for metric in ("i_auroc", *PIXEL)]
        for row in rows
    ]
    header = ["part", "recipe", "fit, s", "one image, ms", "anchors", "file, MB", "I-AUROC"]
    where = rows[0]
    return (
        table([*header, *(NAMES[metric] for metric in PIXEL)], lines)
        + f"\nOn {where['device']} ({where['cpu']}, {where['threads']} threads), torch {where['torch']}. Maps are "
        "judged at the size of the input here, at 392 pixels above.\n"
    )


def page() -> str:
    """The text of docs/understand/best.md."""
    rows = read("research.csv")
    needed = {one.name for pair in (*plan.ABLATIONS.values(), *plan.TILED.values()) for one in pair} | {PAPER}
    final = [row for row in rows if row["reading"] in needed]
    boards = Board(final, PIXEL), Board(final, IMAGE)
    best = (plan.MAP.name, plan.SCORE.name)
    readings, seeds = len({row["reading"] for row in rows if row["p_ap"]}), sorted({int(row["seed"]) for row in final})
    gain = {part: seven(boards, best, part) - seven(boards, (PAPER, PAPER), part) for part in PARTS}
    worst = min(
        board.part(name, part, metric) - board.part(PAPER, part, metric)
        for board, name in zip(boards, best, strict=True)
        for part in PARTS
        for metric in board.metrics
    )
    where = rows[0]
    tiles = {
        part: seven(boards, tuple(one.name for one in plan.TILED["the whole recipe"]), part)  # type: ignore[arg-type]
        - seven(boards, best, part)
        for part in PARTS
    }
    ahead = [part for part in PARTS if tiles[part] > 0.05]
    smaller = tuple(one.name for one in plan.ABLATIONS["392 pixels and 5 %"])
    kept = statistics.fmean(seven(boards, smaller, part) - seven(boards, (PAPER, PAPER), part) for part in PARTS)
    whole = statistics.fmean(gain.values())
    return (
        HEAD
        + settings()
        + MIDDLE
        + f"""
{second_study.tell(read("offsets.csv"), read("study.csv"), read("whole.csv"))}
## The first study: five parts

It found the first recipe: `image_size=672`, blocks -3, -7, -10 with 2 % of the patches, and the whole shift
(`map_offset=1`). Everything else is as today. From here on, *the recipe* and *today's* mean the first recipe.

Development parts: MPDD {", ".join(PARTS[1:])}
(complete categories, 448 pixels) and {PARTS[0]} (512 pixels). Backbone: ViT-S/14, the encoder of Depth Anything V2
Small, fp32. Maps are judged at 392 pixels whatever the input. In percent, mean over bank seeds
{", ".join(map(str, seeds))}; in brackets the lowest and highest mean over parts of one seed. Only the bank seed is
random.

{numbers(boards, best)}
All seven metrics together gain {min(gain.values()):.1f} to {max(gain.values()):.1f} points on a part and {whole:.1f} on
the mean. The least change of any one metric on any part is {worst:+.2f} points.

Command, on {where["device"]}: `python benchmarks/research --weights FILE PARTS` for all rounds, and
`--rounds finalists recipe tiled-recipe --seeds 0 100 200` for three seeds; `research.csv` joins these runs. The bench
reproduces the `Config()` figures of [Benchmarks](../measure/benchmarks.md), and a test compares its readings
with those of the detector.

## The first recipe on nine parts

`Config()` and the first recipe on every complete part that is at hand, with `benchmarks/research/thresholds.py` (bf16
on a GPU, one seed, maps at the size of the input, P-F1 from a histogram of 2,001 steps). Verdict: balanced accuracy
at the default threshold. The three parts of MVTec-AD and KolektorSDD2 (ksdd2) had no say in the recipe.

{nine(read("verdicts.csv"))}
## Ablation

The recipe with one thing changed. The last column is the change of all seven metrics together, on the part that loses
and on the part that gains most.

{ablation(boards)}
## Chosen without the part it is judged on

For each part: the reading with the best mean over the other four, among those that lose at most a point on any of them,
out of all that were tried (seed 0). Pixel metrics for maps, image metrics for scores.

{held_out(rows)}
### Losing nowhere, at a limited cost

The same with a stricter rule: on none of the other four parts may image AUROC, P-AP, P-F1 or AUPRO be more than a point
below `Config()` at the same seed. What counts is the mean of image AUROC, P-AP and AUPRO. Cost is the number of
multiplications for an image and the number of anchors, both relative to the first recipe; within it, map and score are
read from the same kind of tokens. Gains over today's recipe, and the least change of any of the four metrics against
`Config()`, are those on the part left out.

{stricter(rows)}
This is easier than a truly unseen part: each choice excludes the part, but the candidates were planned with all five
parts in view, and three of them are brackets of one dataset.

The recipe does not have the highest mean: 5 % of the patches would add a little, and features with decorrelated
channels would detect better on one part, but need a second memory. Three parts have image metrics of 100 under nearly
every reading, so the conclusions about the image score depend on bracket_brown and bracket_black.

## What was tried

{readings} readings in all, each as a map and, in nine ways to take the highest patches, as an image score; the file
keeps the nine for the recipe and the usual one for the rest. Many comparisons on five parts: single differences of a
few tenths mean nothing, and only what holds across rounds and parts was followed. The last rounds repeat three seeds;
the round `tiles` ran out of time on two parts, `finalists` on two seeds of one.

{tried(rows)}
Further findings:

- The mean distance to the five neighbours, a better map at 392 pixels and the paper's layers, is not better than the
  soft projection once input and layers change.
- Dividing by the level of the anchors improves image scores at every size, but makes maps worse where normal
  structure varies. So the score divides and the map does not. Dividing by the level of the position helps neither.
- Centred, standardised or decorrelated channels give good detection and poor localisation.
- Rotated copies of the good images improve maps a little, but would hide parts that lie the wrong way. Not used.
- Scaling each layer by its mean and spread: no clear gain. Three banks, or 5 % of the patches: a little more accuracy
  for two to three times the search.

{studied_parts.tell(read("study.csv"))}
## What it costs

{cost(read("best.csv"))}
Command: `python benchmarks/best.py --weights FILE hazelnut_toy`.

## Where it loses

- The backbone sees 2,304 patches instead of 784. Where time matters more,
  `Config.best(image_size=392, coreset_ratio=0.05)` is an alternative: the first recipe kept {kept / whole:.0%} of its
  gain that way.
- In tiles of 392 pixels the first recipe is better on {" and ".join(ahead)} and worse on the others:
  {", ".join(f"{part} {tiles[part]:+.1f}" for part in PARTS)}.
- `add`, `forget` and `merge` read all training images again, and are refused if one is gone: every image contributes
  to the levels of the anchors.
- Fit needs at least two good images.
- On CUDA it runs in the same kernels and recorded graphs as `Config()`; its speed there has not been measured since.
- A defect that covers most of the object shifts its own map, by a quarter of what it was under the first recipe
  ([above](#why-the-first-recipe-loses-on-pill)): `Config.best(map_offset=0)` does without the shift. The image
  score is not affected.
- The layers were chosen with a ViT-S/14 that was tuned to estimate depth. For other backbones they are untested;
  `Config.best(layers=Config().layers)` is the conservative choice.
- It was chosen on nine parts, three of them brackets, and no other part has been measured with it. Measure on your own.
"""
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
