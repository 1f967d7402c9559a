"""A run: one folder with the raw scores and maps of every variant and category; metrics are computed from these.

::

    FOLDER/run.json                          dataset, where it is, settings that all variants share, rate and rule of
                                             the threshold
    FOLDER/raw/CATEGORY/VARIANT.npz          scores, patch maps, the test images with kind and mask, the Config;
                                             with verdicts also leave-one-out scores of the training images
    FOLDER/metrics/CATEGORY/VARIANT.json     computed from the raw file; computed again when that is newer
    FOLDER/work/CATEGORY/                    tokens and residuals that variants share; may be deleted at any time

Files are written atomically, so repeating the command continues a run that was killed.
"""

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from procon.config import AUTO, Config, refuse
from procon.errors import ConfigError, ImageError
from procon.evaluation.data.datasets import BENCHMARKS, Category, Dataset, Sample, open_dataset
from procon.evaluation.metrics import MetricValues
from procon.evaluation.runs.raw import Raw, measure_raw
from procon.evaluation.runs.settings import SHARED, THRESHOLD_SETTINGS
from procon.evaluation.runs.sweep import Sweep, VariantScores
from procon.evaluation.runs.tokens import TokenCache
from procon.files import atomic_path, write_text
from procon.progress import Progress
from procon.vision.backbone import Backbone
from procon.vision.shape import resolve_shape


def variant_name(config: Config) -> str:
    """A file name that says how ``config`` differs from the paper's recipe: ``banks=1+coreset_ratio=0.01``."""
    plain = Config()
    parts = []
    for field in fields(Config):
        value = getattr(config, field.name)
        if field.name in (*SHARED, *THRESHOLD_SETTINGS) or value == getattr(plain, field.name):
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        parts.append(f"{field.name}={text}")
    return "+".join(sorted(parts)) or "default"


