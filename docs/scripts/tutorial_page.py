"""The page that docs/scripts/make_tutorial.py writes: code that has just run, commands, pictures."""

import ast
import contextlib
import io
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from typer.testing import CliRunner

from procon import Prediction
from procon.cli import app
from procon.limits.plan import paint_again
from procon.limits.report import LimitsReport
from procon.model.renderings import Rendering
from procon.showing.painting import ColorScale, paint_prediction
from procon.vision.images import Picture, open_image

SIDE, GAP, LINE = 168, 10, 20  # pixels: a part, the space between two, a line of text
INK, BAD, GOOD = "#1c2024", "#c81e3c", "#1e7d46"
GREYS, COLORS = 48, 64  # of the palette: few pixels have a colour, but they are what a picture is about

Seen = tuple[str, Prediction | None]
"""Path of a part, and its prediction if that is to be shown."""


class Page:
    """The blocks of the page; pictures are written to ``images`` immediately."""

    def __init__(self, images: Path) -> None:
        self.images = images
        self.blocks: list[str] = []

    def say(self, *paragraphs: str) -> None:
        """Add paragraphs, wrapped; headings, tables, pictures and code stay unchanged."""
        for text in filter(None, paragraphs):
            fixed = text.startswith(("#", "|", "!", "```"))
            self.blocks.append(text if fixed else textwrap.fill(text, 124, break_long_words=False))

    @contextlib.contextmanager
    def python(self) -> Iterator[None]:
        """Run the block below ``with``; add its source and its output to the page."""
        caller = sys._getframe(2)
        source = Path(caller.f_code.co_filename).read_text(encoding="utf-8")
        blocks = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With)]
        (block,) = (node for node in blocks if node.lineno == caller.f_lineno)
        lines = source.splitlines()[block.body[0].lineno - 1 : block.body[-1].end_lineno]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            yield
        # "py", because these blocks build on one another: those that other pages call "python" run alone.
        self.blocks.append("```py\n" + textwrap.dedent("\n".join(lines)) + "\n```")
        if printed.getvalue():
            self.blocks.append("```text\n" + steady(printed.getvalue()) + "\n```")

    def command(self, *lines: str, until: str | None = None) -> None:
        """Run commands; add them and their output, cut before the line that begins with ``until``."""
        shown = []
        for line in lines:
            result = CliRunner().invoke(app, shlex.split(line)[1:])
            if result.exception is not None:
                raise result.exception
            printed = steady(result.output).splitlines()
            if until is not None:
                cut = next(number for number, words in enumerate(printed) if words.startswith(until))
                printed = [*printed[:cut], "..."]
            shown += [f"$ {line}", *printed]
        self.blocks.append("```text\n" + "\n".join(shown) + "\n```")

    def picture(self, name: str, drawn: Image.Image, words: str) -> None:
        """Add a picture with its alternative text."""
        self.images.mkdir(parents=True, exist_ok=True)
        few = drawn.quantize(palette=make_palette(drawn), dither=Image.Dither.NONE)
        few.save(self.images / f"tutorial-{name}.png", optimize=True)
        self.say(f"![{words}](../images/tutorial-{name}.png)")

    def write(self, path: Path) -> None:
        """Write the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(self.blocks) + "\n", encoding="utf-8")


def steady(text: str) -> str:
    """The output without progress bars and the line about the weights; words replace what differs between runs."""
    lines = [line.rstrip() for line in text.splitlines()]
    text = "\n".join(line for line in lines if "━" not in line and not line.startswith("using ViT-S/14 weights"))
    for pattern, words in (
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
        (r"(?<=about )[\w ]+, [\w. ]+(?= of memory)", "TIME, MEMORY"),
        (r"(?m)(?<=: about )[\w. ]+$", "TIME"),
        (r"(?<=\) in )[\w. ]+", "TIME"),
        (r"(?m)^(.*(?:regions|(?:good|ANOMALOUS) +\d+)) +(?:ms|\d+)$", r"\1"),  # milliseconds in procon predict
    ):
        text = re.sub(pattern, words, text)
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def verdict(result: Prediction) -> str:
    """Score and verdict as text."""
    return f"{result.score:.3f} {'ANOMALOUS' if result.is_anomalous else 'good'}"


def draw_parts(columns: Sequence[tuple[str, Sequence[Seen]]], scale: ColorScale) -> Image.Image:
    """Columns of parts, each with a title; a part with a prediction has its heat map, all on one colour scale."""
    rows = max(len(parts) for _, parts in columns)
    height = LINE + GAP // 2 + sum(_height(columns, row) for row in range(rows))
    sheet = Image.new("RGB", (GAP + len(columns) * (SIDE + GAP), height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for column, (title, parts) in enumerate(columns):
        left, top = GAP + column * (SIDE + GAP), LINE + GAP // 2
        pen.text((left, 4), title, INK, font)
        for row, (path, result) in enumerate(parts):
            part = Image.fromarray(open_image(path).rgb8())
            part.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            if result is not None:
                part = Image.fromarray(paint_prediction(np.asarray(part), result, scale))
                pen.text((left, top + SIDE + 2), verdict(result), BAD if result.is_anomalous else GOOD, font)
            sheet.paste(part, (left, top))
            top += _height(columns, row)
    return sheet


def draw_examples(limits: LimitsReport, hosts: Sequence[Picture]) -> Image.Image:
    """A column for each kind of rendered defect: the smallest that is found, and below it the largest missed."""
    kinds, height = limits.renderings.plan.kinds, LINE + 2 * (SIDE + LINE) + GAP
    sheet = Image.new("RGB", (GAP + len(kinds) * (SIDE + GAP), height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for column, kind in enumerate(kinds):
        left, top = GAP + column * (SIDE + GAP), LINE
        pen.text((left, 4), kind, INK, font)
        for is_found in (True, False):
            number = limits.example(kind, found=is_found)
            words = f"none {'found' if is_found else 'missed'}"
            if number is not None:
                row = limits.renderings.rows[number]
                painted = paint_again(limits.renderings.plan, number, row, hosts[row.host])
                assert painted is not None
                sheet.paste(_enlarge(painted.pixels, row), (left, top))
                words = f"{row.size} px, {row.contrast} levels, {'found' if is_found else 'missed'}"
            pen.text((left, top + SIDE + 2), words, GOOD if is_found else BAD, font)
            top += SIDE + LINE
    return sheet


def _enlarge(pixels: NDArray[np.uint8], row: Rendering) -> Image.Image:
    """The surroundings of a rendered defect."""
    side = min(max(3 * row.size, 48), *pixels.shape[:2])
    x, y = (
        int(np.clip(place - side // 2, 0, most - side))
        for place, most in zip(row.center, pixels.shape[1::-1], strict=True)
    )
    return Image.fromarray(pixels[y : y + side, x : x + side]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _height(columns: Sequence[tuple[str, Sequence[Seen]]], row: int) -> int:
    """Height of a row in pixels: one line of text more if it shows a prediction."""
    said = any(parts[row][1] is not None for _, parts in columns if row < len(parts))
    return SIDE + GAP + (LINE if said else 0)


def make_palette(drawn: Image.Image) -> Image.Image:
    """A palette with entries reserved for the rare coloured pixels."""
    pixels = np.asarray(drawn).reshape(-1, 3)
    colored = np.ptp(pixels.astype(int), axis=1) > 24
    entries: list[int] = []
    for chosen, count in ((pixels[~colored], GREYS), (pixels[colored], COLORS)):
        if len(chosen):
            entries += (Image.fromarray(chosen[None]).quantize(count).getpalette() or [])[: 3 * count]
    holder = Image.new("P", (1, 1))
    holder.putpalette(entries)
    return holder
