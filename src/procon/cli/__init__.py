"""The command line: parse, call one function, print. Heavy imports wait until a command runs."""

import json
import logging
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.cli import deploy as cli_deploy
from procon.cli import evaluation as cli_evaluation
from procon.cli import model as cli_model
from procon.cli import ray as cli_ray
from procon.cli import server as cli_server
from procon.cli.flags import with_settings
from procon.cli.terminal import console as _console
from procon.cli.terminal import progress as _progress
from procon.config import Config
from procon.errors import ConfigError, ProconError

if TYPE_CHECKING:
    from procon.detector import Detector
    from procon.results.inspection import ScoredImage

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
@with_settings()
def fit(
    good: Annotated[Path, typer.Argument(help="Folder of good images, or a tree with train/good or good/ in it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("part.procon"),
    device: Annotated[str, _DEVICE] = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")] = False,
    embed_backbone: Annotated[
        bool, typer.Option("--embed-backbone", help="Put the weights into the model file too.")
    ] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Put a small copy of each image into it too, for procon explain.")
    ] = False,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="List images that the rest cannot explain, with a page of pictures.")
    ] = False,
    leave_out_suspects: Annotated[
        bool, typer.Option("--leave-out-suspects", help="The same, and fit again without them.")
    ] = False,
    roi: Annotated[
        str | None,
        typer.Option(help="Where the part is: a mask image (white counts), or a polygon 'x,y x,y x,y'."),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="GOOD holds a folder for each part: a model for every one, in the folder -o.")
    ] = False,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Select anchors in so many runs of images, for a set beyond one memory.")
    ] = None,
    ray: Annotated[str | None, cli_ray.RAY] = None,
    ray_cpus: Annotated[int, cli_ray.RAY_CPUS] = 1,
    *,
    settings: dict[str, Any],
) -> None:
    """Fit a detector on good images and write one model file."""
    config = Config(**settings)
    if each or shards is not None or ray is not None:
        if thumbnails or embed_backbone or suspects or leave_out_suspects or roi is not None:
            raise ConfigError("--each, --shards and --ray take settings and --skip-bad only")
        cli_ray.fit(good, output, config, (ray, device, ray_cpus), each=each, shards=shards, skip_bad=skip_bad)
        return
    if output.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {output}")
    from procon.detector import Detector
    from procon.results.cost import human_bytes, human_time, plan_fit
    from procon.vision.folders import training_images
    from procon.vision.scope import parse_roi

    console, region = _console(), None if roi is None else parse_roi(roi)
    images = training_images(good) if good.is_dir() else (good,)
    started = time.perf_counter()
    with console.status(f"loading {config.backbone}"):
        detector = Detector(config, device=device)
        plan = plan_fit(detector, len(images), _first_readable(images))
    console.print(f"{good}: {plan}", highlight=False)
    with _progress() as report:
        detector.fit(good, progress=report, skip_bad=skip_bad, thumbnails=thumbnails, roi=region)
    if suspects or leave_out_suspects:
        doubtful = _list_suspects(detector, output)
        if doubtful and leave_out_suspects:
            assert detector.memory is not None
            kept = [Path(name) for name in detector.memory.names if name not in doubtful]
            with _progress() as report:
                detector.fit(kept, progress=report, thumbnails=thumbnails, roi=region)
            console.print(f"fitted again on the {len(kept)} others", highlight=False)
    detector.save(output, embed_backbone=embed_backbone)
    for fact in detector.describe():
        console.print(fact, highlight=False)
    size, spent = human_bytes(output.stat().st_size), human_time(time.perf_counter() - started)
    typer.echo(f"wrote {output} ({size}) in {spent}\nnext: procon predict {output} IMAGES -o out/")


