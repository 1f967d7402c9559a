"""The systems that are compared, each as its authors or anomalib ship it, on weights that can be had here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weights import LITE, VIT

from procon.config import BEST

VIT_NAME, LITE_NAME = "ViT-S/14 (Depth Anything V2)", "EfficientNet-Lite0 (ImageNet)"
BLOCKS = tuple(f"blocks.{block}" for block in (3, 4, 6, 9))  # those ProCon reads
PLAIN = {"post_processor": False, "evaluator": False, "visualizer": False}


@dataclass(frozen=True)
class System:
    """One line of the table."""

    title: str
    backbone: str
    make: Callable[[], Any] | None
    """An anomalib model; None: ours, or one that cannot be run."""
    settings: dict[str, Any] | None = None
    """Ours: what differs from the defaults."""
    steps: int = 0
    """Of gradient descent with 8 images each, where it is trained: as many as anomalib takes by default."""
    epochs: int = 0
    """Instead of steps, where anomalib counts so."""
    resize: int | None = None
    """Its input is the centre of an image resized to this square."""
    note: str = ""


def _patchcore() -> Any:
    from anomalib.models import Patchcore

    size = Patchcore.configure_pre_processor((392, 392))
    return Patchcore(backbone=VIT, layers=BLOCKS, coreset_sampling_ratio=0.01, pre_processor=size, **PLAIN)


def _patchcore_lite() -> Any:
    from anomalib.models import Patchcore

    return Patchcore(backbone=LITE, layers=("blocks.2", "blocks.4"), coreset_sampling_ratio=0.01, **PLAIN)


def _padim() -> Any:
    from anomalib.models import Padim

    return Padim(backbone=LITE, layers=["blocks.1", "blocks.2", "blocks.4"], n_features=100, **PLAIN)


def _anomaly_dino() -> Any:
    from anomalib.models import AnomalyDINO

    return AnomalyDINO(encoder_name=VIT, pre_processor=AnomalyDINO.configure_pre_processor((392, 392)), **PLAIN)


def _super_add() -> Any:
    from anomalib.models import SuperADD

    return SuperADD(backbone=VIT, patch_overlap=14, **PLAIN)  # a multiple of the patch, which is 14 here


def _dinomaly() -> Any:
    from anomalib.models import Dinomaly

    return Dinomaly(encoder_name=VIT, **PLAIN)


def _inp_former() -> Any:
    from anomalib.models import InpFormer

    return InpFormer(encoder_name=VIT, **PLAIN)


CENTRE = "sees and marks the centre only"
NO_WEIGHTS = "not run: needs ImageNet weights of a ResNet, which cannot be had here"

SYSTEMS: dict[str, System] = {
    "procon": System("ProCon, 5 %, B = 5", VIT_NAME, None, {}),
    "procon-1": System("ProCon, 1 %, B = 1", VIT_NAME, None, {"coreset_ratio": 0.01, "banks": 1}),
    "procon-best": System("ProCon, `Config.best()`", VIT_NAME, None, {**BEST, "image_size": 672}),
    "anomalydino": System("AnomalyDINO", VIT_NAME, _anomaly_dino, note="all patches kept, input 392 instead of 252"),
    "patchcore": System("PatchCore, 1 %", VIT_NAME, _patchcore, note="on the blocks ProCon reads"),
    "superadd": System("SuperADD", VIT_NAME, _super_add, note="made for DINOv3"),
    "dinomaly": System("Dinomaly", VIT_NAME, _dinomaly, steps=5000, resize=448, note=CENTRE),
    "inp-former": System("INP-Former", VIT_NAME, _inp_former, epochs=200, resize=448, note=CENTRE),
    "patchcore-lite": System("PatchCore, 1 %", LITE_NAME, _patchcore_lite, note="its authors use a WideResNet-50"),
    "padim-lite": System("PaDiM", LITE_NAME, _padim, note="its authors use a ResNet-18 or a WideResNet-50"),
    "reverse-distillation": System("Reverse Distillation", "WideResNet-50", None, note=NO_WEIGHTS),
    "cfa": System("CFA", "WideResNet-50", None, note=NO_WEIGHTS),
}
