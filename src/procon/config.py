"""Every setting of the method: its default, its valid values, and the combinations that are refused."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from procon.errors import ConfigError

ThresholdRule = Literal["robust", "guarantee"]
LOWEST_RATE = 1e-6  # false-alarm rate; it takes a million good images
PATCH = 14  # pixels; the patch size of every DINOv2
AUTO: Final = "auto"  # image_size: chosen from the training images (procon.vision.shape)

BACKBONES = tuple(
    f"dinov2-{size}{suffix}" for size in ("small", "base", "large", "giant") for suffix in ("", "-with-registers")
)
CUSTOM_BACKBONE = "dinov2-custom"  # whatever DINOv2 architecture the folder given as `weights` describes

BEST: dict[str, Any] = {
    "image_size": AUTO,
    "patch_budget": 48 * 48,  # a square of 672 pixels
    "max_scale": 2.0,
    "layers": (-3, -7, -9, -10),
    "banks": 1,
    "coreset_ratio": 0.015,
    "score_relative_to": "anchors",
    "map_offset": 0.25,
}
"""How :meth:`Config.best` differs from the paper."""

FAST: dict[str, Any] = {
    "image_size": 336,
    "patch_budget": 24 * 24,
    "layers": (-6, -8, -9),
    "banks": 1,
    "coreset_ratio": 0.01,
}
"""How :meth:`Config.fast` differs from the paper."""

RECIPES: dict[str, dict[str, Any]] = {"fast": FAST, "paper": {}, "best": BEST}
"""The recipes by name: how each differs from the paper, the fastest first."""


_OFFSETS = {"none": 0.0, "quartile": 1.0}  # what model files called map_offset before it was a number


def _is_int(value: object, least: int = 1, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_false_alarm_rate(rate: object) -> None:
    """Refuse a rate that no configuration may have, so that no model with it can be written."""
    if not (isinstance(rate, int | float) and not isinstance(rate, bool) and LOWEST_RATE <= rate < 1):
        raise ConfigError(f"false_alarm_rate must be a number of at least {LOWEST_RATE:f} and below 1, got {rate!r}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a detector. The defaults are the paper's final recipe (its tables ``s_recipe``, ``s_projection``).

    A memory of the ladder is the same code with other settings::

        Config(readout="hard", layers=(-6,), banks=1)                          # hard nearest neighbour
        Config(readout="hard", layers=(-6,))                                   # + bank consensus
        Config(layers=(-6,))                                                   # + soft projection: SPM, one layer
        Config(layers=(-1, -3, -6, -9, -12), layer_fusion="concat")            # SPM as the paper's numbers used it
        Config()                                                               # + layer consensus: ProCon
    """

    backbone: str = "dinov2-base"  # one of BACKBONES, or dinov2-custom with a folder as `weights`
    weights: str | None = None  # Hugging Face folder, .safetensors or .pth; None searches (procon.vision.sources)
    image_size: int | tuple[int, int] | Literal["auto"] = 392
    """Input of the backbone in pixels: side or (height, width), multiples of 14; ``auto``: the proportions of the
    training images, with at most ``patch_budget`` patches, at most ``max_scale`` times as large as the images."""
    patch_budget: int = 784  # most patches of an image where image_size is auto; 784 is a square of 392 pixels
    max_scale: float = 1.0  # how many times as large as the images the input may be where image_size is auto
    resize: int | None = (
        None  # None stretches the image to image_size; a number: resize to that square, crop the centre
    )
    aspect: Literal["stretch", "pad"] = "stretch"  # pad keeps the proportions; patches of the padding do not count
    tile: int | None = None  # side of overlapping squares that pass the backbone one at a time; None: all at once
    layers: tuple[int, ...] = (-3, -6, -8, -9)  # blocks whose output tokens are used; negative counts from the last
    projection_dim: int = 512  # dimensions of the scoring space; a backbone with no more than that keeps its own
    selection_dim: int = 192  # dimensions of the space in which the coreset is selected
    seed: int = 42  # of the fixed random projections
    banks: int = 5  # memories per layer; the coreset of bank b starts at a point drawn with seed bank_seed + b
    bank_seed: int = 0  # the only randomness of the method; another value repeats the whole experiment
    coreset: Literal["k-center", "random", "dense"] = "k-center"  # random and dense (most central) are ablations
    coreset_ratio: float = 0.05  # share of the training patches that each bank keeps
    max_anchors: int | None = None  # upper limit on the anchors of a bank, whatever the ratio
    compression: Literal["none", "fp16", "int8", "approximate"] = "none"  # approximate: inverted-file search (extra)
    num_neighbors: int = 5  # k: the anchors a patch is projected on
    readout: Literal["soft", "uniform", "hard"] = "soft"
    """Residual of the soft projection, of the plain mean of the neighbors, or distance to the nearest anchor."""
    tau: float | None = None  # temperature; None: the median of the image's own squared distances
    tau_patches: int | None = None  # patches that set the temperature; None: all; a number: a fixed seeded subsample
    layer_fusion: Literal["mean", "median", "max", "concat"] = "mean"  # concat joins tokens before the memory is built
    normalization: Literal["none", "robust", "train"] = "none"
    """Standardises layer maps before fusion: ``robust`` by the median and spread of the image, an ablation that fails;
    ``train`` by mean and standard deviation on good images."""
    score_relative_to: Literal["nothing", "anchors"] = "nothing"
    """What the image score divides residuals by: nothing, or the level that the same anchors have on good patches."""
    map_offset: float = 0.0
    """How far each map is shifted towards the usual lower quartile of good maps: 0 not at all, 1 all the way."""
    top_ratio: float = 0.005  # the image score is the mean over this share of the patches
    blur_sigma: float = 4.0  # Gaussian blur of the heat map, in pixels of image_size
    false_alarm_rate: float = 0.01  # share of good parts that may be called anomalous: an aim, or a promise
    threshold_rule: ThresholdRule = "robust"  # robust: odd images do not set it; guarantee: split-conformal promise
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of the backbone; auto: bf16 on CUDA, fp32 elsewhere

    def __post_init__(self) -> None:
        for name in ("image_size", "layers"):
            if isinstance(getattr(self, name), list):  # JSON has no tuples
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.map_offset, str) and self.map_offset in _OFFSETS:
            object.__setattr__(self, "map_offset", _OFFSETS[self.map_offset])
        if isinstance(self.weights, PurePath):
            object.__setattr__(self, "weights", str(self.weights))
        for name, choices in {"backbone": (*BACKBONES, CUSTOM_BACKBONE), **CHOICES}.items():
            self._require(name, getattr(self, name) in choices, "one of " + ", ".join(map(repr, choices)))
        self._check_numbers()
        self._check_images()
        self._require("layers", self._has_valid_layers(), "a non-empty tuple of different integers")
        refuse(self, "always")

    def _require(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ConfigError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def _check_numbers(self) -> None:
        for name in ("projection_dim", "selection_dim", "banks", "num_neighbors"):
            self._require(name, _is_int(getattr(self, name)), "an integer of at least 1")
        most = (4096 // PATCH) ** 2
        self._require("patch_budget", _is_int(self.patch_budget, 1, most), f"an integer from 1 to {most}")
        for name in ("max_anchors", "tau_patches"):
            value = getattr(self, name)
            self._require(name, value is None or _is_int(value), "None or an integer of at least 1")
        for name in ("coreset_ratio", "top_ratio"):
            value = getattr(self, name)
            self._require(name, _is_number(value) and 0 < value <= 1, "a number above 0 and at most 1")
        for name in ("seed", "bank_seed"):
            self._require(name, _is_int(getattr(self, name), 0, 2**31), "an integer from 0 to 2147483648")
        tau, blur, scale = self.tau, self.blur_sigma, self.max_scale
        check_false_alarm_rate(self.false_alarm_rate)
        self._require("max_scale", _is_number(scale) and 0 < scale <= 8, "a number above 0 and at most 8")
        self._require("map_offset", _is_number(self.map_offset) and 0 <= self.map_offset <= 1, "a number from 0 to 1")
        self._require("tau", tau is None or (_is_number(tau) and 0 < tau < math.inf), "None or a number above 0")
        self._require("blur_sigma", _is_number(blur) and 0 <= blur <= 100, "a number of pixels from 0 (no blur) to 100")
        enough = self.max_anchors is None or self.max_anchors >= self.num_neighbors
        self._require("max_anchors", enough, f"at least num_neighbors = {self.num_neighbors}")

    def _check_images(self) -> None:
        sides = self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)
        self._require(
            "image_size",
            self.image_size == AUTO
            or (len(sides) == 2 and all(_is_int(side, PATCH, 4096) and side % PATCH == 0 for side in sides)),
            f"a multiple of {PATCH} from {PATCH} to 4088, a (height, width) of such numbers, or {AUTO!r}",
        )
        # Until the training images are known, a crop and tiles can only be compared with the limits of any size.
        longest, shortest = (PATCH, 4088) if self.image_size == AUTO else (max(self.input_size), min(self.input_size))
        self._require(
            "resize",
            self.resize is None or _is_int(self.resize, longest, 8192),
            f"None or an integer from image_size = {longest} to 8192",
        )
        self._require(
            "tile",
            self.tile is None or (_is_int(self.tile, 4 * PATCH, shortest) and self.tile % PATCH == 0),
            f"None or a multiple of {PATCH} from {4 * PATCH} to image_size = {shortest}",
        )
        path = self.weights is None or (isinstance(self.weights, str) and bool(self.weights))
        self._require("weights", path, "None or the path of a file or folder")
        folder = self.backbone != CUSTOM_BACKBONE or self.weights is not None
        self._require("weights", folder, f"a Hugging Face folder when backbone is {CUSTOM_BACKBONE!r}")

    def _has_valid_layers(self) -> bool:
        return (
            isinstance(self.layers, tuple)
            and len(self.layers) > 0
            and all(_is_int(layer, -(2**31), 2**31) for layer in self.layers)
            and len(set(self.layers)) == len(self.layers)
        )

    @classmethod
    def best(cls, **settings: Any) -> "Config":
        """The recipe measured to be better than the paper's (docs/understand/best.md), changed by ``settings``."""
        return cls(**{**BEST, **settings})

    @classmethod
    def fast(cls, **settings: Any) -> "Config":
        """The recipe for a computer without a GPU (docs/understand/recipes.md), changed by ``settings``."""
        return cls(**{**FAST, **settings})

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) of the backbone's input in pixels."""
        if self.image_size == AUTO:
            raise ConfigError(
                "image_size 'auto' becomes a size in a fit, which looks at the good images; call fit(images) first"
            )
        return self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        height, width = self.input_size
        return height // PATCH, width // PATCH

    @property
    def view(self) -> tuple[int, int]:
        """(rows, columns) of the patches that pass the backbone together: a tile, or all."""
        return self.grid if self.tile is None else (self.tile // PATCH, self.tile // PATCH)

    @property
    def bank_seeds(self) -> tuple[int, ...]:
        """The seed of each bank."""
        return tuple(self.bank_seed + bank for bank in range(1, self.banks + 1))

    def resolve_layers(self, depth: int) -> tuple[int, ...]:
        """0-based block indices of ``layers`` in a backbone of ``depth`` blocks."""
        resolved = tuple(layer + depth if layer < 0 else layer for layer in self.layers)
        valid = all(0 <= layer < depth for layer in resolved) and len(set(resolved)) == len(resolved)
        self._require("layers", valid, f"different blocks from {-depth} to {depth - 1} of a backbone with {depth}")
        return resolved

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready settings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Config":
        """The inverse of :meth:`to_dict`; an unknown key is an error."""
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - names)
        if unknown:
            raise ConfigError(f"settings must be among {', '.join(sorted(names))}, got {', '.join(unknown)}")
        return cls(**settings)


