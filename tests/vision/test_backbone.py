"""Tokens against ``transformers``; ``python -m tests.vision.test_backbone`` writes the golden file anew."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from procon import Config
from procon.errors import ConfigError, WeightsError
from procon.vision.backbone import Backbone, _resize_position, rebuild, used_tensors
from procon.vision.weights import Architecture, Weights, architecture_of, fingerprint
from tests.conftest import tiny_config, write_tiny_backbone

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parents[1] / "golden" / "tokens.safetensors"
TINY = Architecture(hidden=64, depth=3, heads=2)


def random_state(architecture: Architecture, side: int = 5, seed: int = 0, std: float = 0.2) -> dict[str, Tensor]:
    """A state dict under the names of the published checkpoints, from NumPy's RandomState: its stream never changes."""
    random = np.random.RandomState(seed)
    width = architecture.hidden
    inner = width * architecture.mlp_ratio
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.mask_token": (1, width),
        "embeddings.position_embeddings": (1, 1 + side**2, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, 14, 14),
        "embeddings.patch_embeddings.projection.bias": (width,),
    }
    if architecture.registers:
        shapes["embeddings.register_tokens"] = (1, architecture.registers, width)
    for layer in range(architecture.depth):
        block = f"encoder.layer.{layer}"
        for name in ("attention.attention.query", "attention.attention.key", "attention.attention.value"):
            shapes |= {f"{block}.{name}.weight": (width, width), f"{block}.{name}.bias": (width,)}
        shapes |= {f"{block}.attention.output.dense.weight": (width, width)}
        shapes |= {f"{block}.attention.output.dense.bias": (width,)}
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            shapes[f"{block}.{name}"] = (width,)
        shapes |= {f"{block}.layer_scale1.lambda1": (width,), f"{block}.layer_scale2.lambda1": (width,)}
        if architecture.swiglu:
            gated = (int(inner * 2 / 3) + 7) // 8 * 8  # two thirds, as a multiple of 8
            linears = {"weights_in": (2 * gated, width), "weights_out": (width, gated)}
        else:
            linears = {"fc1": (inner, width), "fc2": (width, inner)}
        for name, shape in linears.items():
            shapes |= {f"{block}.mlp.{name}.weight": shape, f"{block}.mlp.{name}.bias": shape[:1]}
    shapes |= {"layernorm.weight": (width,), "layernorm.bias": (width,)}
    return {
        name: torch.from_numpy(random.standard_normal(shape).astype(np.float32)).mul_(std)
        for name, shape in shapes.items()
    }


def weights_of(architecture: Architecture, **options: Any) -> Weights:
    return Weights(architecture, random_state(architecture, **options), "path:random", "")


