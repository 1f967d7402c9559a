"""Commands on a fitted model: threshold, explain, add, forget, merge."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from procon.amounts import count_of
from procon.cli.flags import (
    DeviceOption,
    ModelArgument,
    SkipBadOption,
    TrainingOption,
    WeightsOption,
    check_model_target,
)
from procon.cli.terminal import echo, show_progress, show_status, stderr_console
from procon.config import ThresholdRule
from procon.errors import ConfigError
from procon.names import show_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from procon.detector import Detector
    from procon.limits.statistics import Visibility
    from procon.model.calibration import Calibration, Offer
    from procon.model.rates import FalseAlarms
    from procon.progress import Progress

ModelOutput = Annotated[
    Path | None, Option("--output", "-o", help="Model file to write; default: the one that was read.")
]
_KeepScores = Annotated[
    bool,
    Option("--keep-scores", help="Keep the calibration score of a training image that is gone (approximate)."),
]


def threshold(
    model: ModelArgument,
    false_alarm_rate: Annotated[float | None, Option(help="Set the share of good parts that may be flagged.")] = None,
    guarantee: Annotated[
        bool | None,
        Option(
            "--guarantee/--robust",
            help="The rule: a split-conformal promise that counts every image, or the default, which sets odd images "
            "aside and promises nothing.",
            show_default=False,
        ),
    ] = None,
    score: Annotated[float | None, Option(help="Set the threshold itself, by hand.")] = None,
    calibrate: Annotated[
        Path | None, Option(help="Calibrate on this folder of good images that the model has not seen.")
    ] = None,
    leave_one_out: Annotated[
        bool, Option("--leave-one-out", help="Calibrate on the training images, each without its own anchors.")
    ] = False,
    measure: Annotated[
        Path | None, Option(help="Measure the false alarms on this folder of good images; changes nothing.")
    ] = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the threshold of a model, what it promises, and the rates on offer; change it, or measure it on good images.

    Only the metadata of the file is rewritten, atomically.
    """
    from procon.model.document import read_calibration

    flags = {"--calibrate": calibrate is not None, "--leave-one-out": leave_one_out, "--score": score is not None}
    sources = [flag for flag, is_given in flags.items() if is_given]
    if sources == ["--score"] and (false_alarm_rate is not None or guarantee is not None):
        sources.append("--false-alarm-rate" if false_alarm_rate is not None else "--guarantee or --robust")
    if len(sources) > 1:
        raise ConfigError(f"the threshold must come from one place, got {sources[0]} and {sources[1]}")
    calibration, detector, false_alarms = read_calibration(model), None, None
    if calibrate is not None or leave_one_out or measure is not None:
        detector = load_detector(model, weights, training, device)
    if detector is not None and (calibrate is not None or leave_one_out):
        with show_progress() as on_progress:
            if leave_one_out and (false_alarm_rate is not None or guarantee is not None):
                detector.calibrate(false_alarm_rate=false_alarm_rate, guarantee=guarantee)
            rate, rule = (false_alarm_rate, guarantee) if calibrate else (None, None)
            detector.calibrate(calibrate, false_alarm_rate=rate, guarantee=rule, progress=on_progress)
        calibration = _write_calibration(model, calibration, detector.calibration)
    elif false_alarm_rate is not None or guarantee is not None or score is not None:
        if calibration is None:
            raise ConfigError(f"{model}: is not calibrated; pass good images with --calibrate FOLDER")
        changed = (
            calibration.at_score(score) if score is not None else _at_rate(calibration, false_alarm_rate, guarantee)
        )
        calibration = _write_calibration(model, calibration, changed)
        if detector is not None:
            detector.model = detector.model.calibrated(calibration)
    if detector is not None and measure is not None:
        with show_progress() as on_progress:
            false_alarms = detector.measure_false_alarms(measure, progress=on_progress)
    if as_json:
        echo(json.dumps(_threshold_facts(model, calibration, false_alarms), indent=2))
    elif calibration is None:
        echo(f"{model}: no threshold; give it one with --calibrate FOLDER of good images")
    else:
        _print_threshold(model, calibration, false_alarms, measure)


def _at_rate(calibration: "Calibration", rate: float | None, guarantee: bool | None) -> "Calibration":
    """The same scores at another rate or by another rule; says so if that changes nothing."""
    rule: ThresholdRule | None = None if guarantee is None else "guarantee" if guarantee else "robust"
    changed = calibration.at_rate(calibration.false_alarm_rate if rate is None else rate, rule)
    if changed.threshold == calibration.threshold and calibration.fixed is None:
        stderr_console().print(f"the threshold stays as it was: {changed.why_unchanged()}")
    return changed


