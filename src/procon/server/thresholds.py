"""The threshold of a model in responses: rates on offer, and the good images behind it with their pictures."""

import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from procon.amounts import count_of
from procon.config import ThresholdRule
from procon.errors import ImageError
from procon.limits.statistics import judge_visibility
from procon.model.calibration import FEW, FEWEST, Calibration
from procon.model.rates import images_needed, measure_spread
from procon.model.training import THUMBNAIL_SIDE
from procon.names import show_name
from procon.server import schemas
from procon.server.models import ServedModel
from procon.server.request_errors import RequestError
from procon.vision.pictures import jpeg, shrink

_MOST_DECIDING = 4  # images shown
_MOST_TRIED = 300  # images left out in turn: the highest, as a second of work is enough


def threshold_answer(model: ServedModel, calibration: Calibration) -> schemas.ThresholdAnswer:
    """The threshold, its false-alarm rate, and the scores that it comes from."""
    rate, few = calibration.false_alarm_rate, len(calibration.scores) < FEWEST
    robust = calibration.at_rate(rate, "robust").threshold
    with_odd = robust if few else measure_spread(calibration.scores, keep_all=True).at_rate(rate)
    return schemas.ThresholdAnswer(
        score=calibration.threshold,
        rule=calibration.rule,
        pixel=calibration.pixel_threshold,
        typical=calibration.typical,
        usual_peak=calibration.usual_peak,
        by_hand=calibration.fixed is not None,
        kind=calibration.kind,
        guaranteed=calibration.kind == "held-out" and calibration.rule == "guarantee" and not calibration.kept,
        false_alarm_rate=rate,
        promised_rate=calibration.promised_rate,
        rate_at_95_percent_confidence=calibration.confident_rate(),
        good_scores=list(calibration.ascending),
        offers=_offers(model, calibration),
        rendered=_rendered(model, calibration.threshold),
        set_aside=_good_images(model, calibration, _odd(calibration)),
        decided_by=_deciding_images(model, calibration),
        score_without_odd=robust,
        score_with_odd=with_odd,
        sentences=calibration.describe(_names(model)),
    )


def _offers(model: ServedModel, calibration: Calibration) -> list[schemas.OfferAnswer]:
    """The rates on offer, by both rules."""
    by_rule = [calibration.at_rate(calibration.false_alarm_rate, rule) for rule in ("robust", "guarantee")]
    return [
        schemas.OfferAnswer(
            rule=ruled.rule,
            false_alarm_rate=offer.rate,
            score=offer.threshold,
            above=len(offer.above),
            rendered=_rendered(model, offer.threshold),
        )
        for ruled in by_rule
        for offer in ruled.offers()
    ]


def _rendered(model: ServedModel, threshold: float) -> schemas.RenderedAnswer | None:
    """What a threshold finds of the rendered defects that the model keeps; an exported model keeps none."""
    renderings = None if model.full_detector is None else model.full_detector.model.renderings
    if renderings is None:
        return None
    (found, total), half_from, _ = _judge(renderings, threshold)
    return schemas.RenderedAnswer(found=found, total=total, half_from=half_from)


_judge = lru_cache(maxsize=256)(judge_visibility)  # pages ask every few seconds


def _odd(calibration: Calibration) -> tuple[int, ...]:
    """Positions of the images that the robust rule sets aside; with fewer than ``FEWEST`` images it sets none aside."""
    return calibration.spread.aside if len(calibration.scores) >= FEWEST else ()


def _deciding_images(model: ServedModel, calibration: Calibration) -> list[schemas.DecidingImageAnswer]:
    """The few images without which the threshold would change most, largest change first."""
    without = dict(_largest_changes(calibration))
    answers = {answer.number: answer for answer in _good_images(model, calibration, without)}
    return [
        schemas.DecidingImageAnswer(**answers[number].model_dump(), threshold_without=threshold)
        for number, threshold in without.items()
    ]


