"""Export a fitted detector to a folder that runs without torch, after comparing its scores with the original."""

import errno
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from procon.arrays import Floats
from procon.config import refuse
from procon.deploy.assemble import build_graph, build_vit, export_scope, graph_shapes
from procon.deploy.cost import MetricCost, measure_cost
from procon.deploy.graph import OPSET, save_onnx
from procon.deploy.manifest import PRECISIONS, RUNTIMES, ExportedCalibration, is_exported, write_manifest
from procon.deploy.parity import (
    TOLERANCE,
    Difference,
    ScorePixels,
    check_images,
    compare_models,
    to_inputs,
    training_pictures,
)
from procon.deploy.quantize import Ranges, input_ranges
from procon.deploy.sessions import INPUT, check_path, open_session
from procon.detector import Detector
from procon.errors import ConfigError, MissingExtraError, ModelFileError, NotFittedError
from procon.evaluation.data.datasets import Sample
from procon.progress import Progress, Say, say_nothing
from procon.vision.framing import MEAN, STD
from procon.vision.images import ImageLike
from procon.workspace import atomic_folder

_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}

MAX_RANGE_IMAGES = 16  # training images that the ranges of int8 are taken from
_GRAPH_BYTES = 2**24  # a graph without its constants is smaller as OpenVINO writes it


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    folder: Path
    difference: Difference
    bytes: int  # size of the model on disk
    memory_bytes: int | None  # peak resident memory of a process that scores one image; None if not measured
    cost: MetricCost | None  # metrics of both models, if labelled images were given
    entries: Mapping[str, Any]  # the manifest, without the checksums


def check_exportable(detector: Detector, runtime: str, precision: str) -> None:
    """Refuse a detector that cannot be exported, before any work."""
    if runtime not in RUNTIMES:
        raise ConfigError(f"the runtime must be one of {', '.join(RUNTIMES)}, got {runtime!r}")
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    missing = [name for name in _PACKAGES[runtime] if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"exporting to {runtime} needs {' and '.join(missing)}; install with: pip install 'procon[{runtime}]'"
        )
    if detector.memory is None:
        raise NotFittedError("this detector has no memory yet; call fit(images) or Detector.load(path) first")
    refuse(detector.config, "export")
    if detector.device.type != "cpu":
        raise ConfigError(f"the detector must be on the CPU to be compared with its export, got {detector.device}")


