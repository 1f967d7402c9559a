"""Run a model file in the same way with onnxruntime and with OpenVINO."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from procon.arrays import Floats
from procon.errors import ConfigError, MissingExtraError, ModelFileError
from procon.names import show_name

Session = Callable[[Floats], dict[str, Floats]]
"""Pixels [N, 3, H, W] in, outputs by name out."""

OUTPUTS = ("score", "map", "patches")
INPUT = "pixels"


def open_session(
    model: Path, runtime: str, *, device: str = "auto", threads: int | None = None, outputs: Sequence[str] = OUTPUTS
) -> Session:
    """Load ``model`` into ``runtime`` (``onnx`` or ``openvino``).

    ``device`` is ``auto`` or ``cpu``; ``cuda`` with a GPU build of onnxruntime; with openvino also the name of one of
    its devices (``gpu``, ``npu``). ``threads`` limits the cores; None takes all.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"threads must be None or an integer of at least 1, got {threads!r}")
    check_path(model, runtime)
    open_model = _open_onnxruntime if runtime == "onnx" else _open_openvino
    return open_model(model, device, threads, tuple(outputs))


def check_path(model: Path, runtime: str) -> None:
    """Refuse a path that the runtimes cannot open."""
    try:
        str(model).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{show_name(model)}: {runtime} needs a path in UTF-8; rename the folder") from None


def _open_onnxruntime(model: Path, device: str, threads: int | None, outputs: tuple[str, ...]) -> Session:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(f"{model}: needs onnxruntime; install it with: pip install 'procon[onnx]'") from None
    providers = {"auto": "CPUExecutionProvider", "cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    provider = providers.get(device)
    if provider is None:
        raise ConfigError(f"device must be 'auto', 'cpu' or 'cuda' for an ONNX model, got {device!r}")
    if provider not in onnxruntime.get_available_providers():
        raise ConfigError(f"device must be one that this onnxruntime supports, got {device!r}; use 'cpu'")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that wait by spinning take the cores from other programs: three times as slow on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=[provider])
    except Exception as error:  # its own exception classes are not public
        raise ModelFileError(f"{model}: onnxruntime cannot load it ({error}); export again") from None

    def run(pixels: Floats) -> dict[str, Floats]:
        return dict(zip(outputs, session.run(list(outputs), {INPUT: pixels}), strict=True))

    return run


def _open_openvino(model: Path, device: str, threads: int | None, outputs: tuple[str, ...]) -> Session:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError(f"{model}: needs openvino; install it with: pip install 'procon[openvino]'") from None
    core = openvino.Core()
    chosen = "CPU" if device in ("auto", "cpu") else device.upper()
    if chosen.partition(".")[0] not in {name.partition(".")[0] for name in core.available_devices}:
        devices = ", ".join(core.available_devices).lower()
        raise ConfigError(f"device must be 'auto' or one that openvino finds here ({devices}), got {device!r}")
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if chosen == "CPU":
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # it would take bf16 where the processor has it
        settings["ENABLE_CPU_PINNING"] = False  # a pinned thread waits for its core while another is free
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
    try:
        request = core.compile_model(str(model), chosen, settings).create_infer_request()
    except RuntimeError as error:
        raise ModelFileError(f"{model}: openvino cannot load it ({error}); export again") from None

    lock = Lock()

    def run(pixels: Floats) -> dict[str, Floats]:
        with lock:  # a request serves one caller at a time
            results = request.infer({INPUT: pixels})
            return {name: np.array(results[name]) for name in outputs}

    return run