@lru_cache(maxsize=64)  # the state of the server is computed with every part
def _largest_changes(calibration: Calibration) -> tuple[tuple[int, float], ...]:
    """Numbers of images with the threshold that each would leave, without those that are set aside."""
    if calibration.fixed is not None or len(calibration.scores) < 2:
        return ()
    odd = set(_odd(calibration)) if calibration.rule == "robust" else set()
    counted = [number for number in range(len(calibration.scores)) if number not in odd]
    highest = sorted(counted, key=lambda number: -calibration.scores[number])[:_MOST_TRIED]
    without = [(number, _threshold_without(calibration, number)) for number in highest]
    changing = [(number, threshold) for number, threshold in without if threshold != calibration.threshold]
    changing.sort(key=lambda change: -abs(change[1] - calibration.threshold))
    return tuple(changing[:_MOST_DECIDING])


def _threshold_without(calibration: Calibration, number: int) -> float:
    """The threshold if one image had not been there."""
    rest = [score for place, score in enumerate(calibration.good_scores) if place != number]
    return Calibration.of(rest, calibration.false_alarm_rate, calibration.rule).threshold


def describe_fit(count: int, rate: float, rule: ThresholdRule) -> list[str]:
    """What the threshold of a fit on ``count`` good images will promise, in sentences."""
    images, lowest = count_of(count, "image"), 1 / (count + 1)
    if rule == "guarantee":
        asked = f"; {rate:.1%} takes {images_needed(rate)} images" if rate < lowest else ""
        lines = [f"With {images}, about {max(rate, lowest):.1%} of good parts will exceed the threshold{asked}."]
    elif count < FEWEST:
        lines = [
            f"{images} {'is' if count == 1 else 'are'} too few to aim at a rate: the threshold will be the highest "
            f"score of good images. With {FEWEST} or more it aims at the rate."
        ]
    else:
        lines = [
            f"With {images}, the threshold will aim at {rate:.1%} false alarms and guarantee no rate; "
            f"the lowest that {images} could guarantee is {lowest:.1%}."
        ]
    if count < FEW:
        lines.append(f"Weak: with {FEW} or more it is reliable.")
    return lines


def good_images_answer(model: ServedModel) -> schemas.GoodImagesAnswer:
    """All good images behind the threshold of a model."""
    good = model.calibration
    return schemas.GoodImagesAnswer(images=_good_images(model, good, range(len(good.scores))) if good else [])


def _good_images(model: ServedModel, calibration: Calibration, numbers: Iterable[int]) -> list[schemas.GoodImageAnswer]:
    """The good images of these numbers, highest score first."""
    names, odd, scores = _names(model), _odd(calibration), calibration.scores
    answers = []
    for number in sorted(numbers, key=lambda number: -scores[number]):
        deviations = calibration.spread.deviations(scores[number])
        answers.append(
            schemas.GoodImageAnswer(
                number=number,
                name=names[number] if number < len(names) else f"image {number + 1}",
                score=scores[number],
                deviations=deviations if math.isfinite(deviations) else None,
                set_aside=number in odd,
            )
        )
    return answers


def _names(model: ServedModel) -> list[str]:
    """Names of the good images behind the threshold, without paths of this machine; an exported model has none."""
    images = () if model.full_detector is None else model.full_detector.model.calibration_images
    return [show_name(Path(image.name).name) for image in images]


def good_picture(model: ServedModel, number: int) -> bytes:
    """A good image behind the threshold, small, as JPEG; refused if it can no longer be read."""
    detector = model.detector
    images = detector.model.calibration_images
    if number >= len(images):
        raise RequestError(404, "no such good image")
    if images[number].thumbnail:
        return images[number].thumbnail
    picture = detector.sources.picture(images[number])
    if isinstance(picture, ImageError):
        raise RequestError(410, "the training image can no longer be read")
    return jpeg(shrink(picture.rgb8(), THUMBNAIL_SIDE), quality=85)
