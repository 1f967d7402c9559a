"""The settings of a detector as flags of a command, each declared once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from procon.config import BEST, CHOICES, Config
from procon.errors import ConfigError

_FLAGS: dict[str, tuple[Any, str]] = {
    "backbone": (str, f"One of {', '.join(CHOICES['backbone'])}."),
    "weights": (str, "Backbone weights: Hugging Face folder, .safetensors or .pth."),
    "image_size": (str, "Side in pixels, or HEIGHTxWIDTH; multiples of 14."),
    "resize": (int, "Resize to this square, then crop image-size from it."),
    "aspect": (str, "stretch, or pad: keep the proportions."),
    "tile": (int, "Show the backbone overlapping squares of this side."),
    "layers": (str, "Blocks to read, written --layers=-3,-6,-8,-9."),
    "projection_dim": (int, "Dimensions of the scoring space."),
    "selection_dim": (int, "Dimensions of coreset selection."),
    "seed": (int, "Seed of the random projections."),
    "banks": (int, "Memories per layer."),
    "bank_seed": (int, "Shift of the seeds of the banks."),
    "coreset": (str, "k-center, random or dense."),
    "coreset_ratio": (float, "Share of patches a bank keeps."),
    "max_anchors": (int, "Upper limit on a bank."),
    "compression": (str, "none, fp16, int8 or approximate."),
    "num_neighbors": (int, "Anchors a patch is projected on."),
    "readout": (str, "soft, uniform or hard."),
    "tau": (float, "Fixed temperature of the soft projection."),
    "tau_patches": (int, "Patches that set the temperature."),
    "layer_fusion": (str, "mean, median, max or concat."),
    "normalization": (str, "none, robust or train."),
    "score_relative_to": (str, "nothing or anchors: what the image score divides by."),
    "map_offset": (str, "none or quartile: what is taken off a map."),
    "top_ratio": (float, "Share of patches that make the image score."),
    "blur_sigma": (float, "Blur of the heat map, pixels."),
    "false_alarm_rate": (float, "Share of good parts that may be flagged."),
    "precision": (str, "Backbone arithmetic: auto, fp32 or bf16."),
}


def with_settings(names: Sequence[str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each setting in ``names`` (default: all); it gets those that were used as ``settings``.

    A flag has no default of its own: what is left out is left to :class:`Config`. Where all settings have a flag,
    ``--best`` sets those of :meth:`Config.best`, and other flags go before it.
    """
    chosen = [field.name for field in fields(Config) if names is None or field.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in chosen}
            start = BEST if arguments.pop("best", False) else {}
            command(**arguments, settings={**start, **parse_settings(given)})

        own = [one for one in inspect.signature(command).parameters.values() if one.name != "settings"]
        kind = inspect.Parameter.KEYWORD_ONLY
        flags = [
            inspect.Parameter(
                name,
                kind,
                default=None,
                annotation=Annotated[_FLAGS[name][0] | None, typer.Option(help=_FLAGS[name][1])],
            )
            for name in chosen
        ]
        if names is None:
            words = "Start from Config.best() (docs/best.md) instead of the paper's recipe."
            annotation = Annotated[bool, typer.Option("--best", help=words)]
            flags.append(inspect.Parameter("best", kind, default=False, annotation=annotation))
        merged = [*own, *flags]
        # typer reads the signature and the annotations, not the code
        run.__signature__ = inspect.Signature([one.replace(kind=kind) for one in merged])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in merged} | {"return": None}
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        return run

    return decorate


def parse_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Flags that were given, with lists and sizes taken apart; the rest is left to Config."""
    settings = {name: value for name, value in given.items() if value is not None}
    if "layers" in settings:
        settings["layers"] = tuple(_integers("layers", settings["layers"], ","))
    if "image_size" in settings:
        sides = _integers("image_size", settings["image_size"].lower(), "x")
        settings["image_size"] = sides[0] if len(sides) == 1 else tuple(sides)
    return settings


def _integers(name: str, text: str, separator: str) -> list[int]:
    try:
        return [int(part) for part in text.split(separator)]
    except ValueError:
        raise ConfigError(f"{name} must be integers separated by {separator!r}, got {text!r}") from None
