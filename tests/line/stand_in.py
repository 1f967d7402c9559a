"""A stand-in for a model: it reads the score from the first pixel of an image. It knows nothing of defects.

python -m tests.line.stand_in line.toml [SECONDS]     # procon line with it; each image takes so many seconds
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.cli import line as cli_line
from procon.config import Config
from procon.errors import ImageError
from procon.line.build import make_line
from procon.line.settings import read_settings
from procon.model.verdict import Measurement, predict_each, predict_images
from procon.prediction import Prediction
from procon.vision.images import Picture

THRESHOLD = 0.5


def score_of(number: int) -> float:
    """The score that the stand-in gives to the image of part ``number``: between 0.001 and 1, unlike its neighbours."""
    return (number * 617 % 1000 + 1) / 1000


def write_part(path: Path, number: int) -> Path:
    """The image of a part: its score as two bytes of the first pixel."""
    pixels = np.zeros((28, 28, 3), np.uint8)
    thousandths = round(1000 * score_of(number))
    pixels[0, 0] = (thousandths >> 8, thousandths & 255, 0)
    temporary = path.with_suffix(".part")
    Image.fromarray(pixels).save(temporary, "PNG")
    temporary.replace(path)
    return path


class StandInCalibration:
    threshold, pixel_threshold, typical, usual_peak = THRESHOLD, 2.0, 0.1, 0.2
    scores = (0.1, 0.2, 0.3)

    def p_value(self, _score: float) -> float:
        return 0.5

    def describe(self) -> list[str]:
        return []


class StandIn:
    """A predictor and its scorer."""

    config = Config(image_size=28, layers=(-1,))
    calibration: Any = StandInCalibration()
    group_size = workers = 1

    def __init__(self, seconds: float = 0.0, on_measure: Callable[[], None] = lambda: None) -> None:
        self.seconds, self.on_measure = seconds, on_measure

    @property
    def scorer(self) -> "StandIn":
        return self

    def describe(self) -> list[str]:
        return ["a stand-in that reads the score from the first pixel"]

    def prepare(self, picture: Picture) -> Any:
        return picture.pixels

    def measure(self, inputs: Sequence[Any], size: tuple[int, int]) -> list[Measurement]:
        self.on_measure()
        time.sleep(self.seconds)
        return [
            Measurement((int(image[0, 0, 0]) * 256 + int(image[0, 0, 1])) / 1000, np.zeros(size, np.float32), 0.1)
            for image in inputs
        ]

    def resize_map(self, input_map: Any, size: tuple[int, int]) -> Any:
        return np.zeros(size, np.float32)

    def predict(self, images: Any) -> Any:
        return predict_images(self, images)

    def predict_each(self, images: Iterable[Any]) -> Iterator[Prediction | ImageError]:
        return predict_each(self, images)


def main() -> None:
    path, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    line = make_line(read_settings(path), path.parent, load=lambda _: (StandIn(seconds), "0123abcd4567"), say=print)
    cli_line.run_until_signal(line)
    for station in line.stations:
        station.plan.outbox.close()


if __name__ == "__main__":
    main()
