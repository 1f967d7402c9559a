"""The main job on parts the package renders itself: from a folder of good photos to heat maps."""

from collections.abc import Callable
from pathlib import Path

from procon.config import Config
from procon.detector import Detector
from procon.inspection import Outcome, Row, find_images, inspect
from procon.parts import write_set
from procon.training import Progress

TRAIN, GOOD, DEFECTS_PER_KIND = 32, 6, 4
SEED = 7


def demo_config(weights: str | None = None) -> Config:
    """The paper's recipe on the smallest backbone, so that it takes a minute on a laptop."""
    return Config(backbone="dinov2-small", weights=weights)


def run_demo(
    folder: Path,
    weights: str | None = None,
    progress: Progress | None = None,
    on_row: Callable[[Row], None] | None = None,
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
        facts=describe(detector),
        on_row=on_row,
    )
    return detector, outcome


def describe(detector: Detector) -> list[str]:
    """A fitted detector in a few lines for people."""
    memory, config = detector.memory, detector.config
    assert memory is not None
    anchors = sum(len(layer.anchors) for layer in memory.layers)
    tiles = f", in tiles of {config.tile}" if config.tile else ""
    region = "" if memory.roi is None else f", {memory.roi.mean():.0%} of each as region of interest"
    facts = [
        f"backbone {config.backbone} from {detector.extractor.backbone.source}",
        f"fitted on {len(memory.images)} good images at {config.input_size[1]} x {config.input_size[0]} pixels"
        f"{tiles}{region}",
        f"{len(memory.layers)} layers x {config.banks} banks of {memory.layers[0].banks.shape[1]:,} anchors "
        f"({anchors:,} distinct)",
    ]
    known = detector.calibration
    if known is None:
        return [*facts, "no threshold: fit on more images to get one"]
    return [*facts, *known.describe(memory.names)]
