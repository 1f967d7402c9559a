"""A page of pictures and text, drawn with Pillow and its own font, which is the same on every machine."""

from PIL import Image, ImageDraw, ImageFont

Ink = tuple[int, int, int]
Point = tuple[int, int]
"""(x, y) on the page."""

INK, SOFT, PAPER, LINE = (28, 32, 36), (104, 110, 120), (255, 255, 255), (214, 218, 224)


class Sheet:
    """A white page. ``text`` and ``paste`` return the y below what they drew."""

    def __init__(self, width: int, height: int, margin: int) -> None:
        self.width, self._margin = width, margin
        self.image = Image.new("RGB", (width, height), PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def text(self, at: Point, words: str, size: int, ink: Ink = INK, width: int | None = None) -> int:
        """Write ``words``, broken into lines of at most ``width``; by default up to the margin."""
        y = at[1]
        for line in break_lines(words, width or self.width - self._margin - at[0], size):
            self.label((at[0], y), line, ink, size, anchor="la")
            y += round(size * 1.3)
        return y

    def label(self, at: tuple[float, float], words: str, ink: Ink = SOFT, size: int = 15, anchor: str = "ma") -> None:
        """Write one short line; by default it is centred on the x of the point."""
        self.draw.text(at, words, ink, font(size), anchor=anchor)

    def paste(self, at: Point, picture: Image.Image) -> int:
        """Put a picture with a thin frame on the page."""
        self.image.paste(picture, at)
        self.draw.rectangle((at[0] - 1, at[1] - 1, at[0] + picture.width, at[1] + picture.height), outline=LINE)
        return at[1] + picture.height


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font."""
    return ImageFont.load_default(size=size)


def break_lines(words: str, width: int, size: int) -> list[str]:
    """Words broken into lines of at most ``width`` pixels; a longer word loses its start."""
    lines: list[str] = []
    for word in words.split(" "):
        while len(word) > 4 and font(size).getlength(word) > width:  # a path: its end tells more than its start
            word = "..." + word.removeprefix("...")[1:]  # noqa: PLW2901
        if lines and font(size).getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cut_text(text: str, width: int, size: int) -> str:
    """Text that is cut where it would be wider than ``width`` pixels."""
    while len(text) > 4 and font(size).getlength(text) > width:
        text = text[:-4] + "..."
    return text
