"""Make the figures of the documents: python docs/scripts/make_figures.py RUN --category NAME --weights FILE

Photographs of a dataset belong to its authors, so maps are shown on parts that the package renders itself: a small
evaluation of them is run with the given weights. Charts hold numbers only and come from RUN, made by procon bench or
procon reproduce.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image

from procon.config import Config
from procon.demo.parts import write_set
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.paper.tables import POOL
from procon.evaluation.report.charts import make_standalone
from procon.evaluation.report.figures import layer_maps, place_name, qualitative_grid
from procon.evaluation.report.lineup import main_variant, paper_variants, title_of, variant_titles
from procon.evaluation.report.pictures import color_map
from procon.evaluation.report.views import open_view
from procon.evaluation.runs.run import Run

IMAGES = Path(__file__).resolve().parent.parent / "images"
CATEGORY = "flange"
TRAIN, GOOD, DEFECTS_PER_KIND, SEED = 32, 8, 6, 7
POINT = {"coreset_ratio": 0.01, "banks": 5}
SIDE, LAYER_SIDE = 132, 100  # pixels of a picture
LARGEST = 200 * 1024  # bytes


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a run on real data, for the charts.")],
    category: Annotated[str, typer.Option(help="The category of the run to chart.")],
    weights: Annotated[Path, typer.Option(help="Weights of a DINOv2 ViT-S/14, for the maps of rendered parts.")],
) -> None:
    """Write the pictures to docs/images."""
    IMAGES.mkdir(exist_ok=True)
    opened = Run.open_folder(run)
    variant = main_variant(opened)
    about = f"{place_name(opened, category)}, {title_of(variant, variant_titles(opened))}"
    for name, chart in open_view(opened, category, variant).draw_charts().items():
        save_text(IMAGES / f"run-{name}.svg", make_standalone(chart, about))
    with tempfile.TemporaryDirectory() as folder:
        rendered = evaluate_parts(Path(folder), weights)
        save_picture(IMAGES / "maps.png", qualitative_grid(rendered, CATEGORY, side=SIDE), SIDE)
        save_picture(IMAGES / "layers.png", layer_maps(rendered, CATEGORY, side=LAYER_SIDE), LAYER_SIDE)


def evaluate_parts(folder: Path, weights: Path) -> Run:
    """A run on rendered flanges: hard NN, SPM, ProCon and its single layers."""
    write_set(folder / CATEGORY, train=TRAIN, good=GOOD, defects_per_kind=DEFECTS_PER_KIND, seed=SEED, size=392)
    base = Config(backbone="dinov2-small", weights=str(weights.resolve()))
    run = Run(folder / "run", open_dataset(folder / CATEGORY), base)
    recipe = replace(base, **POINT)
    concat = replace(recipe, layers=(-1, -3, -6, -9, -12), layer_fusion="concat")
    variants = [recipe, concat, replace(concat, readout="hard", banks=1)]
    variants += [replace(recipe, layers=(layer,)) for layer in POOL]
    run.compute(CATEGORY, variants, torch.device("cpu"), say)
    assert set(paper_variants(run, POINT).values()) <= set(run.list_variants()[CATEGORY])
    return run


def say(stage: str, done: int, total: int) -> None:
    """One line per stage."""
    if done == total:
        sys.stdout.write(f"{stage}: {done}\n")


def save_text(path: Path, text: str) -> None:
    """Write a chart."""
    path.write_text(text, encoding="utf-8")
    report(path)


def save_picture(path: Path, picture: Image.Image, side: int) -> None:
    """In 256 colours: half for the ramp of the maps, the others for the parts in the first column."""
    ramp = color_map(np.linspace(0, 1, 128, dtype=np.float32)[None], 0.0, 1.0)
    pixels = np.asarray(picture)[:, : 16 + side].reshape(-1, 3)
    colored = np.ptp(pixels.astype(int), axis=1) > 24  # few, but rust is one of the defects
    entries = [*ramp.ravel().tolist(), 0, 0, 0, 255, 255, 255]
    for chosen, count in ((pixels[~colored], 94), (pixels[colored], 32)):
        entries += (Image.fromarray(chosen[None]).quantize(count).getpalette() or [])[: 3 * count]
    palette = Image.new("P", (1, 1))
    palette.putpalette(entries)
    drawn = picture.quantize(palette=palette, dither=Image.Dither.NONE)
    white = Image.fromarray((np.asarray(picture) == 255).all(axis=2))  # Pillow takes a near colour, not the nearest
    drawn.paste(129, mask=white)
    drawn.save(path, optimize=True)
    report(path)


def report(path: Path) -> None:
    """Say what was written, and refuse what is too large for a repository."""
    size = path.stat().st_size
    if size > LARGEST:
        sys.exit(f"{path} has {size:,} bytes; at most {LARGEST:,} are allowed: lower SIDE")
    sys.stdout.write(f"wrote {path.name}, {size // 1024} KiB\n")


if __name__ == "__main__":
    typer.run(main)
