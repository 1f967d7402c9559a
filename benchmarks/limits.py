"""Do rendered defects say what real ones will do? Both are found or missed at the same threshold, part by part.

    python benchmarks/limits.py measure limits.jsonl --data DATA --weights WEIGHTS [--device cuda] [--full] [PART ...]
    python benchmarks/limits.py summarize limits.jsonl

``measure`` fits each part, scores test images with real defects, and renders defects on training images with
``Detector.limits``, in sizes from the 5 % to the 95 % quantile of the real ones. It stores one JSON line for each part;
parts that are already in the file are skipped. By default it takes a sample that two cores can measure (see
``samples.py``: one bank of 1 %, at most 40 training images and 12 to 48 test images of a kind) and two defects of each
kind, size and contrast; ``--full`` takes all images, ``Config()`` and eight defects.

``summarize`` writes ``results/limits.csv``: for every part and kind of real defect the share that is found, and beside
it the share found among rendered defects of the same sizes; then the rank correlations (Spearman) of the two and their
mean absolute difference, over the parts and over all kinds of all parts, for each rendered kind and contrast.
"""

import argparse
import csv
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage
from scipy.stats import spearmanr

from environment import environment
from procon import Config, Detector, Prediction
from procon.limits.kinds import PAINTED_KINDS, SMALLEST_DEFECT
from procon.limits.plan import CONTRASTS
from procon.limits.statistics import by_size, rising_fit
from procon.model.renderings import Renderings
from procon.vision.images import open_image
from samples import PARTS, TEST, Sample, open_detector, sample_training, spread
from verdicts import read_mask, test_images

SIZES, PASSES, PASSES_FULL = 5, 2, 8
LEAST_TESTS = 48  # test images of a part with few kinds
MANY_KINDS = 5  # of one part, for a correlation of its own
FEWEST = 3  # real defects of a kind that enter the correlation over kinds
OUTPUT = Path(__file__).parent / "results" / "limits.csv"
ALL = "all"


def measure(arguments: argparse.Namespace) -> None:
    """Measure the parts that are not in the file yet."""
    done = {row["part"] for row in read_rows(arguments.raw)}
    for part in arguments.parts or PARTS:
        if part in done:
            continue
        started = time.perf_counter()
        row = {"part": part, **measure_part(arguments.data / part, arguments)}
        row |= {"seconds": time.perf_counter() - started, "environment": environment()}
        with arguments.raw.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(f"{part}: {row['seconds']:.0f} s", flush=True)


