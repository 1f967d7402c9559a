"""Commands on a fitted model: threshold, explain, add, forget, merge."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procon.cli.terminal import console, progress
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.detector import Detector
    from procon.model.calibration import Calibration

_MODEL = typer.Argument(help="Model file.")
_DEVICE = typer.Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")
_WEIGHTS = typer.Option("--weights", help="Backbone weights: Hugging Face folder, .safetensors or .pth.")
_TRAINING = typer.Option("--training", help="Folder of the training images, if it has moved.")
_OUTPUT = typer.Option("--output", "-o", help="Model file to write; default: the one that was read.")
_KEEP = typer.Option("--keep-scores", help="Keep the calibration score of a training image that is gone (approximate).")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(rich_help_panel="Use it")(explain)
    for command in (threshold, add, forget, merge):
        app.command(rich_help_panel="Change it")(command)


def threshold(
    model: Annotated[Path, _MODEL],
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Set the share of good parts that may be flagged.")
    ] = None,
    score: Annotated[float | None, typer.Option(help="Set the threshold itself, by hand.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Calibrate on this folder of good images that the model has not seen.")
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Calibrate on the training images, each without its own anchors.")
    ] = False,
    measure: Annotated[
        Path | None, typer.Option(help="Measure the false alarms on this folder of good images; changes nothing.")
    ] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
    device: Annotated[str, _DEVICE] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the threshold of a model and what it can promise; change it, or measure it on good images.

    Only the metadata of the file is rewritten, at once.
    """
    from procon.model.file import read_calibration

    given = [flag for flag, on in (("--calibrate", calibrate), ("--leave-one-out", leave_one_out)) if on]
    given += ["--score"] if score is not None else []
    if len(given) > 1 or (given == ["--score"] and false_alarm_rate is not None):
        other = given[1] if len(given) > 1 else "--false-alarm-rate"
        raise ConfigError(f"the threshold must come from one place, got {given[0]} and {other}")
    known = read_calibration(model)
    detector = None
    if calibrate is not None or leave_one_out or measure is not None:
        with console().status(f"loading {model}"):
            detector = _load(model, weights, training, device)
    if calibrate is not None or leave_one_out:
        assert detector is not None
        with progress() as report:
            if leave_one_out and false_alarm_rate is not None:
                detector.calibrate(false_alarm_rate=false_alarm_rate)
            detector.calibrate(calibrate, false_alarm_rate=false_alarm_rate if calibrate else None, progress=report)
        assert detector.calibration is not None
        known = _write(model, known, detector.calibration)
    elif false_alarm_rate is not None or score is not None:
        if known is None:
            raise ConfigError(f"{model}: has no scores to read; calibrate it with --calibrate FOLDER of good images")
        changed = known.at_score(score) if score is not None else known.at_rate(false_alarm_rate or 0)
        known = _write(model, known, changed)
        if detector is not None:
            detector.model = detector.model.calibrated(known)
    _show(model, known, detector, measure, as_json)


def _write(model: Path, before: "Calibration | None", after: "Calibration") -> "Calibration":
    from procon.model.calibration import change_note
    from procon.model.file import write_calibration
    from procon.model.model import Change, utc

    write_calibration(model, after, Change(utc(), "threshold", note=change_note(before, after)))
    return after


