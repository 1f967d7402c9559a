"""Make the picture of the README from a finished demo: python docs/scripts/make_pictures.py demo-output

Above: parts. Below them: the same parts with heat maps, then the training images. Scores come from the demo's table.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PICTURE = Path(__file__).resolve().parent.parent / "images" / "demo.png"
SHOWN = ("scratch/001", "chipped_edge/001", "rust/001", "good/003")

SIDE, GAP, MARGIN = 272, 12, 20  # pixels
PER_ROW = 16  # thumbnails
INK, SOFT, BAD, GOOD, PAPER = "#1c2024", "#5b6570", "#c81e3c", "#1e7d46", "#ffffff"
GREYS, COLORS = 112, 144  # of the palette: few pixels have a colour, but they are what the picture is about
LARGEST = 900 * 1024  # bytes


def main(demo: Path) -> None:
    """Compose the picture from the folder that ``procon demo`` wrote."""
    scores = read_scores(demo / "results" / "scores.csv")
    training = sorted((demo / "parts" / "train" / "good").glob("*.png"))
    width = 2 * MARGIN + len(SHOWN) * SIDE + (len(SHOWN) - 1) * GAP
    thumbnail = (width - 2 * MARGIN - (PER_ROW - 1) * 4) // PER_ROW
    rows = -(-len(training) // PER_ROW)
    sheet_top = MARGIN + 2 * SIDE + GAP + 88
    height = sheet_top + rows * (thumbnail + 4) + MARGIN - 4
    canvas = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    for column, name in enumerate(SHOWN):
        left = MARGIN + column * (SIDE + GAP)
        draw_part(canvas, draw, demo, name, left, scores[name])
    caption = f"fitted on these {len(training)} good parts, rendered by the package itself; it saw no defect before"
    draw.text((MARGIN, sheet_top - 14), caption, fill=SOFT, font=font(17), anchor="ls")
    for index, path in enumerate(training):
        row, column = divmod(index, PER_ROW)
        place = (MARGIN + column * (thumbnail + 4), sheet_top + row * (thumbnail + 4))
        canvas.paste(load(path, thumbnail), place)
    PICTURE.parent.mkdir(exist_ok=True)
    canvas.quantize(palette=make_palette(canvas), dither=Image.Dither.FLOYDSTEINBERG).save(PICTURE, optimize=True)
    size = PICTURE.stat().st_size
    if size > LARGEST:
        sys.exit(f"{PICTURE} has {size:,} bytes; at most {LARGEST:,} are allowed: lower SIDE")
    sys.stdout.write(f"wrote {PICTURE.name}: {width} x {height} pixels, {size // 1024} KiB\n")


def draw_part(
    canvas: Image.Image, draw: ImageDraw.ImageDraw, demo: Path, name: str, left: int, result: tuple[float, bool]
) -> None:
    """One column: the part, the part with its heat map, score and verdict."""
    score, anomalous = result
    canvas.paste(load(demo / "parts" / "test" / f"{name}.png", SIDE), (left, MARGIN))
    top = MARGIN + SIDE + GAP
    canvas.paste(load(demo / "results" / "overlays" / "test" / f"{name}.png", SIDE), (left, top))
    base = top + SIDE + 26
    draw.text((left, base), Path(name).parent.name.replace("_", " "), fill=INK, font=font(18), anchor="ls")
    verdict = f"{score:.3f}  {'anomalous' if anomalous else 'good'}"
    draw.text((left + SIDE, base), verdict, fill=BAD if anomalous else GOOD, font=font(18), anchor="rs")


def read_scores(table: Path) -> dict[str, tuple[float, bool]]:
    """``kind/name`` of each image to its score and verdict."""
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    names = [Path(row["source"]) for row in rows]
    return {
        f"{name.parent.name}/{name.stem}": (float(row["score"]), row["is_anomalous"] == "True")
        for name, row in zip(names, rows, strict=True)
    }


def make_palette(canvas: Image.Image) -> Image.Image:
    """A palette with entries reserved for the rare coloured pixels."""
    pixels = np.asarray(canvas).reshape(-1, 3)
    colored = np.ptp(pixels.astype(int), axis=1) > 24
    entries: list[int] = []
    for chosen, count in ((pixels[~colored], GREYS), (pixels[colored], COLORS)):
        palette = Image.fromarray(chosen[None]).quantize(count).getpalette() or []
        entries += palette[: 3 * count]
    holder = Image.new("P", (1, 1))
    holder.putpalette(entries)
    return holder


def load(path: Path, side: int) -> Image.Image:
    """A square picture of ``side`` pixels."""
    with Image.open(path) as image:
        return image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, the same on every machine."""
    return ImageFont.load_default(size)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/scripts/make_pictures.py DEMO_FOLDER   (made by: procon demo -o DEMO_FOLDER)")
    main(Path(sys.argv[1]))