def measure_part(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The real and the rendered defects of one part."""
    training = root / "train" / "good"
    if arguments.full:
        config = Config(backbone="dinov2-small", weights=str(arguments.weights))
        detector = Detector(config, device=arguments.device).fit(training)
    else:
        detector = open_detector(arguments.weights, arguments.tokens, coreset_ratio=0.01, banks=1)
        if arguments.device != "cpu":
            detector = Detector(detector.config, device=arguments.device)
        detector.fit(sample_training(root))
    real, side = [], math.inf
    samples = choose_tests(root, arguments.full)
    for sample, result in zip(samples, detector.predict_each(sample.path for sample in samples), strict=True):
        assert isinstance(result, Prediction)
        mask = read_mask(sample.mask, open_image(sample.path).size)
        if mask.any():
            real.append({"kind": sample.kind, "size": extent_of(mask), "score": result.score})
            side = min(side, *mask.shape)
    sizes = choose_matching([defect["size"] for defect in real], side)
    cells = len(sizes) * len(PAINTED_KINDS) * len(CONTRASTS)
    limits = detector.limits(
        count=cells * (PASSES_FULL if arguments.full else PASSES), sizes=sizes, kinds=PAINTED_KINDS
    )
    return {"threshold": limits.threshold, "real": real, "rendered": limits.renderings.to_dict()}


def choose_tests(root: Path, full: bool) -> list[Sample]:
    """Test images with defects: all, or at most ``TEST`` of a kind, more where a part has few kinds."""
    samples = [Sample(path, kind, mask) for path, kind, mask in test_images(root) if mask is not None]
    kinds = Counter(sample.kind for sample in samples)
    most = max(TEST, LEAST_TESTS // len(kinds))
    groups = [[sample for sample in samples if sample.kind == kind] for kind in kinds]
    return samples if full else [sample for group in groups for sample in spread(group, most)]


def extent_of(mask: Any) -> int:
    """The longer side of the box around the largest region of a mask, in pixels."""
    areas, _ = ndimage.label(mask, np.ones((3, 3)))
    largest = 1 + int(np.argmax(np.bincount(areas.ravel())[1:]))
    rows, columns = np.nonzero(areas == largest)
    return int(max(np.ptp(rows), np.ptp(columns))) + 1


def choose_matching(sizes: list[int], side: float) -> list[int]:
    """Sizes to render: those of the real defects, at most half the image."""
    low, high = np.quantile(sizes, (0.05, 0.95))
    high = min(float(high), side / 2)
    low = min(max(float(low), SMALLEST_DEFECT), high)
    return sorted({round(float(size)) for size in np.geomspace(low, high, SIZES)})


def read_rows(raw: Path) -> list[dict[str, Any]]:
    """The lines of an earlier measurement."""
    return [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()] if raw.exists() else []


def predict_shares(renderings: Renderings, threshold: float, sizes: list[int], kind: str, contrast: int | str) -> float:
    """The share found among rendered defects of a kind and contrast that have the ``sizes`` of real ones."""
    judged = [
        pair
        for pair in renderings.judged(threshold)
        if kind in (ALL, pair[0].kind) and contrast in (ALL, pair[0].contrast)
    ]
    if not judged:
        return math.nan
    fit = rising_fit(by_size(judged, renderings.plan.sizes))
    return float(np.interp(np.log(sizes), np.log(renderings.plan.sizes), fit).mean())


def columns() -> dict[str, tuple[str, int | str]]:
    """What is compared with the real defects: all rendered ones, each kind, and each contrast."""
    groups: dict[str, tuple[str, int | str]] = {f"rendered_{ALL}": (ALL, ALL)}
    groups |= {f"rendered_{kind}": (kind, ALL) for kind in PAINTED_KINDS}
    return groups | {f"rendered_{name}": (ALL, level) for name, level in CONTRASTS.items()}


def compare(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for the part and one for each kind of real defect on it."""
    renderings, threshold = Renderings.from_dict(row["rendered"]), row["threshold"]
    lines = []
    for kind in [ALL, *dict.fromkeys(defect["kind"] for defect in row["real"])]:
        real = [defect for defect in row["real"] if kind in (ALL, defect["kind"])]
        sizes = [defect["size"] for defect in real]
        found = sum(defect["score"] > threshold for defect in real)
        line = {"part": row["part"], "real_kind": kind, "real": len(real), "real_found": found / len(real)}
        line["median_size"] = int(np.median(sizes))
        line |= {name: predict_shares(renderings, threshold, sizes, *group) for name, group in columns().items()}
        lines.append(line)
    return lines


def correlate(lines: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Two lines: rank correlations with the share of real defects found, and mean absolute differences from it.

    The size alone is correlated too: what does not beat it says nothing more.
    """
    for what in ("rank correlation", "mean difference"):
        line: dict[str, Any] = {"part": f"{what} over {name}", "real_kind": "", "real": len(lines), "real_found": ""}
        for column in ("median_size", *columns()):
            pairs = np.array([(other["real_found"], other[column]) for other in lines], float)
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if what == "rank correlation":
                line[column] = float(spearmanr(*pairs.T).statistic)
            else:
                line[column] = "" if column == "median_size" else float(np.abs(pairs[:, 0] - pairs[:, 1]).mean())
        yield line


def summarize(raw: Path) -> None:
    """Write ``results/limits.csv``."""
    rows = read_rows(raw)
    lines = [line for row in rows for line in compare(row)]
    parts = [line for line in lines if line["real_kind"] == ALL]
    kinds = [line for line in lines if line["real_kind"] != ALL and line["real"] >= FEWEST]
    lines += [*correlate(parts, "parts"), *correlate(kinds, "kinds")]
    for row in rows:
        own = [line for line in kinds if line["part"] == row["part"]]
        lines += [*correlate(own, f"kinds of {row['part']}")] if len(own) >= MANY_KINDS else []
    machine = rows[0]["environment"]
    with OUTPUT.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*lines[0], *machine], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in line.items()} | machine)
    print(f"wrote {OUTPUT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "summarize"))
    parser.add_argument("raw", type=Path)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true", help="all images and Config()")
    parser.add_argument("--tokens", type=Path, help="keep features here, so that a second run on a CPU is quick")
    arguments = parser.parse_intermixed_args()
    if arguments.command == "measure":
        measure(arguments)
    else:
        summarize(arguments.raw)


if __name__ == "__main__":
    main()
