"""A run: raw scores and maps of every variant and category in one folder, from which all metrics are computed later.

::

    FOLDER/run.json                          dataset, where it is, settings that all variants share
    FOLDER/raw/CATEGORY/VARIANT.npz          scores, patch maps, the test images with kind and mask, the whole Config
    FOLDER/metrics/CATEGORY/VARIANT.json     computed from the raw file; made again when that is newer
    FOLDER/work/CATEGORY/                    tokens and residuals that variants share; may be deleted at any time

Files are written atomically, so a run that was killed goes on where it stood when the command is repeated.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from procon.arrays import Floats
from procon.config import Config, refuse
from procon.errors import ConfigError
from procon.evaluation.data.datasets import Dataset, Sample, open_dataset, read_mask
from procon.evaluation.metrics import MetricValues, evaluate
from procon.evaluation.runs.sweep import Sweep, VariantScores
from procon.evaluation.runs.tokens import TokenCache
from procon.files import atomic_path, atomic_text
from procon.method.maps import pixel_map
from procon.progress import Progress
from procon.vision.backbone import Backbone
from procon.vision.images import crop_origin

SHARED = ("backbone", "weights", "image_size", "resize", "aspect", "tile", "precision")
"""Settings that all variants of a run share; the others tell its variants apart."""

_AT_ONCE = 2**29  # bytes of pixel maps that are made once and held

T = TypeVar("T")


def variant_name(config: Config) -> str:
    """A file name that says how ``config`` differs from the paper's recipe: ``banks=1+coreset_ratio=0.01``."""
    plain = Config()
    parts = []
    for field in fields(Config):
        value = getattr(config, field.name)
        if field.name in (*SHARED, "false_alarm_rate") or value == getattr(plain, field.name):
            continue
        text = ",".join(str(one) for one in value) if isinstance(value, tuple) else str(value)
        parts.append(f"{field.name}={text}")
    return "+".join(sorted(parts)) or "default"


@dataclass(frozen=True)
class Raw:
    """Scores and maps of one variant on one category, as stored."""

    scores: Floats
    """[N]"""
    maps: Floats
    """[N, rows, columns] patch scores, or pixels where whoever wrote them had no patches."""
    samples: tuple[Sample, ...]
    size: tuple[int, int]
    """(height, width) of the pixel maps."""
    blur_sigma: float
    resize: int | None
    about: dict[str, Any]
    """Everything else that was recorded: the Config, times, the system's name."""

    @property
    def labels(self) -> list[bool]:
        """Whether each image is defective."""
        return [sample.defective for sample in self.samples]

    def pixel_map(self, index: int) -> Floats:
        """The map of one image in pixels of the input, [height, width]."""
        stored: Floats = self.maps[index]
        if stored.shape == self.size:
            return stored
        made: Floats = pixel_map(torch.from_numpy(stored).unsqueeze(0), self.size, self.blur_sigma)[0].numpy()
        return made

    def mask(self, index: int) -> NDArray[np.bool_] | None:
        """Ground truth of one image at the size of its map; None for a good image."""
        path = self.samples[index].mask
        if path is None:
            return None
        if self.resize is None:
            return read_mask(path, self.size)
        top, left = crop_origin(self.size, self.resize)
        whole = read_mask(path, (self.resize, self.resize))
        return whole[top : top + self.size[0], left : left + self.size[1]]

    def known_pixels(self) -> tuple[list[int], Sequence[Floats], Sequence[NDArray[np.bool_] | None]]:
        """The images whose ground truth is known per pixel, with their maps and masks (None: good).

        Small sets are held in memory, because they are read several times; large ones are made when asked for.
        """
        known = [i for i, sample in enumerate(self.samples) if sample.mask is not None or not sample.defective]
        maps: Sequence[Floats] = Lazy(len(known), lambda i: self.pixel_map(known[i]))
        masks: Sequence[NDArray[np.bool_] | None] = Lazy(len(known), lambda i: self.mask(known[i]))
        if 4 * len(known) * self.size[0] * self.size[1] <= _AT_ONCE:
            maps, masks = list(maps), list(masks)
        return known, maps, masks


class Lazy(Sequence[T]):
    """A sequence whose items are made each time they are asked for."""

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._make(range(self._length)[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._length))