class Run:
    """A folder of raw results, opened to add to it or to read it."""

    def __init__(self, folder: Path, dataset: Dataset, base: Config, *, verdicts: bool = False) -> None:
        """A run in ``folder``; an existing run is continued if it has the same data and settings.

        With ``verdicts``, training images are scored too, so that the threshold of the model is known.
        """
        refuse(base, "bench")
        self.folder, self.dataset, self.base, self.verdicts = folder, dataset, base, verdicts
        self._loaded: tuple[Config, torch.device, Backbone] | None = None
        shared = {name: base.to_dict()[name] for name in SHARED}
        about = {"dataset": dataset.name, "root": str(dataset.root.resolve()), "settings": shared}
        self._about = json.loads(json.dumps(about))  # with lists in place of tuples, as in the file
        stored = _read_json(folder / "run.json")
        if stored is not None:
            defaults = {name: getattr(Config(), name) for name in SHARED}
            settings = {**defaults, **stored["settings"]}  # a run may be older than a setting
            old, new = {**stored, **settings}, {**self._about, **self._about["settings"]}
            differs = [name for name in ("dataset", "root", *SHARED) if old.get(name) != new[name]]
            if differs:
                there = ", ".join(f"{name} {old.get(name)} instead of {new[name]}" for name in differs)
                raise ConfigError(f"{folder}: holds a run with {there}; choose another output folder")

    @classmethod
    def open_folder(cls, folder: Path) -> "Run":
        """The run that ``folder`` holds, even if its images are gone: the raw results are enough for a report."""
        stored = _read_json(folder / "run.json")
        if stored is None:
            raise ConfigError(f"{folder}: holds no run (no run.json); make one with procon bench or procon reproduce")
        name, root = str(stored["dataset"]), Path(stored["root"])
        try:
            dataset = open_dataset(root, name)
        except ImageError as error:
            dataset = _lost_dataset(folder, name, root, str(error))
        return cls(folder, dataset, Config.from_dict({**stored["settings"], **stored.get("threshold", {})}))

    def use_threshold(self, config: Config) -> None:
        """Compute thresholds at the rate and by the rule of ``config`` from now on; ``run.json`` says so."""
        self.base = replace(self.base, **{name: getattr(config, name) for name in THRESHOLD_SETTINGS})
        self._write_about()

    def _write_about(self) -> None:
        threshold = {name: getattr(self.base, name) for name in THRESHOLD_SETTINGS}
        document = {**self._about, "threshold": threshold}
        if _read_json(self.folder / "run.json") != document:
            write_text(self.folder / "run.json", json.dumps(document, indent=1))

    # ------------------------------------------------------------------------------------------------ raw results

    def raw_path(self, category: str, variant: str) -> Path:
        """Where the raw results of a variant are."""
        return self.folder / "raw" / category / f"{variant}.npz"

    def has(self, category: str, config: Config) -> bool:
        """Whether the raw results are there, with scores of training images if this run has ``verdicts``."""
        path = self.raw_path(category, variant_name(config))
        if not self.verdicts or not path.exists():
            return path.exists()
        with np.load(path, allow_pickle=False) as stored:
            return "good" in stored

    def list_variants(self) -> dict[str, list[str]]:
        """The variants that are there, by category."""
        variants: dict[str, list[str]] = {}
        for path in sorted((self.folder / "raw").glob("*/*.npz")):
            variants.setdefault(path.parent.name, []).append(path.stem)
        return variants

    def write(self, category: str, variant: str, scored: VariantScores, samples: Sequence[Sample], about: Any) -> None:
        """Store raw results; ``about`` needs ``size`` and may hold ``blur_sigma``, ``resize`` and anything JSON."""
        if not (self.folder / "run.json").exists():
            self._write_about()
        root = self.dataset.root
        tests = [[_relative(s.path, root), s.kind, s.mask and _relative(s.mask, root)] for s in samples]
        document = json.dumps({**about, "category": category, "variant": variant, "images": tests})
        path = self.raw_path(category, variant)
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            text = np.frombuffer(document.encode(), np.uint8)
            arrays: dict[str, Any] = {"scores": scored.scores, "maps": scored.maps, "about": text}
            if scored.good is not None:
                arrays["good"] = scored.good
            np.savez(stream, **arrays)

    def load_about(self, category: str, variant: str) -> dict[str, Any]:
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
            good = stored.get("good")
        root = self.dataset.root
        samples = tuple(Sample(root / image, kind, mask and root / mask) for image, kind, mask in about["images"])
        height, width = about["size"]
        size, blur = (height, width), about.get("blur_sigma", 0.0)
        return Raw(scores, maps, samples, size, blur, about.get("resize"), about, good)

    # ------------------------------------------------------------------------------------------------ metrics

    def measure(self, category: str, variant: str) -> MetricValues:
        """The metrics of a variant on a category, from its raw results."""
        raw_path = self.raw_path(category, variant)
        path = self.folder / "metrics" / category / f"{variant}.json"
        stamp = raw_path.stat().st_mtime_ns if raw_path.exists() else None
        stored = _read_json(path)
        if stored is not None and stored["raw"] == stamp:
            values = {name: math.nan if value is None else value for name, value in stored["metrics"].items()}
            return MetricValues(values, stored["reasons"])
        metrics = measure_raw(self.load(category, variant))
        numbers = {name: None if math.isnan(value) else value for name, value in metrics.items()}
        write_text(path, json.dumps({"raw": stamp, "metrics": numbers, "reasons": metrics.reasons}, indent=1))
        return metrics

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
        """Compute the raw results of every variant that has none. All must share the settings of this run."""
        todo = self._todo(category, variants)
        if todo:
            sweep, weights = self._open_sweep(category, todo, device, on_progress)
            images = self.dataset.category(category)
            training = [_relative(path, self.dataset.root) for path in images.train]

            def write_variant(config: Config, scored: VariantScores) -> None:
                settings = {name: value for name, value in config.to_dict().items() if name not in THRESHOLD_SETTINGS}
                about: dict[str, Any] = {"config": settings, "size": config.input_size, "system": "procon"}
                about |= {"blur_sigma": config.blur_sigma, "resize": config.resize, "weights": weights}
                about |= {"training": training} if self.verdicts else {}
                self.write(category, variant_name(config), scored, images.test, about)

            sweep.run(todo.values(), write_variant, on_progress, verdicts=self.verdicts)
        if not keep_work:
            self.delete_work(category)

    def prepare_memories(
        self, category: str, variants: Iterable[Config], device: torch.device, on_progress: Progress
    ) -> list[str]:
        """Put the tokens of a category on disk and name the memories for :meth:`score_memory`."""
        todo = self._todo(category, variants)
        return self._open_sweep(category, todo, device, on_progress)[0].list_memories(todo.values()) if todo else []

    def score_memory(
        self, category: str, variants: Iterable[Config], memory: str, device: torch.device, on_progress: Progress
    ) -> None:
        """Do a part of :meth:`compute`, in any process, after :meth:`prepare_memories`."""
        todo = self._todo(category, variants)
        self._open_sweep(category, todo, device, on_progress)[0].score_memory(todo.values(), memory, on_progress)

    def delete_work(self, category: str) -> None:
        """Delete the tokens and residuals of a category, which no finished variant needs."""
        shutil.rmtree(self._work(category), ignore_errors=True)

    def _work(self, category: str) -> Path:
        return self.folder / "work" / category

    def _todo(self, category: str, variants: Iterable[Config]) -> dict[str, Config]:
        """The variants that have no raw results yet, by name, with the input that the category has."""
        wanted = {variant_name(config): config for config in variants}
        for config in wanted.values():
            refuse(config, "bench")
            if any(getattr(config, name) != getattr(self.base, name) for name in SHARED):
                raise ConfigError(f"variants of a run must share {', '.join(SHARED)}")
        missing = {name: config for name, config in wanted.items() if not self.has(category, config)}
        if not missing or self.base.image_size != AUTO:
            return missing
        size = resolve_shape(self.base, self.dataset.category(category).train).image_size
        return {name: replace(config, image_size=size) for name, config in missing.items()}

    def _open_sweep(
        self, name: str, todo: dict[str, Config], device: torch.device, on_progress: Progress
    ) -> tuple[Sweep, str]:
        """The sweep over a category whose tokens are on disk, and the digest of the weights they came from."""
        category = self.dataset.category(name)
        if not category.train or not category.test:
            raise ConfigError(
                f"{self.dataset.root}: {category.name} has no {'test' if category.train else 'good'} images"
            )
        # One backbone returns every block that any variant uses; it is reused for the next category.
        layers = {layer for config in todo.values() for layer in config.layers}
        base = replace(self.base, image_size=next(iter(todo.values())).image_size)
        config = replace(base, layers=tuple(sorted(layers)))
        if self._loaded is None or self._loaded[:2] != (config, device):
            self._loaded = (config, device, Backbone.load(config, device))
        backbone = self._loaded[2]
        images = [*category.train, *(sample.path for sample in category.test)]
        identity = json.dumps([backbone.sha256, str(device.type), {name: base.to_dict()[name] for name in SHARED}])
        rows, columns = base.grid
        work = self._work(name)
        tokens = TokenCache(work / "tokens", images, rows * columns, backbone.architecture.hidden, identity)
        if tokens.missing(backbone.layers):
            tokens.fill(backbone, base, on_progress)
        sweep = Sweep(work / "residuals", tokens, len(category.train), backbone)
        return sweep, backbone.sha256


def _lost_dataset(folder: Path, name: str, root: Path, message: str) -> Dataset:
    """The dataset of a run whose images are gone; its categories are refused with ``message``."""

    def refuse_category(category: str) -> Category:
        raise ImageError(message)

    title = BENCHMARKS[name].title if name in BENCHMARKS else root.name
    stored = sorted(path.name for path in (folder / "raw").glob("*") if path.is_dir())
    return Dataset(name, title, root, tuple(stored), (), reader=refuse_category)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
