"""Tokens of one part at several input sizes: good images, test images, and good images with drawn defects."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

from procon.config import PATCH, Config
from procon.evaluation.data.datasets import Sample, open_dataset, read_mask
from procon.vision.backbone import Backbone
from procon.vision.framing import MEAN, STD, resample
from procon.vision.images import open_image
from research.bench import channel_transform
from research.rendered import KINDS, draw_defect

BATCH = 32
SHIFT = PATCH // 2  # pixels
JUDGED = 392  # pixels of the side of a square map that is judged

Grid = tuple[int, int]
Item = TypeVar("Item")
Sized = dict[Grid, NDArray[np.uint8]]


@dataclass(frozen=True)
class Part:
    """A folder of images, and the shape that they are read in."""

    name: str
    train: tuple[Path, ...]
    test: tuple[Sample, ...]
    aspect: float  # height over width of the input
    true_aspect: float  # of the images
    side: int = JUDGED  # of a square map of as many pixels as those that are judged
    scale: int = 1  # by which inputs are divided, to try the program

    def grid(self, size: int) -> Grid:
        """(rows, columns) with about as many patches as a square of ``size`` pixels, in the shape of the part."""
        patches = (size // PATCH / self.scale) ** 2
        rows = round((patches * self.aspect) ** 0.5)
        return rows, round(patches / rows)

    @property
    def judged(self) -> Grid:
        """Height and width in pixels at which maps are judged."""
        pixels = self.side**2
        height = round((pixels * self.true_aspect) ** 0.5)
        return height, round(pixels / height)


def open_part(
    root: Path, name: str, few: tuple[int, int, int] | None = None, side: int = JUDGED, scale: int = 1
) -> Part:
    """The part in ``root``; a name that ends in @auto is read in the shape of its images.

    ``few``: so many good images to train on, good ones to test and defective ones, evenly spread over each folder.
    """
    folder, _, shape = name.partition("@")
    dataset = open_dataset(root / folder)
    category = dataset.category(dataset.categories[0])
    train, test = tuple(category.train), tuple(category.test)
    if few is not None:
        good, bad = ([sample for sample in test if sample.defective == kind] for kind in (False, True))
        train = _spread(train, few[0])
        test = (*_spread(tuple(good), few[1]), *_spread(tuple(bad), few[2]))
    shapes = [open_image(path).size for path in train[:40]]
    true = float(np.median([height / width for height, width in shapes]))
    true = 1.0 if abs(np.log(true)) < 0.05 else true
    return Part(name, train, test, true if shape == "auto" else 1.0, true, side, scale)


def _spread(items: tuple[Item, ...], count: int) -> tuple[Item, ...]:
    """``count`` of the items, evenly spread; all if there are no more."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return tuple(items[place] for place in chosen)


@dataclass
class Pictures:
    """Images of a part that are being decoded, at the sizes the study needs."""

    part: Part
    train: list[Future[Sized]]
    test: list[Future[Sized]]
    drawn: list[Future[tuple[Sized, NDArray[np.bool_]]]]
    source: list[int]  # the good image behind each drawn one
    kinds: list[str]


