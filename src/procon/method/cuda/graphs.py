"""Recorded work: hundreds of launches that cost one."""

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """A function of batches [N, ...] on CUDA, recorded for some sizes of N; the recordings share their memory.

    The function must launch the same work for every batch of a size and never wait for the device.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        self._function = function
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, tuple[Tensor, ...]]] = {}

    def record(self, example: Tensor) -> None:
        """Record the work for batches as large as ``example``, or as much smaller as nothing else was recorded for."""
        if len(example) in self._graphs:
            return
        static = example.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and fills caches outside the recording
            for _ in range(3):
                self._function(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        first = next(iter(self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=first[0].pool() if first else None):
            outputs = self._function(static)
        self._graphs[len(example)] = graph, static, outputs

    def __call__(self, batch: Tensor) -> tuple[Tensor, ...] | None:
        """The results for ``batch`` as fresh tensors, or None where nothing was recorded for so many."""
        count = len(batch)
        size = min((size for size in self._graphs if size >= count), default=None)
        if size is None:
            return None
        graph, static, outputs = self._graphs[size]
        static[:count].copy_(batch)  # what an earlier batch left behind the count is computed again and thrown away
        graph.replay()
        return tuple(output[:count].clone() for output in outputs)
