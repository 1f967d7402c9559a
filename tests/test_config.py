import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from procon import Config
from procon.config import BACKBONES, RESTRICTIONS, Restriction, refuse
from procon.errors import ConfigError


def test_defaults_are_the_final_recipe_of_the_paper() -> None:
    assert Config().to_dict() == {
        # Table s_recipe, "Final ProCon recipe".
        "backbone": "dinov2-base",  # frozen DINOv2 ViT-B/14
        "image_size": 392,
        "patch_budget": 784,  # of image_size="auto": as many patches as the square of 392 pixels has
        "max_scale": 1.0,
        "layers": (-3, -6, -8, -9),
        "banks": 5,
        "bank_seed": 0,  # banks b = 1..5
        "coreset": "k-center",
        "num_neighbors": 5,
        "readout": "soft",
        "tau": None,
        "tau_patches": None,  # temperature: the median over all patches
        "layer_fusion": "mean",
        "normalization": "none",
        "top_ratio": 0.005,
        # Table s_projection, "Fixed projection configuration".
        "projection_dim": 512,
        "selection_dim": 192,
        "seed": 42,
        # Table s_budget_setting: 5 % on MVTec-AD and VisA (1 % on Real-IAD).
        "coreset_ratio": 0.05,
        # Not in the tables: the published configuration blurs by 4 pixels; the rest is ours.
        "blur_sigma": 4.0,
        "weights": None,
        "resize": None,
        "aspect": "stretch",
        "tile": None,
        "score_relative_to": "nothing",
        "map_offset": 0.0,
        "max_anchors": None,
        "compression": "none",
        "false_alarm_rate": 0.01,
        "threshold_rule": "robust",
        "precision": "auto",
    }
    assert Config().grid == (28, 28)  # s_recipe, "Patch grid"


NAN, INF = float("nan"), float("inf")
BAD: dict[str, list[Any]] = {
    "backbone": ["dinov2-tiny", "facebook/dinov2-base", None, ["dinov2-base"]],
    "weights": ["", 3, b"weights.pth", ("a", "b")],
    "image_size": [0, 13, 400, -392, 392.0, True, "392", None, 4102, (392,), (392, 400), (392, 392, 3), (), "Auto"],
    "patch_budget": [0, -1, 784.0, None, True, "784", 292**2 + 1],
    "max_scale": [0, -1, 8.5, NAN, None, True, "1"],
    "resize": [391, 448.0, "448", True, 8193, 0, (448, 448)],
    "aspect": ["keep", "", None, True],
    "tile": [0, 42, 60, 406, 196.0, "196", True, (196, 196)],
    "layers": [(), -3, "abc", None, (1.0,), (True,), ("3",), (3, 3), {3, 6}],
    "projection_dim": [0, -1, 512.0, None, True, "512"],
    "selection_dim": [0, -1, 192.0, None, True],
    "seed": [-1, 42.0, None, True, "42"],
    "banks": [0, -5, 5.0, None, True],
    "bank_seed": [-1, 1.0, None, True, "1", 2**31 + 1],
    "coreset": ["kcenter", "", None, "K-center"],
    "tau": [0, -1.0, NAN, INF, "auto", True],
    "coreset_ratio": [0, 0.0, -0.1, 1.01, NAN, INF, None, "0.05", True],
    "max_anchors": [0, -1, 4, 100.0, True, "100"],
    "compression": ["zip", "", None, "FP16"],
    "num_neighbors": [0, -1, 5.0, None, True],
    "readout": ["SOFT", "", None, ["soft"]],
    "tau_patches": [0, -1, 512.0, True, "512"],
    "layer_fusion": ["sum", None, 1],
    "normalization": ["zscore", None, True],
    "score_relative_to": ["anchor", "", None, True],
    "map_offset": ["median", "", None, -0.1, 1.1, float("nan"), True],
    "top_ratio": [0, -0.005, 1.5, NAN, None, "0.005", True],
    "blur_sigma": [-1, 100.5, NAN, INF, None, "4", True],
    "false_alarm_rate": [0, 5e-324, 1, -0.01, 1.0, NAN, None, "1%", True],
    "threshold_rule": ["conformal", None, ""],
    "precision": ["fp16", "FP32", None, 32],
}


