"""Commands around a model and its images: predict, info, demo."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from procon.amounts import count_of, human_bytes
from procon.cli import ray as cli_ray
from procon.cli.flags import AnyModelArgument, DeviceOption, ModelArgument, RayOption, WeightsOption
from procon.cli.terminal import echo, show_progress, show_status
from procon.errors import ConfigError
from procon.names import show_name
from procon.progress import no_progress

if TYPE_CHECKING:
    from procon.results.inspection import ScoredImage


def predict(
    model: AnyModelArgument,
    images: Annotated[list[Path], Argument(metavar="IMAGES...", help="Images and folders to score.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Folder for scores.csv, scores.jsonl, overlays, index.html.")
    ] = None,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, Option("--json", help="Print JSON lines instead of a table.")] = False,
    coco: Annotated[Path | None, Option(help="Write regions and their masks to this file, as COCO does.")] = None,
    ray: RayOption = None,
) -> None:
    """Score images; an unreadable one is reported, the others are still scored, and the exit code is then 2."""
    from procon.deploy import load_any
    from procon.results.inspection import find_drift, find_images, inspect
    from procon.results.remarks import list_remarks

    named = find_images(images)
    if output is not None and output.is_file():
        raise ConfigError(f"--output must be a folder, got the file {output}")
    with show_status(f"loading {show_name(model)}"):
        detector: Any = load_any(model, weights=weights, device="cpu" if ray is not None else device)
    rows, written = list["ScoredImage"](), list[Path]()
    title = f"{show_name(model.name)}: {count_of(len(named), 'image')}"
    about: dict[str, Any] = {"title": title, "facts": detector.describe(), "coco": coco, "on_file": written.append}

    def on_row(row: "ScoredImage") -> None:
        rows.append(row)
        on_progress("scoring", len(rows), len(named))
        if as_json:
            echo(json.dumps(row.to_dict()))

    try:
        with show_progress() if ray is None else nullcontext(no_progress) as on_progress:
            if ray is None:
                inspect(detector, named, output, on_row=on_row, **about)
            else:  # workers have a display of their own
                from procon.scale.images import inspect_on

                about |= {"detector": detector, "weights": weights}
                with cli_ray.workers(ray, device) as cluster, cli_ray.worker_progress() as on_worker:
                    inspect_on(cluster, model, named, output, on_worker, on_row=on_row, **about)
    finally:
        if not as_json and rows:
            _print_rows(rows, limit=40 if output else None)
        if len(rows) < len(named):
            echo(f"interrupted after {len(rows)} of {count_of(len(named), 'image')}", err=True)
        scored = [row.prediction for row in rows if row.prediction is not None]
        for note in list_remarks(detector.calibration, detector.describe(), scored):
            echo(note, err=as_json)
        drift = find_drift(detector, rows)
        if drift is not None and len(rows) > 1:
            echo(drift.describe(), err=as_json)
        if output is not None and written:
            listed = ", ".join(path.name + "/" * path.is_dir() for path in written if path.parent == output)
            echo(f"results in {output}: {listed}", err=True)
    errors = [row.error for row in rows if row.error is not None]
    for error in errors:
        echo(f"error: {error}", err=True)
    if errors:
        raise typer.Exit(2)


def info(
    model: ModelArgument,
    as_json: Annotated[bool, Option("--json", help="Print the metadata as JSON.")] = False,
) -> None:
    """Say what a model file holds."""
    from procon.model.document import describe_file
    from procon.model.metadata import read_metadata

    if as_json:
        echo(json.dumps(read_metadata(model), indent=2))
        return
    lines = [("file", f"{model} ({human_bytes(model.stat().st_size)})"), *describe_file(model)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        echo(f"{name:<{width}}  {value}")


def demo(
    output: Annotated[Path, Option("--output", "-o", help="Folder to write to.")] = Path("demo-output"),
    weights: WeightsOption = None,
) -> None:
    """Render parts, fit on the good ones, find the defects in the others, and show it all on one page."""
    from procon.demo.run import run_demo

    started = time.perf_counter()
    rows: list[ScoredImage] = []
    with show_progress() as on_progress:
        detector, _ = run_demo(output, weights, on_progress, rows.append)
    _print_rows(rows)
    for fact in detector.describe():
        echo(fact)
    flagged = [row for row in rows if row.prediction and row.prediction.is_anomalous]
    good, false_alarms = (sum(Path(row.name).parent.name == "good" for row in some) for some in (rows, flagged))
    echo(
        f"{len(flagged) - false_alarms} of {len(rows) - good} defects found, {false_alarms} of {good} good parts "
        f"flagged, {time.perf_counter() - started:.0f} s in all\n\n"
        f"Look at it:        {output / 'results' / 'index.html'}\n"
        f"Your own parts:    procon fit FOLDER_OF_GOOD_IMAGES --backbone dinov2-small -o mine.procon\n"
        f"                   procon predict mine.procon NEW_IMAGES -o out/"
    )


def _print_rows(rows: "list[ScoredImage]", limit: int | None = None) -> None:
    """Score, verdict and time per image, as a table."""
    names = [show_name(row.name) for row in rows]
    width = max(12, *map(len, names))
    echo(f"{'image':<{width}}  {'score':>7}  {'x threshold':>11}  {'p':>6}  {'verdict':<9}  {'regions':>7}  {'ms':>6}")
    for name, row in list(zip(names, rows, strict=True))[:limit]:
        result = row.prediction
        if result is None:
            echo(f"{name:<{width}}  unreadable")
            continue
        verdict = "-" if result.is_anomalous is None else "ANOMALOUS" if result.is_anomalous else "good"
        relative = "-" if result.relative_score is None else f"{result.relative_score:.2f}"
        p_value = "-" if result.p_value is None else f"{result.p_value:.3f}"
        echo(
            f"{name:<{width}}  {result.score:7.4f}  {relative:>11}  {p_value:>6}  {verdict:<9}  "
            f"{len(result.regions):>7}  {1000 * row.seconds:6.0f}"
        )
    if limit is not None and len(rows) > limit:
        echo(f"... and {len(rows) - limit} more")
    flagged = sum(bool(row.prediction and row.prediction.is_anomalous) for row in rows)
    echo(f"{count_of(len(rows), 'image')}, {flagged} anomalous")
