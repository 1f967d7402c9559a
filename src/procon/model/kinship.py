"""Whether two models are of the same part, as far as their memories tell."""

from statistics import median

from procon.model.scorer import ModelScorer
from procon.model.training import TrainingSources
from procon.vision.images import Picture

_SAMPLE = 8  # training images of each model that are scored against the other


def describe_difference(
    first: ModelScorer, second: ModelScorer, first_sources: TrainingSources, second_sources: TrainingSources
) -> str | None:
    """A sentence if neither memory explains the images of the other; None if one does, or if that cannot be told.

    A memory explains images if their typical score is not above its threshold.
    """
    limits = [_typical_score(first, second, second_sources), _typical_score(second, first, first_sources)]
    if any(limit is None or limit <= 1 for limit in limits):
        return None
    return (
        "these look like models of two different parts: typical good images of each score "
        f"{limits[0]:.1f} and {limits[1]:.1f} times the threshold of the other; keep two models, unless you know better"
    )


def _typical_score(scorer: ModelScorer, other: ModelScorer, sources: TrainingSources) -> float | None:
    """The median score of training images of ``other``, in units of the threshold of ``scorer``."""
    images, calibration = other.model.memory.images, scorer.calibration
    if calibration is None or not calibration.threshold > 0:
        return None
    chosen = images[:: max(1, len(images) // _SAMPLE)][:_SAMPLE]
    pictures = [picture for image in chosen if isinstance(picture := sources.picture(image), Picture)]
    scores = [scorer.measure([scorer.prepare(picture)], picture.size)[0].score for picture in pictures]
    return median(scores) / calibration.threshold if scores else None
