"""Draw docs/images/shapes.png: a long part as a square input, and as one with its own proportions.

    python docs/scripts/make_shapes_picture.py

The part is three rendered flanges in a row. The grids have at most as many patches as ``Config()`` allows.
"""

from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from procon.config import PATCH, Config
from procon.demo.parts import render_part
from procon.vision.shape import scale_of, shape_for

PICTURE = Path(__file__).resolve().parent.parent / "images" / "shapes.png"
SIDE, MARGIN, GAP, TEXT = 400, 16, 28, 24  # pixels
INK, GRID, PAPER = "#1c2024", (255, 255, 255, 70), "#ffffff"
COLORS = 128  # of the palette


def main() -> None:
    """Compose the picture."""
    kinds = (("good", 1), ("scratch", 2), ("good", 3))
    whole = np.concatenate([render_part(kind, seed, SIDE).image for kind, seed in kinds], axis=1)
    size = whole.shape[0], whole.shape[1]
    square = shape_for(Config(), Counter([size])).config
    shaped = shape_for(Config(image_size="auto"), Counter([size])).config
    panels = [draw_input(whole, config) for config in (square, shaped)]
    width = 2 * MARGIN + GAP + sum(panel.width for panel in panels)
    canvas = Image.new("RGB", (width, 2 * MARGIN + TEXT + max(panel.height for panel in panels)), PAPER)
    draw, left = ImageDraw.Draw(canvas), MARGIN
    for panel, config in zip(panels, (square, shaped), strict=True):
        rows, columns = config.grid
        down, across = scale_of(config, size)
        text = f"{columns} x {rows} patches, scale {across:.2f} across, {down:.2f} down"
        draw.text((left, MARGIN), text, fill=INK, font=ImageFont.load_default(15))
        canvas.paste(panel, (left, MARGIN + TEXT))
        left += panel.width + GAP
    canvas.quantize(COLORS).save(PICTURE, optimize=True)


def draw_input(pixels: np.ndarray, config: Config) -> Image.Image:
    """What the backbone sees, with the borders of its patches."""
    height, width = config.input_size
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR).convert("RGBA")
    lines = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(lines)
    for x in range(0, width, PATCH):
        draw.line([(x, 0), (x, height)], fill=GRID)
    for y in range(0, height, PATCH):
        draw.line([(0, y), (width, y)], fill=GRID)
    return Image.alpha_composite(image, lines).convert("RGB")


if __name__ == "__main__":
    main()