def _write_calibration(model: Path, before: "Calibration | None", after: "Calibration | None") -> "Calibration":
    from procon.model.calibration import change_note
    from procon.model.document import write_calibration
    from procon.model.history import Change, utc

    assert after is not None
    write_calibration(model, after, Change(utc(), "threshold", note=change_note(before, after)))
    return after


def _threshold_facts(
    model: Path, calibration: "Calibration | None", false_alarms: "FalseAlarms | None"
) -> dict[str, object]:
    if calibration is None:
        return {"model": str(model), "threshold": None}
    seen = _visibility(model)
    return {
        "model": str(model),
        "threshold": calibration.threshold,
        "pixel_threshold": calibration.pixel_threshold,
        "kind": calibration.kind,
        "rule": calibration.rule,
        "images": len(calibration.scores),
        "guaranteed": calibration.kind == "held-out" and calibration.rule == "guarantee" and not calibration.kept,
        "by_hand": calibration.fixed is not None,
        "false_alarm_rate": calibration.false_alarm_rate,
        "promised_rate": calibration.promised_rate,
        "rate_at_95_percent_confidence": calibration.confident_rate(),
        "set_aside": list(calibration.spread.aside),
        "offers": [_offer_facts(offer, seen) for offer in calibration.offers()],
        "measured": None if false_alarms is None else false_alarms.to_dict(),
    }


def _offer_facts(offer: "Offer", seen: "Callable[[float], Visibility] | None") -> dict[str, object]:
    """A rate on offer, with the rendered defects that it finds if these were measured."""
    if seen is None:
        return offer._asdict()
    (found, total), half_from, most_from = seen(offer.threshold)
    rendered = {"found": found, "total": total, "half_from": half_from, "nine_of_ten_from": most_from}
    return {**offer._asdict(), "rendered": rendered}


def _visibility(model: Path) -> "Callable[[float], Visibility] | None":
    """What a threshold finds of the rendered defects in a model file; None before ``procon limits``."""
    from procon.limits.statistics import judge_visibility
    from procon.model.document import read_renderings

    renderings = read_renderings(model)
    return None if renderings is None else lambda threshold: judge_visibility(renderings, threshold)


def _describe_visibility(seen: "Visibility") -> str:
    """``62% of 716, half from 9 px``."""
    if not seen.counted.total:
        return "-"
    half = "" if seen.half_from is None else f", half from {math.ceil(seen.half_from)} px"
    return f"{seen.counted.share:.0%} of {seen.counted.total}{half}"


def _print_threshold(
    model: Path, calibration: "Calibration", false_alarms: "FalseAlarms | None", measure: Path | None
) -> None:
    from procon.model.metadata import read_metadata

    names = [image.name for image in calibration.images] or [image["name"] for image in read_metadata(model)["images"]]
    for line in calibration.describe(names):
        echo(line)
    seen = _visibility(model)
    offers = calibration.offers()
    shares = [_describe_visibility(seen(offer.threshold)) for offer in offers] if seen else [""] * len(offers)
    head = "rendered defects found" if seen else ""
    width = max(map(len, (head, *shares))) + 2 if seen else 0
    echo(f"rates on offer ({calibration.rule} rule); * is in force")
    echo(f"   rate  threshold  {head:<{width}}good images above it")
    for (rate, limit, above), share in zip(offers, shares, strict=True):
        mark = "*" if calibration.fixed is None and limit == calibration.threshold else " "
        shown = ", ".join(show_name(names[place]) for place in above[:3]) + (", ..." if len(above) > 3 else "")
        echo(f"{mark}{rate:6.1%}  {limit:9.4f}  {share:<{width}}{len(above)}{f': {shown}' if above else ''}")
    if seen is None:
        echo("what each rate finds: procon limits MODEL renders defects and says it here")
    else:
        echo("rendered defects compare rates on this part; they are not real ones (procon limits)")
    if false_alarms is not None:
        echo(f"{measure}: {calibration.judge_measured(false_alarms)}")


