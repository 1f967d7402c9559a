"""Estimate the time, memory and disk of a fit before it starts."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from procon.amounts import count_of, human_bytes, human_time
from procon.config import Config
from procon.detector import Detector
from procon.model.selection import IN_RAM_BYTES, coreset_size
from procon.vision.images import ImageLike, open_image

# Share of the N x M distances of a full k-center that the lazy one computes, measured on real parts; random points
# need up to all of them.
_LAZY_SHARE = 0.1


@dataclass(frozen=True)
class Plan:
    """Sizes and times of a fit."""

    images: int
    patches: int
    anchors: int  # per bank
    memories: int
    banks: int
    peak_bytes: int  # highest resident memory
    disk_bytes: int  # temporary files; 0 if the features stay in memory
    model_bytes: int  # upper limit of the model file: banks that share anchors make it smaller
    seconds: float  # an estimate, from one image and one matrix product timed on this machine

    def __str__(self) -> str:
        disk = f", {human_bytes(self.disk_bytes)} of temporary disk" if self.disk_bytes else ""
        return (
            f"{count_of(self.images, 'image')}, {self.patches:,} patches; {self.memories} x {self.banks} banks of "
            f"{self.anchors:,} anchors\nabout {human_time(self.seconds)}, {human_bytes(self.peak_bytes)} of memory"
            f"{disk}, a model of at most {human_bytes(self.model_bytes)}"
        )


def plan_fit(detector: Detector, images: int, example: ImageLike) -> Plan:
    """Plan ``detector.fit`` of so many images like ``example``; loads the backbone and times one image."""
    config, extractor = detector.config, detector.reader.extractor
    per_image = config.grid[0] * config.grid[1]
    patches = images * per_image
    anchors = coreset_size(patches, config.coreset_ratio, config.num_neighbors, config.max_anchors)
    width = sum(extractor.dims)
    features = 4 * patches * width
    memory = 4 * config.banks * anchors * width
    seconds_image = _time_image(detector, example)
    rate = _flops_per_second(detector.device)
    select = 2 * patches * anchors * config.selection_dim * config.banks * len(extractor.dims) * _LAZY_SHARE / rate
    score = 2 * per_image * anchors * width * config.banks / rate
    return Plan(
        images,
        patches,
        anchors,
        len(extractor.dims),
        config.banks,
        peak_bytes=resident_bytes() + fit_bytes(patches, extractor.dims, anchors, config),
        disk_bytes=features // 2 if features > IN_RAM_BYTES else 0,
        model_bytes=memory + patches // 100,
        seconds=images * (seconds_image + 2 * score) + 2 * select,
    )


def fit_bytes(patches: int, dims: list[int], anchors: int, config: Config) -> int:
    """Highest memory that a fit adds, in bytes: all features or a block of them, k-center, and the anchors."""
    features = 4 * patches * sum(dims)
    in_memory = features if features <= IN_RAM_BYTES else 3 * 4 * 65_536 * max(dims)
    # k-center holds its points as fp32, a few numbers of 8 bytes for each, one more for each bank, and blocks
    selection = patches * (4 * min(config.selection_dim, max(dims)) + 8 * (5 + config.banks)) + 2**28
    return in_memory + selection + 4 * config.banks * anchors * sum(dims)


def _time_image(detector: Detector, example: ImageLike) -> float:
    extractor, start = detector.reader.extractor, 0.0
    for _ in range(2):  # the first pass pays for the set-up
        start = time.perf_counter()
        ((_, pixels),) = extractor.batches([open_image(example)])
        float(extractor.features(pixels)[0].flatten()[0])  # waits for the device
    return time.perf_counter() - start


def _flops_per_second(device: torch.device) -> float:
    a = torch.randn(1024, 512, device=device)
    start = time.perf_counter()
    for _ in range(4):
        product = a @ a.T
    float(product[0, 0])  # waits for the device
    return 4 * 2 * 1024 * 1024 * 512 / (time.perf_counter() - start)


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
