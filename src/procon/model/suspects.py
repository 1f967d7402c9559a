"""Training images that the rest cannot explain: the likely defects among parts that were called good.

Each training image is scored without its own anchors, as a new one would be. A defect that only a few images share
scores high, unless the others that share it explain it: so the suspects are hidden too, and all images are scored
again, until no more are flagged. The unsuspected images set the scale, by their lower half alone, which defects in the
upper half do not stretch. With ``score_relative_to="anchors"`` scores are relative, as in the verdict, to levels that
come from unsuspected images only. Unlike in a calibration, hidden anchors get no stand-ins: the stand-in of a defect
would be the same defect in another image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from procon.arrays import Box, Floats
from procon.errors import ConfigError
from procon.method.consensus import top_mean
from procon.method.levels import anchor_levels
from procon.method.score import Reading, fuse, read_layers
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.reader import Reader, everywhere, in_scope
from procon.model.selection import FeatureStore
from procon.model.training import TrainingSources
from procon.progress import Progress
from procon.vision.framing import patch_box

SUSPECT_LIMIT = 3.0  # spreads above the median from which an image is suspected; about 1 in 700 normal scores is there
_ROUNDS = 8


@dataclass(frozen=True)
class Suspect:
    """A training image and how far it stands out."""

    image: str  # its name in the memory
    number: int
    score: float  # image score without its own anchors, and without those of other suspects
    excess: float  # how far the score lies above the median of the unsuspected, in their spreads
    flagged: bool
    box: Box  # of the patch with the highest score, in pixels of the image
    map: Floats = field(repr=False)  # [rows, columns] patch scores


def stand_out(scores: Sequence[float], trusted: Sequence[bool]) -> list[float]:
    """How many spreads each score lies above the median of the trusted ones; their lower half gives the spread."""
    reference = np.array([score for score, good in zip(scores, trusted, strict=True) if good], np.float64)
    middle = float(np.median(reference))
    spread = float(np.sqrt(np.square(reference[reference <= middle] - middle).mean()))
    spread = max(spread, float(np.finfo(np.float32).eps) * max(abs(middle), 1e-30))
    return [float((score - middle) / spread) for score in scores]


def find_suspects(
    model: Model, reader: Reader, sources: TrainingSources, limit: float, on_progress: Progress
) -> list[Suspect]:
    """Every training image, read again, by how far it stands out, worst first; those above ``limit`` are flagged."""
    images = model.memory.images
    if len(images) < 4:
        raise ConfigError(f"suspects can be told from at least 4 training images, got {len(images)}")
    items = sources.find_all(images, "training images cannot be read again")
    with reader.store_items(items, on_progress) as store:
        return rank_suspects(model, reader, store, limit, on_progress)


def find_odd_images(model: Model, reader: Reader, sources: TrainingSources, on_progress: Progress) -> list[Suspect]:
    """The training images that were set aside for the threshold, read again, highest score first."""
    calibration = model.calibration
    if calibration is None or calibration.kind != "leave-one-out" or not calibration.spread.aside:
        return []
    scores = calibration.scores
    odd = sorted(calibration.spread.aside, key=lambda place: -scores[place])
    images = [model.memory.images[number] for number in odd]
    items = sources.find_all(images, "training images cannot be read again")
    with reader.store_items(items, on_progress) as store:
        return describe_odd(model, reader, store, odd)


@torch.inference_mode()
def rank_suspects(
    model: Model, reader: Reader, store: FeatureStore, limit: float, on_progress: Progress
) -> list[Suspect]:
    """Every training image by how far it stands out, worst first; those above ``limit`` are flagged.

    A round hides the suspects of the last one; an image that no longer stands out then is cleared. At most half the
    images are ever suspected (beyond that nobody can say which half is the good one), and never so many that a bank is
    left with fewer than k anchors.
    """
    memory, config, count = model.memory, model.config, len(model.memory.images)
    hidden: frozenset[int] = frozenset()
    if _fewest(memory, hidden) < config.num_neighbors:
        raise ConfigError("suspects need more training images or a larger coreset_ratio, as an image hides its anchors")
    for _ in range(_ROUNDS):
        readings = []
        rest = _WithoutSuspects(memory, reader, store, hidden)
        for number in range(count):
            readings.append(rest.score_image(number))
            on_progress("looking for suspects", number + 1, count)
        scores = [float(top_mean(reading.ranked[0], config.top_ratio)) for reading in readings]
        excess = stand_out(scores, [number not in hidden for number in range(count)])
        worst = sorted(range(count), key=lambda number: -excess[number])
        suspected = frozenset(number for number in worst[: count // 2] if excess[number] > limit)
        if suspected == hidden or _fewest(memory, suspected) < config.num_neighbors:
            break
        hidden = suspected
    suspects = []
    for number in worst:
        image = memory.images[number]
        grid = everywhere(readings[number].ranked[0], reader.scope(image.size, memory.roi)).view(config.grid)
        box, flagged = patch_box(config, int(grid.argmax()), image.size), number in suspected
        suspects.append(Suspect(image.name, number, scores[number], excess[number], flagged, box, grid.cpu().numpy()))
    return suspects


@torch.inference_mode()
def describe_odd(model: Model, reader: Reader, store: FeatureStore, numbers: Sequence[int]) -> list[Suspect]:
    """The training images ``numbers``, whose features are in ``store``, with the scores that set them aside."""
    memory, config, calibration = model.memory, model.config, model.calibration
    assert calibration is not None
    odd = []
    for place, number in enumerate(numbers):
        image = memory.images[number]
        scope = reader.scope(image.size, memory.roi)
        features = in_scope([layer.to(reader.device) for layer in store.image(place)], scope)
        layers = read_layers(features, memory, config, hidden=memory.own([number]))
        grid = everywhere(fuse(layers, memory, config).heat[0], scope).view(config.grid)
        score, box = calibration.scores[number], patch_box(config, int(grid.argmax()), image.size)
        odd.append(
            Suspect(image.name, number, score, calibration.spread.deviations(score), True, box, grid.cpu().numpy())
        )
    return odd


class _WithoutSuspects:
    """Scores training images without their own anchors and those of ``hidden`` images."""

    def __init__(self, memory: Memory, reader: Reader, store: FeatureStore, hidden: frozenset[int]) -> None:
        self._memory, self._reader, self._store, self._hidden = memory, reader, store, hidden
        self._relative = reader.config.score_relative_to == "anchors"
        self._sums = [layer.sums for layer in memory.layers if layer.sums is not None]
        for number in hidden if self._relative else ():
            self._sums = self._sums_without(number)

    def score_image(self, number: int) -> Reading:
        """Image ``number`` compared with what is left of the memory."""
        memory, config = self._memory, self._reader.config
        layers = read_layers(self._features(number), memory, config, hidden=memory.own(self._hidden | {number}))
        sums = self._sums if number in self._hidden or not self._relative else self._sums_without(number)
        levels = [anchor_levels(total) for total in sums] if self._relative else None
        reading = fuse(layers, memory, config, levels=levels)
        return Reading((), reading.maps, reading.scores, reading.heat, reading.ranked)  # neighbours are not kept

    def _sums_without(self, number: int) -> list[Tensor]:
        """The sums behind the levels without what image ``number`` added to them in the fit."""
        own = self._memory.own([number])
        layers = read_layers(self._features(number), self._memory, self._reader.config, hidden=own)
        return [total - layer.sums(total.shape[2])[0] for total, layer in zip(self._sums, layers, strict=True)]

    def _features(self, number: int) -> list[Tensor]:
        scope = self._reader.scope(self._memory.images[number].size, self._memory.roi)
        return in_scope([layer.to(self._reader.device) for layer in self._store.image(number)], scope)


def _fewest(memory: Memory, hidden: frozenset[int]) -> int:
    """Anchors of the smallest bank without those of ``hidden`` and of whichever image is scored."""
    fewest = []
    for layer in memory.layers:
        source = layer.origin[layer.banks] // memory.patches
        hide = torch.tensor(sorted(hidden), dtype=source.dtype, device=source.device)
        for bank in source:
            left = bank[~torch.isin(bank, hide)]
            fewest.append(len(left) - (int(left.bincount().max()) if len(left) else 0))
    return min(fewest)
