"""Commands that take a model to the line: export, watch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.cli.terminal import console, progress
from procon.deploy.manifest import PRECISIONS, RUNTIMES
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.deploy.export import Exported
    from procon.watch.sinks import Sink

_MODEL = typer.Argument(help="Model file from `procon fit`.")
_WEIGHTS = typer.Option("--weights", help="Backbone weights: Hugging Face folder, .safetensors or .pth.")
_TRAINING = typer.Option("--training", help="Folder of the training images, if it has moved.")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(rich_help_panel="Put it on the line")(export)
    app.command(rich_help_panel="Put it on the line")(watch)


def export(
    model: Annotated[Path, _MODEL],
    to: Annotated[str, typer.Option("--to", help=f"Runtime to export for: {' or '.join(RUNTIMES)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    precision: Annotated[str, typer.Option(help=f"{', '.join(PRECISIONS)}; see docs/deploy.md.")] = "fp32",
    check_images: Annotated[
        Path | None, typer.Option(help="Images to compare both models on; default: training images.")
    ] = None,
    evaluate: Annotated[
        Path | None, typer.Option(help="Labelled folder: report the metrics of both models on it.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference of a score allowed, as a share of the median score.")
    ] = None,
    map_tolerance: Annotated[float | None, typer.Option(help="The same for a pixel of a map.")] = None,
    weights: Annotated[str | None, _WEIGHTS] = None,
    training: Annotated[Path | None, _TRAINING] = None,
) -> None:
    """Write a folder that scores the same without torch; nothing is left if the scores differ."""
    from procon.deploy.cost import labelled_samples
    from procon.deploy.export import check_exportable
    from procon.deploy.export import export as write
    from procon.detector import Detector
    from procon.results.inspection import find_images

    images = None if check_images is None else [path for _, path in find_images([check_images])]
    samples = None if evaluate is None else labelled_samples(evaluate)
    console_ = console()
    with console_.status(f"loading {model}"):
        detector = Detector.load(model, weights=weights, training=training, device="cpu")
    check_exportable(detector, to, precision)
    with progress() as report:
        done = write(
            detector,
            output,
            runtime=to,
            precision=precision,
            images=images,
            samples=samples,
            tolerance=tolerance,
            map_tolerance=map_tolerance,
            say=lambda text: console_.print(text, highlight=False),
            progress=report,
        )
    _show(done, model)


def _show(done: "Exported", model: Path) -> None:
    from procon.results.cost import human_bytes

    found = done.difference
    typer.echo(
        f"largest difference on {done.entries['check']['images']}, as a share of the median score {found.scale:.4f}: "
        f"scores {found.score_share:.2g} ({done.tolerance[0]:g} allowed), maps {found.map_share:.2g} "
        f"({done.tolerance[1]:g} allowed)"
    )
    if found.verdicts is not None:
        typer.echo(
            f"{found.verdicts} of {found.images} verdicts changed; scores shift by {found.score_shift:+.2g} on average"
        )
    if done.cost is not None:
        typer.echo(done.cost.table())
    memory = "" if done.memory_bytes is None else f", {human_bytes(done.memory_bytes)} of memory to score an image"
    typer.echo(
        f"wrote {done.folder} ({human_bytes(done.bytes)} on disk{memory})\nnext: procon predict {done.folder} IMAGES"
    )


def watch(
    source: Annotated[str, typer.Argument(help="Folder, rtsp://... or /dev/video0.")],
    model: Annotated[Path, typer.Option("--model", help="Model file, or a folder from `procon export`.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="Append a line per image to this file.")] = None,
    webhook: Annotated[str | None, typer.Option(help="Post each result as JSON to this http(s) address.")] = None,
    mqtt: Annotated[str | None, typer.Option(help="Publish to mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC.")] = None,
    outbox: Annotated[Path, typer.Option(help="File that keeps results until every receiver has them.")] = Path(
        "procon-outbox.sqlite"
    ),
    every: Annotated[float, typer.Option(help="Seconds between looks at the folder, or between frames.")] = 1.0,
    settle: Annotated[float, typer.Option(help="Seconds that a file must stay unchanged to be complete.")] = 1.0,
    existing: Annotated[
        bool, typer.Option("--existing", help="Also score the images that are there at the first start.")
    ] = False,
    weights: Annotated[str | None, _WEIGHTS] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda; gpu with an OpenVINO folder.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Cores for an exported model; default: all.")] = None,
) -> None:
    """Score images as they arrive and send the results on; a receiver that is down gets them later."""
    import signal
    from threading import Event

    from procon.deploy import load_any
    from procon.watch.arrivals import Camera, Folder, check_seconds, is_camera
    from procon.watch.outbox import Outbox
    from procon.watch.watcher import Watcher
    from procon.watch.watcher import watch as run

    check_seconds("--every", every)
    check_seconds("--settle", settle)
    sinks = _sinks(csv, webhook, mqtt)
    place = Camera(source) if is_camera(source) else Folder(Path(source), settle)
    screen = console()
    with screen.status(f"loading {model}"):
        scorer = load_any(model, weights=weights, device=device, threads=threads)
    box = Outbox(outbox)
    if box.is_new and isinstance(place, Folder) and not existing:
        box.remember(place.files())
    for name, count in box.pending().items():
        screen.print(f"{count} results from before wait for {name}", highlight=False)
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def show(body: dict[str, Any]) -> None:
        verdict = {True: "ANOMALOUS", False: "good", None: "-"}[body.get("is_anomalous")]
        typer.echo(f"{body['source']}  {body.get('error') or format(body['score'], '.4f')}  {verdict}")

    def say(text: str) -> None:
        screen.print(text, highlight=False)

    screen.print(f"watching {source}; results are kept in {outbox} until they are delivered", highlight=False)
    try:
        run(Watcher(place, scorer, box, sinks, show), box, sinks, every=every, stop=stop, say=say)
    finally:
        box.close()


def _sinks(csv: Path | None, webhook: str | None, mqtt: str | None) -> "list[Sink]":
    from procon.watch.sinks import CsvSink, MqttSink, WebhookSink

    sinks: list[Sink] = []
    if csv is not None:
        sinks.append(CsvSink(csv))
    if webhook is not None:
        sinks.append(WebhookSink(webhook))
    if mqtt is not None:
        sinks.append(MqttSink(mqtt))
    if not sinks:
        raise ConfigError("results must go somewhere: give --csv FILE, --webhook URL or --mqtt URL")
    return sinks
