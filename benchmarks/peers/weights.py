"""Weights for anomalib's backbones from files at hand: anomalib asks timm, and timm would ask the network.

Only what is loaded into the backbone changes; anomalib itself runs as it is shipped. A backbone whose weights are not
at hand is an error, never a random one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

VIT = "vit_small_patch14_dinov2"
LITE = "tf_efficientnet_lite0"


def provide(vit: Path | None, lite: Path | None) -> None:
    """From now on ``timm.create_model(..., pretrained=True)`` reads these files."""
    readers: dict[str, Callable[[], dict[str, Tensor]]] = {}
    if vit is not None:
        readers[VIT] = lambda: {name: tensor.float() for name, tensor in load_file(vit).items()}
    if lite is not None:
        readers[LITE] = lambda: _lite(lite)
    plain = timm.create_model

    def create_model(model_name: str, pretrained: bool = False, **settings: Any) -> torch.nn.Module:
        if not pretrained:
            return plain(model_name, pretrained=False, **settings)
        name = model_name.partition(".")[0]
        if name not in readers:
            raise LookupError(
                f"the weights of {model_name} cannot be had here; there are {', '.join(readers) or 'none'}"
            )
        settings.pop("pretrained_cfg", None)
        if name == VIT and "img_size" not in settings:  # as stored it takes 518 pixels and nothing else
            settings.setdefault("dynamic_img_size", True)
        model = plain(model_name, pretrained=False, **settings)
        missing, unexpected = model.load_state_dict(readers[name](), strict=False)
        if missing:  # a model cut off after its last feature map leaves weights unused, which is fine
            raise LookupError(f"{model_name}: no weights for {', '.join(missing[:5])} (unused: {unexpected[:5]})")
        return model

    timm.create_model = create_model


def _lite(path: Path) -> dict[str, Tensor]:
    """EfficientNet-Lite0 under timm's names: both list the same tensors in the same order."""
    stored = torch.load(path, weights_only=True)
    names = timm.create_model(LITE, pretrained=False).state_dict()
    if [tensor.shape for tensor in stored.values()] != [tensor.shape for tensor in names.values()]:
        raise LookupError(f"{path}: its tensors are not those of {LITE}")
    return dict(zip(names, stored.values(), strict=True))
