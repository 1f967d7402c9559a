"""The main job on parts the package renders itself: from a folder of good photos to heat maps."""

from collections.abc import Callable
from pathlib import Path

from procon.config import Config
from procon.demo.parts import write_set
from procon.detector import Detector
from procon.progress import Progress
from procon.results.inspection import Outcome, ScoredImage, find_images, inspect

TRAIN, GOOD, DEFECTS_PER_KIND = 32, 6, 4
SEED = 7


def demo_config(weights: str | None = None) -> Config:
    """The paper's recipe on the smallest backbone, so that it takes a minute on a laptop."""
    return Config(backbone="dinov2-small", weights=weights)


def run_demo(
    folder: Path,
    weights: str | None = None,
    progress: Progress | None = None,
    on_row: Callable[[ScoredImage], None] | None = None,
) -> tuple[Detector, Outcome]:
    """Render parts, fit, score and write everything under ``folder``; the detector is saved as ``part.procon``."""
    parts = folder / "parts"
    write_set(
        parts,
        train=TRAIN,
        good=GOOD,
        defects_per_kind=DEFECTS_PER_KIND,
        seed=SEED,
        progress=(lambda done, total: progress("rendering parts", done, total)) if progress else None,
    )
    detector = Detector(demo_config(weights)).fit(parts, progress=progress)
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
