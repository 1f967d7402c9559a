"""Remarks on a run for whoever reads its verdicts: what the threshold rests on, and what is unusual."""

from collections.abc import Sequence

from procon.model.verdict import CalibrationLike
from procon.prediction import Prediction

LEAST_IMAGES = 5  # images; fewer say nothing about a run
FAR = 0.1  # p-value at or below which an image scores like few good ones
MANY = 0.3  # share of images that far from normal, where one in ten is expected


def list_remarks(
    calibration: CalibrationLike | None, facts: Sequence[str], predictions: Sequence[Prediction]
) -> list[str]:
    """Sentences about the threshold and about all images together, the most important first.

    ``facts`` are those of ``describe`` of the model, which names odd training images.
    """
    if calibration is None:
        return ["no threshold: scores can be ranked, but no part is called good or anomalous; fit on more images"]
    lines = [line for line in facts if line.startswith(("one image decides: ", "weak: ", "odd: "))]
    if len(predictions) < LEAST_IMAGES:
        return lines
    flagged = sum(bool(prediction.is_anomalous) for prediction in predictions)
    far = sum(prediction.p_value is not None and prediction.p_value <= FAR for prediction in predictions)
    if flagged > len(predictions) / 2:
        lines.append(
            f"most parts are flagged ({flagged} of {len(predictions)}): look at the highest scores first; if these "
            "parts are good, they differ from the training images in light, camera or kind"
        )
    elif flagged == 0 and far > MANY * len(predictions):
        lines.append(
            f"none is flagged, but {far} of {len(predictions)} score higher than {1 - FAR:.0%} of good parts: look at "
            "the highest scores first; procon threshold shows the other rates on offer"
        )
    return lines