def explain(
    model: ModelArgument,
    image: Annotated[Path, Argument(metavar="IMAGE", help="Image to explain.")],
    xy: Annotated[str | None, Option(help="Pixel to explain, as X,Y; default: the peak of the heat map.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="PNG to write; default: NAME-explained.png.")] = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON; a picture only with -o.")] = False,
) -> None:
    """Show why a part was flagged: the patch, and the normal patches it was compared with."""
    from procon.results.evidence import write_evidence

    pixel = None if xy is None else parse_numbers(xy, 2, "--xy must be two whole numbers such as 310,122")
    detector = load_detector(model, weights, training, device)
    explanation = detector.explain(image, None if pixel is None else (pixel[0], pixel[1]))
    if as_json:
        echo(json.dumps(explanation.to_dict()))
    else:
        x, y = explanation.xy
        lesson = explanation.lesson
        raised = "" if lesson is None else f", {explanation.score * lesson.gain:.4f} with {lesson.lesson}"
        echo(f"{show_name(image)}: pixel {x},{y}, patch score {explanation.score:.4f}{raised}")
        if lesson is not None:
            echo(f"  {lesson.describe()}")
        for layer in explanation.layers:
            blocks = ", ".join(map(str, layer.blocks))
            echo(f"  block {blocks:<8} residual {layer.residual:.4f}  adds {layer.contribution:.4f}")
        echo("normal patches it was compared with, by weight over all layers and banks:")
        for patch in explanation.normal_patches():
            echo(f"  {patch.weight:6.1%}  distance {patch.distance:.4f}  {show_name(patch.image)}  box {patch.box}")
    if output is not None or not as_json:
        target = output or Path(f"{image.stem}-explained.png")
        write_evidence(target, detector, image, explanation)
        echo(f"wrote {target}", err=as_json)


def add(
    model: ModelArgument,
    images: Annotated[Path, Argument(metavar="IMAGES", help="Good images to add: a folder, or one image.")],
    output: ModelOutput = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    skip_bad: SkipBadOption = False,
    keep_scores: _KeepScores = False,
) -> None:
    """Add good images to the memory of a model, and compute its threshold again."""
    target = check_model_target(output or model)
    with _edited(load_detector(model, weights, training, device), target) as (detector, on_progress):
        detector.partial_fit(images, progress=on_progress, skip_bad=skip_bad, keep_scores=keep_scores)


def forget(
    model: ModelArgument,
    images: Annotated[
        list[str],
        Argument(
            metavar="NAMES...", help="Training images to remove: the path, or the end of it; or names of lessons."
        ),
    ],
    output: ModelOutput = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    keep_scores: _KeepScores = False,
) -> None:
    """Remove training images and everything that came from them, and compute the threshold again; or take lessons back.

    Names of lessons are listed by procon info.
    """
    target = check_model_target(output or model)
    with _edited(load_detector(model, weights, training, device), target) as (detector, on_progress):
        detector.forget(images, progress=on_progress, keep_scores=keep_scores)


def merge(
    model: ModelArgument,
    other: Annotated[
        Path, Argument(metavar="OTHER", help="Model of the same part, with the same settings and weights.")
    ],
    output: Annotated[Path, Option("--output", "-o", help="Model file to write.")],
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    keep_scores: _KeepScores = False,
) -> None:
    """Make one model of two of the same part, with the images of both."""
    target = check_model_target(output)
    second = load_detector(other, weights, training, device)
    with _edited(load_detector(model, weights, training, device), target) as (detector, on_progress):
        detector.merge(second, progress=on_progress, keep_scores=keep_scores)


def load_detector(model: Path, weights: str | None, training: Path | None, device: str) -> "Detector":
    """The detector in a model file; ``training`` is where its training images are now."""
    from procon.detector import Detector

    if training is not None and not training.is_dir():
        raise ConfigError(f"--training must be a folder, got {training}")
    with show_status(f"loading {show_name(model)}"):
        return Detector.load(model, weights=weights, training=training, device=device)


@contextmanager
def _edited(detector: "Detector", target: Path) -> "Iterator[tuple[Detector, Progress]]":
    """Show progress while the block changes ``detector``; then write it to ``target`` and print what changed."""
    with show_progress() as on_progress:
        yield detector, on_progress
    detector.save(target)
    memory, calibration = detector.model.memory, detector.calibration
    echo(str(detector.history[-1]))
    anchors = memory.layers[0].banks.shape[1]
    echo(f"the memory holds {count_of(len(memory.images), 'image')}, {anchors:,} anchors in each bank")
    for line in calibration.describe(memory.names) if calibration else ["no threshold: too few images"]:
        echo(line)
    echo(f"wrote {target}")


def parse_numbers(text: str, count: int, expected: str) -> tuple[int, ...]:
    """``count`` whole numbers, separated by commas; the error begins with ``expected``."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        raise ConfigError(f"{expected}, got {text!r}")
    return numbers
