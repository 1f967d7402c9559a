"""The backbone as an ONNX graph: DINOv2 from normalised pixels to the tokens of some blocks.

The scale of the attention and LayerScale are folded into the weights. Tokens are the same, except for rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from procon.arrays import Floats
from procon.config import PATCH
from procon.deploy.graph import Graph

EPSILON = 1e-6  # of every layer norm in DINOv2


@dataclass(frozen=True)
class Vit:
    """Weights of a DINOv2 under Hugging Face names, cut after the deepest block that is read."""

    tensors: Mapping[str, Floats]
    position: Floats  # [1, 1 + P, C], already resized to the grid
    heads: int
    registers: int
    swiglu: bool
    layers: tuple[int, ...]  # 0-based blocks whose output is needed, in that order
    grid: tuple[int, int]

    @property
    def patches(self) -> int:
        """Patches per image."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        """Patches, registers and CLS."""
        return 1 + self.registers + self.patches

    @property
    def hidden(self) -> int:
        """Dimensions of a token."""
        return int(self.position.shape[2])


def add_backbone(graph: Graph, pixels: str, vit: Vit) -> list[str]:
    """Tokens of ``pixels`` [N, 3, H, W], CLS and registers dropped: [N * P, C] for each of ``vit.layers``."""
    hidden = _embed(graph, pixels, vit)
    outputs: dict[int, str] = {}
    for index in range(max(vit.layers) + 1):
        hidden = _block(graph, hidden, vit, index)
        if index in vit.layers:
            images = graph.reshape(hidden, [-1, vit.tokens, vit.hidden])
            patches = graph.slice(images, 1 + vit.registers, vit.tokens, axis=1)
            outputs[index] = graph.reshape(patches, [-1, vit.hidden])
    return [outputs[layer] for layer in vit.layers]


def _embed(graph: Graph, pixels: str, vit: Vit) -> str:
    """[N, 3, H, W] to tokens with position [N * T, C]."""
    (rows, columns), width = vit.grid, vit.hidden
    cells = graph.reshape(pixels, [-1, 3, rows, PATCH, columns, PATCH])
    patches = graph.op("Transpose", cells, perm=[0, 2, 4, 1, 3, 5])
    patches = graph.reshape(patches, [-1, 3 * PATCH * PATCH])
    weight = vit.tensors["embeddings.patch_embeddings.projection.weight"].reshape(width, -1).T
    bias = vit.tensors["embeddings.patch_embeddings.projection.bias"]
    # One weight row per pixel of a patch: too few values and too wide a range for 8 bits, and little to gain.
    matrix = graph.constant(np.ascontiguousarray(weight), "backbone/patches/weight")
    tokens = graph.op("Gemm", patches, matrix, graph.constant(bias, "backbone/patches/bias"), name="backbone/patches")
    tokens = graph.reshape(tokens, [-1, vit.patches, width])
    tokens = graph.op("Add", tokens, graph.constant(vit.position[:, 1:], "backbone/position"))
    first = vit.tensors["embeddings.cls_token"] + vit.position[:, :1]
    if vit.registers:
        first = np.concatenate([first, vit.tensors["embeddings.register_tokens"]], axis=1)
    count = graph.slice(graph.op("Shape", pixels), 0, 1, axis=0)
    shape = graph.op("Concat", count, graph.constant([1 + vit.registers, width]), axis=0)
    first_tokens = graph.op("Expand", graph.constant(first, "backbone/first"), shape)
    return graph.reshape(graph.op("Concat", first_tokens, tokens, axis=1), [-1, width])


def _block(graph: Graph, hidden: str, vit: Vit, index: int) -> str:
    name = f"backbone/{index}"
    block = _BlockTensors(vit.tensors, f"encoder.layer.{index}.")
    attended = _attention(graph, _norm(graph, hidden, block, "norm1", name), vit, block, name)
    hidden = graph.op("Add", hidden, attended)
    normed = _norm(graph, hidden, block, "norm2", name)
    expand = _swiglu if vit.swiglu else _mlp
    return graph.op("Add", hidden, expand(graph, normed, block, name), name=f"{name}/output")


@dataclass(frozen=True)
class _BlockTensors:
    """The tensors below a prefix."""

    tensors: Mapping[str, Floats]
    prefix: str

    def __getitem__(self, name: str) -> Floats:
        return self.tensors[self.prefix + name]

    def linear(self, name: str, scale: Any = 1.0) -> tuple[Floats, Floats]:
        """Weight [C, D] and bias [D] of a linear layer whose output is multiplied by ``scale``."""
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return np.ascontiguousarray(weight.T * np.float32(scale)), bias * np.float32(scale)


def _norm(graph: Graph, hidden: str, block: _BlockTensors, which: str, name: str) -> str:
    weight = graph.constant(block[f"{which}.weight"], f"{name}/{which}/weight")
    bias = graph.constant(block[f"{which}.bias"], f"{name}/{which}/bias")
    return graph.op("LayerNormalization", hidden, weight, bias, name=f"{name}/{which}", axis=-1, epsilon=EPSILON)


def _attention(graph: Graph, hidden: str, vit: Vit, block: _BlockTensors, name: str) -> str:
    size = vit.hidden // vit.heads
    scales = {"query": size**-0.5, "key": 1.0, "value": 1.0}
    weights, biases = zip(
        *(block.linear(f"attention.attention.{key}", scale) for key, scale in scales.items()), strict=True
    )
    joint = graph.linear(hidden, np.concatenate(weights, axis=1), np.concatenate(biases), f"{name}/qkv")
    sizes = graph.constant([vit.hidden] * 3)
    query, key, value = graph.ops("Split", 3, joint, sizes, axis=1)

    def heads(tensor: str, perm: list[int]) -> str:
        return graph.op("Transpose", graph.reshape(tensor, [-1, vit.tokens, vit.heads, size]), perm=perm)

    scores = graph.op("MatMul", heads(query, [0, 2, 1, 3]), heads(key, [0, 2, 3, 1]))
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), heads(value, [0, 2, 1, 3]))
    mixed = graph.reshape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), [-1, vit.hidden])
    out = block.linear("attention.output.dense", block["layer_scale1.lambda1"])
    return graph.linear(mixed, *out, f"{name}/attention")


def _mlp(graph: Graph, hidden: str, block: _BlockTensors, name: str) -> str:
    wide = graph.linear(hidden, *block.linear("mlp.fc1"), f"{name}/fc1")
    # GELU in the form that runtimes recognise and replace by one kernel
    error = graph.op("Erf", graph.op("Div", wide, graph.constant(2**0.5)))
    gate = graph.op("Mul", wide, graph.op("Add", error, graph.constant(1.0)))
    active = graph.op("Mul", gate, graph.constant(0.5))
    return graph.linear(active, *block.linear("mlp.fc2", block["layer_scale2.lambda1"]), f"{name}/fc2")


def _swiglu(graph: Graph, hidden: str, block: _BlockTensors, name: str) -> str:
    wide = graph.linear(hidden, *block.linear("mlp.weights_in"), f"{name}/fc1")
    half = block["mlp.weights_in.weight"].shape[0] // 2
    gate, value = graph.ops("Split", 2, wide, graph.constant([half] * 2), axis=1)
    active = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), value)
    return graph.linear(active, *block.linear("mlp.weights_out", block["layer_scale2.lambda1"]), f"{name}/fc2")
