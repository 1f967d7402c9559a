"""Predictions as a pandas table."""

from collections.abc import Iterable
from typing import Any

from procon.errors import ImageError, MissingExtraError
from procon.prediction import Prediction

COLUMNS = (
    *("source", "score", "relative_score", "is_anomalous", "p_value", "threshold", "median_patch_score", "regions"),
    *("largest_region", "error"),
)


def to_pandas(predictions: Prediction | Iterable[Prediction | ImageError | None]) -> Any:
    """Predictions as a pandas DataFrame, a row each, in order; an image that could not be used has its error.

    ``regions`` is their number and ``largest_region`` the box (left, top, right, bottom) of the one with most pixels.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("to_pandas needs pandas; install it with: pip install 'procon[notebook]'") from None

    several = [predictions] if isinstance(predictions, Prediction) else predictions
    return pandas.DataFrame([_row(result) for result in several], columns=list(COLUMNS))


def _row(result: Prediction | ImageError | None) -> dict[str, Any]:
    if not isinstance(result, Prediction):
        return {"error": "could not be used" if result is None else str(result)}
    largest = max(result.regions, key=lambda region: region.area, default=None)
    return {**result.to_dict(), "regions": len(result.regions), "largest_region": largest and largest.box}