def _list_suspects(detector: "Detector", output: Path) -> set[str]:
    """Print the suspects, write their page beside the model, and give their names."""
    from procon.model.suspects import LIMIT
    from procon.results.suspect_page import write_suspects

    with _progress() as report:
        ranked = detector.suspects(progress=report)
    page = output.with_name(f"{output.stem}-suspects.html")
    write_suspects(page, detector, ranked, LIMIT)
    flagged = [suspect for suspect in ranked if suspect.flagged]
    for suspect in flagged:
        left, top, right, bottom = suspect.box
        where = f"{left},{top} to {right},{bottom}"
        typer.echo(f"suspect: {suspect.image}: {suspect.excess:.1f} spreads above the median, most at {where}")
    typer.echo(f"{len(flagged)} of {len(ranked)} training images are suspected; look at {page}")
    return {suspect.image for suspect in flagged}


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model file, or a folder from `procon export`.")],
    images: Annotated[list[Path], typer.Argument(help="Images and folders to score.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for scores.csv, scores.jsonl, overlays, index.html.")
    ] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    device: Annotated[str, _DEVICE] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    coco: Annotated[Path | None, typer.Option(help="Write regions and their masks to this file, as COCO does.")] = None,
    ray: Annotated[str | None, cli_ray.RAY] = None,
    ray_cpus: Annotated[int, cli_ray.RAY_CPUS] = 1,
) -> None:
    """Score images; an unreadable one is reported, the others are still done, and the exit code is then 2."""
    from procon.deploy import load_any
    from procon.results.inspection import Outcome, find_drift, find_images, inspect

    found = find_images(images)
    if output is not None and output.is_file():
        raise ConfigError(f"--output must be a folder, got the file {output}")
    console = _console()
    with console.status(f"loading {model}"):
        detector: Any = load_any(model, weights=weights, device="cpu" if ray is not None else device)
    outcome = Outcome()
    about: dict[str, Any] = {"title": f"{model.name}: {len(found)} images", "facts": detector.describe()}

    def on_row(row: "ScoredImage") -> None:
        outcome.rows.append(row)
        report("scoring", len(outcome.rows), len(found))
        if as_json:
            typer.echo(json.dumps(row.to_dict()))

    try:
        with _progress() if ray is None else nullcontext(lambda *_: None) as report:  # workers have their own display
            if ray is None:
                inspect(detector, found, output, coco=coco, on_row=on_row, **about)
            else:
                about |= {"detector": detector, "weights": weights, "coco": coco, "on_row": on_row}
                cli_ray.inspect_on(ray, device, ray_cpus, model, found, output, **about)
    finally:
        if not as_json and outcome.rows:
            _print_rows(outcome.rows, limit=40 if output else None)
        if len(outcome.rows) < len(found):
            console.print(f"interrupted after {len(outcome.rows)} of {len(found)} images")
        drift = find_drift(detector, outcome.rows)
        if drift is not None and len(outcome.rows) > 1:
            typer.echo(drift.describe(), err=as_json)
        if output is not None and outcome.rows:
            listed = "index.html, scores.csv, scores.jsonl, summary.json, summary.csv, overlays/"
            console.print(f"results in {output}: {listed}", highlight=False)
    _exit_on_errors(outcome.errors)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the metadata as JSON.")] = False,
) -> None:
    """Say what a model file holds."""
    from procon.model.file import facts
    from procon.model.storage import read_metadata
    from procon.results.cost import human_bytes

    if as_json:
        typer.echo(json.dumps(read_metadata(model), indent=2))
        return
    lines = [("file", f"{model} ({human_bytes(model.stat().st_size)})"), *facts(model)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:<{width}}  {value}")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Folder to look at: parts of your own, or a benchmark dataset.")],
    quick: Annotated[bool, typer.Option("--quick", help="Go by the names; open no file.")] = False,
) -> None:
    """Say what a folder holds and what is wrong with it, without doing any work on it."""
    from procon.evaluation.data.checks import check_folder

    with _progress() as report:
        found = check_folder(folder, lambda done, total: report("opening images", done, total), quick)
    typer.echo(f"{folder}: {found.heading}")
    for line in found.lines:
        typer.echo(line)
    for problem in found.problems:
        typer.echo(f"problem: {problem}", err=True)
    if found.problems:
        raise typer.Exit(2)
    typer.echo(f"{found.verdict}\nnext: {found.next_step}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("demo-output"),
    weights: Annotated[str | None, _WEIGHTS] = None,
) -> None:
    """Render parts, fit on the good ones, find the defects in the others, and show it all on one page."""
    from procon.demo.run import run_demo

    started = time.perf_counter()
    rows: list[ScoredImage] = []
    with _progress() as report:
        detector, outcome = run_demo(output, weights, report, rows.append)
    _print_rows(rows)
    for fact in detector.describe():
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


cli_model.register(app)
cli_evaluation.register(app)
cli_deploy.register(app)
cli_server.register(app)

# ------------------------------------------------------------------------------------------------------------ helpers


def _first_readable(images: Any) -> Any:
    from procon.errors import BatchError, ImageError
    from procon.vision.images import open_image

    errors = {}
    for index, image in enumerate(images):
        try:
            return open_image(image)
        except ImageError as error:
            errors[index] = error
    raise BatchError(errors)


def _print_rows(rows: "list[ScoredImage]", limit: int | None = None) -> None:
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


def _exit_on_errors(errors: "list[ScoredImage]") -> None:
    for row in errors:
        typer.echo(f"error: {row.error}", err=True)
    if errors:
        raise typer.Exit(2)
