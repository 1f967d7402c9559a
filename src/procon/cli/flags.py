"""Options of the command line: those that several commands share, and the settings of a detector."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from typer import Argument, Option

from procon.config import AUTO, PATCH, RECIPES, Config
from procon.errors import ConfigError


class Setting(NamedTuple):
    """Who changes a setting, and what it is in a few words."""

    group: Literal["user", "recipe", "ablation"]
    """``user``: a flag of its own. ``recipe``: the method. ``ablation``: varied in experiments only."""
    help: str


SETTINGS: dict[str, Setting] = {
    "backbone": Setting(
        "user",
        "dinov2-small, dinov2-base, dinov2-large or dinov2-giant; each also with registers, such as "
        "dinov2-base-with-registers; or dinov2-custom.",
    ),
    "weights": Setting("user", "Backbone weights: Hugging Face folder, .safetensors or .pth."),
    "image_size": Setting(
        "user", "Side in pixels, or WIDTHxHEIGHT, multiples of 14; or auto: the proportions of the good images."
    ),
    "coreset_ratio": Setting("user", "Share of the patches that a bank keeps."),
    "banks": Setting("user", "Memories per layer."),
    "false_alarm_rate": Setting("recipe", "Share of good parts that may be flagged; see also procon threshold."),
    "threshold_rule": Setting("recipe", "robust, or guarantee: a split-conformal promise; see procon threshold."),
    "patch_budget": Setting("recipe", "Most patches of an image with --image-size auto."),
    "max_scale": Setting("recipe", "How many times as large as the images the input may be with --image-size auto."),
    "resize": Setting("recipe", "Resize to this square, then crop image_size from its centre."),
    "aspect": Setting("recipe", "stretch, or pad: keep the proportions."),
    "tile": Setting("recipe", "Show the backbone overlapping squares of this side."),
    "layers": Setting("recipe", "Blocks to read, such as -3,-6,-8,-9."),
    "projection_dim": Setting("recipe", "Dimensions of the scoring space."),
    "selection_dim": Setting("recipe", "Dimensions of coreset selection."),
    "max_anchors": Setting("recipe", "Upper limit on the anchors of a bank."),
    "compression": Setting("recipe", "none, fp16, int8 or approximate."),
    "num_neighbors": Setting("recipe", "Anchors that a patch is projected on."),
    "score_relative_to": Setting("recipe", "nothing or anchors: what the image score is divided by."),
    "map_offset": Setting("recipe", "How far maps are shifted towards the lower quartile of good maps: 0 to 1."),
    "top_ratio": Setting("recipe", "Share of patches that make the image score."),
    "blur_sigma": Setting("recipe", "Blur of the heat map, pixels."),
    "precision": Setting("recipe", "Backbone arithmetic: auto, fp32 or bf16."),
    "seed": Setting("ablation", "Seed of the random projections."),
    "bank_seed": Setting("ablation", "Shift of the seeds of the banks."),
    "coreset": Setting("ablation", "k-center, random or dense."),
    "readout": Setting("ablation", "soft, uniform or hard."),
    "tau": Setting("ablation", "Fixed temperature of the soft projection."),
    "tau_patches": Setting("ablation", "Patches that set the temperature."),
    "layer_fusion": Setting("ablation", "mean, median, max or concat."),
    "normalization": Setting("ablation", "none, robust or train."),
}


ModelArgument = Annotated[Path, Argument(metavar="MODEL", help="Model file from `procon fit`.")]
AnyModelArgument = Annotated[Path, Argument(metavar="MODEL", help="Model file, or a folder from `procon export`.")]
RunArgument = Annotated[Path, Argument(metavar="RUN", help="Folder of a run, from bench, eval or reproduce.")]
WeightsOption = Annotated[str | None, Option("--weights", help=SETTINGS["weights"].help)]
TrainingOption = Annotated[Path | None, Option("--training", help="Folder of the training images, if it has moved.")]
DeviceOption = Annotated[str, Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")]
RayOption = Annotated[
    str | None,
    Option(
        "--ray",
        help="Work on a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT; ADDRESS,cpus=N gives each unit of work "
        "N cores and threads.",
        metavar="ADDRESS",
        rich_help_panel="Many parts, many machines",
    ),
]

SkipBadOption = Annotated[bool, Option("--skip-bad", help="Leave unreadable images out.")]

PAPER = "paper"  # the recipe of Config() without settings
_PANEL = "Settings of the detector"
_RECIPE_HELP = (
    "fast (for two cores), paper (the default) or best (finds more, takes longer): docs/understand/recipes.md. Other "
    "settings change it."
)
_TYPES: dict[str, Any] = {"coreset_ratio": float, "banks": int}


def with_settings(names: Sequence[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for the user's settings, and ``--set`` for every setting in ``names`` (default: all).

    The command gets those that were used as ``settings``. A flag has no default of its own: :class:`Config` has. Where
    all settings can be set, ``--recipe`` says which recipe they change; the command gets its name if it asks for it.
    """
    allowed = [field.name for field in fields(Config) if names is None or field.name in names]
    flagged = [name for name in SETTINGS if name in allowed and SETTINGS[name].group == "user"]
    options = [_option(name, _TYPES.get(name, str) | None, SETTINGS[name].help) for name in flagged]
    set_help = "Any setting of docs/use/cli.md, such as --set num_neighbors=3; repeat for more."
    options.append(_option("assignments", list[str] | None, set_help, "--set", metavar="NAME=VALUE"))
    if names is None:
        options.append(_option("recipe", str | None, _RECIPE_HELP, "--recipe", metavar="|".join(RECIPES)))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        passed_on = ("settings", "recipe")
        asks_for_recipe = "recipe" in inspect.signature(command).parameters

        def run(**arguments: Any) -> None:
            recipe = arguments.pop("recipe", None)
            if recipe is not None and recipe not in RECIPES:
                raise ConfigError(f"--recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
            if asks_for_recipe:
                arguments["recipe"] = recipe
            given = {name: value for name in flagged if (value := arguments.pop(name)) is not None}
            assigned = parse_assignments(arguments.pop("assignments") or [], allowed)
            command(**arguments, settings={**RECIPES[recipe or PAPER], **parse_settings(given), **assigned})

        own = [option for option in inspect.signature(command).parameters.values() if option.name not in passed_on]
        parameters = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *options)]
        # typer reads the signature and the annotations, not the code
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in parameters} | {"return": None}
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        return run

    return decorate


