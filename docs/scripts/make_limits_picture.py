"""Draw docs/images/limits.png: the kinds of rendered defects, in three contrasts, on a rendered part.

python docs/scripts/make_limits_picture.py
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from procon.demo.parts import render_part
from procon.limits.kinds import RENDERED_KINDS, paint_defect

PICTURE = Path(__file__).resolve().parent.parent / "images" / "limits.png"
CONTRASTS = {"faint": 10, "medium": 25, "clear": 60}
SIDE, SIZE = 448, 40  # pixels of the part, and of the longest side of a defect
CENTER, SOURCE = (350, 250), (224, 300)  # (x, y) where defects lie, and from where foreign structure is taken
HOLE = (240, 357)  # on the stamped text: in a smooth area there is nothing to take away
REACH, GAP, LEFT, TOP = 62, 8, 62, 26  # pixels of the picture
INK, PAPER = "#1c2024", "#ffffff"
COLORS = 128  # of the palette


def main() -> None:
    """Compose the picture."""
    pixels, font = render_part("good", 1, SIDE).image, ImageFont.load_default(14)
    step = 2 * REACH + GAP
    canvas = Image.new("RGB", (LEFT + step * len(RENDERED_KINDS), TOP + step * len(CONTRASTS)), PAPER)
    draw = ImageDraw.Draw(canvas)
    for column, kind in enumerate(RENDERED_KINDS):
        draw.text((LEFT + column * step + REACH, TOP // 2), kind, INK, font, anchor="mm")
        for row, (name, contrast) in enumerate(CONTRASTS.items()):
            x, y = HOLE if kind == "hole" else CENTER
            painted = paint_defect(pixels, kind, SIZE, contrast, (x, y), np.random.default_rng(3), SOURCE)
            top = TOP + row * step
            if column == 0:
                draw.text((LEFT - 8, top + REACH), name, INK, font, anchor="rm")
            if painted is None:  # the image leaves no room for this contrast
                draw.text((LEFT + column * step + REACH, top + REACH), "–", INK, font, anchor="mm")
                continue
            part = Image.fromarray(painted.pixels).crop((x - REACH, y - REACH, x + REACH, y + REACH))
            canvas.paste(part, (LEFT + column * step, top))
    canvas.quantize(COLORS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