def test_the_table_of_bad_values_has_every_field() -> None:
    assert sorted(BAD) == sorted(field.name for field in dataclasses.fields(Config))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert str(caught.value).startswith(f"{name} must be ")
    assert str(caught.value).endswith(f"got {value!r}")


def test_the_custom_backbone_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"weights must be a Hugging Face folder .*, got None"):
        Config(backbone="dinov2-custom")


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": 14},
        {"image_size": 4088},
        {"image_size": (224, 448)},
        {"image_size": "auto"},
        {"image_size": "auto", "tile": 4088, "aspect": "pad"},
        {"patch_budget": 1},
        {"patch_budget": 292**2},
        {"resize": 392},
        {"tile": 56},
        {"tile": 392},
        {"image_size": (784, 1176), "tile": 392, "aspect": "pad"},
        {"image_size": (224, 448), "resize": 448},
        {"max_anchors": 5},
        {"num_neighbors": 1, "max_anchors": 1},
        {"coreset_ratio": 1},
        {"blur_sigma": 0},
        {"blur_sigma": 100},
        {"seed": 0},
        {"layers": (0,)},
        *({"backbone": backbone} for backbone in BACKBONES),
    ],
)
def test_values_on_the_edge_are_accepted(settings: dict[str, Any]) -> None:
    config = Config(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_a_path_becomes_its_text() -> None:
    assert Config(weights=Path("weights") / "base").weights == str(Path("weights", "base"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(
            backbone="dinov2-custom",
            weights="folder",
            image_size=(70, 98),
            resize=98,
            layers=(0, -2),
            max_anchors=100,
            tau_patches=512,
            readout="hard",
            layer_fusion="concat",
            precision="bf16",
        ),
    ],
)
def test_json_round_trip(config: Config) -> None:
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"settings must be among aspect, .*, got bank, k$"):
        Config.from_dict({"banks": 1, "k": 5, "bank": 2})


def test_from_dict_checks_values_too() -> None:
    with pytest.raises(ConfigError, match=r"banks must be an integer of at least 1, got 0"):
        Config.from_dict({"banks": 0})


@pytest.mark.parametrize(
    ("layers", "depth", "expected"),
    [
        ((-3, -6, -8, -9), 12, (9, 6, 4, 3)),
        ((-3, -6, -8, -9), 24, (21, 18, 16, 15)),
        ((-1, 0), 12, (11, 0)),
        ((5, -12), 12, (5, 0)),
    ],
)
def test_layers_are_counted_from_either_end(layers: tuple[int, ...], depth: int, expected: tuple[int, ...]) -> None:
    assert Config(layers=layers).resolve_layers(depth) == expected


@pytest.mark.parametrize("layers", [(12,), (-13,), (-3, 9)])  # out of range twice, one block under two names
def test_layers_that_a_backbone_does_not_have(layers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"layers must be different blocks from -12 to 11 .*, got \("):
        Config(layers=layers).resolve_layers(12)


@pytest.mark.parametrize(
    "settings",
    [
        {"readout": "hard", "layers": (-6,), "banks": 1},
        {"readout": "hard", "layers": (-6,)},
        {"layers": (-6,)},
        {"layers": (-1, -3, -6, -9, -12), "layer_fusion": "concat"},
    ],
)
def test_the_ladder_is_valid_on_its_backbone(settings: dict[str, Any]) -> None:
    assert len(Config(**settings).resolve_layers(12)) == len(settings["layers"])


def test_grid_and_input_size_are_height_first() -> None:
    config = Config(image_size=(70, 98))
    assert config.input_size == (70, 98)
    assert config.grid == (5, 7)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().banks = 1  # type: ignore[misc]


@pytest.mark.parametrize("restriction", RESTRICTIONS, ids=lambda one: f"{one.context}-{one.setting}")
def test_the_default_and_the_best_recipe_are_refused_only_where_they_must(restriction: Restriction) -> None:
    assert not restriction.applies(Config())
    if restriction.context != "shards":
        assert not restriction.applies(Config.best())


def test_a_refusal_names_what_was_expected_and_what_came() -> None:
    refuse(Config(aspect="pad"), "fit")
    with pytest.raises(
        ConfigError, match=r"^aspect must be 'stretch' in benchmark runs: .*, got 'pad'; use image_size"
    ):
        refuse(Config(aspect="pad"), "bench")
