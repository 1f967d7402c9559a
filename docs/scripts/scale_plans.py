"""Two plans on docs/use/scale.md: what a factory and a sweep cost, from the measured figures in benchmarks/results."""

import csv
from pathlib import Path

DISTINCT = 0.84  # of the anchors of five banks, as in cpu.csv: banks of a layer share some
PATCHES = 784

Plan = tuple[list[list[str]], str]
"""Steps (what, what one costs, where that was measured, all of them) and the words about them."""


def factory(results: Path) -> Plan:
    """500 parts with 200 good images each, 200 cameras with one image a second; ViT-B/14, 5 %, five banks."""
    images, dims = 200, 512
    anchors = images * PATCHES // 20
    decode = value(results, "cluster", "decoding, 1024")
    backbone = value(results, "gpu", "ViT-B/14 bf16 and projection, batch 64")
    score, one = value(results, "gpu", "scoring, batch 64"), value(results, "gpu", "pixels to score and map, batch 1")
    select = selection(results, images * PATCHES, anchors)
    model = 20 * anchors * DISTINCT * dims * 4 / 1e9
    edge = exported(results)
    total = 500 * images
    gpu = (backbone + score) * total / 1000 + 500 * select
    steps = [
        [f"decode {total:,} images", f"{decode:.3g} ms of a core", "cluster.csv, decoding, 1024 px", total * decode],
        ["backbone", f"{backbone:.3g} ms", "gpu.csv, ViT-B/14 bf16, batch 64", total * backbone],
        [f"500 x 20 banks of {anchors:,}", f"{select:.2g} s", "gpu.csv, k-center, points x picks", 500_000 * select],
        ["calibration", f"{score:.3g} ms", "gpu.csv, scoring, batch 64", total * score],
    ]
    timed = [[*step[:3], span(float(step[3]) / 1000)] for step in steps]
    timed.append(
        ["500 model files", f"{1000 * model:.0f} MB", "84 % distinct anchors, cpu.csv", f"{500 * model:.0f} GB"]
    )
    words = (
        f"One H200 fits all parts in {span(gpu)}, if {total * decode / 1000 / gpu:.1f} cores decode beside it. "
        f"The line: 200 images a second, each as it comes, keep {200 * one / 1000:.2f} of one H200 busy ({one:.3g} ms, "
        f"gpu.csv, pixels to score and map, batch 1) and {200 * decode / 1000:.1f} cores with decoding. Without GPUs, "
        f"exported as int8 (deploy.csv, ViT-S, openvino: {edge:.0f} ms on two cores), a camera takes {edge / 1000:.2f} "
        f"of a machine with two cores. What breaks first is the memory of the GPU, not its time: 500 models are "
        f"{500 * model:.0f} GB of the 150 that an H200 has, with nothing left to grow; int8 (`compression`) is a "
        f"quarter of that on disk but fp32 once it is loaded. So "
        f"1 % and one bank ({4 * anchors // 5 * dims * 4 / 1e6:.0f} MB a part), or two GPUs with half the parts each. "
        "Then come the people: 500 thresholds to look after, which is what drift and the log of a model are for."
    )
    return timed, words


def realiad(results: Path) -> Plan:
    """Real-IAD, single view, ViT-B/14, 1 %, five banks, on 8 GPUs."""
    train, test, categories = 36_465, 114_585, 30
    images, points = train + test, train * PATCHES // categories
    anchors = points // 100
    decode = value(results, "cluster", "decoding, 2048")
    backbone = value(results, "gpu", "ViT-B/14 bf16 and projection, batch 64")
    select = selection(results, points, anchors)
    score = value(results, "gpu", "scoring, batch 64") * anchors / 8192
    tokens = images * PATCHES * 4 * 768 * 4 / 1e9
    gpu = (images * backbone + test * score) / 1000 + categories * select
    decoded = images * decode / 1000 / 128
    steps = [
        [f"decode {images:,} images", f"{decode:.3g} ms of a core", "cluster.csv, decoding, 2048 px", images * decode],
        ["backbone", f"{backbone:.3g} ms", "gpu.csv, ViT-B/14 bf16, batch 64", images * backbone],
        [f"30 x 20 banks of {anchors:,}", f"{select:.2g} s", "gpu.csv, k-center, points x picks", 30_000 * select],
        ["scoring the test images", f"{score:.2g} ms", "gpu.csv, scoring, by anchors", test * score],
    ]
    timed = [[*step[:3], span(float(step[3]) / 1000)] for step in steps]
    timed.append(["tokens to disk", "9.6 MB", "784 patches x 4 blocks x 768 x 4 bytes", f"{tokens / 1000:.2f} TB"])
    words = (
        f"The GPUs have {span(gpu)} of work in all, {gpu / 8:.0f} s each, and decoding with 16 cores to a GPU takes "
        f"{decoded:.0f} s. What breaks first are the tokens: storage that takes 2 GB/s needs {span(tokens / 2)} for "
        f"them, and to keep up with decoding it would have to take {tokens / decoded:.0f} GB/s. So the run's folder "
        f"belongs on a disk of the machine where all 8 GPUs are in one; over several machines, storage is what to buy. "
        f"Tokens of a category go when it is done: {8 * tokens / categories:.0f} GB lie there at most. Second are the "
        f"cores: with 4 to a GPU decoding takes {span(4 * decoded)}. "
        f"30 categories on 8 GPUs are 4 rounds with {100 * 30 / 32:.0f} % of the slots busy. More variants share the "
        f"tokens: each costs its scoring, {test * score / 1000:.0f} s of one GPU, and banks of its own if it has any."
    )
    return timed, words


def value(results: Path, file: str, measure: str) -> float:
    """A measured figure: of the first row of ``file``.csv whose measure begins so."""
    with (results / f"{file}.csv").open(newline="", encoding="utf-8") as stream:
        return float(next(row["value"] for row in csv.DictReader(stream) if row["measure"].startswith(measure)))


def selection(results: Path, points: int, picks: int) -> float:
    """Seconds of 20 banks on an H200: as measured on 163,856 points and 8,192 picks, in proportion to both."""
    return value(results, "gpu", "k-center, 20 banks") * points * picks / (163_856 * 8192)


def exported(results: Path) -> float:
    """Milliseconds of an exported ViT-S at int8 on two cores."""
    with (results / "deploy.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["backbone"].startswith("ViT-S")]
    return float(next(row["latency_ms"] for row in rows if (row["runtime"], row["precision"]) == ("openvino", "int8")))


def span(seconds: float) -> str:
    """95 -> '95 s', 1200 -> '20 min'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
