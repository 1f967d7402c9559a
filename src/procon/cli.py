"""The command line: parse, call one function, print. Heavy imports wait until a command runs."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.config import CHOICES, Config
from procon.errors import ConfigError, ProconError

if TYPE_CHECKING:
    from rich.console import Console

    from procon.detector import Progress
    from procon.inspection import Row

app = typer.Typer(
    name="procon",
    help="Visual anomaly detection from good images alone: fit on a folder of good parts, score and paint new ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_DEVICE = typer.Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")
_WEIGHTS = typer.Option("--weights", help="Backbone weights: Hugging Face folder, .safetensors or .pth.")


def main() -> None:
    """Entry point: 0 is success, 2 something the user can mend, 130 Ctrl-C."""
    # Threads that wait by spinning slow each other down tenfold as soon as anything else wants the cores. Read when
    # torch is loaded, which no command has done yet; a value of the user's own stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except ProconError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written to
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


@app.command()
def fit(
    good: Annotated[Path, typer.Argument(help="Folder of good images, or a tree with train/good or good/ in it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("part.procon"),
    backbone: Annotated[str | None, typer.Option(help=f"One of {', '.join(CHOICES['backbone'])}.")] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    image_size: Annotated[str | None, typer.Option(help="Side in pixels, or HEIGHTxWIDTH; multiples of 14.")] = None,
    resize: Annotated[int | None, typer.Option(help="Resize to this square, then crop image-size from it.")] = None,
    layers: Annotated[str | None, typer.Option(help="Blocks to read, written --layers=-3,-6,-8,-9.")] = None,
    projection_dim: Annotated[int | None, typer.Option(help="Dimensions of the scoring space.")] = None,
    selection_dim: Annotated[int | None, typer.Option(help="Dimensions of coreset selection.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random projections.")] = None,
    banks: Annotated[int | None, typer.Option(help="Memories per layer.")] = None,
    bank_seed: Annotated[int | None, typer.Option(help="Shift of the seeds of the banks.")] = None,
    coreset: Annotated[str | None, typer.Option(help="k-center, random or dense.")] = None,
    coreset_ratio: Annotated[float | None, typer.Option(help="Share of patches a bank keeps.")] = None,
    max_anchors: Annotated[int | None, typer.Option(help="Upper limit on a bank.")] = None,
    compression: Annotated[str | None, typer.Option(help="none, fp16, int8 or approximate.")] = None,
    num_neighbors: Annotated[int | None, typer.Option(help="Anchors a patch is projected on.")] = None,
    readout: Annotated[str | None, typer.Option(help="soft, uniform or hard.")] = None,
    tau: Annotated[float | None, typer.Option(help="Fixed temperature of the soft projection.")] = None,
    tau_patches: Annotated[int | None, typer.Option(help="Patches that set the temperature.")] = None,
    layer_fusion: Annotated[str | None, typer.Option(help="mean, median, max or concat.")] = None,
    normalization: Annotated[str | None, typer.Option(help="none, robust or train.")] = None,
    top_ratio: Annotated[float | None, typer.Option(help="Share of patches that make the image score.")] = None,
    blur_sigma: Annotated[float | None, typer.Option(help="Blur of the heat map, pixels.")] = None,
    false_alarm_rate: Annotated[float | None, typer.Option(help="Share of good parts that may be flagged.")] = None,
    precision: Annotated[str | None, typer.Option(help="Backbone arithmetic: auto, fp32 or bf16.")] = None,
    device: Annotated[str, _DEVICE] = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")] = False,
    embed_backbone: Annotated[
        bool, typer.Option("--embed-backbone", help="Put the weights into the model file too.")
    ] = False,
) -> None:
    """Fit a detector on good images and write one model file."""
    given = {name: value for name, value in locals().items() if name in Config.__dataclass_fields__}
    config = Config(**_parse(given))
    if output.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {output}")
    from procon.demo import describe
    from procon.detector import Detector
    from procon.folders import training_images
    from procon.plan import human_bytes, human_time, plan_fit

    console = _console()
    images = training_images(good) if good.is_dir() else (good,)
    started = time.perf_counter()
    with console.status(f"loading {config.backbone}"):
        detector = Detector(config, device=device)
        plan = plan_fit(detector, len(images), _first_readable(images))
    console.print(f"{good}: {plan}", highlight=False)
    with _progress() as report:
        detector.fit(good, progress=report, skip_bad=skip_bad)
    detector.save(output, embed_backbone=embed_backbone)
    for fact in describe(detector):
        console.print(fact, highlight=False)
    size, spent = human_bytes(output.stat().st_size), human_time(time.perf_counter() - started)
    typer.echo(f"wrote {output} ({size}) in {spent}\nnext: procon predict {output} IMAGES -o out/")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model file from `procon fit`.")],
    images: Annotated[list[Path], typer.Argument(help="Images and folders to score.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for scores.csv, scores.jsonl, overlays, index.html.")
    ] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    device: Annotated[str, _DEVICE] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Score images; an unreadable one is reported, the others are still done, and the exit code is then 2."""
    from procon.demo import describe
    from procon.detector import Detector
    from procon.inspection import Outcome, find_images, inspect

    found = find_images(images)
    if output is not None and output.is_file():
        raise ConfigError(f"--output must be a folder, got the file {output}")
    console = _console()
    with console.status(f"loading {model}"):
        detector = Detector.load(model, weights=weights, device=device)
    outcome = Outcome()

    def on_row(row: "Row") -> None:
        outcome.rows.append(row)
        report("scoring", len(outcome.rows), len(found))
        if as_json:
            typer.echo(json.dumps(row.to_dict()))

    try:
        with _progress() as report:
            inspect(
                detector,
                found,
                output,
                title=f"{model.name}: {len(found)} images",
                facts=describe(detector),
                on_row=on_row,
            )
    finally:
        if not as_json and outcome.rows:
            _print_rows(outcome.rows, limit=40 if output else None)
        if len(outcome.rows) < len(found):
            console.print(f"interrupted after {len(outcome.rows)} of {len(found)} images")
        if output is not None and outcome.rows:
            console.print(f"results in {output}: index.html, scores.csv, scores.jsonl, overlays/", highlight=False)
    _exit_on_errors(outcome.errors)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the metadata as JSON.")] = False,
) -> None:
    """Say what a model file holds."""
    from procon.calibration import Calibration
    from procon.plan import human_bytes
    from procon.storage import read_metadata

    metadata = read_metadata(model)
    if as_json:
        typer.echo(json.dumps(metadata, indent=2))
        return
    config, backbone, known = metadata["config"], metadata["backbone"], metadata["calibration"]
    calibration = Calibration(**known) if known else None
    lines = {
        "file": f"{model} ({human_bytes(model.stat().st_size)}, format {metadata['format']})",
        "backbone": f"{config['backbone']} from {backbone['source']}" + (" (embedded)" if backbone["embedded"] else ""),
        "weights sha256": backbone["sha256"],
        "images": f"{len(metadata['images'])} good images, {metadata['patches']} patches each",
        "threshold": f"{calibration.threshold:.4f} (score), {calibration.pixel_threshold:.4f} (heat map)"
        if calibration
        else "none: fitted on too few images",
        "false alarms": f"at most {calibration.promised_rate:.1%} of good parts promised" if calibration else "-",
        **{name.replace("_", " "): value for name, value in config.items() if name != "backbone"},
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        typer.echo(f"{name:<{width}}  {value}")


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="Folder to look at.")]) -> None:
    """Say what a folder holds and what is wrong with it, without doing any work on it."""
    from procon.checks import check_folder

    with _progress() as report:
        found = check_folder(folder, lambda done, total: report("opening images", done, total))
    typer.echo(f"{folder}: {found.meaning}")
    for split, images, masks in found.counts:
        typer.echo(f"  {split:<24} {images:>6} images" + (f" {masks:>6} masks" if masks else ""))
    for (height, width), count in sorted(found.sizes.items(), key=lambda item: -item[1])[:5]:
        typer.echo(f"  {count} images of {width} x {height} pixels")
    for problem in found.problems:
        typer.echo(f"problem: {problem}", err=True)
    if found.problems:
        raise typer.Exit(2)
    typer.echo(f"nothing wrong\nnext: procon fit {folder} -o part.procon")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("demo-output"),
    weights: Annotated[str | None, _WEIGHTS] = None,
) -> None:
    """Render parts, fit on the good ones, find the defects in the others, and show it all on one page."""
    from procon.demo import describe, run_demo

    started = time.perf_counter()
    rows: list[Row] = []
    with _progress() as report:
        detector, outcome = run_demo(output, weights, report, rows.append)
    _print_rows(rows)
    for fact in describe(detector):
        typer.echo(fact)
    kinds = {row.name: Path(row.name).parent.name for row in outcome.rows}
    bad = [row for row in rows if kinds[row.name] != "good"]
    hits = sum(bool(row.prediction and row.prediction.is_anomalous) for row in bad)
    typer.echo(
        f"{hits} of {len(bad)} defects found, {outcome.anomalous - hits} of {len(rows) - len(bad)} good parts flagged, "
        f"{time.perf_counter() - started:.0f} s in all\n\n"
        f"Look at it:        {output / 'results' / 'index.html'}\n"
        f"Your own parts:    procon fit FOLDER_OF_GOOD_IMAGES --backbone dinov2-small -o mine.procon\n"
        f"                   procon predict mine.procon NEW_IMAGES -o out/"
    )


