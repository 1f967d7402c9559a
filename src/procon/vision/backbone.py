"""A frozen DINOv2: pixels to patch tokens of several depths in one forward pass."""

import re
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional

from procon.config import PATCH, Config
from procon.errors import ConfigError, WeightsError
from procon.names import show_name
from procon.vision.sources import find_weights
from procon.vision.weights import Architecture, Weights, fingerprint


class Backbone:
    """DINOv2 cut after the deepest block that is read.

    The blocks are those of ``transformers``. Position embeddings are resized here (bicubic, pixel centres aligned, and
    antialiased only with registers, each as Hugging Face's models do), so that tokens do not depend on its release.
    """

    def __init__(self, weights: Weights, config: Config, device: torch.device) -> None:
        self.source, self.sha256 = weights.source, weights.sha256
        self.architecture = weights.architecture
        self.layers = config.resolve_layers(weights.architecture.depth)
        self.device = device
        half = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if half else torch.float32
        self._tensors = used_tensors(weights.tensors, max(self.layers))
        self.fingerprint = fingerprint(self._tensors)
        self._model = _build_model(weights, self._tensors, max(self.layers) + 1).to(device, self.dtype)
        position = self._tensors["embeddings.position_embeddings"]
        position = _resize_position(position, config.view, antialias=weights.architecture.registers > 0)
        self._position = position.to(device, self.dtype)

    @classmethod
    def load(cls, config: Config, device: torch.device, source: str | None = None) -> "Backbone":
        """Find the weights of ``config`` (see :mod:`procon.vision.sources`) and put them on ``device``."""
        return cls(find_weights(config.backbone, config.weights, source), config, device)

    def share(self, others: "WeakSet[Backbone]") -> None:
        """Use the weights of an equal one of ``others``, and be the next of them; twenty models then hold them once.

        Only weights are shared. What depends on the size of the input is not.
        """
        for other in others:
            if (other.fingerprint, other.dtype, other.device) == (self.fingerprint, self.dtype, self.device):
                self._model, self._tensors = other._model, other._tensors
                break
        others.add(self)

    def identity(self) -> dict[str, Any]:
        """What a model file records to know these weights again."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "fingerprint": self.fingerprint,
            "architecture": vars(self.architecture),
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors in use, enough for :func:`rebuild`; as fp16 where that loses nothing."""
        return {
            name: tensor.half() if torch.equal(tensor.half().float(), tensor) else tensor
            for name, tensor in self._tensors.items()
        }

    @torch.inference_mode()
    def tokens(self, pixels: Tensor) -> list[Tensor]:
        """Raw block outputs of ``pixels`` [N, 3, H, W]: float32 [N, P, C] per layer in use, CLS and registers dropped.

        On a CPU images pass one at a time: matrix sizes, and with them rounding, then never depend on the batch.
        """
        if self.device.type == "cpu" and len(pixels) > 1:
            singles = [self.tokens(image) for image in pixels.split(1)]
            return [torch.cat(parts) for parts in zip(*singles, strict=True)]
        embeddings = self._model.embeddings
        hidden = _embed_patches(pixels.to(self.device, self.dtype), embeddings.patch_embeddings.projection)
        cls_token = embeddings.cls_token.expand(len(hidden), -1, -1)
        hidden = torch.cat([cls_token, hidden], dim=1) + self._position
        if self.architecture.registers:
            registers = embeddings.register_tokens.expand(len(hidden), -1, -1)
            hidden = torch.cat([hidden[:, :1], registers, hidden[:, 1:]], dim=1)
        outputs = {}
        for index, block in enumerate(self._model.encoder.layer):
            hidden = block(hidden)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden  # a tuple before transformers 5
            if index in self.layers:
                outputs[index] = hidden[:, 1 + self.architecture.registers :].float()
        return [outputs[layer] for layer in self.layers]


def _embed_patches(pixels: Tensor, convolution: nn.Conv2d) -> Tensor:
    """The patch projection [N, 3, H, W] -> [N, P, C] as one matrix product.

    It equals the strided convolution, but a GPU would run that one in TF32 even where fp32 was asked for.
    """
    count, channels, height, width = pixels.shape
    cells = pixels.reshape(count, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    patches = cells.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * PATCH * PATCH)
    return functional.linear(patches, convolution.weight.flatten(1), convolution.bias)


def rebuild(tensors: dict[str, Tensor], identity: dict[str, Any], config: Config, device: torch.device) -> Backbone:
    """The backbone whose :meth:`Backbone.state` and :meth:`Backbone.identity` these are."""
    architecture = Architecture(**identity["architecture"])
    return Backbone(Weights(architecture, tensors, identity["source"], identity["sha256"]), config, device)


def used_tensors(tensors: dict[str, Tensor], deepest: int) -> dict[str, Tensor]:
    """The fp32 tensors that tokens of blocks up to ``deepest`` depend on: no later block, final norm or mask token."""
    return {
        name: tensor.float()
        for name, tensor in tensors.items()
        if (name.startswith("embeddings.") and name != "embeddings.mask_token")
        or (name.startswith("encoder.layer.") and int(name.split(".")[2]) <= deepest)
    }


def _build_model(weights: Weights, tensors: dict[str, Tensor], depth: int) -> Any:
    """A ``transformers`` model of ``depth`` blocks in eval mode with ``tensors`` in it."""
    import transformers
    from transformers.utils import logging as transformers_logging

    architecture = weights.architecture
    side = round((tensors["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    settings: dict[str, Any] = {
        "hidden_size": architecture.hidden,
        "num_hidden_layers": depth,
        "num_attention_heads": architecture.heads,
        "mlp_ratio": architecture.mlp_ratio,
        "use_swiglu_ffn": architecture.swiglu,
        "image_size": side * PATCH,
        "patch_size": PATCH,
    }
    if architecture.registers:
        config = transformers.Dinov2WithRegistersConfig(**settings, num_register_tokens=architecture.registers)
        kind = transformers.Dinov2WithRegistersModel
    else:
        config, kind = transformers.Dinov2Config(**settings), transformers.Dinov2Model
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        model, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them below
            dtype=torch.float32,
        )
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
    # The final norm and the mask token are never used; everything else must have been in the file.
    missing = [n for n in info["missing_keys"] if not n.startswith("layernorm") and not n.endswith("mask_token")]
    problems = sorted(missing) + sorted(info["unexpected_keys"]) + [str(key) for key in info["mismatched_keys"]]
    if problems:
        names = ", ".join(problems[:5])
        raise WeightsError(
            f"{show_name(weights.source)}: does not fit a DINOv2 of {architecture}: {names}; get the file again"
        )
    return model.eval().requires_grad_(False)


def _resize_position(position: Tensor, grid: tuple[int, int], antialias: bool) -> Tensor:
    """Position embedding [1, 1 + side², C] for ``grid`` (rows, columns): [1, 1 + rows * columns, C]."""
    side = round((position.shape[1] - 1) ** 0.5)
    if grid == (side, side):
        return position
    cells = position[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    cells = functional.interpolate(cells, size=grid, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([position[:, :1], cells.flatten(2).transpose(1, 2)], dim=1)


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU; any other name must be a device of this machine."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device must be one this machine has, got {device!r}; use 'cpu' or 'auto'")
    return chosen