class Run:
    """A folder of raw results; opened by a command that adds to it, or by one that only reads."""

    def __init__(self, folder: Path, dataset: Dataset, base: Config) -> None:
        """A run in ``folder``; an existing run is continued if it has the same data and settings."""
        refuse(base, "bench")
        self.folder, self.dataset, self.base = folder, dataset, base
        shared = {name: base.to_dict()[name] for name in SHARED}
        self._about = json.loads(
            json.dumps({"dataset": dataset.name, "root": str(dataset.root.resolve()), "settings": shared})
        )
        known = _read_json(folder / "run.json")
        if known is not None:
            flat, wanted = ({**one, **one["settings"]} for one in (known, self._about))
            differs = [name for name in ("dataset", "root", *SHARED) if flat.get(name) != wanted[name]]
            if differs:
                there = ", ".join(f"{name} {flat.get(name)} instead of {wanted[name]}" for name in differs)
                raise ConfigError(f"{folder}: holds a run with {there}; choose another output folder")

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """The run that ``folder`` holds."""
        known = _read_json(folder / "run.json")
        if known is None:
            raise ConfigError(f"{folder}: holds no run (no run.json); make one with procon bench or procon reproduce")
        root = Path(known["root"])
        return cls(folder, open_dataset(root, known["dataset"]), Config.from_dict(known["settings"]))

    # ------------------------------------------------------------------------------------------------ raw results

    def raw_path(self, category: str, variant: str) -> Path:
        """Where the raw results of a variant are."""
        return self.folder / "raw" / category / f"{variant}.npz"

    def has(self, category: str, config: Config) -> bool:
        """Whether the raw results are there."""
        return self.raw_path(category, variant_name(config)).exists()

    def stored(self) -> dict[str, list[str]]:
        """The variants that are there, by category."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.folder / "raw").glob("*/*.npz")):
            found.setdefault(path.parent.name, []).append(path.stem)
        return found

    def write(self, category: str, variant: str, scored: VariantScores, samples: Sequence[Sample], about: Any) -> None:
        """Store raw results; ``about`` needs ``size`` and may hold ``blur_sigma``, ``resize`` and anything JSON."""
        if not (self.folder / "run.json").exists():
            with atomic_text(self.folder / "run.json") as stream:
                json.dump(self._about, stream, indent=1)
        root = self.dataset.root
        tests = [[_relative(s.path, root), s.kind, s.mask and _relative(s.mask, root)] for s in samples]
        document = json.dumps({**about, "category": category, "variant": variant, "images": tests})
        path = self.raw_path(category, variant)
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            text = np.frombuffer(document.encode(), np.uint8)
            np.savez(stream, scores=scored.scores, maps=scored.maps, about=text)

    def about(self, category: str, variant: str) -> dict[str, Any]:
        """What was recorded with raw results, without reading them."""
        with np.load(self.raw_path(category, variant), allow_pickle=False) as stored:
            document: dict[str, Any] = json.loads(bytes(stored["about"]))
        return document

    def load(self, category: str, variant: str) -> Raw:
        """The raw results of a variant."""
        path = self.raw_path(category, variant)
        if not path.exists():
            raise ConfigError(f"{self.folder}: has no results of {variant} on {category}")
        with np.load(path, allow_pickle=False) as stored:
            about = json.loads(bytes(stored["about"]))
            scores, maps = stored["scores"], stored["maps"]
        root = self.dataset.root
        samples = tuple(
            Sample(root / image, kind, root / mask if mask else None) for image, kind, mask in about["images"]
        )
        blur, resize = about.get("blur_sigma", 0.0), about.get("resize")
        return Raw(scores, maps, samples, (about["size"][0], about["size"][1]), blur, resize, about)

    # ------------------------------------------------------------------------------------------------ metrics

    def measure(self, category: str, variant: str) -> MetricValues:
        """The metrics of a variant on a category, from its raw results."""
        raw_path = self.raw_path(category, variant)
        path = self.folder / "metrics" / category / f"{variant}.json"
        stamp = raw_path.stat().st_mtime_ns if raw_path.exists() else None
        known = _read_json(path)
        if known is not None and known["raw"] == stamp:
            values = {name: float("nan") if value is None else value for name, value in known["metrics"].items()}
            return MetricValues(values, known["reasons"])
        found = measure(self.load(category, variant))
        values = {name: None if np.isnan(value) else value for name, value in found.items()}
        with atomic_text(path) as stream:
            json.dump({"raw": stamp, "metrics": values, "reasons": found.reasons}, stream, indent=1)
        return found

    # ------------------------------------------------------------------------------------------------ work

    def compute(
        self,
        category: str,
        variants: Iterable[Config],
        device: torch.device,
        on_progress: Progress,
        *,
        keep_work: bool = False,
    ) -> None:
        """Make the raw results of every variant that is not there yet. All must share the settings of this run."""
        todo = self._todo(category, variants)
        if todo:
            sweep, weights = self._sweep(category, todo, device, on_progress)
            samples = self.dataset.category(category).test

            def done(config: Config, scored: VariantScores) -> None:
                about: dict[str, Any] = {"config": config.to_dict(), "size": config.input_size, "system": "procon"}
                about |= {"blur_sigma": config.blur_sigma, "resize": config.resize, "weights": weights}
                self.write(category, variant_name(config), scored, samples, about)

            sweep.run(todo.values(), done, on_progress)
        if not keep_work:
            shutil.rmtree(self._work(category), ignore_errors=True)

    def prepare(
        self, category: str, variants: Iterable[Config], device: torch.device, on_progress: Progress
    ) -> list[str]:
        """Put the tokens of a category on disk and name the memories for :meth:`read_memory`."""
        todo = self._todo(category, variants)
        return self._sweep(category, todo, device, on_progress)[0].memories(todo.values()) if todo else []

    def read_memory(
        self, category: str, variants: Iterable[Config], memory: str, device: torch.device, on_progress: Progress
    ) -> None:
        """A part of :meth:`compute` that can be done apart, also by another process, after :meth:`prepare`."""
        todo = self._todo(category, variants)
        self._sweep(category, todo, device, on_progress)[0].read(todo.values(), memory, on_progress)

    def _work(self, category: str) -> Path:
        return self.folder / "work" / category

    def _todo(self, category: str, variants: Iterable[Config]) -> dict[str, Config]:
        """The variants that have no raw results yet, by name."""
        wanted = {variant_name(config): config for config in variants}
        for config in wanted.values():
            refuse(config, "bench")
            if any(getattr(config, name) != getattr(self.base, name) for name in SHARED):
                raise ConfigError(f"variants of a run must share {', '.join(SHARED)}")
        return {name: config for name, config in wanted.items() if not self.has(category, config)}

    def _sweep(
        self, name: str, todo: dict[str, Config], device: torch.device, on_progress: Progress
    ) -> tuple[Sweep, str]:
        """The sweep over a category whose tokens are on disk, and the digest of the weights they came from."""
        category = self.dataset.category(name)
        if not category.train or not category.test:
            raise ConfigError(
                f"{self.dataset.root}: {category.name} has no {'test' if category.train else 'good'} images"
            )
        images = [*category.train, *(sample.path for sample in category.test)]
        backbone, blocks = self._backbone(todo.values(), device)
        identity = json.dumps([backbone.sha256, str(device.type), {name: self.base.to_dict()[name] for name in SHARED}])
        rows, columns = self.base.grid
        work = self._work(name)
        tokens = TokenCache(work / "tokens", images, rows * columns, backbone.architecture.hidden, identity)
        if tokens.missing(blocks):
            tokens.fill(backbone, self.base, lambda done, total: on_progress("reading images", done, total))
        sweep = Sweep(work / "residuals", tokens, len(category.train), backbone.architecture, device)
        return sweep, backbone.sha256

    def _backbone(self, variants: Iterable[Config], device: torch.device) -> tuple[Backbone, tuple[int, ...]]:
        """One backbone that gives every block any variant reads; kept for the next category."""
        layers = sorted({layer for config in variants for layer in config.layers})
        config = replace(self.base, layers=tuple(layers))
        known: tuple[Config, torch.device, Backbone] | None = getattr(self, "_loaded", None)
        if known is None or known[:2] != (config, device):
            self._loaded = known = (config, device, Backbone.load(config, device))
        return known[2], known[2].layers


def measure(raw: Raw) -> MetricValues:
    """All metrics of raw results; images whose defect has no mask count for the image metrics alone."""
    known, maps, masks = raw.known_pixels()
    image = evaluate(raw.scores, np.array(raw.labels))
    pixel = evaluate(raw.scores[known], np.array(raw.labels)[known], maps, masks)
    values = {name: image[name] if name.startswith("i_") else pixel[name] for name in image}
    reasons = {name: why for part in (image, pixel) for name, why in part.reasons.items() if np.isnan(values[name])}
    return MetricValues(values, reasons)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
