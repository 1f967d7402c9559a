"""Edits of a fitted model: functions from a model to a model. An edit that fails leaves the old model as it was."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from procon.config import ThresholdRule, refuse
from procon.errors import ConfigError, ImageError
from procon.model.calibration import Calibration, GoodScore, change_note
from procon.model.editor import Editor
from procon.model.fitting import needs_measuring
from procon.model.history import Change, utc
from procon.model.lessons import join_lessons
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.rates import FalseAlarms, estimate_false_alarms
from procon.model.selection import add_images, growth_size, merge_memories, remove_images
from procon.model.training import TrainingSources, list_good, open_all_good
from procon.model.training_image import TrainingImage
from procon.names import show_name
from procon.vision.images import ImageLike, ImageLikes

# ---------------------------------------------------------------------------------------------------------- threshold


def calibrate(
    model: Model, editor: Editor, images: ImageLikes | None, rate: float | None, rule: ThresholdRule | None = None
) -> Model:
    """The model with a new threshold.

    From separate good ``images``: a held-out calibration. From ``rate`` or ``rule`` alone: the present scores at that
    rate, by that rule. From neither: leave-one-out on the training images, which are read again.
    """
    wanted = model.config.false_alarm_rate if rate is None else rate
    chosen = model.config.threshold_rule if rule is None else rule
    replace(model.config, false_alarm_rate=wanted, threshold_rule=chosen)  # refuses what is not a rate or a rule
    if images is not None:
        items, separate = open_all_good(images, editor.on_progress, taken=model.names_in_use)
        refuse_seen(separate, model.memory.images)
        scores = editor.score_new(model.memory, items)
        calibration = replace(Calibration.of(scores, wanted, chosen), kind="held-out", images=separate)
        editor.sources.hold(separate, items)
    elif rate is not None or rule is not None:
        if model.calibration is None:
            raise ConfigError("the model is not calibrated; pass good images")
        calibration = model.calibration.at_rate(wanted, chosen)
    else:
        sources = editor.calibration_sources(model, model.memory.images)
        _, own_scores = editor.leave_one_out(model.memory, sources)
        if own_scores is None:
            raise ConfigError("leave-one-out needs more training images; calibrate on separate good images instead")
        calibration = Calibration.of(own_scores, wanted, chosen)
    return _with_threshold(model, calibration)


def fix_threshold(model: Model, score: float) -> Model:
    """The model with ``score`` as its threshold, until the next calibration."""
    if model.calibration is None:
        raise ConfigError("a threshold needs calibration scores; calibrate on good images first")
    return _with_threshold(model, model.calibration.at_score(score))


def _with_threshold(model: Model, calibration: Calibration) -> Model:
    note = change_note(model.calibration, calibration)
    return model.with_change(model.memory, calibration, Change(utc(), "threshold", note=note))


def measure_false_alarms(model: Model, editor: Editor, images: ImageLikes) -> FalseAlarms:
    """How many good images exceed the threshold; the model must not have seen any of them."""
    if model.calibration is None:
        raise ConfigError("there is no threshold to measure; calibrate on good images first")
    items, separate = open_all_good(images, editor.on_progress)
    refuse_seen(separate, (*model.memory.images, *model.calibration.images))
    scores = editor.score_new(model.memory, items, marked=model.marked)
    flagged = sum(good.score > model.calibration.threshold for good in scores)
    return estimate_false_alarms(flagged, len(items))


# ------------------------------------------------------------------------------------------------------------- memory


def add(
    model: Model, editor: Editor, images: ImageLikes, skip_bad: bool = False, thumbnails: bool | None = None
) -> Model:
    """The model with more good images: every bank continues its farthest-point traversal over their patches."""
    refuse(model.config, "editing")
    memory, config, reader, on_progress = model.memory, model.config, editor.reader, editor.on_progress
    if thumbnails is None:
        thumbnails = any(image.thumbnail for image in memory.images)
    items, taken = list_good(images), model.names_in_use
    opened = reader.opened(items, on_progress, skip_bad=skip_bad, thumbnails=thumbnails, taken=taken)
    with opened as (store, items, added):
        _refuse_duplicates(added, memory)
        if model.calibration is not None:
            _refuse_calibrated(added, model.calibration)
        store.counted = reader.selectable_rows(added, memory.roi)
        banks = memory.layers[0].banks
        size = growth_size(store.selectable, config.coreset_ratio, banks.shape[1], config.max_anchors)
        if size == 0:
            raise ConfigError(f"the banks are full: max_anchors is {config.max_anchors}; fit again with a higher one")
        training = editor.measuring_sources(model, memory.images)
        sources = editor.calibration_sources(model, model.calibration_images)
        total = len(memory.layers) * config.banks * size

        def on_pick(done: int) -> None:
            on_progress("selecting anchors", done, total)

        grown = add_images(memory, store, added, reader.extractor.selections, size, reader.device, on_pick)
    if model.held_out is None:
        sources = [*sources, *items]
    change = Change(utc(), "added", tuple(image.name for image in added))
    edited = _recalibrated(model, editor, grown, [*training, *items], sources, change)
    editor.sources.hold(added, items)
    return edited


def forget(model: Model, editor: Editor, images: str | Path | Iterable[str | Path]) -> Model:
    """The model without some training images and everything that came from them: anchors, scores, thumbnails."""
    refuse(model.config, "editing")
    memory = model.memory
    removed = _find_numbers(images, memory)
    if len(removed) == len(memory.images):
        raise ConfigError("a memory must keep at least one image; fit a new one instead")
    rest = remove_images(memory, removed)
    fewest = min(layer.banks.shape[1] for layer in rest.layers)
    if fewest < model.config.num_neighbors:
        raise ConfigError(
            f"without {_list_names([memory.images[number] for number in sorted(removed)])} a bank would have "
            f"{fewest} anchors, and num_neighbors is {model.config.num_neighbors}; add good images first, or fit again"
        )
    training = editor.measuring_sources(model, rest.images)
    behind = rest.images if model.held_out is None else model.held_out.images
    sources = editor.calibration_sources(model, behind)
    names = tuple(memory.images[number].name for number in sorted(removed))
    edited = _recalibrated(model, editor, rest, training, sources, Change(utc(), "forgot", names))
    for name in set(names) - set(rest.names):
        editor.sources.held.pop(name, None)
    return edited


def check_mergeable(model: Model, other: Model) -> None:
    """Refuse models that differ in settings or weights, or that have an image in common."""
    for side in (model, other):
        refuse(side.config, "editing")
    _refuse_mismatch(model, other)
    _refuse_duplicates(other.memory.images, model.memory, "is in both models; forget it in one of them first")


def merge(model: Model, editor: Editor, other: Model, other_sources: TrainingSources) -> Model:
    """One model of two of the same part, fitted with the same settings and weights.

    Its threshold is leave-one-out over the images of both.
    """
    check_mergeable(model, other)
    pairs = ((model, editor), (other, replace(editor, sources=other_sources)))
    for side, side_editor in pairs:
        side_editor.measuring_sources(side, side.memory.images)
    both = merge_memories(model.memory, other.memory, editor.reader.extractor.selections, model.config.max_anchors)
    sources = [
        source for side, side_editor in pairs for source in side_editor.calibration_sources(side, side.memory.images)
    ]
    by_digest: dict[str, GoodScore] = {}
    for side, _ in pairs:
        by_digest |= {} if side.held_out else side.scores_by_digest
    previous = [by_digest.get(image.digest) for image in both.images]
    missing = [isinstance(source, ImageError) for source in sources]
    if any(is_missing and score is None for is_missing, score in zip(missing, previous, strict=True)):
        raise ConfigError("a held-out calibration has no scores of training images to keep; put the images back")
    both, scores = editor.leave_one_out(both, sources, previous)
    calibration = None
    if scores is not None:
        calibration = replace(
            Calibration.of(scores, model.config.false_alarm_rate, model.config.threshold_rule), kept=sum(missing)
        )
    log = tuple(sorted((*model.history, *other.history), key=lambda change: change.when))
    change = Change(utc(), "merged", tuple(image.name for image in other.memory.images))
    editor.sources.held |= other_sources.held
    lessons = join_lessons(model.lessons, other.lessons)
    return replace(model, history=log, lessons=lessons).with_change(both, calibration, change)


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
    old = model.calibration
    images = memory.images if model.held_out is None else model.held_out.images
    previous = [model.scores_by_digest.get(image.digest) for image in images]
    scores: list[GoodScore] | None
    if model.held_out is None:
        memory, scores = editor.leave_one_out(memory, sources, previous)
    else:
        if needs_measuring(model.config):
            memory, _ = editor.leave_one_out(memory, training)
        scores = list(editor.score_new(memory, sources, previous))
    config = model.config
    calibration = Calibration.of(scores, config.false_alarm_rate, config.threshold_rule) if scores else None
    if calibration is not None and old is not None:
        missing = sum(isinstance(source, ImageError) for source in sources)
        kind = old.kind if old.kind == "held-out" else calibration.kind
        calibration = replace(calibration, kind=kind, images=old.images, fixed=old.fixed, kept=missing)
    return model.with_change(memory, calibration, change)


# ---------------------------------------------------------------------------------------- which images, which memories


def _find_numbers(images: str | Path | Iterable[str | Path], memory: Memory) -> set[int]:
    """Positions in the memory of images given by name: the whole path, or its end where only one image has it.

    Copies of the same content under other names are included.
    """
    numbers: set[int] = set()
    for wanted in [images] if isinstance(images, str | Path) else images:
        name, end = str(wanted), Path(wanted).parts
        matches = [image for image in memory.images if name in (image.name, show_name(image.name))]
        if not matches:
            ends = {number: Path(image.name).parts[-len(end) :] for number, image in enumerate(memory.images)}
            matches = [
                memory.images[number] for number, own in ends.items() if end in (own, tuple(map(show_name, own)))
            ]
            if len({image.name for image in matches}) > 1:
                raise ImageError(f"{show_name(name)}: may be any of {_list_names(matches)}; give more of the path")
        if not matches:
            raise ImageError(
                f"{show_name(name)}: is not in the memory, which holds {_list_names(memory.images)}; "
                "procon info --json lists all"
            )
        digests = {image.digest for image in matches}
        numbers |= {number for number, image in enumerate(memory.images) if image.digest in digests}
    return numbers


def _list_names(images: Sequence[TrainingImage]) -> str:
    """The names of the first few."""
    names = ", ".join(show_name(image.name) for image in images[:3])
    return names + (f" and {len(images) - 3} more" if len(images) > 3 else "")


def _refuse_duplicates(
    added: Sequence[TrainingImage], memory: Memory, remedy: str = "is in the memory already; leave it out"
) -> None:
    """No image of ``memory`` again, by content or by name."""
    digests, names = {image.digest: image.name for image in memory.images}, set(memory.names)
    for image in added:
        if image.digest in digests:
            other = digests[image.digest]
            same = f" (as {other})" if other != image.name else ""
            raise ImageError(f"{image.name}: {remedy}{same}")
        if image.name in names:
            raise ImageError(f"{image.name}: the memory holds another image of this name; forget that first, or rename")


def refuse_seen(separate: Sequence[TrainingImage], seen: Sequence[TrainingImage]) -> None:
    """Only images that the model has not ``seen`` can judge it."""
    digests = {image.digest for image in seen}
    both = [image for image in separate if image.digest in digests]
    if both:
        raise ImageError(
            f"these must be images the model has not seen, got {len(both)} that it has: {_list_names(both)}; leave "
            "them out"
        )


def _refuse_calibrated(added: Sequence[TrainingImage], calibration: Calibration) -> None:
    """No image of a held-out calibration may enter the memory."""
    separate = {image.digest for image in calibration.images}
    both = [image for image in added if image.digest in separate]
    if both:
        raise ImageError(
            f"{_list_names(both)}: the threshold was calibrated on it, as an image the memory does not hold; leave it "
            "out, or go back to leave-one-out first: calibrate() (procon threshold MODEL --leave-one-out)"
        )


def _refuse_mismatch(model: Model, other: Model) -> None:
    """Memories can be joined if their anchors mean the same and they look at the same region of an image."""
    # These do not change what an anchor is; those of image_size="auto" have done their work.
    free = ("weights", "false_alarm_rate", "threshold_rule", "precision", "patch_budget", "max_scale")
    mine, theirs = asdict(model.config), asdict(other.config)
    for name in mine:
        if name not in free and mine[name] != theirs[name]:
            raise ConfigError(
                f"both models must have the same settings, got {name}={mine[name]!r} and {name}={theirs[name]!r}; "
                "fit one of them again"
            )
    if model.identity["fingerprint"] != other.identity["fingerprint"]:
        raise ConfigError("both models must have the same backbone weights; fit one of them again")
    regions = [None if m.memory.roi is None else (m.memory.roi.shape, m.memory.roi.tobytes()) for m in (model, other)]
    if regions[0] != regions[1]:
        raise ConfigError("both models must have the same region of interest; fit one of them again")
