"""Every setting of the method: its default, its group, and the combinations that are refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from procon.errors import ConfigError

PATCH = 14  # pixels; the patch size of every DINOv2

BACKBONES = tuple(
    f"dinov2-{size}{suffix}" for size in ("small", "base", "large", "giant") for suffix in ("", "-with-registers")
)
CUSTOM_BACKBONE = "dinov2-custom"  # whatever DINOv2 architecture the folder given as `weights` describes

CHOICES: dict[str, tuple[str, ...]] = {
    "backbone": (*BACKBONES, CUSTOM_BACKBONE),
    "aspect": ("stretch", "pad"),
    "coreset": ("k-center", "random", "dense"),
    "readout": ("soft", "uniform", "hard"),
    "layer_fusion": ("mean", "median", "max", "concat"),
    "normalization": ("none", "robust", "train"),
    "score_relative_to": ("nothing", "anchors"),
    "map_offset": ("none", "quartile"),
    "precision": ("auto", "fp32", "bf16"),
    "compression": ("none", "fp16", "int8", "approximate"),
}

BEST: dict[str, Any] = {
    "image_size": 672,
    "layers": (-3, -7, -10),
    "banks": 1,
    "coreset_ratio": 0.02,
    "score_relative_to": "anchors",
    "map_offset": "quartile",
}
"""How :meth:`Config.best` differs from the paper."""


class Refusal(NamedTuple):
    """A combination that is refused, with what to set instead."""

    context: Literal["always", "fit", "bench", "export", "shards", "editing"]
    """Where: in every Config, in ``procon fit``, in benchmark runs, in exports, with ``--shards``, when a model is
    edited."""
    setting: str
    applies: "Callable[[Config], bool]"
    expected: str


_FAILED = "a value that the paper tried and dropped is for procon reproduce and for Config in Python only"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "always",
        "score_relative_to",
        lambda c: c.score_relative_to == "anchors" and (c.readout, c.normalization) != ("soft", "none"),
        "'nothing' unless readout is 'soft' and normalization is 'none'",
    ),
    Refusal(
        "always",
        "map_offset",
        lambda c: c.map_offset == "quartile" and c.normalization != "none",
        "'none' unless normalization is 'none'",
    ),
    Refusal(
        "always",
        "aspect",
        lambda c: c.resize is not None and c.aspect == "pad",
        "'stretch' where resize cuts out the centre",
    ),
    Refusal(
        "always",
        "weights",
        lambda c: c.backbone == CUSTOM_BACKBONE and c.weights is None,
        f"a Hugging Face folder when backbone is {CUSTOM_BACKBONE!r}",
    ),
    Refusal("fit", "coreset", lambda c: c.coreset == "dense", f"'k-center' or 'random'; {_FAILED}"),
    Refusal("fit", "normalization", lambda c: c.normalization == "robust", f"'none' or 'train'; {_FAILED}"),
    Refusal("fit", "tau_patches", lambda c: c.tau_patches is not None, f"None; {_FAILED}"),
    Refusal(
        "bench",
        "aspect",
        lambda c: c.aspect == "pad",
        "'stretch' in benchmark runs: their masks and maps fill the input; use image_size=(height, width)",
    ),
    Refusal(
        "bench",
        "false_alarm_rate",
        lambda c: c.false_alarm_rate != Config.false_alarm_rate,
        "left out in benchmark runs: their metrics use no threshold",
    ),
    Refusal("export", "precision", lambda c: c.precision == "bf16", "'auto' or 'fp32' in an exported model; fit again"),
    Refusal(
        "export",
        "compression",
        lambda c: c.compression == "approximate",
        "'none', 'fp16' or 'int8' in an exported model, which searches exactly; fit again",
    ),
    Refusal(
        "export",
        "aspect",
        lambda c: c.aspect == "pad",
        "'stretch' in an exported model, which does not compute it; fit again, or serve the .procon file",
    ),
    Refusal(
        "export",
        "tile",
        lambda c: c.tile is not None,
        "None in an exported model, which does not compute it; fit again, or serve the .procon file",
    ),
    Refusal("shards", "coreset", lambda c: c.coreset != "k-center", "'k-center' with shards"),
    Refusal(
        "shards",
        "normalization",
        lambda c: c.normalization == "train",
        "'none' or 'robust' with shards: 'train' needs all features in one place",
    ),
    Refusal(
        "shards",
        "score_relative_to",
        lambda c: c.score_relative_to != "nothing",
        "'nothing' with shards: levels need all features in one place",
    ),
    Refusal(
        "shards",
        "map_offset",
        lambda c: c.map_offset != "none",
        "'none' with shards: the offset needs all features in one place",
    ),
    Refusal(
        "editing",
        "coreset",
        lambda c: c.coreset != "k-center",
        "'k-center' in a memory that is edited: there is no other traversal to continue; fit again",
    ),
)
"""Every combination of settings that is refused, in one place. docs/cli.md prints this table."""


def refuse(config: "Config", context: str) -> None:
    """Raise the first refusal of ``config`` in ``context``: a sentence with what was expected and what came."""
    for refusal in REFUSALS:
        if refusal.context == context and refusal.applies(config):
            value = getattr(config, refusal.setting)
            expected, remedy, more = refusal.expected.partition("; ")
            raise ConfigError(f"{refusal.setting} must be {expected}, got {value!r}{remedy}{more}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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

    backbone: str = "dinov2-base"
    """A DINOv2 by its Hugging Face name without ``facebook/``, or ``dinov2-custom`` with ``weights`` a folder."""
    weights: str | None = None
    """A Hugging Face folder, ``.safetensors`` or ``.pth``; None finds them (see ``procon.vision.weights``)."""
    image_size: int | tuple[int, int] = 392
    """Input of the backbone in pixels, a side or (height, width), each a multiple of 14."""
    resize: int | None = None
    """None: the whole image becomes ``image_size``. A number: resize to that square, then crop the centre."""
    aspect: Literal["stretch", "pad"] = "stretch"
    """``stretch`` fills ``image_size``; ``pad`` keeps the proportions and leaves out what lies beside the image."""
    tile: int | None = None
    """Side, in pixels of ``image_size``, of the overlapping squares that the backbone sees one at a time. None: all at
    once."""
    layers: tuple[int, ...] = (-3, -6, -8, -9)
    """Blocks whose output tokens are read; negative counts from the last."""
    projection_dim: int = 512
    """Dimensions of the scoring space; a backbone with no more than that keeps its own."""
    selection_dim: int = 192
    """Dimensions of the space in which the coreset is selected."""
    seed: int = 42
    """Seed of the fixed random projections."""
    banks: int = 5
    """Memories per layer; bank b starts its coreset at a point drawn with seed ``bank_seed`` + b."""
    bank_seed: int = 0
    """Shifts the seeds of the banks, the method's only randomness: other values repeat the whole experiment."""
    coreset: Literal["k-center", "random", "dense"] = "k-center"
    """How a bank is chosen. ``random`` and ``dense`` (the anchors that stand for most patches) are ablations."""
    coreset_ratio: float = 0.05
    """Share of the training patches each bank keeps."""
    max_anchors: int | None = None
    """Upper limit on the anchors of a bank, whatever the ratio."""
    compression: Literal["none", "fp16", "int8", "approximate"] = "none"
    """How the memory is kept: exact, anchors rounded to fp16 or int8, or an inverted-file search (extra)."""
    num_neighbors: int = 5
    """k: anchors a patch is projected on."""
    readout: Literal["soft", "uniform", "hard"] = "soft"
    """Residual of the soft projection, of the plain mean of the neighbours, or distance to the nearest anchor."""
    tau: float | None = None
    """Temperature of the soft projection: None takes the median of the image's own squared distances."""
    tau_patches: int | None = None
    """Patches that set the temperature: None takes all, a number a fixed seeded subsample (paper's supplement)."""
    layer_fusion: Literal["mean", "median", "max", "concat"] = "mean"
    """How layers combine; ``concat`` joins the tokens before the memory is built."""
    normalization: Literal["none", "robust", "train"] = "none"
    """Standardise layer maps before fusion: ``robust`` by the image's own median and spread, an ablation that fails;
    ``train`` by the mean and deviation that good images have."""
    score_relative_to: Literal["nothing", "anchors"] = "nothing"
    """What the image score divides residuals by: nothing, or the level that the same anchors leave on good patches."""
    map_offset: Literal["none", "quartile"] = "none"
    """How the map of an image is shifted as a whole: not at all, or so that its lower quartile is that of good ones."""
    top_ratio: float = 0.005
    """Share of patches whose mean is the image score."""
    blur_sigma: float = 4.0
    """Gaussian blur of the pixel map, in pixels of ``image_size``."""
    false_alarm_rate: float = 0.01
    """Share of good parts that may be called anomalous, as far as the number of training images can promise it."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the backbone: ``auto`` is bf16 on CUDA and fp32 elsewhere. Scoring is always fp32."""

    def __post_init__(self) -> None:
        if isinstance(self.image_size, list):  # JSON has no tuples
            object.__setattr__(self, "image_size", tuple(self.image_size))
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                self._refuse(name, "one of " + ", ".join(repr(choice) for choice in allowed))
        self._check_numbers()
        self._check_images()
        self._check_layers()
        refuse(self, "always")

    def _refuse(self, name: str, expected: str) -> None:
        raise ConfigError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def _check_numbers(self) -> None:
        for name in ("projection_dim", "selection_dim", "banks", "num_neighbors"):
            value = getattr(self, name)
            if not (_is_int(value) and value >= 1):
                self._refuse(name, "an integer of at least 1")
        for name in ("max_anchors", "tau_patches"):
            value = getattr(self, name)
            if value is not None and not (_is_int(value) and value >= 1):
                self._refuse(name, "None or an integer of at least 1")
        for name in ("coreset_ratio", "top_ratio"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 < value <= 1):
                self._refuse(name, "a number above 0 and at most 1")
        if not (_is_number(self.false_alarm_rate) and 1e-6 <= self.false_alarm_rate < 1):
            self._refuse("false_alarm_rate", "a number of at least 0.000001 and below 1")
        for name in ("seed", "bank_seed"):
            value = getattr(self, name)
            if not (_is_int(value) and 0 <= value <= 2**31):
                self._refuse(name, "an integer from 0 to 2147483648")
        if self.tau is not None and not (_is_number(self.tau) and 0 < self.tau < math.inf):
            self._refuse("tau", "None or a number above 0")
        if not (_is_number(self.blur_sigma) and 0 <= self.blur_sigma <= 100):
            self._refuse("blur_sigma", "a number of pixels from 0 (no blur) to 100")
        if self.max_anchors is not None and self.max_anchors < self.num_neighbors:
            self._refuse("max_anchors", f"at least num_neighbors = {self.num_neighbors}")

    def _check_images(self) -> None:
        sides = self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)
        if not (
            len(sides) == 2 and all(_is_int(side) and PATCH <= side <= 4096 and side % PATCH == 0 for side in sides)
        ):
            self._refuse(
                "image_size", f"a multiple of {PATCH} from {PATCH} to 4088, or a (height, width) of such numbers"
            )
        if self.resize is not None and not (_is_int(self.resize) and max(self.input_size) <= self.resize <= 8192):
            self._refuse("resize", f"None or an integer from image_size = {max(self.input_size)} to 8192")
        if self.tile is not None and not (
            _is_int(self.tile) and 4 * PATCH <= self.tile <= min(self.input_size) and self.tile % PATCH == 0
        ):
            self._refuse(
                "tile", f"None or a multiple of {PATCH} from {4 * PATCH} to image_size = {min(self.input_size)}"
            )
        if isinstance(self.weights, PurePath):
            object.__setattr__(self, "weights", str(self.weights))
        if self.weights is not None and not (isinstance(self.weights, str) and self.weights):
            self._refuse("weights", "None or the path of a file or folder")

    def _check_layers(self) -> None:
        if not (isinstance(self.layers, tuple) and self.layers and all(_is_int(layer) for layer in self.layers)):
            self._refuse("layers", "a non-empty tuple of integers")
        if len(set(self.layers)) != len(self.layers):
            self._refuse("layers", "a tuple without repeats")

    @classmethod
    def best(cls, **settings: Any) -> "Config":
        """The recipe that was measured to be better than the paper's (docs/best.md), with ``settings`` of one's own."""
        return cls(**{**BEST, **settings})

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) of the backbone's input in pixels."""
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
        if not all(0 <= layer < depth for layer in resolved) or len(set(resolved)) != len(resolved):
            self._refuse("layers", f"different blocks from {-depth} to {depth - 1} of a backbone with {depth}")
        return resolved

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready settings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Config":
        """The inverse of :meth:`to_dict`; an unknown key is an error."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ConfigError(f"settings must be among {', '.join(sorted(known))}, got {', '.join(unknown)}")
        return cls(**settings)