def pixels_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the largest value.

    Batches, releases of torch and its matrix libraries sum in other orders, which moves values by roundings of the
    largest terms (measured: under 1e-6 of the largest value). Any real change (an epsilon, a resize, a forgotten
    scale) is a hundred times larger than the bound.
    """
    torch.testing.assert_close(actual, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def load(folder: Path, **settings: Any) -> Backbone:
    return Backbone.load(tiny_config(folder, **settings), CPU)


# ------------------------------------------------------------------------------------------------ what tokens are


@pytest.fixture(scope="module", params=["plain", "registers", "swiglu", "both"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    registers = 4 if request.param in ("registers", "both") else 0
    path = tmp_path_factory.mktemp("backbone") / str(request.param)
    return write_tiny_backbone(path, registers=registers, swiglu=request.param in ("swiglu", "both"))


@pytest.mark.parametrize(
    "size", [(70, 70), (98, 70), (56, 112), (126, 126), (28, 196), (28, 28)]
)  # the first is native
def test_tokens_are_the_hidden_states_of_transformers(folder: Path, size: tuple[int, int]) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    pixels = pixels_of(2, 3, *size)
    with torch.no_grad():
        expected = model(pixels, output_hidden_states=True).hidden_states  # the first is the embedding
    backbone = load(folder, image_size=size, layers=(0, 1, 2, 3))
    cells = (size[0] // 14) * (size[1] // 14)
    for layer, tokens in enumerate(backbone.tokens(pixels)):
        assert tokens.shape == (2, cells, 32)
        assert_close(tokens, expected[layer + 1][:, -cells:])  # behind CLS and registers


def test_tokens_come_in_the_order_of_the_layers(tiny_backbone: Path) -> None:
    pixels = pixels_of(1, 3, 70, 70)
    forward, backward = (load(tiny_backbone, layers=layers).tokens(pixels) for layers in ((0, 2, 3), (-1, -2, 0)))
    assert all(torch.equal(one, other) for one, other in zip(forward, reversed(backward), strict=True))
    assert not torch.equal(forward[0], forward[1])


def test_no_block_after_the_deepest_layer_exists(tiny_backbone: Path) -> None:
    backbone = load(tiny_backbone, layers=(-3, 0))
    assert len(backbone._model.encoder.layer) == 2
    assert {int(name.split(".")[2]) for name in backbone.state() if name.startswith("encoder")} == {0, 1}
    whole = load(tiny_backbone, layers=(-3, 0, 3))
    pixels = pixels_of(1, 3, 70, 70)
    assert all(map(torch.equal, backbone.tokens(pixels), whole.tokens(pixels)))


def test_layers_that_do_not_exist(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match=r"layers must be different blocks from -4 to 3 .*, got \(4,\)"):
        load(tiny_backbone, layers=(4,))


def test_only_what_tokens_depend_on_is_kept() -> None:
    used = used_tensors(random_state(TINY), deepest=0)
    assert not [name for name in used if re.search(r"layer\.[12]\.|layernorm|mask_token", name)]
    shallow = random_state(Architecture(64, depth=1, heads=2))  # drawn in the same order, so equal so far as it goes
    assert fingerprint(used) == fingerprint(used_tensors(shallow, deepest=0))


# ------------------------------------------------------------------------------------------- what tokens never do


def test_tokens_do_not_depend_on_the_batch_or_its_order(folder: Path) -> None:
    backbone = load(folder, image_size=98, layers=(1, 3))
    pixels = pixels_of(3, 3, 98, 98)
    batch = backbone.tokens(pixels)
    singles = [backbone.tokens(image[None]) for image in pixels]
    for layer, tokens in enumerate(batch):
        assert torch.equal(tokens, torch.cat([single[layer] for single in singles]))
    assert all(map(torch.equal, backbone.tokens(pixels.flip(0)), [tokens.flip(0) for tokens in batch]))


def test_tokens_do_not_depend_on_the_number_of_threads() -> None:
    # As wide as ViT-S and at the default size: matrices of the tiny backbone are too small to be shared out.
    weights = weights_of(Architecture(384, depth=1, heads=6), side=28, std=0.02)
    backbone = Backbone(weights, Config(layers=(0,)), CPU)
    pixels = pixels_of(1, 3, 392, 392)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results += backbone.tokens(pixels)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_a_rebuilt_backbone_gives_the_same_tokens(folder: Path) -> None:
    backbone = load(folder)
    again = rebuild(backbone.state(), backbone.identity(), tiny_config(folder), CPU)
    pixels = pixels_of(1, 3, 70, 70)
    assert all(map(torch.equal, backbone.tokens(pixels), again.tokens(pixels)))
    assert again.identity() == backbone.identity()


def test_state_is_half_the_size_where_that_is_exact() -> None:
    weights = weights_of(TINY)
    name = "encoder.layer.0.norm1.bias"
    weights.tensors[name] = weights.tensors[name].half().float()
    state = Backbone(weights, Config(image_size=70, layers=(0,)), CPU).state()
    assert [key for key, tensor in state.items() if tensor.dtype == torch.float16] == [name]


def test_weights_stay_as_they_were_given() -> None:
    weights = weights_of(TINY)
    before = fingerprint(weights.tensors)
    Backbone(weights, Config(image_size=70, layers=(0,)), CPU).tokens(pixels_of(1, 3, 70, 70))
    assert fingerprint(weights.tensors) == before


# ------------------------------------------------------------------------------------------------------ precision


def test_bf16_on_a_cpu_stays_within_a_measured_error(tiny_backbone: Path) -> None:
    pixels = pixels_of(2, 3, 70, 70)
    exact = load(tiny_backbone, precision="fp32", layers=(0, 3)).tokens(pixels)
    rough = load(tiny_backbone, precision="bf16", layers=(0, 3)).tokens(pixels)
    for one, other in zip(exact, rough, strict=True):
        error = float((one - other).norm() / one.norm())
        assert other.dtype == torch.float32
        # Measured: 0.5 % after the first block, 0.9 % after the fourth. bf16 keeps 8 bits, 0.4 %.
        assert 0 < error < 0.02


def test_auto_is_fp32_on_a_cpu(tiny_backbone: Path) -> None:
    assert load(tiny_backbone, precision="auto").dtype == torch.float32
    assert load(tiny_backbone, precision="bf16").dtype == torch.bfloat16


# -------------------------------------------------------------------------------------------------- golden tokens


def golden() -> dict[str, Tensor]:
    """Tokens of a fixed backbone on fixed pixels, and a resized position embedding: nothing of torch's randomness."""
    kinds = {
        "plain": TINY,
        "registers": Architecture(64, 3, 2, registers=2),
        "swiglu": Architecture(64, 3, 2, swiglu=True),
    }
    tensors: dict[str, Tensor] = {}
    for name, architecture in kinds.items():
        config = Config(image_size=(70, 42), layers=(-1, 0), precision="fp32")
        tokens = Backbone(weights_of(architecture), config, CPU).tokens(pixels_of(1, 3, 70, 42))
        tensors |= {f"{name}.{layer}": layer_tokens for layer, layer_tokens in zip((2, 0), tokens, strict=True)}
    position = pixels_of(1, 1 + 7 * 7, 8)
    for grid in ((5, 9), (3, 4), (12, 12)):
        for antialias in (False, True):
            name = f"position.{grid[0]}x{grid[1]}{'.antialias' if antialias else ''}"
            tensors[name] = _resize_position(position, grid, antialias)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def test_golden_tokens() -> None:
    stored, now = load_file(GOLDEN), golden()
    assert sorted(stored) == sorted(now)
    for name, tensor in stored.items():
        assert_close(now[name], tensor)


