"""Measure which rendered defects a model finds: each is scored once, on a good image that the memory does not hold.

Separate good images are scored as in ``predict``. Training images are scored without their own anchors, with stand-ins
in their place, and so is every copy of them with a defect.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from procon.amounts import count_of, human_time
from procon.arrays import Bools
from procon.errors import ConfigError, ImageError
from procon.limits.area import find_part
from procon.limits.plan import CONTRASTS, SIZES, Host, check_kinds, check_sizes, choose_sizes, host_of, place_defect
from procon.method.consensus import top_mean
from procon.method.score import LayerReading, levels_without_own, raise_scores, read_layers
from procon.method.stand_ins import StandIns
from procon.model.editing import refuse_seen
from procon.model.editor import Editor
from procon.model.fitting import measure_images, read_as_new
from procon.model.model import Model
from procon.model.reader import in_scope
from procon.model.renderings import HostImage, Rendering, RenderingPlan, Renderings
from procon.model.training import open_all_good
from procon.model.training_image import TrainingImage
from procon.progress import Say
from procon.vision.images import AHEAD, ImageLike, ImageLikes, Picture, in_order, open_image

HOSTS = 30  # good images that carry defects
PASSES = 8  # defects of each kind, size and contrast
FEWEST_PASSES = 2
SECONDS = 480.0  # that the default number of defects may take, see choose_count


class Wish(NamedTuple):
    """Which defects a user asks for."""

    seed: int
    kinds: tuple[str, ...]
    sizes: Sequence[int] | None  # pixels; None: chosen for the part


@dataclass
class GoodImage:
    """A good image that carries defects, and what scoring needs to know about it."""

    image: TrainingImage
    item: ImageLike  # to open it again
    score: float
    number: int | None = None  # of a training image
    levels: list[Tensor] | None = None  # of the anchors without this image, with score_relative_to="anchors"


@dataclass
class Bench:
    """A model with the good images on which defects are rendered."""

    model: Model
    editor: Editor
    images: list[GoodImage]
    hosts: list[Host]
    plan: RenderingPlan
    stand_ins: Sequence[StandIns] | None  # None with separate good images

    def described(self) -> tuple[HostImage, ...]:
        """What is stored of the good images."""
        return tuple(HostImage(good.image.name, good.image.digest, good.image.size, good.score) for good in self.images)

    def score(self, features: Sequence[Tensor], host: int) -> float:
        """The score of an image [1, P, D] per layer that shows the good image ``host`` with a defect."""
        good, reader, model = self.images[host], self.editor.reader, self.model
        if self.stand_ins is None or good.number is None:
            reading = reader.score_features(features, good.image.size, model.memory, model.marked)
        else:
            counted = in_scope(features, reader.scope(good.image.size, model.memory.roi))
            reading = read_as_new(
                model.memory, model.config, self.stand_ins, [good.number], counted, levels=good.levels
            )
            if model.marked is not None:
                reading = raise_scores(reading, counted, model.marked)
        return float(top_mean(reading.ranked, model.config.top_ratio))


@torch.inference_mode()
def prepare_bench(
    model: Model,
    editor: Editor,
    good: ImageLikes | None,
    seed: int,
    sizes: Sequence[int] | None,
    kinds: Sequence[str] | None,
    say: Say,
    count: int | None,
) -> tuple[Bench, int]:
    """Read the good images, and decide how many defects are rendered; ``say`` tells the cost before that."""
    if model.calibration is None:
        raise ConfigError("limits need a threshold; calibrate on good images first (procon threshold --calibrate)")
    if good is None:
        items, images = _training_items(model, editor)
    else:
        items, images = open_all_good(good, editor.on_progress, taken=model.names_in_use)
        refuse_seen(images, model.memory.images)
        spread = _spread(len(items))
        items, images = [items[n] for n in spread], tuple(images[n] for n in spread)
        editor.sources.hold(images, items)
    wish = Wish(seed, check_kinds(kinds), sizes)
    cells = len(wish.kinds) * len(CONTRASTS) * (SIZES if sizes is None else len(set(sizes)))
    before, each = time_image(model, editor, items[0], training=good is None)
    wanted = choose_count(cells, before * len(items), each) if count is None else count
    hosts = len(images) if good is not None else min(HOSTS, len(images))
    say(
        f"{count_of(wanted, 'rendered defect')} on {count_of(hosts, 'good image')}: about "
        f"{human_time(before * len(items) + each * wanted)}"
    )
    if good is None:
        return _bench_of_training(model, editor, items, wish), wanted
    return _bench_of_separate(model, editor, items, images, wish), wanted


def choose_count(cells: int, seconds_before: float, seconds_each: float) -> int:
    """How many defects fit into the default time: whole passes over the cells."""
    passes = (SECONDS - seconds_before) / max(seconds_each * cells, 1e-9)
    return cells * int(min(PASSES, max(FEWEST_PASSES, passes)))


@torch.inference_mode()
def time_image(model: Model, editor: Editor, item: ImageLike, *, training: bool) -> tuple[float, float]:
    """Seconds to read one good image, and one with a defect, on this machine."""
    reader, memory = editor.reader, model.memory
    picture = open_image(item)
    for _ in range(2):  # the first pass pays for the set-up
        start = time.perf_counter()
        features = reader.extractor.features(reader.extractor.prepare(picture).unsqueeze(0))
        float(features[0].flatten()[0])  # waits for the device
        seen = time.perf_counter()
        hidden = memory.own([0]) if training else None
        layers = read_layers(
            in_scope(features, reader.scope(picture.size, memory.roi)), memory, model.config, hidden=hidden
        )
        float(layers[0].residuals.flatten()[0])
        end = time.perf_counter()
    return end - start, end - start + (0.3 * (end - seen) if training else 0.0)  # stand-ins


def _spread(count: int) -> list[int]:
    """At most :data:`HOSTS` of so many images, evenly over all of them."""
    return sorted({round(float(place)) for place in np.linspace(0, count - 1, min(count, HOSTS))})


def _training_items(model: Model, editor: Editor) -> tuple[list[ImageLike], tuple[TrainingImage, ...]]:
    memory = model.memory
    remedy = "pass separate good images (procon limits MODEL GOOD)"
    try:
        items = editor.sources.find_all(memory.images, "training images cannot be read again")
    except ImageError as error:
        raise ImageError(f"{error}; or {remedy}") from None
    if any(memory.fewest_without(number) < model.config.num_neighbors for number in range(len(memory.images))):
        raise ConfigError(f"{count_of(len(memory.images), 'training image')} are too few for leave-one-out; {remedy}")
    return items, memory.images


def _bench_of_training(model: Model, editor: Editor, items: Sequence[ImageLike], wish: Wish) -> Bench:
    """Every training image is read; some of them carry defects."""
    reader, memory, config = editor.reader, model.memory, model.config
    chosen, good, features = set(_spread(len(items))), [], []
    with reader.store_embedded(editor.embed(items), len(items)) as images:
        _, stand_ins, readings = measure_images(reader, memory, images, editor.on_progress)
        for number, image in enumerate(images()):
            if number not in chosen:
                continue
            assert image is not None
            counted, _ = reader.counted(image, memory.roi)
            layers, levels = None if readings is None else readings[number], None
            if config.score_relative_to == "anchors":
                stored = [layer for layer in layers or () if isinstance(layer, LayerReading)]
                measured = stored or read_layers(counted, memory, config, hidden=memory.own_of_each([number]))
                layers, levels = tuple(measured), levels_without_own(measured, memory)
            reading = read_as_new(memory, config, stand_ins, [number], counted, layers, levels)
            if model.marked is not None:
                reading = raise_scores(reading, counted, model.marked)
            score = float(top_mean(reading.ranked, config.top_ratio))
            good.append(GoodImage(memory.images[number], items[number], score, number, levels))
            features.append(image[0][0][0].cpu().numpy())
    return _make_bench(model, editor, good, features, wish, stand_ins)


def _bench_of_separate(
    model: Model,
    editor: Editor,
    items: Sequence[ImageLike],
    images: Sequence[TrainingImage],
    wish: Wish,
) -> Bench:
    reader, good, features = editor.reader, [], []
    for image, item, (layers, size) in zip(images, items, reader.embed_each(items), strict=True):
        reading = reader.score_features(layers, size, model.memory, model.marked)
        good.append(GoodImage(image, item, float(top_mean(reading.ranked, model.config.top_ratio))))
        features.append(layers[0][0].cpu().numpy())
        editor.on_progress("reading good images", len(good), len(items))
    return _make_bench(model, editor, good, features, wish, None)


def _make_bench(
    model: Model,
    editor: Editor,
    good: list[GoodImage],
    features: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    wish: Wish,
    stand_ins: Sequence[StandIns] | None,
) -> Bench:
    """Where the part is in each good image, and which sizes fit it."""
    counted = [_counted(model, editor, host.image.size) for host in good]
    parts = find_part(features, model.config.grid, counted) if model.memory.roi is None else None
    config = model.config
    hosts = [Host.of(config, host.image.size, area) for host, area in zip(good, parts or counted, strict=True)]
    extent = int(np.median([host.extent for host in hosts]))
    chosen = choose_sizes(extent) if wish.sizes is None else check_sizes(wish.sizes, extent)
    whole = parts is None and model.memory.roi is None
    levels = tuple(CONTRASTS.values())
    plan = RenderingPlan(wish.seed, wish.kinds, chosen, levels, stand_ins is None, whole, extent)
    return Bench(model, editor, good, hosts, plan, stand_ins)


def _counted(model: Model, editor: Editor, size: tuple[int, int]) -> Bools:
    """Which patches [P] of an image of ``size`` count."""
    scope = editor.reader.scope(size, model.memory.roi)
    counted = np.full(model.memory.patches, scope is None)
    if scope is not None:
        counted[scope.rows.cpu().numpy()] = True
    return counted


@torch.inference_mode()
def measure_defects(bench: Bench, count: int, earlier: Renderings | None) -> Iterator[Rendering]:
    """The first ``count`` defects of the plan; those that were measured ``earlier`` are not measured again."""
    present = earlier.rows[:count] if earlier is not None and is_continued(bench, earlier) else ()
    yield from present
    extractor = bench.editor.reader.extractor
    ahead = max(AHEAD, extractor.group_size)
    placed = in_order(partial(_place, bench), range(len(present), count), extractor.workers, ahead)
    while group := list(islice(placed, extractor.group_size)):
        inputs = [pixels for _, pixels in group if pixels is not None]
        layers = extractor.features(torch.stack(inputs)) if inputs else []
        place = 0
        for row, pixels in group:
            if pixels is None:
                yield row
                continue
            features = [layer[place : place + 1] for layer in layers]
            place += 1
            yield row._replace(score=bench.score(features, row.host))


def is_continued(bench: Bench, earlier: Renderings) -> bool:
    """Whether the defects measured ``earlier`` are the first ones of this bench."""
    return earlier.plan == bench.plan and earlier.hosts == bench.described()


def _place(bench: Bench, number: int) -> tuple[Rendering, Tensor | None]:
    """Defect ``number`` and the input of the backbone that shows it; None where it cannot be rendered."""
    host = host_of(bench.plan, number, len(bench.hosts))
    row, painted = place_defect(bench.plan, number, bench.hosts[host], open_image(bench.images[host].item))
    row = row._replace(host=host)
    return row, None if painted is None else bench.editor.reader.extractor.prepare(Picture(painted.pixels))
