"""From files to verdicts: images a second, a fit, one frame, and where the time goes.

    python benchmarks/throughput.py --weights FILE --good DIR [--before SRC] [--images 1000] [--side 1024] [--out CSV]

The good images of a folder are enlarged to ``--side`` pixels, and defects are painted on half of them, so that regions
and pictures cost what they cost. ``--before`` is the source folder of an earlier version: its rows are measured in the
same run, by the same script in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from environment import environment, write_rows

RECIPES = ("Config()", "Config.best()")
Rows = Iterator[dict[str, Any]]


def make_images(good: Path, out: Path, side: int, count: int, *, defects: bool) -> None:
    """JPEG files of ``side`` pixels made from the images in ``good``, each with a little noise of its own."""
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(path for path in good.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    with ProcessPoolExecutor() as pool:
        work = ((sources[n % len(sources)], out / f"{n:05}.jpg", side, n, defects and n % 2 == 1) for n in range(count))
        list(pool.map(make_image, *zip(*work, strict=True), chunksize=8))


def make_image(source: Path, path: Path, side: int, number: int, defect: bool) -> None:
    """One of them."""
    random = np.random.default_rng(number)
    pixels = np.asarray(Image.open(source).convert("RGB").resize((side, side))).astype(np.int16)
    pixels += random.integers(-4, 5, (side, side, 1), dtype=np.int16)
    if defect:
        y, x = random.integers(side // 4, side // 2, 2)
        pixels[y : y + side // 20, x : x + side // 8] = random.integers(0, 256, 3)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the work is done, on the device too."""
    begin = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def resident() -> float:
    """MiB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(
    recipe: str, arguments: argparse.Namespace, train: list[Path], test: list[Path]
) -> Iterator[dict[str, Any]]:
    """The rows of one recipe."""
    from procon import Config, Detector
    from procon.results.inspection import inspect

    start = Config() if recipe == "Config()" else Config.best()
    settings: dict[str, Any] = {"backbone": arguments.backbone, "weights": arguments.weights}
    config = Config(**{**start.to_dict(), **settings})
    device = arguments.device

    def row(what: str, value: float, unit: str, note: str = "") -> dict[str, Any]:
        print(f"{arguments.label:7} {recipe:14} {what:42} {value:10.4g} {unit:9} {note}", flush=True)
        return {"version": arguments.label, "recipe": recipe, "measure": what, "value": round(value, 4), "unit": unit,
                "note": note}  # fmt: skip

    stages: dict[str, float] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        stages[stage] = time.perf_counter()

    first, detector = timed(lambda: Detector(config, device=device).fit(train[:8]))
    yield row("first fit of 8 images in the process", first, "s", "compiling and loading")
    detector = Detector(config, device=device)
    detector.reader  # noqa: B018 - weights are loaded before the clock starts
    begin = time.perf_counter()
    seconds, _ = timed(lambda: detector.fit(train, progress=on_progress))
    yield row(f"fit of {len(train)} images", seconds, "s")
    for stage, end in stages.items():
        yield row(f"fit: {stage}", end - begin, "s", "of the fit")
        begin = end
    list(detector.predict_each(test[:130]))
    before = resident()
    seconds, results = timed(lambda: [(r.score, r.is_anomalous, r.regions) for r in detector.predict_each(test)])  # type: ignore[union-attr]
    flagged = sum(bool(result[1]) for result in results)
    yield row("files to verdicts and regions", len(test) / seconds, "images/s", f"{flagged} of {len(test)} flagged")
    yield row("resident memory after it", resident(), "MiB", f"{before:.0f} before")
    named = [(path.name, path) for path in test[: arguments.pictures]]
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = timed(lambda: inspect(detector, named, Path(folder)))
    yield row("files to overlays and page", len(named) / seconds, "images/s")
    frames = [np.asarray(Image.open(path)) for path in test[:40]]
    for frame in frames[:5]:
        detector.predict(frame)
    times = [timed(lambda frame=frame: detector.predict(frame))[0] for frame in frames * arguments.frames]  # type: ignore[misc]
    times.sort()
    yield row("a decoded frame to its verdict, median", 1000 * statistics.median(times), "ms")
    yield row("a decoded frame to its verdict, p99", 1000 * times[int(0.99 * len(times))], "ms", f"{len(times)} frames")
    yield from stage_rows(detector, test, row)


def stage_rows(detector: Any, test: list[Path], row: Callable[..., dict[str, Any]]) -> Rows:
    """What each stage costs alone, per image, one stage after the other, for a group as predict forms it."""
    try:
        from procon.model.verdict import make_prediction
        from procon.vision.images import open_image

        scorer = detector.scorer
        group = test[: scorer.group_size]
        read, pictures = timed(lambda: [open_image(path) for path in group])
        handed, inputs = timed(lambda: [scorer.prepare(picture) for picture in pictures])
        for _ in range(2):
            times = device_stages(detector, inputs)
        measured = scorer.measure(inputs, pictures[0].size)
        judged, _ = timed(lambda: [make_prediction(scorer, *pair) for pair in zip(pictures, measured, strict=True)])
    except (AttributeError, ImportError):  # an earlier version has other functions
        return
    yield row("stage: decode", 1000 * read / len(group), "ms/image", "one thread")
    for name, seconds in {"hand over": handed, **times, "verdict and regions": judged}.items():
        yield row(f"stage: {name}", 1000 * seconds / len(group), "ms/image")


def device_stages(detector: Any, inputs: list[torch.Tensor]) -> dict[str, float]:
    """Seconds of the stages on the device."""
    from procon.method.score import fuse, read_layers
    from procon.model.scorer import _measurements

    scorer, memory, config = detector.scorer, detector.memory, detector.config
    with torch.inference_mode():
        resize, pixels = timed(lambda: scorer.reader.extractor.stack(inputs))
        backbone, features = timed(lambda: scorer.reader.extractor.features(pixels))
        search, reading = timed(lambda: fuse(read_layers(features, memory, config), memory, config))
        maps, parts = timed(lambda: scorer._summarize(reading, None))
        fetch, _ = timed(lambda: _measurements(parts))
    return {"resize": resize, "backbone": backbone, "search": search, "map": maps, "fetch": fetch}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="dinov2-small")
    parser.add_argument("--good", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--train", type=int, default=400)
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--made", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = arguments.made or Path(folder)
        if arguments.made is None:
            make_images(arguments.good, made / "train", arguments.side, arguments.train, defects=False)
            make_images(arguments.good, made / "test", arguments.side, arguments.images, defects=True)
        rows: list[dict[str, Any]] = []
        if arguments.before is not None:
            rows += run_before(arguments, made)
        train, test = (sorted((made / name).iterdir()) for name in ("train", "test"))
        for recipe in arguments.recipes:
            rows += measure(recipe, arguments, train, test)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([{**row, **environment()} for row in rows]))
    else:
        print(f"wrote {write_rows('throughput', rows)}")
    return 0


def run_before(arguments: argparse.Namespace, made: Path) -> list[dict[str, Any]]:
    """The rows of an earlier version, whose sources are in ``--before``."""
    out = made / "before.json"
    command = [sys.executable, __file__, "--label", "before", "--made", str(made), "--out", str(out)]
    for name in ("weights", "backbone", "good", "images", "train", "pictures", "frames", "side", "device"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command += ["--recipes", *arguments.recipes]
    path = os.pathsep.join([str(arguments.before), str(Path(__file__).parent)])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


if __name__ == "__main__":
    sys.exit(main())
