"""The variants of a run that are shown, their order and their names."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from procon.config import Config
from procon.errors import ConfigError, ImageError
from procon.evaluation.metrics import PIXEL_KEYS, MetricValues, evaluate
from procon.evaluation.paper.tables import HARD_RECIPE, SPM_RECIPE, final_point
from procon.evaluation.runs.run import Run, variant_name
from procon.evaluation.runs.settings import SHARED

DRAWN_VARIANTS = 4  # of ours, with pictures and curves, at most; all are in the tables


def load_metrics(run: Run, category: str, variant: str) -> MetricValues:
    """The metrics of a variant; if masks are needed and gone, only those over images."""
    try:
        return run.measure(category, variant)
    except ImageError:
        raw = run.load(category, variant)
    metrics = evaluate(raw.scores, raw.labels)
    metrics.reasons |= dict.fromkeys(PIXEL_KEYS, "a mask cannot be read")
    return metrics


def paper_variants(run: Run, point: Mapping[str, Any]) -> dict[str, str]:
    """The three variants that the paper's qualitative figures compare at an operating point: title -> variant."""
    settings = {
        "Hard NN": {**SPM_RECIPE, **point, **HARD_RECIPE},
        "SPM": {**SPM_RECIPE, **point},
        "ProCon": dict(point),
    }
    return {title: variant_name(replace(run.base, **changes)) for title, changes in settings.items()}


def operating_points(run: Run) -> list[dict[str, Any]]:
    """Coreset ratio and banks of the paper's results on this dataset, then of its studies."""
    studies = [{"coreset_ratio": ratio, "banks": banks} for ratio, banks in ((0.01, 5), (0.05, 5), (0.1, 5), (0.01, 1))]
    return [final_point(run.dataset.name), *studies]


def paper_columns(run: Run, categories: Sequence[str]) -> dict[str, str]:
    """The stored ones of hard NN, SPM and ProCon, at the operating point for which most are stored."""
    stored = run.list_variants()
    names = {variant for category in categories for variant in stored.get(category, ())}
    columns = [paper_variants(run, point) for point in operating_points(run)]
    present = [{title: name for title, name in column.items() if name in names} for column in columns]
    return max(present, key=len)  # the first of equals


def main_variant(run: Run, wanted: str | None = None) -> str:
    """The variant that is shown first: ``wanted``, else the paper's recipe, else the first that is stored."""
    names = sorted({variant for variants in run.list_variants().values() for variant in variants})
    if not names:
        raise ConfigError(f"{run.folder}: holds no results yet; make some with procon bench or procon reproduce")
    if wanted is not None:
        if wanted not in names:
            raise ConfigError(f"{run.folder}: variant must be one of {', '.join(names)}, got {wanted!r}")
        return wanted
    recipes = [paper_variants(run, point)["ProCon"] for point in operating_points(run)]
    return next((recipe for recipe in recipes if recipe in names), names[0])


def choose_variants(run: Run, wanted: str | None = None) -> dict[str, str]:
    """The variants with pictures and curves, the main one first: variant -> title.

    At most :data:`DRAWN_VARIANTS` of ours, and all that other systems wrote.
    """
    stored, others = run.list_variants(), name_other_systems(run)
    names = sorted({variant for variants in stored.values() for variant in variants} - others.keys())
    order = [main_variant(run, wanted), *reversed(paper_columns(run, list(stored)).values())]
    if len(names) <= DRAWN_VARIANTS:
        order += names
    titles = variant_titles(run)
    return {name: title_of(name, titles) for name in [*list(dict.fromkeys(order))[:DRAWN_VARIANTS], *others]}


def variant_titles(run: Run) -> dict[str, str]:
    """The variants that have a title, such as ``ProCon (1 %, B = 5)``, and the results of other systems."""
    titles = name_other_systems(run)
    for point in operating_points(run):
        for title, variant in paper_variants(run, point).items():
            banks = 1 if title == "Hard NN" else point["banks"]
            titles[variant] = f"{title} ({100 * point['coreset_ratio']:g} %, B = {banks})"
    return titles


def name_other_systems(run: Run) -> dict[str, str]:
    """Results that another system wrote into the run: variant -> its name, with its backbone if two have that name."""
    stored = {variant: category for category, variants in run.list_variants().items() for variant in variants}
    abouts = {variant: run.load_about(category, variant) for variant, category in sorted(stored.items())}
    systems = {variant: str(about.get("system", "procon")) for variant, about in abouts.items()}
    counts = Counter(systems.values())
    return {
        variant: f"{system} on {abouts[variant].get('backbone', variant)}" if counts[system] > 1 else system
        for variant, system in systems.items()
        if system != "procon"
    }


def title_of(variant: str, titles: Mapping[str, str]) -> str:
    """The title of a variant among ``titles``, else its differences from the paper's recipe."""
    if variant in titles:
        return titles[variant]
    return "the paper's recipe" if variant == "default" else variant.replace("+", ", ")


def layer_variants(run: Run, category: str, variant: str | None = None) -> dict[str, str]:
    """The single layers of a variant and the variant itself, for a figure of residual maps: title -> variant.

    By default of the paper's recipe at the operating point whose single layers are stored.
    """
    stored = run.list_variants().get(category, [])
    recipes = [paper_variants(run, point)["ProCon"] for point in operating_points(run)]
    for name in [variant] if variant is not None else [recipe for recipe in recipes if recipe in stored]:
        config = Config.from_dict(run.load(category, name).about["config"])
        if len(config.layers) < 2 or config.layer_fusion == "concat":
            raise ConfigError(f"{name}: has no maps of single layers; choose a variant that fuses several")
        titles = {f"S_{layer}": variant_name(replace(config, layers=(layer,))) for layer in config.layers}
        if all(single in stored for single in titles.values()):
            return {**titles, "S_map": name}
    whole = variant or "the paper's recipe"
    raise ConfigError(
        f"{run.folder}: not every single layer of {whole} is stored on {category}; make them with: "
        f"{_layers_command(run, category)}"
    )


def _layers_command(run: Run, category: str) -> str:
    """The command that adds the single layers of the paper's recipe to a run."""
    settings, plain = run.base.to_dict(), Config().to_dict()
    words = ["procon", "reproduce", "per-layer", "--root", str(run.dataset.root), "-o", str(run.folder)]
    words += ["--categories", category]
    for name in SHARED:
        if settings[name] != plain[name]:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    return shlex.join(words)
