"""Speed, memory and exactness of the metrics. Writes ``benchmarks/results/metrics.csv``.

    python benchmarks/metrics.py [--quick]

500 million pixels: 3,254 maps of 392 x 392, made one by one when they are asked for, with about 1 % marked pixels.
Exactness: on a few of these maps, against scikit-learn and against a curve over every pixel. anomalib's AUPRO: on 128
of them, from the file that ``peers/aupro.py`` wrote.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from environment import write_rows
from peers.aupro import digest, image, stack
from procon.evaluation.metrics import evaluate

PEER = Path(__file__).parent / "peers" / "aupro-cpu.json"
MAPS, MEMORY = 3_254, (1 << 28, 1 << 30)


class Made:
    """Maps (part 0) or masks (part 1), made each time they are asked for."""

    def __init__(self, part: int, count: int) -> None:
        self.part, self.count = part, count

    def __iter__(self) -> Iterator[Any]:
        return (image(number)[self.part] for number in range(self.count))


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Timed:
    """Seconds on the clock, and of all threads on the processor, which other work on the machine hardly changes."""

    def __enter__(self) -> "Timed":
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.processor = time.perf_counter() - self._begin[0], time.process_time() - self._begin[1]


def row(what: str, settings: str, seconds: float, processor: float, note: str, peak: str = "") -> dict[str, Any]:
    """One line of the file; the load is that of the last minute, on all cores together."""
    result = {"measure": what, "settings": settings, "seconds": f"{seconds:.4g}", "processor_s": f"{processor:.4g}"}
    result |= {"peak_gib": peak, "note": note, "load": f"{os.getloadavg()[0]:.2f}"}
    print("  ".join(result.values()), flush=True)
    return result


def large_rows(count: int) -> list[dict[str, Any]]:
    """Everything at once, with less memory first because a process only knows its largest peak."""
    marked = pixels = 0
    with Timed() as making:
        for number in range(count):
            values, mask = image(number)
            pixels += values.size
            marked += 0 if mask is None else int(mask.sum())
    settings = f"{count} maps, {pixels / 1e6:.0f} million pixels, {marked / pixels:.2%} marked"
    before = peak_gib()
    labels = np.arange(count) % 2
    rows, first = [], None
    for memory in MEMORY:
        with Timed() as timed:
            found = evaluate(labels, labels, Made(0, count), Made(1, count), memory=memory)
        same = "" if first is None else "; the same to the last bit" if found == first else "; DIFFERENT"
        first = first or found
        note = f"of which making the maps {making.processor:.0f} s a pass; peak before {before:.2f} GiB; "
        note += f"AUPRO {found['aupro']:.6f}{same}"
        where = f"{settings}, memory {memory >> 20} MiB"
        rows.append(row("all nine metrics", where, timed.seconds, timed.processor, note, f"{peak_gib():.2f}"))
    return rows


def plain_pro(maps: NDArray[np.float32], masks: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rate of false positives and mean share of the regions at every distinct value, from all pixels at once."""
    weights, regions = np.zeros(maps.shape), 0
    for weight, mask in zip(weights, masks, strict=True):
        labels, count = ndimage.label(mask, np.ones((3, 3)))
        weight[mask] = (1 / np.bincount(labels.ravel()))[labels[mask]]
        regions += count
    order = np.argsort(-maps.ravel(), kind="stable")
    values = maps.ravel()[order]
    last = np.append(values[1:] != values[:-1], True)
    false, covered = (~masks).ravel()[order].cumsum()[last], weights.ravel()[order].cumsum()[last]
    return np.append(0, false / false[-1]), np.append(0, covered / regions)


def exact_rows(count: int) -> list[dict[str, Any]]:
    """The largest difference from scikit-learn and from curves over every pixel."""
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

    def to_limit(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        inside = x <= 0.3
        x, y = np.append(x[inside], 0.3), np.append(y[inside], np.interp(0.3, x, y))
        return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 0.6)

    maps, masks = stack(count)
    rows = []
    for what, ties in (("as they are", maps), ("rounded to two digits", maps.round(2))):
        with Timed() as timed:
            found = evaluate(np.zeros(count), np.arange(count) % 2, ties, masks)
        values, truth = ties.ravel(), masks.ravel()
        precision, recall, _ = precision_recall_curve(truth, values)
        rate, hits, _ = roc_curve(truth, values, drop_intermediate=False)
        expected = {
            "p_auroc": roc_auc_score(truth, values),
            "p_ap": average_precision_score(truth, values),
            "p_f1": (2 * precision * recall / np.maximum(precision + recall, 1e-300)).max(),
            "pauroc30": to_limit(rate, hits),
            "aupro": to_limit(*plain_pro(ties, masks)),
        }
        worst = max(abs(found[key] - value) for key, value in expected.items())
        note = f"largest difference of {', '.join(expected)} from scikit-learn and the whole curve: {worst:.1e}"
        settings = f"{count} maps {what}, {ties.size / 1e6:.1f} million pixels"
        rows.append(row("exactness", settings, timed.seconds, timed.processor, note))
    return rows


def peer_rows(count: int, rounds: int) -> list[dict[str, Any]]:
    """All nine metrics of ours beside anomalib's AUPRO alone, maps in memory."""
    maps, masks = stack(count)
    times, worked = [], []
    for _ in range(rounds):
        with Timed() as timed:
            found = evaluate(np.zeros(count), np.arange(count) % 2, maps, masks)
        times.append(timed.seconds)
        worked.append(timed.processor)
    ours, our_work = statistics.median(times), statistics.median(worked)
    settings = f"{count} maps, {maps.size / 1e6:.1f} million pixels"
    spread = f"median of {rounds}, {min(times):.2f} to {max(times):.2f} s"
    rows = [row("all nine metrics, ours", settings, ours, our_work, f"{spread}; AUPRO {found['aupro']:.8f}")]
    peer = json.loads(PEER.read_text()) if PEER.exists() else {}
    if peer.get("digest") == digest(maps, masks):
        theirs, their_work = (float(peer[key]["median"]) for key in ("seconds", "processor_seconds"))
        note = f"{their_work / our_work:.1f} times ours in processor time, {theirs / ours:.1f} on the clock; median of "
        note += f"{len(peer['seconds']['all'])}, own environment, load {peer['load_1min_before']} to "
        note += (
            f"{peer['load_1min_after']}; AUPRO {peer['aupro']:.8f}, {abs(peer['aupro'] - found['aupro']):.1e} from ours"
        )
        rows.append(row(f"AUPRO alone, anomalib {peer['anomalib']}", settings, theirs, their_work, note))
    else:
        print(f"{PEER.name} is missing or of other maps: see benchmarks/peers/README.md", file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few maps, seconds in all; writes nothing")
    quick = parser.parse_args().quick
    rows = peer_rows(16 if quick else 128, 2 if quick else 7)  # first: run it right after the peer's, under its load
    rows += large_rows(60 if quick else MAPS)
    rows += exact_rows(6 if quick else 40)  # last: scikit-learn's copies would raise the peak
    if not quick:
        print(f"wrote {write_rows('metrics', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
