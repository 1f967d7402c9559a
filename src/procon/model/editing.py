"""Edits of a fitted model: functions from a model to a model. An edit that fails leaves the old model as it was."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from procon.config import refuse
from procon.errors import ConfigError, ImageError
from procon.model import admission, growth
from procon.model.calibration import Calibration, FalseAlarms, GoodScore, change_note, false_alarms
from procon.model.fitting import leave_one_out, needs_measuring
from procon.model.history import Change, utc
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.reader import EmbeddedImage, Reader
from procon.model.selection import selectable
from procon.model.training import TrainingImage, TrainingSources, good_images, list_good
from procon.progress import Progress
from procon.vision.images import ImageLike

Images = ImageLike | Iterable[ImageLike]


@dataclass(frozen=True)
class Editor:
    """What an edit needs besides the model: a reader of images, and where the training images are."""

    reader: Reader
    sources: TrainingSources
    on_progress: Progress
    keep_scores: bool = False
    """Whether a training image that is gone keeps its earlier score, which is approximate."""


# ---------------------------------------------------------------------------------------------------------- threshold


def calibrate(model: Model, editor: Editor, images: Images | None, rate: float | None) -> Model:
    """The model with a new threshold.

    From separate good ``images``: a held-out calibration. From ``rate`` alone: the present scores at that rate. From
    neither: leave-one-out on the training images, which are read again.
    """
    wanted = model.config.false_alarm_rate if rate is None else rate
    replace(model.config, false_alarm_rate=wanted)  # refuses what is not a rate
    if images is not None:
        items, separate = good_images(images, editor.on_progress, taken=model.names_in_use)
        admission.refuse_seen(separate, model.memory.images)
        scores = list(_score_new(model.memory, editor, items))
        calibration = replace(Calibration.of(scores, wanted), kind="held-out", images=separate)
        editor.sources.hold(separate, items)
    elif rate is not None:
        if model.calibration is None:
            raise ConfigError("the model is not calibrated; pass good images")
        calibration = model.calibration.at_rate(rate)
    else:
        sources = _calibration_sources(model, editor, model.memory.images)
        _, own_scores = leave_one_out(editor.reader, model.memory, _Sources(editor, sources), editor.on_progress)
        if own_scores is None:
            raise ConfigError("leave-one-out needs more training images; calibrate on separate good images instead")
        calibration = Calibration.of(own_scores, wanted)
    return _with_threshold(model, editor, calibration)


def set_threshold(model: Model, editor: Editor, score: float) -> Model:
    """The model with ``score`` as its threshold, until the next calibration."""
    if model.calibration is None:
        raise ConfigError("a threshold needs calibration scores; calibrate on good images first")
    return _with_threshold(model, editor, model.calibration.at_score(score))


def _with_threshold(model: Model, editor: Editor, calibration: Calibration) -> Model:
    note = change_note(model.calibration, calibration)
    return model.with_change(model.memory, calibration, Change(utc(), "threshold", note=note))


def measure_false_alarms(model: Model, editor: Editor, images: Images) -> FalseAlarms:
    """How many good images exceed the threshold; the model must not have seen any of them."""
    if model.calibration is None:
        raise ConfigError("there is no threshold to measure; calibrate on good images first")
    items, separate = good_images(images, editor.on_progress)
    admission.refuse_seen(separate, (*model.memory.images, *model.calibration.images))
    flagged = sum(one.score > model.calibration.threshold for one in _score_new(model.memory, editor, items))
    return false_alarms(flagged, len(items))


# ------------------------------------------------------------------------------------------------------------- memory


def add(model: Model, editor: Editor, images: Images, skip_bad: bool = False, thumbnails: bool | None = None) -> Model:
    """The model with more good images: every bank continues its farthest-point traversal over their patches."""
    refuse(model.config, "editing")
    memory, config, reader, on_progress = model.memory, model.config, editor.reader, editor.on_progress
    if thumbnails is None:
        thumbnails = any(image.thumbnail for image in memory.images)
    opened = reader.opened(
        list_good(images), on_progress, skip_bad=skip_bad, thumbnails=thumbnails, taken=model.names_in_use
    )
    with opened as (store, items, added):
        admission.refuse_known(added, memory)
        if model.calibration is not None:
            admission.refuse_calibrated(added, model.calibration)
        store.counted = reader.selectable_rows(added, memory.roi)
        banks = memory.layers[0].banks
        size = growth.growth(selectable(store), config.coreset_ratio, banks.shape[1], config.max_anchors)
        if size == 0:
            raise ConfigError(f"the banks are full: max_anchors is {config.max_anchors}; fit again with a higher one")
        held_out = model.calibration_images is not memory.images
        training = _measuring_sources(model, editor, memory.images)
        sources = _calibration_sources(model, editor, model.calibration_images)
        total = len(memory.layers) * config.banks * size

        def on_pick(done: int) -> None:
            on_progress("selecting anchors", done, total)

        grown = growth.extended(memory, store, added, reader.extractor.selections, size, reader.device, on_pick)
    if not held_out:
        sources = [*sources, *items]
    change = Change(utc(), "added", tuple(image.name for image in added))
    edited = _recalibrated(model, editor, grown, [*training, *items], sources, change)
    editor.sources.hold(added, items)
    return edited


def forget(model: Model, editor: Editor, images: str | Path | Iterable[str | Path]) -> Model:
    """The model without some training images and everything that came from them: anchors, scores, thumbnails."""
    refuse(model.config, "editing")
    memory = model.memory
    gone = admission.numbers_of(images, memory)
    if len(gone) == len(memory.images):
        raise ConfigError("a memory must keep at least one image; fit a new one instead")
    rest = growth.without(memory, gone)
    fewest = min(layer.banks.shape[1] for layer in rest.layers)
    if fewest < model.config.num_neighbors:
        raise ConfigError(
            f"without {admission.listed([memory.images[number] for number in sorted(gone)])} a bank would have "
            f"{fewest} anchors, and num_neighbors is {model.config.num_neighbors}; add good images first, or fit again"
        )
    held_out = model.calibration_images is not memory.images
    training = _measuring_sources(model, editor, rest.images)
    behind = model.calibration_images if held_out else rest.images
    sources = _calibration_sources(model, editor, behind)
    names = tuple(memory.images[number].name for number in sorted(gone))
    edited = _recalibrated(model, editor, rest, training, sources, Change(utc(), "forgot", names))
    for name in set(names) - set(rest.names):
        editor.sources.held.pop(name, None)
    return edited


def merge(model: Model, editor: Editor, other: Model, other_sources: TrainingSources) -> Model:
    """One model of two of the same part, fitted with the same settings and weights.

    Its threshold is leave-one-out over the images of both.
    """
    for one in (model, other):
        refuse(one.config, "editing")
    admission.refuse_other_settings(model.config, other.config)
    if model.identity["fingerprint"] != other.identity["fingerprint"]:
        raise ConfigError("both models must have the same backbone weights; fit one of them again")
    admission.refuse_other_region(model.memory, other.memory)
    admission.refuse_known(other.memory.images, model.memory, "is in both models; forget it in one of them first")
    other_editor = replace(editor, sources=other_sources)
    _measuring_sources(model, editor, model.memory.images)
    _measuring_sources(other, other_editor, other.memory.images)
    selections = editor.reader.extractor.selections
    both = growth.merged(model.memory, other.memory, selections, model.config.max_anchors)
    sources = [
        *_calibration_sources(model, editor, model.memory.images),
        *_calibration_sources(other, other_editor, other.memory.images),
    ]
    own_scores = [m.scores_by_digest for m in (model, other) if m.calibration and m.calibration.kind != "held-out"]
    by_digest = {digest: score for scores in own_scores for digest, score in scores.items()}
    previous = [by_digest.get(image.digest) for image in both.images]
    missing = [isinstance(source, ImageError) for source in sources]
    if any(gone and score is None for gone, score in zip(missing, previous, strict=True)):
        raise ConfigError("a held-out calibration has no scores of training images to keep; put the images back")
    both, scores = leave_one_out(editor.reader, both, _Sources(editor, sources), editor.on_progress, previous=previous)
    calibration = None
    if scores is not None:
        calibration = replace(Calibration.of(scores, model.config.false_alarm_rate), kept=sum(missing))
    log = tuple(sorted((*model.history, *other.history), key=lambda change: change.when))
    change = Change(utc(), "merged", tuple(image.name for image in other.memory.images))
    editor.sources.held |= other_sources.held
    return replace(model, history=log).with_change(both, calibration, change)


# ------------------------------------------------------------------------------------------------ the threshold follows


class _Sources:
    """The embedded images behind ``sources``, each time this is called; None where a source is an error."""

    def __init__(self, editor: Editor, sources: Sequence[ImageLike]) -> None:
        self._reader, self._sources = editor.reader, sources

    def __call__(self) -> Iterator[EmbeddedImage | None]:
        embedded = self._reader.embed_each([one for one in self._sources if not isinstance(one, ImageError)])
        for source in self._sources:
            yield None if isinstance(source, ImageError) else next(embedded)


def _recalibrated(
    model: Model,
    editor: Editor,
    memory: Memory,
    training: Sequence[ImageLike],
    sources: Sequence[ImageLike],
    change: Change,
) -> Model:
    """The model with a changed ``memory``, calibrated in the same way and at the same rate as before.

    ``training`` are the images to measure the memory on, where the settings need that; ``sources`` those to calibrate
    on. A source that cannot be read again is an error, and its previous score is kept.
    """
    reader, on_progress, old = editor.reader, editor.on_progress, model.calibration
    held_out = old is not None and old.kind == "held-out"
    images = old.images if old is not None and held_out else memory.images
    previous = [model.scores_by_digest.get(image.digest) for image in images]
    scores: list[GoodScore] | None
    if held_out:
        if needs_measuring(model.config):
            memory, _ = leave_one_out(reader, memory, _Sources(editor, training), on_progress)
        scores = list(_score_new(memory, editor, sources, previous))
    else:
        memory, scores = leave_one_out(reader, memory, _Sources(editor, sources), on_progress, previous=previous)
    rate = old.false_alarm_rate if old is not None else model.config.false_alarm_rate
    calibration = Calibration.of(scores, rate) if scores else None
    if calibration is not None and old is not None:
        missing = sum(isinstance(source, ImageError) for source in sources)
        calibration = replace(calibration, kind=old.kind, images=old.images, fixed=old.fixed, kept=missing)
    return model.with_change(memory, calibration, change)


def _score_new(
    memory: Memory, editor: Editor, sources: Sequence[ImageLike], previous: Sequence[GoodScore | None] = ()
) -> Iterator[GoodScore]:
    """The scores of images that the memory does not hold."""
    reader = editor.reader
    for number, image in enumerate(_Sources(editor, sources)()):
        if image is None:
            score = previous[number]
            assert score is not None
        else:
            features, size = image
            score = reader.good_score(reader.read(features, size, memory), reader.scope(size, memory.roi))
        yield score
        editor.on_progress("calibrating", number + 1, len(sources))


def _calibration_sources(model: Model, editor: Editor, images: Sequence[TrainingImage]) -> list[ImageLike]:
    """Images to calibrate on again. One that is missing is refused, or leaves its error there with ``keep_scores``."""
    if editor.keep_scores and model.calibration is not None:
        return editor.sources.find(images)
    why = "images behind the threshold cannot be read again, so it cannot follow the memory"
    try:
        return editor.sources.find_all(images, why)
    except ImageError as error:
        raise ImageError(
            f"{error}; or keep the scores they had, which is approximate: keep_scores (--keep-scores)"
        ) from None


def _measuring_sources(model: Model, editor: Editor, images: Sequence[TrainingImage]) -> list[ImageLike]:
    """Training images to read again where scores depend on how the memory reads them; otherwise none."""
    if not needs_measuring(model.config):
        return []
    why = "training images cannot be read again, and with these settings scores depend on how the changed memory"
    return editor.sources.find_all(images, f"{why} reads them")