def _option(name: str, kind: Any, help_text: str, *flags: str, metavar: str | None = None) -> inspect.Parameter:
    option = Option(*flags, help=help_text, metavar=metavar, rich_help_panel=_PANEL)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def parse_assignments(assignments: Sequence[str], allowed: Sequence[str]) -> dict[str, Any]:
    """``name=value`` as typed after ``--set``, in the types of :class:`Config`."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in allowed:
            raise ConfigError(f"--set must be NAME=VALUE with a name among {', '.join(allowed)}, got {assignment!r}")
        settings[name] = value.strip()
    return parse_settings(settings)


def parse_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings as typed, in the types of :class:`Config`; what is wrong with a value, Config says."""
    return {name: _parse(name, value) if isinstance(value, str) else value for name, value in given.items()}


def _parse(name: str, text: str) -> Any:
    if name == "layers":
        return tuple(_integers(name, text, ","))
    if name == "image_size":
        if text.lower() == AUTO:
            return AUTO
        sides = _sides(name, text)
        return sides[0] if len(sides) == 1 else tuple(reversed(sides))  # typed as WIDTHxHEIGHT, kept as (height, width)
    if text.lower() == "none" and getattr(Config, name, "") is None:
        return None
    hint = str(get_type_hints(Config)[name])
    for word, convert in (("float", float), ("int", int)):
        if word in hint:
            try:
                return convert(text)
            except ValueError:
                raise ConfigError(f"{name} must be a number, got {text!r}") from None
    return text


def _sides(name: str, text: str) -> list[int]:
    """One side, or width and height; every error has them in the order in which they are typed."""
    example = f"{46 * PATCH}x{34 * PATCH}"
    sides = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(sides) > 2 or any(side < PATCH or side % PATCH for side in sides):
        raise ConfigError(
            f"{name} must be a side in pixels, WIDTHxHEIGHT such as {example}, both multiples of {PATCH}, or "
            f"{AUTO}; got {text}"
        )
    return sides


def _integers(name: str, text: str, separator: str) -> list[int]:
    try:
        return [int(part) for part in text.split(separator)]
    except ValueError:
        raise ConfigError(f"{name} must be integers separated by {separator!r}, got {text!r}") from None


def check_model_target(path: Path) -> Path:
    """Refuse to write a model over a folder, before any work."""
    if path.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {path}")
    return path