def test_a_position_embedding_keeps_its_own_grid_and_its_cls() -> None:
    position = pixels_of(1, 1 + 7 * 7, 8)
    assert torch.equal(_resize_position(position, (7, 7), antialias=True), position)
    assert torch.equal(_resize_position(position, (3, 4), antialias=False)[:, 0], position[:, 0])


# ------------------------------------------------------------------------------------------------ published shapes


def test_a_model_of_the_default_shape_runs_at_the_default_size() -> None:
    weights = weights_of(architecture_of("dinov2-base"), side=37, std=0.02)
    backbone = Backbone(weights, Config(), CPU)
    tokens = backbone.tokens(pixels_of(1, 3, 392, 392))
    assert backbone.layers == (9, 6, 4, 3)
    assert [tuple(layer.shape) for layer in tokens] == [(1, 784, 768)] * 4
    assert all(layer.isfinite().all() for layer in tokens)


def change(state: dict[str, Tensor], name: str, tensor: Tensor | None) -> dict[str, Tensor]:
    return {**state, name: tensor} if tensor is not None else {key: state[key] for key in state if key != name}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("encoder.layer.1.mlp.fc1.weight", None),
        ("encoder.layer.0.norm2.bias", None),
        ("encoder.layer.1.mlp.fc1.weight", torch.zeros(7, 64)),
        ("embeddings.cls_token", torch.zeros(1, 1, 63)),
        ("encoder.layer.1.mlp.fc3.weight", torch.zeros(64, 64)),
    ],
)
def test_weights_that_do_not_fit_are_named(name: str, tensor: Tensor | None) -> None:
    weights = Weights(TINY, change(random_state(TINY), name, tensor), "path:some.pth", "")
    with pytest.raises(WeightsError, match=rf"path:some\.pth: does not fit a DINOv2 of 64-d, .*{re.escape(name)}"):
        Backbone(weights, Config(image_size=70, layers=(1,)), CPU)


def main(path: Path = GOLDEN) -> Sequence[str]:
    path.parent.mkdir(exist_ok=True)
    tensors = golden()
    save_file(tensors, path)
    return sorted(tensors)


if __name__ == "__main__":
    print(*main(), sep="\n")