def _show(
    model: Path, known: "Calibration | None", detector: "Detector | None", measure: Path | None, as_json: bool
) -> None:
    if known is None and measure is None:
        if as_json:
            typer.echo(json.dumps({"model": str(model), "threshold": None}))
            return
        typer.echo(f"{model}: no threshold; give it one with --calibrate FOLDER of good images")
        return
    found = None
    if measure is not None:
        assert detector is not None
        with progress() as report:
            found = detector.measure_false_alarms(measure, progress=report)
    assert known is not None
    if as_json:
        facts = {
            "model": str(model),
            "threshold": known.threshold,
            "pixel_threshold": known.pixel_threshold,
            "kind": known.kind,
            "images": len(known.scores),
            "guaranteed": known.kind == "held-out" and not known.kept,
            "by_hand": known.fixed is not None,
            "false_alarm_rate": known.false_alarm_rate,
            "promised_rate": known.promised_rate,
            "rate_at_95_percent_confidence": known.confident_rate(),
            "measured": found.to_dict() if found is not None else None,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    from procon.model.storage import read_metadata

    for line in known.describe([image["name"] for image in read_metadata(model)["images"]]):
        typer.echo(line)
    if found is not None:
        typer.echo(f"{measure}: {found.describe(known.promised_rate, known.confident_rate())}")


def explain(
    model: Annotated[Path, _MODEL],
    image: Annotated[Path, typer.Argument(help="Image to explain.")],
    xy: Annotated[str | None, typer.Option(help="Pixel to explain, as X,Y; default: the peak of the heat map.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="PNG to write; default: NAME-explained.png.")
    ] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
    device: Annotated[str, _DEVICE] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON; a picture only with -o.")] = False,
) -> None:
    """Show why a part was flagged: the patch, and the normal patches it was compared with."""
    from procon.results.evidence import write_evidence

    place = None if xy is None else _pixel(xy)
    with console().status(f"loading {model}"):
        detector = _load(model, weights, training, device)
    found = detector.explain(image, place)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        typer.echo(f"{image}: pixel {found.xy[0]},{found.xy[1]}, patch score {found.score:.4f}")
        for layer in found.layers:
            blocks = ", ".join(map(str, layer.blocks))
            typer.echo(f"  block {blocks:<8} residual {layer.residual:.4f}  adds {layer.contribution:.4f}")
        typer.echo("normal patches it was compared with, by weight over all layers and banks:")
        for patch in found.normal_patches():
            typer.echo(f"  {patch.weight:6.1%}  distance {patch.distance:.4f}  {patch.image}  box {patch.box}")
    if output is not None or not as_json:
        target = output or Path(f"{image.stem}-explained.png")
        write_evidence(target, detector, image, found)
        typer.echo(f"wrote {target}", err=as_json)


def add(
    model: Annotated[Path, _MODEL],
    images: Annotated[Path, typer.Argument(help="Good images to add: a folder, or one image.")],
    output: Annotated[Path | None, _OUTPUT] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
    device: Annotated[str, _DEVICE] = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")] = False,
    keep_scores: Annotated[bool, _KEEP] = False,
) -> None:
    """Add good images to the memory of a model, and compute its threshold again."""
    target = _target(output or model)
    with console().status(f"loading {model}"):
        detector = _load(model, weights, training, device)
    with progress() as report:
        detector.partial_fit(images, progress=report, skip_bad=skip_bad, keep_scores=keep_scores)
    _finish(detector, target)


def forget(
    model: Annotated[Path, _MODEL],
    images: Annotated[list[str], typer.Argument(help="Training images to remove: the path, or the end of it.")],
    output: Annotated[Path | None, _OUTPUT] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
    device: Annotated[str, _DEVICE] = "auto",
    keep_scores: Annotated[bool, _KEEP] = False,
) -> None:
    """Remove training images and everything that came from them, and compute the threshold again."""
    target = _target(output or model)
    with console().status(f"loading {model}"):
        detector = _load(model, weights, training, device)
    with progress() as report:
        detector.forget(images, progress=report, keep_scores=keep_scores)
    _finish(detector, target)


def merge(
    model: Annotated[Path, _MODEL],
    other: Annotated[Path, typer.Argument(help="Model of the same part, with the same settings and weights.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
    device: Annotated[str, _DEVICE] = "auto",
    keep_scores: Annotated[bool, _KEEP] = False,
) -> None:
    """Make one model of two of the same part, with the images of both."""
    target = _target(output)
    with console().status(f"loading {model} and {other}"):
        detector = _load(model, weights, training, device)
        second = _load(other, weights, training, device)
    with progress() as report:
        detector.merge(second, progress=report, keep_scores=keep_scores)
    _finish(detector, target)


def _load(model: Path, weights: str | None, training: Path | None, device: str) -> "Detector":
    from procon.detector import Detector

    if training is not None and not training.is_dir():
        raise ConfigError(f"--training must be a folder, got {training}")
    return Detector.load(model, weights=weights, training=training, device=device)


def _target(path: Path) -> Path:
    if path.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {path}")
    return path


def _finish(detector: "Detector", path: Path) -> None:
    """Write the changed model and say what changed."""
    detector.save(path)
    memory, known = detector.memory, detector.calibration
    assert memory is not None
    typer.echo(str(detector.history[-1]))
    anchors = memory.layers[0].banks.shape[1]
    typer.echo(f"the memory holds {len(memory.images)} images, {anchors:,} anchors in each bank")
    for line in known.describe(memory.names) if known is not None else ["no threshold: too few images"]:
        typer.echo(line)
    typer.echo(f"wrote {path}")


def _pixel(text: str) -> tuple[int, int]:
    try:
        x, y = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--xy must be two whole numbers such as 310,122, got {text!r}") from None
    return x, y
