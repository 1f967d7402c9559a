"""A fitted detector judged on labelled images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import procon
from procon import BatchError, ConfigError, Detector
from procon.evaluation.metrics import evaluate
from procon.evaluation.runs.verdicts import tally_pixels
from tests.conftest import part_pixels, with_model


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A category with two kinds of defects, masks, and good images."""
    root, mask = tmp_path / "disc", np.zeros((96, 80), np.uint8)
    mask[40:60, 30:50] = 255
    for kind, seeds in {"square": range(3), "spot": range(3, 5), "good": range(5, 9)}.items():
        for folder in ("test", "ground_truth"):
            (root / folder / kind).mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            Image.fromarray(part_pixels(100 + seed, defect=kind != "good")).save(root / "test" / kind / f"{seed}.png")
            if kind != "good":
                Image.fromarray(mask).save(root / "ground_truth" / kind / f"{seed}_mask.png")
    (root / "train" / "good").mkdir(parents=True)
    Image.fromarray(part_pixels(0)).save(root / "train" / "good" / "0.png")
    return root


def test_counts_by_kind_come_first_and_metrics_are_those_of_predictions(detector: Detector, labelled: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    found = procon.evaluate(detector, labelled, progress=lambda *step: steps.append(step))
    assert steps == [("scoring", number, 9) for number in range(1, 10)]
    verdicts = found.verdicts
    assert verdicts is not None and found.name == "disc"
    assert {tally.kind: (tally.images, tally.flagged) for tally in verdicts.defects} == {
        "spot": (2, 2),
        "square": (3, 3),
    }
    assert (found.found, found.missed) == (5, 0) and found.false_alarms == verdicts.good.flagged
    lines = str(found).splitlines()
    assert lines[0] == "disc:" and lines[1].startswith("  threshold ")
    kinds = [number for number, line in enumerate(lines) if " found, " in line]
    assert lines[kinds[0]].startswith("  spot") and kinds[0] < next(
        n for n, line in enumerate(lines) if "best F1" in line
    )
    paths = sorted(labelled.glob("test/*/*.png"))
    results = detector.predict(paths)
    labels = [path.parent.name != "good" for path in paths]
    mask = np.zeros((96, 80), bool)
    mask[40:60, 30:50] = True
    masks = [mask if label else None for label in labels]
    expected = evaluate([result.score for result in results], labels, [r.heatmap for r in results], masks)
    assert dict(found.metrics) == pytest.approx(dict(expected), nan_ok=True)
    assert detector.calibration is not None
    limit = detector.calibration.pixel_threshold
    assert verdicts.pixels == tally_pixels([result.heatmap for result in results], masks, limit)
    assert found._repr_html_().startswith("<pre>disc:")
    assert repr(found) == f"Evaluation(disc: 5 of 5 defects found, {found.false_alarms} of 4 good flagged)"


def test_large_images_are_compared_smaller(detector: Detector, labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = procon.evaluate(detector, labelled)
    monkeypatch.setattr("procon.evaluation.labelled.LONGEST", 48)
    small = procon.evaluate(detector, labelled)
    assert small.metrics["i_auroc"] == whole.metrics["i_auroc"]
    assert small.metrics["p_auroc"] == pytest.approx(whole.metrics["p_auroc"], abs=0.05)


def test_without_a_threshold_there_are_metrics_alone(detector: Detector, labelled: Path) -> None:
    found = procon.evaluate(with_model(detector, calibration=None), labelled)
    assert (found.found, found.missed, found.false_alarms) == (None, None, None)
    assert "no threshold" in str(found) and found.metrics["i_auroc"] == 1.0


def test_what_cannot_be_judged_is_refused(detector: Detector, labelled: Path, good_folder: Path) -> None:
    (labelled / "test" / "square" / "0.png").write_bytes(b"nothing")
    with pytest.raises(BatchError, match=r"square.*0\.png"):
        procon.evaluate(detector, labelled)
    with pytest.raises(ConfigError, match="has no test images"):
        procon.evaluate(detector, good_folder.parent)
    second = labelled.parent / "second"
    (second / "train" / "good").mkdir(parents=True)
    (second / "test").mkdir()
    with pytest.raises(ConfigError, match="expected one part, got disc, second"):
        procon.evaluate(detector, labelled.parent)