def export(
    detector: Detector,
    folder: str | Path,
    *,
    runtime: str = "onnx",
    precision: str = "fp32",
    images: Sequence[ImageLike] | None = None,
    samples: Sequence[Sample] | None = None,
    tolerance: float | None = None,
    map_tolerance: float | None = None,
    measure_memory: bool = True,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write ``detector`` for ``runtime`` to ``folder``, after comparing both models on ``images``.

    ``images`` default to training images that are still there, else rendered parts. A difference of more than
    ``tolerance`` in a score or ``map_tolerance`` in a map (shares of the median score) leaves no folder and raises
    :class:`ModelFileError`. int8 takes its ranges from the same images, which must then be real. With labelled
    ``samples`` the metrics of both models are reported too.
    """
    folder, say = Path(folder), say or say_nothing
    check_exportable(detector, runtime, precision)
    check_path(folder, runtime)
    if folder.is_file():
        raise ConfigError(f"--output must be a folder, got the file {folder}")
    if folder.is_dir() and any(folder.iterdir()) and not is_exported(folder):
        raise ConfigError(f"--output must be a folder that is empty, missing or an earlier export, got {folder}")
    wanted = zip((tolerance, map_tolerance), TOLERANCE[precision], strict=True)
    limits = tuple(default if limit is None else limit for limit, default in wanted)
    if not min(limits) > 0:
        raise ConfigError(f"tolerances must be numbers above 0, got {min(limits)!r}")
    chosen = check_images(detector, images)
    if precision == "int8" and not chosen.real:
        raise ConfigError(
            "int8 needs real images of the part to find its ranges, and the training images are no longer there; "
            "name a folder with --check-images"
        )
    pixels = to_inputs(detector, chosen.pictures)
    with atomic_folder(folder) as work:
        ranges = None
        if precision == "int8":
            more = training_pictures(detector, MAX_RANGE_IMAGES) if images is None else []
            range_pixels = np.concatenate([pixels, to_inputs(detector, more)]) if more else pixels
            say(f"finding the ranges of the backbone on {len(range_pixels)} images")
            ranges = input_ranges(build_vit(detector), runtime, range_pixels)
        say(f"writing the {precision} model for {runtime}")
        files, constants = _write_model(detector, work, runtime, precision, ranges)
        say(f"comparing both models on {chosen.origin}")
        score_pixels = _open_scorer(work / files[0], runtime)
        difference = compare_models(detector, score_pixels, pixels)
        _refuse_difference(difference, limits, folder, precision)
        cost = None if samples is None else measure_cost(detector, score_pixels, samples, progress)
        size = sum((work / file).stat().st_size for file in files)
        entries = {
            "runtime": runtime,
            "precision": precision,
            **_describe_model(detector),
            "check": {
                "images": chosen.origin,
                "tolerance": dict(zip(("score", "map"), limits, strict=True)),
                "tolerance_is": "share of the median score of the images",
                "difference": difference.to_dict(),
            },
            "model": files[0],
            "size": {"disk_bytes": size, "constants_bytes": constants},
            **({} if cost is None else {"cost": cost.to_dict()}),
        }
        write_manifest(work, entries, files)
        memory = _resident_peak(work) if measure_memory else None
        if memory is not None:
            entries["size"]["peak_memory_bytes"] = memory
            write_manifest(work, entries, files)
    return Exported(folder, difference, size, memory, cost, entries)


def _open_scorer(model: Path, runtime: str) -> ScorePixels:
    session = open_session(model, runtime)

    def score_pixels(pixels: Floats) -> tuple[Floats, Floats]:
        outputs = session(pixels)
        return outputs["score"], outputs["map"]

    return score_pixels


def _write_model(
    detector: Detector, work: Path, runtime: str, precision: str, ranges: Ranges | None
) -> tuple[list[str], int]:
    """Write the model files; returns their names, first the one to open, and the bytes of the constants in them."""
    graph = build_graph(detector, ranges=ranges, half=precision == "fp16" and runtime == "onnx")
    model = graph.model(*graph_shapes(detector.config))
    files = save_onnx(model, work, graph.constant_bytes)
    if runtime == "onnx":
        return files, graph.constant_bytes
    import openvino

    converted = openvino.convert_model(str(work / files[0]))
    try:
        openvino.save_model(converted, str(work / "model.xml"), compress_to_fp16=precision == "fp16")
    except RuntimeError as error:  # it does not say why
        full = shutil.disk_usage(work).free < graph.constant_bytes + _GRAPH_BYTES
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None
    del converted  # it may hold the files below mapped
    for file in files:
        (work / file).unlink()
    return ["model.xml", "model.bin"], graph.constant_bytes


def _refuse_difference(difference: Difference, limits: tuple[float, ...], folder: Path, precision: str) -> None:
    shares = difference.score_share, difference.map_share
    if not (shares[0] <= limits[0] and shares[1] <= limits[1]):  # NaN is refused too
        remedy = "try fp32" if precision != "fp32" else "report it, with the model"
        raise ModelFileError(
            f"{folder}: was not written: on {difference.images} images the {precision} model differs from the original "
            f"by up to {shares[0]:.2%} of the median score in a score ({limits[0]:.2%} allowed) and {shares[1]:.2%} in "
            f"a map ({limits[1]:.2%} allowed); {remedy}, or allow more with --tolerance and --map-tolerance"
        )


def _describe_model(detector: Detector) -> dict[str, Any]:
    """The entries of the manifest that say how to call the model and where it comes from."""
    config, calibration, memory = detector.config, detector.calibration, detector.model.memory
    inputs, outputs = graph_shapes(config)
    scope, threshold, complete = export_scope(detector), None, None
    if calibration is not None:
        names = [field.name for field in fields(ExportedCalibration) if field.name != "sentences"]
        threshold = {name: getattr(calibration, name) for name in names} | {"sentences": calibration.describe()}
        complete = {**calibration.to_dict(), "images": []}  # held-out images are files of another machine
    return {
        "opset": OPSET,
        "input": {
            "name": INPUT,
            "shape": inputs[INPUT],
            "type": "float32",
            "color": "RGB",
            "resize": [config.resize] * 2 if config.resize else list(config.input_size),
            "filter": "bilinear, antialiased (Pillow BILINEAR)",
            "crop": list(config.input_size),
            "scale": 1 / 255,
            "mean": [round(float(value), 6) for value in MEAN],
            "std": [round(float(value), 6) for value in STD],
        },
        "outputs": {name: {"shape": shape, "type": "float32"} for name, shape in outputs.items()},
        "counted": None if scope is None else scope.rows.tolist(),  # the patches inside the region of interest
        "threshold": threshold,
        "calibration": complete,
        "memory": {"images": len(memory.images), "anchors_per_bank": int(memory.layers[0].banks.shape[1])},
        "config": config.to_dict(),
        "backbone": detector.reader.extractor.backbone.identity(),
        "facts": [*detector.describe()[:3], *(lesson.describe() for lesson in detector.model.lessons)],
    }


# Not getrusage: its peak includes that of the process which started this one.
_PROBE = r"""
import re, sys
import numpy as np
from procon.deploy import Runtime
runtime = Runtime(sys.argv[1])
runtime.measure_pixels(np.zeros((1, 3, *runtime.config.input_size), np.float32))
print(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]))
"""


def _resident_peak(folder: Path) -> int | None:
    """Peak memory in bytes of a process that loads the model and scores one image; None where there is no /proc."""
    done = subprocess.run([sys.executable, "-c", _PROBE, str(folder)], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None
