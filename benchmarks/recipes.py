"""The recipes fast, paper and best on real parts: accuracy, verdict, time and bytes; and what else fast could be.

    python benchmarks/recipes.py --data DATA --weights dinov2_vits14_dav2_fp16.safetensors [--device cuda] [PART ...]
    python benchmarks/recipes.py choose

DATA holds the development parts (``mpdd/metal_plate`` ..., ``mvtec/bottle`` ..., ``hazelnut_toy``, ``ksdd2``); PART
names some of them. From a copy without an installed package: ``PYTHONPATH=src python3 benchmarks/recipes.py ...``.
``--candidates`` measures the small recipe that fast has to keep up with, the paper's with one bank of 1 %, and those
from which fast is chosen; ``choose`` reads these rows: which part is left out, and what the others choose for it.
``--images N`` takes N training images, and N/2 good and N/2 defective test images, evenly spaced. Maps are compared
with the masks at the size of the images; verdicts are those of the default threshold. ``cpu_s`` is the processor time
of one image in this process, which other work on the machine changes less than the clock. Writes
``benchmarks/results/recipes.csv``; what is in it is not measured again.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from environment import read_rows, write_rows
from procon import Config, Detector
from procon.config import RECIPES
from procon.evaluation.data.datasets import open_dataset
from procon.model.reader import Extractor, Reader
from procon.vision.backbone import Backbone, resolve_device, used_tensors
from procon.vision.weights import fingerprint
from shapes import judge
from verdicts import PARTS

SMALL: dict[str, Any] = {"banks": 1, "coreset_ratio": 0.01}
REFERENCE = "paper, 1 bank of 1 %"
CANDIDATES: dict[int, tuple[tuple[int, ...], ...]] = {
    336: ((-7, -10), (-6, -10), (-6, -8, -10), (-6, -8, -9), (-5, -8, -10)),
    280: ((-3, -6, -8, -9), (-3, -6, -9), (-3, -7, -10)),
}
"""The layers that are tried with each size of input."""
TIMED = 5  # images that the time of a candidate is measured on: its tokens are shared with the others
COMPARED = ("i_auroc", "p_ap", "aupro")
KEYS = ("part", "recipe", "images")


def recipes(sides: Sequence[int]) -> dict[str, dict[str, Any]]:
    """What is measured, as changes of ``Config()``: candidates of these ``sides``, or the three recipes."""
    if not sides:
        return dict(RECIPES)
    named = {
        f"{side} px, layers {layers}": {**SMALL, "image_size": side, "layers": layers}
        for side in sides
        for layers in CANDIDATES[side]
    }
    return {REFERENCE: SMALL, **named}


def spread(items: Sequence[Any], count: int | None) -> list[Any]:
    """``count`` of the items, evenly spaced; all where there are no more, or no count."""
    if count is None or count >= len(items):
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]


class SharedTokens:
    """The blocks of all candidates of one size, computed once for each image."""

    def __init__(self, config: Config, layers: Iterable[tuple[int, ...]], device: torch.device) -> None:
        names = sorted({layer for several in layers for layer in several})
        self.backbone = Backbone.load(replace(config, layers=tuple(names)), device)
        self._known: dict[bytes, list[torch.Tensor]] = {}

    def tokens(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """Block outputs of images that were seen, or are computed and kept."""
        keys = [hashlib.sha256(image.numpy().tobytes()).digest() for image in pixels]
        for place, key in enumerate(keys):
            if key not in self._known:
                found = self.backbone.tokens(pixels[place : place + 1])
                self._known[key] = [tokens.cpu() for tokens in found]
        images = [self._known[key] for key in keys]
        return [torch.cat(parts).to(self.backbone.device) for parts in zip(*images, strict=True)]


class SharedBackbone(Backbone):
    """The backbone of one candidate: some of the shared blocks."""

    def __init__(self, shared: SharedTokens, config: Config) -> None:
        vars(self).update(vars(shared.backbone))
        every, self.layers = self.layers, config.resolve_layers(self.architecture.depth)
        self._tensors = used_tensors(self._tensors, max(self.layers))
        self.fingerprint = fingerprint(self._tensors)
        self._shared, self._places = shared, [every.index(layer) for layer in self.layers]

    def tokens(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """As :meth:`Backbone.tokens`."""
        found = self._shared.tokens(pixels)
        return [found[place] for place in self._places]


def fit(config: Config, train: Sequence[Path], device: str, shared: SharedTokens | None) -> tuple[Detector, float]:
    """A fitted detector, and the seconds of its fit."""
    detector = Detector(config, device=device)
    if shared is not None:
        detector._reader = Reader(Extractor(SharedBackbone(shared, config), config), config)
    started = time.perf_counter()
    return detector.fit(list(train)), time.perf_counter() - started


def score(detector: Detector, test: Sequence[Any], fit_s: float, timed: int | None) -> tuple[list[Any], dict[str, Any]]:
    """The predictions of the test images, and what they cost; with ``timed`` only so many are timed, on their own."""
    paths = [sample.path for sample in test]
    with tempfile.TemporaryDirectory() as folder:
        path = detector.save(Path(folder) / "part.procon")
        size = path.stat().st_size
        found = [] if timed is None else list(detector.predict_each(paths))
        plain = detector if timed is None else Detector.load(path, device=str(detector.device))
        plain.predict(paths[0])
        started, before = time.perf_counter(), time.process_time()
        alone = list(plain.predict_each(paths[:timed]))
        cpu, clock = time.process_time() - before, time.perf_counter() - started
    costs = {"fit_s": fit_s, "image_s": clock / len(alone), "cpu_s": cpu / len(alone), "file_mb": size / 1e6}
    return found or alone, costs


def choose(rows: list[dict[str, str]]) -> None:
    """For every part the candidate that the other parts choose, and what the part says of it."""
    known: dict[str, dict[str, dict[str, str]]] = {}
    full = [row for row in rows if row["images"] == "0"]
    for row in full or rows:
        known.setdefault(row["recipe"], {})[row["part"]] = row
    reference = known[REFERENCE]
    candidates = [name for name in known if " px, layers " in name and known[name].keys() >= reference.keys()]

    def gain(name: str, part: str) -> dict[str, float]:
        return {metric: float(known[name][part][metric]) - float(reference[part][metric]) for metric in COMPARED}

    def speed(name: str, parts: Sequence[str]) -> float:
        return statistics.fmean(float(reference[part]["cpu_s"]) / float(known[name][part]["cpu_s"]) for part in parts)

    def pick(parts: Sequence[str]) -> str | None:
        fast = [name for name in candidates if speed(name, parts) >= 2]
        return max(
            fast,
            key=lambda name: statistics.fmean(v for part in parts for v in gain(name, part).values()),
            default=None,
        )

    parts = sorted(reference)
    for name in candidates:
        means = {metric: statistics.fmean(gain(name, part)[metric] for part in parts) for metric in COMPARED}
        print(
            f"{name:32} {speed(name, parts):.2f} times as fast", {key: round(value, 2) for key, value in means.items()}
        )
    for part in parts:
        name = pick([other for other in parts if other != part])
        print(f"without {part}: {name}", {} if name is None else {k: round(v, 2) for k, v in gain(name, part).items()})
    print(f"on all: {pick(parts)}")


def main() -> None:
    if sys.argv[1:] == ["choose"]:
        choose(read_rows("recipes"))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--candidates", action="store_true", help="measure what fast is chosen from")
    parser.add_argument("--images", type=int, help="training images and test images of a part; default: all")
    parser.add_argument("--sides", type=int, nargs="+", default=list(CANDIDATES), help="input sizes of the candidates")
    arguments = parser.parse_args()
    waiting: list[tuple[dict[str, Any], Future[dict[str, Any]]]] = []

    def store() -> None:
        about, judged = waiting.pop(0)
        row = {**about, **judged.result()}
        print(row, flush=True)
        write_rows("recipes", [*read_rows("recipes"), row])

    with ThreadPoolExecutor(1) as pool:  # metrics of one recipe are computed while the next is fitted
        for part in arguments.parts or PARTS:
            dataset = open_dataset(arguments.data / part)
            category = dataset.category(dataset.categories[0])
            train, test = spread(category.train, arguments.images), list(category.test)
            if arguments.images is not None:
                kinds = [[sample for sample in test if sample.defective == bad] for bad in (False, True)]
                test = [sample for kind in kinds for sample in spread(kind, arguments.images // 2)]
            shared: dict[int, SharedTokens] = {}
            for name, settings in recipes(arguments.sides if arguments.candidates else ()).items():
                config = Config(backbone="dinov2-small", weights=arguments.weights, **settings)
                row = {"part": part, "recipe": name, "images": str(arguments.images or 0)}
                if any(all(old[key] == row[key] for key in KEYS) for old in read_rows("recipes")):
                    continue
                side = config.input_size[0] if arguments.candidates else 0
                if side and side not in shared:
                    shared = {
                        side: SharedTokens(
                            config, CANDIDATES.get(side, (Config.layers,)), resolve_device(arguments.device)
                        )
                    }
                detector, seconds = fit(config, train, arguments.device, shared.get(side))
                while waiting:  # before anything is timed
                    store()
                found, costs = score(detector, test, seconds, TIMED if arguments.candidates else None)
                about = {
                    "part": part,
                    "recipe": name,
                    "images": arguments.images or 0,
                    "train": len(train),
                    "test": len(test),
                }
                waiting.append((about, pool.submit(judge, test, found, costs)))
        while waiting:
            store()


if __name__ == "__main__":
    main()