CHOICES = {name: get_args(hint) for name, hint in get_type_hints(Config).items() if get_origin(hint) is Literal}
"""What each setting with a list of values may be."""


class Restriction(NamedTuple):
    """The only values that a setting may have in a context."""

    context: Literal["always", "fit", "bench", "bench without verdicts", "export", "shards", "editing", "teaching"]
    setting: str
    allowed: tuple[object, ...]
    reason: str  # completes "must be ..."; what follows "; " tells the remedy
    condition: Callable[[Config], bool] = lambda config: True

    def applies(self, config: Config) -> bool:
        """Whether ``config`` is refused in the context."""
        return getattr(config, self.setting) not in self.allowed and self.condition(config)

    @property
    def expected(self) -> str:
        """The allowed values, the reason and the remedy, to follow "must be"."""
        *first, last = map(repr, self.allowed)
        return (f"{', '.join(first)} or {last}" if first else last) + self.reason


_DROPPED = "; a value that the paper tried and dropped is for procon reproduce and for Config in Python only"
_NOT_EXPORTED = " in an exported model, which does not compute it; fit again, or serve the .procon file"
_NO_VERDICTS = " in benchmark runs without verdicts: their metrics use no threshold; add --verdicts"
_NEEDS_ALL = " with shards: {} need all features in one place"

