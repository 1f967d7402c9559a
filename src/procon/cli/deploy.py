"""Commands that take a model to the line: export, watch."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from procon.amounts import human_bytes
from procon.cli.flags import ModelArgument, TrainingOption, WeightsOption
from procon.cli.line import PrintResults, run_until_signal, say
from procon.cli.terminal import echo, show_progress, show_status, stderr_console
from procon.deploy.manifest import PRECISIONS, RUNTIMES
from procon.errors import ConfigError
from procon.names import show_name

if TYPE_CHECKING:
    from procon.deploy.export import Exported


def export(
    model: ModelArgument,
    to: Annotated[str, Option("--to", help=f"Runtime to export for: {' or '.join(RUNTIMES)}.")],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write.")],
    precision: Annotated[str, Option(help=f"{', '.join(PRECISIONS)}; see docs/use/deploy.md.")] = "fp32",
    check_images: Annotated[
        Path | None, Option(help="Images to compare both models on; default: training images.")
    ] = None,
    evaluate: Annotated[Path | None, Option(help="Labelled folder: report the metrics of both models on it.")] = None,
    tolerance: Annotated[
        float | None, Option(help="Largest difference of a score allowed, as a share of the median score.")
    ] = None,
    map_tolerance: Annotated[float | None, Option(help="The same for a pixel of a map.")] = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
) -> None:
    """Write a folder that scores the same without torch; aborts without output if the scores differ."""
    from procon.deploy import export as deploy_export
    from procon.detector import Detector
    from procon.evaluation.data.datasets import open_category
    from procon.results.inspection import find_images

    images = None if check_images is None else [path for _, path in find_images([check_images])]
    samples = None if evaluate is None else open_category(evaluate).test
    console = stderr_console()
    with show_status(f"loading {show_name(model)}"):
        detector = Detector.load(model, weights=weights, training=training, device="cpu")
    deploy_export.check_exportable(detector, to, precision)
    with show_progress() as on_progress:
        exported = deploy_export.export(
            detector,
            output,
            runtime=to,
            precision=precision,
            images=images,
            samples=samples,
            tolerance=tolerance,
            map_tolerance=map_tolerance,
            say=console.print,
            progress=on_progress,
        )
    _print_export(exported)


def _print_export(exported: "Exported") -> None:

    difference, check = exported.difference, exported.entries["check"]
    echo(
        f"largest difference on {check['images']}, as a share of the median score {difference.scale:.4f}: "
        f"scores {difference.score_share:.2g} ({check['tolerance']['score']:g} allowed), "
        f"maps {difference.map_share:.2g} ({check['tolerance']['map']:g} allowed)"
    )
    if difference.verdicts is not None:
        echo(
            f"{difference.verdicts} of {difference.images} verdicts changed; scores shift by "
            f"{difference.score_shift:+.2g} on average"
        )
    if exported.cost is not None:
        echo(exported.cost.table())
    peak = exported.memory_bytes
    memory = "" if peak is None else f", {human_bytes(peak)} of memory to score an image"
    echo(
        f"wrote {exported.folder} ({human_bytes(exported.bytes)} on disk{memory})\n"
        f"next: procon predict {exported.folder} IMAGES"
    )


def watch(
    source: Annotated[str, Argument(metavar="SOURCE", help="Folder, rtsp://... or /dev/video0.")],
    model: Annotated[Path, Option("--model", help="Model file, or a folder from `procon export`.")],
    csv: Annotated[Path | None, Option("--csv", help="Append a line per image to this file.")] = None,
    webhook: Annotated[str | None, Option(help="Post each result as JSON to this http(s) address.")] = None,
    mqtt: Annotated[str | None, Option(help="Publish to mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC.")] = None,
    outbox: Annotated[Path, Option(help="File that keeps results until every receiver has them.")] = Path(
        "procon-outbox.sqlite"
    ),
    every: Annotated[float, Option(help="Seconds between looks at the folder, or between frames.")] = 1.0,
    settle: Annotated[float, Option(help="Seconds that a file must stay unchanged to be complete.")] = 1.0,
    existing: Annotated[
        bool, Option("--existing", help="Also score the images that are there at the first start.")
    ] = False,
    weights: WeightsOption = None,
    device: Annotated[str, Option("--device", help="auto, cpu, cuda; gpu with an OpenVINO folder.")] = "auto",
    threads: Annotated[int | None, Option(help="Cores for an exported model; default: all.")] = None,
) -> None:
    """Score images as they arrive and send the results on; a receiver that is down gets them later."""
    from procon.line.arrivals import check_seconds
    from procon.line.build import make_plan, make_sinks, open_source
    from procon.line.engine import ProductionLine
    from procon.line.models import LineModels, Turns, model_loader
    from procon.line.outbox import Outbox
    from procon.line.parts import Deadlines
    from procon.line.settings import StationSettings
    from procon.line.station import Station

    check_seconds("--every", every)
    check_seconds("--settle", settle)
    settings = StationSettings(
        name="",
        source=source,
        model=(model,),
        every=every,
        settle=settle,
        existing=existing,
        csv=csv,
        webhook=webhook,
        mqtt=mqtt,
    )
    sinks = make_sinks(settings, one_station=True)
    if not sinks:
        raise ConfigError("results must go somewhere: give --csv FILE, --webhook URL or --mqtt URL")
    opened = open_source(settings, Path())
    models = LineModels(model_loader(weights=weights, device=device, threads=threads), Turns(), say=say)
    with show_status(f"loading {show_name(model)}"):
        models.slot(model).fill(models.load(model))
    box = Outbox(outbox)
    plan = make_plan(settings, Path(), models, box, sinks, say=say)
    plan.open_source, plan.announce, plan.listeners = lambda: opened, False, [PrintResults()]
    for name, count in box.pending().items():
        say(f"{count} results from before wait for {name}")
    deadlines = Deadlines()
    line = ProductionLine([Station(plan, deadlines)], deadlines, models=models)
    say(f"watching {show_name(source)}; results are stored in {show_name(outbox)} until they are delivered")
    try:
        interrupted = run_until_signal(line)
        undelivered = sum(box.pending().values())
        say(f"stopped; {undelivered} results wait in {show_name(outbox)}" if undelivered else "stopped")
    finally:
        box.close()
    if interrupted:
        raise typer.Exit(128 + signal.SIGINT)