def start_reading(part: Part, sizes: Sequence[int], drawn: int, pool: ThreadPoolExecutor) -> Pictures:
    """Decode and resize all images of a part in the background; ``drawn`` good images get each kind of defect."""
    grids = [part.grid(size) for size in sizes]

    def read(path: Path) -> Sized:
        return _resize(open_image(path).rgb8(), grids)

    def draw(number: int, kind: str) -> tuple[Sized, NDArray[np.bool_]]:
        random = np.random.RandomState([KINDS.index(kind), number])
        donor = (number + 1 + random.randint(len(part.train) - 1)) % len(part.train)
        images = [open_image(part.train[one]).rgb8() for one in (number, donor)]
        pixels, mask = draw_defect(images[0], images[1], kind, random)
        marked = resample(np.repeat(mask[:, :, None].astype(np.uint8) * 255, 3, 2), part.judged)[:, :, 0] > 127
        return _resize(pixels, grids), marked

    step = max(1, len(part.train) // drawn)
    chosen = [(number, kind) for number in range(0, len(part.train), step)[:drawn] for kind in KINDS]
    return Pictures(
        part,
        [pool.submit(read, path) for path in part.train],
        [pool.submit(read, sample.path) for sample in part.test],
        [pool.submit(draw, number, kind) for number, kind in chosen],
        [number for number, _ in chosen],
        [kind for _, kind in chosen],
    )


def _resize(pixels: NDArray[np.uint8], grids: Sequence[Grid]) -> Sized:
    return {grid: resample(pixels, (grid[0] * PATCH, grid[1] * PATCH)) for grid in grids}


@dataclass
class Tokens:
    """Unit tokens [N, P, D] by block of one input size."""

    grid: Grid
    good: dict[str, Tensor] = field(default_factory=dict)
    test: dict[str, Tensor] = field(default_factory=dict)
    drawn: dict[str, Tensor] = field(default_factory=dict)
    shifted: dict[str, Tensor] = field(default_factory=dict)
    """Of the test images moved up and left by half a patch."""
    context: dict[str, Tensor] = field(default_factory=dict)
    """CLS tokens [N, D] of the last block, of ``good``, ``test`` and ``drawn`` images."""

    def shape(self, block: str) -> Grid:
        """(rows, columns) of a block's tokens."""
        rows, columns = self.grid
        return ((rows + 1) // 2, (columns + 1) // 2) if block.startswith("p") else self.grid


class Eye:
    """The backbone at one input size."""

    def __init__(self, base: Config, size: int, blocks: Sequence[int], device: torch.device) -> None:
        self.size, self.blocks, self.device, self._base = size, sorted(blocks), device, base
        self._models: dict[Grid, Backbone] = {}

    def _model(self, grid: Grid) -> Backbone:
        if grid not in self._models:
            config = replace(self._base, image_size=(grid[0] * PATCH, grid[1] * PATCH), layers=tuple(self.blocks))
            self._models = {grid: Backbone.load(config, self.device)}
        return self._models[grid]

    def see(
        self, pictures: Pictures, *, whitened: Sequence[int] = (), pooled: Sequence[int] = (),
        shifted: Sequence[int] = (),
    ) -> Tokens:  # fmt: skip
        """Tokens of a part; those of some blocks also decorrelated, averaged over four, and of shifted images."""
        grid = pictures.part.grid(self.size)
        model = self._model(grid)
        known = Tokens(grid)
        drawn = [future.result()[0] for future in pictures.drawn]
        for name, images in (
            ("good", [future.result() for future in pictures.train]),
            ("test", [future.result() for future in pictures.test]),
            ("drawn", drawn),
        ):
            raw, context = self._tokens(model, [image[grid] for image in images])
            if -1 in self.blocks:
                known.context[name] = context
            if name == "good":
                transforms = {block: channel_transform(raw[block], "whitened") for block in whitened}
            target = getattr(known, name)
            for block in self.blocks:
                target[str(block)] = normalize(raw[block], dim=2)
                if block in transforms:
                    target[f"w{block}"] = normalize(transforms[block](raw[block]), dim=2)
                if block in pooled:
                    target[f"p{block}"] = _pool(target[str(block)], grid)
            if name == "test" and shifted:
                moved, _ = self._tokens(model, [_shift(image[grid]) for image in images])
                known.shifted = {str(block): normalize(moved[block], dim=2) for block in shifted}
        return known

    def _tokens(self, model: Backbone, images: list[NDArray[np.uint8]]) -> tuple[dict[int, Tensor], Tensor]:
        parts: list[list[Tensor]] = [[] for _ in self.blocks]
        context: list[Tensor] = []
        hook = None
        if -1 in self.blocks:
            last = model._model.encoder.layer[-1]
            hook = last.register_forward_hook(_keep_cls(context))
        mean, spread = (torch.from_numpy(values).to(self.device).view(1, 3, 1, 1) for values in (MEAN, STD))
        for start in range(0, len(images), BATCH):
            pixels = torch.from_numpy(np.stack(images[start : start + BATCH])).to(self.device)
            inputs = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / spread
            for values, tokens in zip(parts, model.tokens(inputs.contiguous()), strict=True):
                values.append(tokens)
        if hook is not None:
            hook.remove()
        joined = {block: torch.cat(values) for block, values in zip(self.blocks, parts, strict=True)}
        return joined, torch.cat(context) if context else torch.empty(0)


def _keep_cls(store: list[Tensor]) -> Callable[..., None]:
    def hook(_module: object, _inputs: object, output: object) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        assert isinstance(hidden, Tensor)
        store.append(hidden[:, 0].float())

    return hook


def _pool(tokens: Tensor, grid: Grid) -> Tensor:
    """Unit tokens [N, P, D] averaged over squares of four patches, and made unit vectors again."""
    maps = tokens.view(len(tokens), *grid, -1).permute(0, 3, 1, 2)
    pooled = avg_pool2d(maps, 2, 2, ceil_mode=True, count_include_pad=False)
    return normalize(pooled.flatten(2).transpose(1, 2), dim=2).contiguous()


def _shift(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image moved up and left by half a patch, its last rows and columns repeated."""
    return np.pad(image, ((0, SHIFT), (0, SHIFT), (0, 0)), mode="edge")[SHIFT:, SHIFT:]


def masks_of(part: Part, device: torch.device) -> Tensor:
    """The true defects of the test images [T, H, W] at the size at which maps are judged."""
    masks = [
        np.zeros(part.judged, bool) if sample.mask is None else read_mask(sample.mask, part.judged)
        for sample in part.test
    ]
    return torch.from_numpy(np.stack(masks)).to(device)


def guides_of(pictures: Pictures, size: int, device: torch.device) -> Tensor:
    """The brightness of the test images [T, H, W] in 0..1 at the size at which maps are judged."""
    grid = pictures.part.grid(size)
    grey = np.stack([future.result()[grid].mean(2) for future in pictures.test])
    values = torch.from_numpy(grey.astype(np.float32) / 255).to(device)
    sized = torch.nn.functional.interpolate(
        values.unsqueeze(1), size=pictures.part.judged, mode="bilinear", antialias=True
    )
    return sized.squeeze(1)
