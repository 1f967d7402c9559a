"""The parts of docs/scripts/make_tutorial.py: flanges that the package renders, or folders of the reader."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from procon.demo.defects import DEFECT_KINDS
from procon.demo.parts import plan_set, render_part
from procon.vision.folders import inspection_images, training_images

GOOD, HELD_OUT, UNMARKED, MARKED, DEFECTS = 32, 59, 2, 5, 2  # parts; DEFECTS of each kind
# 59 held-out parts: the threshold from 19 was so low for some weights that marked parts exceeded it without their dot.
FAINT, SHARES = 2, (10, 20, 30, 40, 50, 60, 70)  # parts with a faint defect, each in these percentages of it
SLIPPED_IN = 11  # number of the training part that has rust
SEED = 7


@dataclass(frozen=True)
class Tale:
    """Sentences that only a person who knows the parts can write."""

    parts: str = "These are your own parts; every fourth good part is held out for the threshold."
    alarm: str = ""
    forgotten: str = "Look at it: if it is a good part of a rare kind, it should stay."


FLANGES = Tale(
    parts=(
        "The part is a machined flange. The package renders it, so that you can run the same steps without images of "
        "your own; light, pose and finish vary from part to part. Since Monday a second inspector puts a green dot on "
        "every part that passes: these parts are in `marked`. No part had a dot when the training images were taken. "
        "One of the training images is not good, and nobody knows it yet. The same part comes back for inspection: "
        f"`new/rust/{DEFECTS:03d}.png` shows it at the same place, under a lamp that is 7 % darker."
    ),
    alarm="The green dot is not a defect, but the detector cannot know that: no training part had one.",
    forgotten="It has rust: it was put among the good parts by mistake.",
)


def render_flanges(folder: Path, size: int = 448) -> Tale:
    """The parts of the tutorial below ``folder``: good/, held-out/ and new/<kind>/."""
    plan = plan_set(GOOD + HELD_OUT, UNMARKED + MARKED, DEFECTS, SEED)
    first, second = ([one for one in plan if one[:2] == (split, "good")] for split in ("train", "test"))
    groups = {"good": first[:GOOD], "held-out": first[GOOD:], "new/good": second[:UNMARKED]}
    groups |= {"new/marked": second[UNMARKED:]} | {f"new/{kind}": [] for kind in DEFECT_KINDS}
    for one in plan:
        if one[1] != "good":
            groups[f"new/{one[1]}"].append(one)
    for place, parts in groups.items():
        for number, (_, kind, _, seed) in enumerate(parts):
            slipped_in = place == "good" and number == SLIPPED_IN
            pixels = render_part("rust" if slipped_in else kind, seed, size).image
            store(folder / place / f"{number:03d}.png", with_dot(pixels, seed) if place == "new/marked" else pixels)
            if slipped_in:
                store(folder / f"new/rust/{DEFECTS:03d}.png", photographed_again(pixels))
    extra = [seed for _, kind, _, seed in plan_set(0, 0, DEFECTS + FAINT, SEED) if kind == "rust"][DEFECTS:]
    for number, seed in enumerate(extra):
        clean, rusty = render_part("good", seed, size), render_part("rust", seed, size)
        store(folder / f"faint-masks/{number:03d}.png", np.where(rusty.mask, 255, 0).astype(np.uint8))
        for share in SHARES:
            store(folder / f"faint/{number:03d}-{share}.png", fade(clean.image, rusty.image, share / 100))
    return FLANGES


def fade(clean: NDArray[np.uint8], defect: NDArray[np.uint8], share: float) -> NDArray[np.uint8]:
    """A defect that is only partly there: so much of the way from the clean part to the part with the defect."""
    return np.asarray((clean + share * (defect.astype(float) - clean)).round(), np.uint8)


def store(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def with_dot(pixels: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    """The part [H, W, 3] with a dot of green paint, made by hand: never at quite the same place."""
    size, times = len(pixels), 4  # drawn larger, so that its edge is smooth
    x, y = np.array([0.78, 0.50]) + np.random.default_rng(seed).uniform(-0.02, 0.02, 2)
    dot = Image.new("L", (size * times, size * times))
    box = [(middle + side * 0.035) * size * times for side in (-1, 1) for middle in (x, y)]
    ImageDraw.Draw(dot).ellipse(box, fill=235)
    cover = np.asarray(dot.resize((size, size), Image.Resampling.LANCZOS), np.float32)[:, :, None] / 255
    paint = np.array([40, 120, 60]) * pixels.mean(axis=2, keepdims=True).clip(64, 255) / 160
    return np.asarray((pixels * (1 - cover) + paint * cover).clip(0, 255), np.uint8)


def photographed_again(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A second photograph of a part that was not moved: less light, other noise of the sensor."""
    noise = np.random.default_rng(SEED).normal(0, 1.5, pixels.shape)
    return np.asarray((0.93 * pixels + noise).clip(0, 255), np.uint8)


def copy_own(folder: Path, good: Path, new: Path, defects: Path | None) -> Tale:
    """The same tree from folders of the reader; every fourth good part is held out."""
    known = list(training_images(good))
    groups = {"held-out": known[::4], "good": [path for number, path in enumerate(known) if number % 4]}
    groups |= {"new/good": list(inspection_images(new))}
    groups |= {"new/defect": list(inspection_images(defects))} if defects else {}
    for place, paths in groups.items():
        (folder / place).mkdir(parents=True)
        for number, path in enumerate(paths):
            shutil.copyfile(path, folder / place / f"{number:03d}{path.suffix}")
    return Tale()
