"""Which variants of a run are shown, in which order, under which names; and a run whose images are gone."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from procon.config import Config
from procon.errors import ConfigError, ImageError
from procon.evaluation.data.datasets import BENCHMARKS, Category, Dataset
from procon.evaluation.metrics import PIXEL_KEYS, MetricValues, evaluate
from procon.evaluation.paper.tables import build_table, spm
from procon.evaluation.runs.raw import SHARED, Run, variant_name

SHOWN = 4
"""At most so many variants of ours have pictures and curves; all are in the tables."""

HARD, SPM, PROCON = "Hard NN", "SPM", "ProCon"


def open_run(folder: Path) -> Run:
    """The run in ``folder``, also where its images are gone: the raw results are enough to read it."""
    try:
        return Run.open_folder(folder)
    except ImageError as error:
        gone = str(error)
    known = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    name, root = str(known["dataset"]), Path(known["root"])

    def reader(category: str) -> Category:
        raise ImageError(gone)

    title = BENCHMARKS[name].title if name in BENCHMARKS else root.name
    stored = sorted(path.name for path in (folder / "raw").glob("*") if path.is_dir())
    dataset = Dataset(name, title, root, tuple(stored), (), reader=reader)
    return Run(folder, dataset, Config.from_dict(known["settings"]))


def choose_stored(run: Run, wanted: Sequence[str] | None) -> list[str]:
    """The categories asked for, among those with results; all of these by default."""
    stored = list(run.stored())
    unknown = [name for name in wanted or () if name not in stored]
    if unknown or not stored:
        have = f"results of {', '.join(stored)}" if stored else "no results yet"
        raise ConfigError(f"{run.folder}: has {have}" + (f", none of {', '.join(unknown)}" if unknown else ""))
    return [name for name in stored if not wanted or name in wanted]


def measured(run: Run, category: str, variant: str) -> MetricValues:
    """The metrics of a variant; where masks are needed and gone, those over images alone."""
    try:
        return run.measure(category, variant)
    except ImageError:
        raw = run.load(category, variant)
    metrics = evaluate(raw.scores, raw.labels)
    metrics.reasons |= dict.fromkeys(PIXEL_KEYS, "a mask cannot be read")
    return metrics


def columns_of(run: Run, point: Mapping[str, Any]) -> dict[str, str]:
    """The three memories that the paper's qualitative figures compare at an operating point: title -> variant."""
    settings = {
        HARD: spm(**{**point, "readout": "hard", "banks": 1}),
        SPM: spm(**point),
        PROCON: dict(point),
    }
    return {title: variant_name(replace(run.base, **changes)) for title, changes in settings.items()}


def operating_points(run: Run) -> list[dict[str, Any]]:
    """Coreset ratio and banks of the paper's results on this dataset, then of its studies."""
    points = [{"coreset_ratio": ratio, "banks": 5} for ratio in (0.01, 0.05, 0.1)]
    points += [{"coreset_ratio": 0.01, "banks": 1}]
    return [dict(build_table("per-category", run.dataset.name).rows[0].settings), *points]


def paper_columns(run: Run, categories: Sequence[str]) -> dict[str, str]:
    """Hard NN, SPM and ProCon at the operating point of which most is stored for ``categories``; only what is there."""
    stored = run.stored()

    def there(columns: Mapping[str, str]) -> dict[str, str]:
        return {
            title: variant
            for title, variant in columns.items()
            if any(variant in stored.get(category, ()) for category in categories)
        }

    found = [there(columns_of(run, point)) for point in operating_points(run)]
    return max(found, key=len)  # the first of equals


def main_variant(run: Run, wanted: str | None = None) -> str:
    """The variant that is shown first: the one asked for, or the paper's recipe, or the first that is there."""
    stored = run.stored()
    names = sorted({variant for variants in stored.values() for variant in variants})
    if not names:
        raise ConfigError(f"{run.folder}: holds no results yet; make some with procon bench or procon reproduce")
    if wanted is not None:
        if wanted not in names:
            raise ConfigError(f"{run.folder}: variant must be one of {', '.join(names)}, got {wanted!r}")
        return wanted
    recipes = [columns_of(run, point)[PROCON] for point in operating_points(run)]
    return next((recipe for recipe in recipes if recipe in names), names[0])


def featured(run: Run, wanted: str | None = None) -> dict[str, str]:
    """The variants with pictures and curves, the main one first: variant -> title.

    At most :data:`SHOWN` of ours, and all that other systems wrote.
    """
    stored, others = run.stored(), other_systems(run)
    names = sorted({variant for variants in stored.values() for variant in variants} - others.keys())
    order = [main_variant(run, wanted), *reversed(paper_columns(run, list(stored)).values())]
    if len(names) <= SHOWN:
        order += names
    known = known_titles(run)
    chosen = dict.fromkeys([*list(dict.fromkeys(order))[:SHOWN], *others])
    return {variant: title_of(variant, known) for variant in chosen}


def known_titles(run: Run) -> dict[str, str]:
    """Variants with a name of their own: ``ProCon (1 %, B = 5)``, and results that another system wrote."""
    titles = other_systems(run)
    for point in operating_points(run):
        for title, variant in columns_of(run, point).items():
            banks = 1 if title == HARD else point["banks"]
            titles[variant] = f"{title} ({100 * point['coreset_ratio']:g} %, B = {banks})"
    return titles


def other_systems(run: Run) -> dict[str, str]:
    """Results that another system wrote into the run: variant -> its name, with its backbone if two have that name."""
    stored = {variant: category for category, variants in run.stored().items() for variant in variants}
    found = {variant: run.about(category, variant) for variant, category in sorted(stored.items())}
    named = {variant: str(about.get("system", "procon")) for variant, about in found.items()}
    shared = {name for name, count in Counter(named.values()).items() if count > 1}
    return {
        variant: f"{system} on {found[variant].get('backbone', variant)}" if system in shared else system
        for variant, system in named.items()
        if system != "procon"
    }


def title_of(variant: str, known: Mapping[str, str]) -> str:
    """What to call a variant: its known title, or how it differs from the paper's recipe."""
    if variant in known:
        return known[variant]
    return "the paper's recipe" if variant == "default" else variant.replace("+", ", ")


def layer_variants(run: Run, category: str, variant: str | None = None) -> dict[str, str]:
    """The single layers of a variant and the variant itself, for a figure of residual maps: title -> variant.

    By default of the paper's recipe at the operating point whose single layers are stored.
    """
    stored = run.stored().get(category, [])
    points = [columns_of(run, point)[PROCON] for point in operating_points(run)]
    candidates = [variant] if variant is not None else [one for one in points if one in stored]
    for one in candidates:
        config = Config.from_dict(run.load(category, one).about["config"])
        if len(config.layers) < 2 or config.layer_fusion == "concat":
            raise ConfigError(f"{one}: has no maps of single layers; choose a variant that fuses several")
        titles = {f"S_{layer}": variant_name(replace(config, layers=(layer,))) for layer in config.layers}
        if all(single in stored for single in titles.values()):
            return {**titles, "S_map": one}
    what = variant or "the paper's recipe"
    raise ConfigError(
        f"{run.folder}: has not every single layer of {what} on {category}; make them with: {command(run, category)}"
    )


def command(run: Run, category: str) -> str:
    """The command that adds the single layers of the paper's recipe to a run."""
    settings, plain = run.base.to_dict(), Config().to_dict()
    words = ["procon", "reproduce", "per-layer", "--root", str(run.dataset.root), "-o", str(run.folder)]
    words += ["--categories", category]
    for name in SHARED:
        if settings[name] != plain[name]:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    return shlex.join(words)