RESTRICTIONS = (
    Restriction(
        "always",
        "score_relative_to",
        ("nothing",),
        " unless readout is 'soft' and normalization is 'none'",
        lambda config: (config.readout, config.normalization) != ("soft", "none"),
    ),
    Restriction("always", "map_offset", (0,), " unless normalization is 'none'", lambda c: c.normalization != "none"),
    Restriction("always", "aspect", ("stretch",), " where resize cuts out the centre", lambda c: c.resize is not None),
    Restriction(
        "always",
        "resize",
        (None,),
        " where image_size is 'auto', which keeps all of an image",
        lambda c: c.image_size == AUTO,
    ),
    Restriction("fit", "coreset", ("k-center", "random"), _DROPPED),
    Restriction("fit", "normalization", ("none", "train"), _DROPPED),
    Restriction("fit", "tau_patches", (None,), _DROPPED),
    Restriction(
        "bench",
        "aspect",
        ("stretch",),
        " in benchmark runs: their masks and maps fill the input; use image_size='auto'",
    ),
    Restriction("bench without verdicts", "false_alarm_rate", (Config.false_alarm_rate,), _NO_VERDICTS),
    Restriction("bench without verdicts", "threshold_rule", (Config.threshold_rule,), _NO_VERDICTS),
    Restriction("export", "precision", ("auto", "fp32"), " in an exported model; fit again"),
    Restriction(
        "export", "compression", ("none", "fp16", "int8"), " in an exported model, which searches exactly; fit again"
    ),
    Restriction("export", "aspect", ("stretch",), _NOT_EXPORTED),
    Restriction("export", "tile", (None,), _NOT_EXPORTED),
    Restriction("shards", "coreset", ("k-center",), " with shards"),
    Restriction("shards", "normalization", ("none", "robust"), _NEEDS_ALL.format("statistics of good maps")),
    Restriction("shards", "score_relative_to", ("nothing",), _NEEDS_ALL.format("levels")),
    Restriction("shards", "map_offset", (0,), _NEEDS_ALL.format("quartiles")),
    Restriction(
        "editing",
        "coreset",
        ("k-center",),
        " in a memory that is edited: there is no other traversal to continue; fit again",
    ),
    Restriction(
        "teaching",
        "normalization",
        ("none",),
        " in a model that is taught defects: a lesson multiplies scores, and these may be negative; fit again",
    ),
)
"""Every combination of settings that is refused. docs/use/cli.md prints this table."""


def refuse(config: Config, context: str) -> None:
    """Raise the first restriction of ``context`` that ``config`` violates, with what was expected and what came."""
    for restriction in RESTRICTIONS:
        if restriction.context == context and restriction.applies(config):
            expected, separator, remedy = restriction.expected.partition("; ")
            value = getattr(config, restriction.setting)
            raise ConfigError(f"{restriction.setting} must be {expected}, got {value!r}{separator}{remedy}")


def change_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with other values of some settings; an unknown name is an error that says which was meant."""
    names = [field.name for field in fields(Config)]
    for name in settings:
        if name not in names:
            meant = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {meant[0]}?" if meant else f"settings are {', '.join(names)}"
            raise ConfigError(f"{name} is not a setting; {hint}")
    return replace(config, **settings)
