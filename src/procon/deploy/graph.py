"""An ONNX graph under construction: nodes, constants and the few composite steps that the operators lack."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 17  # the first with LayerNormalization; runtimes of the last years read it
_IR = 8  # the file format that goes with it
PROTOBUF_LIMIT = 1_900_000_000  # bytes; above it, weights go into a separate file

Array = NDArray[Any]


class Graph:
    """Collects nodes and constants; :meth:`model` turns them into an ONNX model.

    ``ranges`` are the smallest and largest inputs of linear layers by name: those are computed with 8-bit integers.
    ``half`` stores large constants as fp16; they become fp32 when a runtime loads the file.
    """

    def __init__(self, *, ranges: Mapping[str, tuple[float, float]] | None = None, half: bool = False) -> None:
        self.linear_inputs: dict[str, str] = {}  # the tensor that each linear layer reads
        self.integers = bool(ranges)  # whether products may be computed with 8-bit integers
        self._ranges = dict(ranges or {})
        self._half = half
        self._nodes: list[Any] = []
        self._constants: dict[str, Array] = {}
        self._stored: dict[str, str] = {}

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns the name of the output."""
        return self.ops(kind, 1, *inputs, name=name, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, name: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs; returns their names."""
        from onnx import helper

        name = name or f"{kind}_{len(self._nodes)}"
        names = [name] if outputs == 1 else [f"{name}:{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def constant(self, value: Array | Sequence[int] | float, name: str = "") -> str:
        """A constant tensor: int64 from integers, float32 from a number; equal small ones are stored once."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        key = f"{array.dtype}{array.shape}{array.tobytes()!r}" if array.size <= 16 else ""
        if key and key in self._stored:
            return self._stored[key]
        name = name or f"constant_{len(self._constants)}"
        if self._half and array.dtype == np.float32 and array.size > 1024:
            self._constants[f"{name}:fp16"] = array.astype(np.float16)
            return self.op("Cast", f"{name}:fp16", name=name, to=1)
        self._constants[name] = np.ascontiguousarray(array)
        if key:
            self._stored[key] = name
        return name

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """``tensor`` with another shape: at most one -1; 0 keeps a dimension."""
        return self.op("Reshape", tensor, self.constant(shape))

    def linear(self, tensor: str, weight: Array, bias: Array, name: str) -> str:
        """[R, C] times ``weight`` [C, D] plus ``bias`` [D]."""
        self.linear_inputs[name] = tensor
        if name in self._ranges:
            return self.integer_linear(tensor, weight, bias, self._ranges[name], name)
        stored = self.constant(weight, f"{name}/weight"), self.constant(bias, f"{name}/bias")
        return self.op("Gemm", tensor, *stored, name=name)

    def integer_linear(self, tensor: str, weight: Array, bias: Array, interval: tuple[float, float], name: str) -> str:
        """:meth:`linear` of inputs within ``interval`` between pairs of QuantizeLinear and DequantizeLinear.

        Runtimes turn that into integer arithmetic. The input has 256 steps over its range, the weight 255 for each
        column, the bias the product of both steps.
        """
        low, high = min(interval[0], 0.0), max(interval[1], 0.0)
        step = np.float32(max(high - low, 1e-6) / 255)
        zero = np.uint8(np.clip(np.rint(-low / step), 0, 255))
        grid = self.constant(np.asarray(step)), self.constant(np.asarray(zero))
        rounded = self.op("DequantizeLinear", self.op("QuantizeLinear", tensor, *grid, name=f"{name}/quantize"), *grid)
        steps = np.maximum(np.abs(weight).max(axis=0) / 127, 1e-12).astype(np.float32)
        integers = np.clip(np.rint(weight / steps), -127, 127).astype(np.int8)
        matrix = self._dequantized(integers, steps, f"{name}/weight", axis=1)
        offsets = np.clip(np.rint(bias / (steps * step)), -(2**31), 2**31 - 128).astype(np.int32)
        offset = self._dequantized(offsets, steps * step, f"{name}/bias", axis=0)
        return self.op("Gemm", rounded, matrix, offset, name=name)

    def _dequantized(self, integers: Array, steps: Array, name: str, axis: int) -> str:
        zeros = np.zeros(len(steps), integers.dtype)
        stored = self.constant(integers, name), self.constant(steps), self.constant(zeros)
        return self.op("DequantizeLinear", *stored, axis=axis)

    def median(self, tensor: str, count: int) -> str:
        """The true median over the last axis, which has ``count`` values: [..., count] -> [..., 1]."""
        half = count // 2 + 1
        smallest, _ = self.ops("TopK", 2, tensor, self.constant([half]), axis=-1, largest=0, sorted=1)
        middle = self.slice(smallest, half - (2 - count % 2), half)
        return self.op("ReduceMean", middle, axes=[-1], keepdims=1)

    def slice(self, tensor: str, start: int, stop: int, axis: int = -1) -> str:
        """``tensor[..., start:stop]`` along ``axis``."""
        bounds = [self.constant([number]) for number in (start, stop, axis)]
        return self.op("Slice", tensor, *bounds)

    def model(self, inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, Sequence[int | str]]) -> Any:
        """The ONNX model; shapes name their dynamic dimensions."""
        from onnx import TensorProto, helper, numpy_helper

        sides = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors.items()]
            for tensors in (inputs, outputs)
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "procon", *sides, constants)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=_IR, producer_name="procon")

    @property
    def constant_bytes(self) -> int:
        """Size of all constants as stored."""
        return sum(array.nbytes for array in self._constants.values())


def save_onnx(model: Any, work: Path, size: int) -> list[str]:
    """Write ``model.onnx``, and weights that do not fit into it to ``model.data``; returns the names of the files."""
    import onnx

    file, split = str(work / "model.onnx"), size >= PROTOBUF_LIMIT
    onnx.save_model(model, file, save_as_external_data=split, location="model.data")
    return ["model.onnx", "model.data"] if split else ["model.onnx"]
