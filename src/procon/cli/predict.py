"""Commands around a model and its images: predict, info, check, demo."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.cli import ray as cli_ray
from procon.cli.terminal import console as _console
from procon.cli.terminal import progress as _progress
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.results.inspection import ScoredImage

_DEVICE = typer.Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")
_WEIGHTS = typer.Option("--weights", help="Backbone weights: Hugging Face folder, .safetensors or .pth.")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(rich_help_panel="Use it")(predict)
    for command in (check, info, demo):
        app.command(rich_help_panel="Make a detector")(command)


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
                cli_ray.inspect_on(ray, device, model, found, output, **about)
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


def info(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the metadata as JSON.")] = False,
) -> None:
    """Say what a model file holds."""
    from procon.model.file import describe_file
    from procon.model.storage import read_metadata
    from procon.results.cost import human_bytes

    if as_json:
        typer.echo(json.dumps(read_metadata(model), indent=2))
        return
    lines = [("file", f"{model} ({human_bytes(model.stat().st_size)})"), *describe_file(model)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:<{width}}  {value}")


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