# ------------------------------------------------------------------------------------------------------------ helpers


def _parse(given: dict[str, Any]) -> dict[str, Any]:
    """Flags that were given, with lists and sizes taken apart; the rest is left to Config."""
    settings = {name: value for name, value in given.items() if value is not None}
    if "layers" in settings:
        settings["layers"] = tuple(_integers("layers", settings["layers"], ","))
    if "image_size" in settings:
        sides = _integers("image_size", settings["image_size"].lower(), "x")
        settings["image_size"] = sides[0] if len(sides) == 1 else tuple(sides)
    return settings


def _integers(name: str, text: str, separator: str) -> list[int]:
    try:
        return [int(part) for part in text.split(separator)]
    except ValueError:
        raise ConfigError(f"{name} must be integers separated by {separator!r}, got {text!r}") from None


def _first_readable(images: Any) -> Any:
    from procon.errors import BatchError, ImageError
    from procon.images import open_image

    errors = {}
    for index, image in enumerate(images):
        try:
            return open_image(image)
        except ImageError as error:
            errors[index] = error
    raise BatchError(errors)


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)


@contextmanager
def _progress() -> Iterator["Progress"]:
    """A progress display on stderr with the time left, one line per stage."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console()) as display:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = display.add_task(stage, total=total)
            display.update(tasks[stage], completed=done)

        yield report


def _print_rows(rows: "list[Row]", limit: int | None = None) -> None:
    """Score, verdict and time per image, as a table."""
    width = max(12, *(len(row.name) for row in rows))
    typer.echo(f"{'image':<{width}}  {'score':>7}  {'p':>6}  {'verdict':<9}  {'regions':>7}  {'ms':>6}")
    for row in rows[:limit]:
        result = row.prediction
        if result is None:
            typer.echo(f"{row.name:<{width}}  unreadable")
            continue
        verdict = "-" if result.is_anomalous is None else "ANOMALOUS" if result.is_anomalous else "good"
        p_value = "-" if result.p_value is None else f"{result.p_value:.3f}"
        typer.echo(
            f"{row.name:<{width}}  {result.score:7.4f}  {p_value:>6}  {verdict:<9}  {len(result.regions):>7}  "
            f"{1000 * row.seconds:6.0f}"
        )
    if limit is not None and len(rows) > limit:
        typer.echo(f"... and {len(rows) - limit} more")
    flagged = sum(bool(row.prediction and row.prediction.is_anomalous) for row in rows)
    typer.echo(f"{len(rows)} images, {flagged} anomalous")


def _exit_on_errors(errors: "list[Row]") -> None:
    for row in errors:
        typer.echo(f"error: {row.error}", err=True)
    if errors:
        raise typer.Exit(2)
