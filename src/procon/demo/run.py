"""The whole job on rendered parts: from a folder of good photos to heat maps."""

from collections.abc import Callable
from pathlib import Path

from procon.config import Config
from procon.demo.parts import write_set
from procon.detector import Detector
from procon.progress import Progress
from procon.results.inspection import Outcome, ScoredImage, find_images, inspect


def run_demo(
    folder: Path, weights: str | None, on_progress: Progress, on_row: Callable[[ScoredImage], None]
) -> tuple[Detector, Outcome]:
    """Render parts, fit, score and write everything under ``folder``; the detector is saved as ``part.procon``.

    The recipe is the paper's on the smallest backbone, so that it takes a minute on a laptop.
    """
    parts = folder / "parts"
    write_set(parts, train=32, good=6, defects_per_kind=4, seed=7, on_progress=on_progress)
    detector = Detector(Config(backbone="dinov2-small", weights=weights)).fit(parts, progress=on_progress)
    detector.save(folder / "part.procon")
    outcome = inspect(
        detector,
        find_images([parts]),
        folder / "results",
        title="ProCon demo: flanges",
        facts=detector.describe(),
        on_row=on_row,
    )
    return detector, outcome
