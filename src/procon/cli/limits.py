"""The command that says how small a defect a model finds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from procon.cli.flags import DeviceOption, ModelArgument, TrainingOption, WeightsOption
from procon.cli.model import load_detector
from procon.cli.terminal import echo, show_progress, stderr_console
from procon.errors import ConfigError
from procon.names import show_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from procon.detector import Detector
    from procon.limits.report import LimitsReport


def limits(
    model: ModelArgument,
    good: Annotated[
        Path | None,
        Argument(
            metavar="GOOD",
            help="Good images that the model has not seen; default: its training images, without their anchors.",
        ),
    ] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="Folder for index.html, limits.csv, renderings.csv, limits.json.")
    ] = Path("limits"),
    count: Annotated[
        int | None, Option(min=1, help="How many defects to render; default: what takes at most about eight minutes.")
    ] = None,
    sizes: Annotated[
        str | None, Option(help="Sizes in pixels, such as 3,10,30; default: from 3 to a tenth of the part.")
    ] = None,
    kinds: Annotated[
        str | None,
        Option(help="Kinds of defects, joined by commas; default: scratch,stain,hole,foreign. dent is rendered too."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Another number draws other defects.")] = 0,
    store: Annotated[
        bool,
        Option("--store/--no-store", help="Keep the scores in the model file, for procon threshold and procon serve."),
    ] = True,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how small a defect a model finds: defects are rendered on good images and scored.

    Scratches, stains, holes and foreign structures, in several sizes and contrasts.

    Rendered defects are not real ones. After Ctrl-C, the same command goes on where it stopped.
    """
    if output.is_file():
        raise ConfigError(f"--output must be a folder, got the file {output}")
    wanted = None if sizes is None else _parse_sizes(sizes)
    detector = load_detector(model, weights, training, device)
    named = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    found = run_limits(detector, model if store else None, good, count=count, sizes=wanted, kinds=named, seed=seed)
    report_limits(detector, found, output, as_json=as_json)


def run_limits(
    detector: "Detector",
    model: Path | None,
    good: Path | None = None,
    *,
    count: int | None = None,
    sizes: "Sequence[int] | None" = None,
    kinds: "Sequence[str] | None" = None,
    seed: int = 0,
) -> "LimitsReport":
    """Measure, tell the cost before, and keep the scores in the ``model`` file, those of interrupted work too."""
    from procon.model.document import write_renderings

    console, before = stderr_console(), detector.model.renderings
    try:
        with show_progress() as on_progress:
            return detector.limits(
                good, count=count, sizes=sizes, kinds=kinds, seed=seed, progress=on_progress, say=console.print
            )
    except KeyboardInterrupt:
        if model is not None and detector.model.renderings is not before:
            console.print(f"the scores so far are kept in {show_name(model)}: the same command goes on from there")
        raise
    finally:
        measured = detector.model.renderings
        if model is not None and measured is not None and measured is not before:
            write_renderings(model, measured)


def report_limits(detector: "Detector", found: "LimitsReport", output: Path, *, as_json: bool = False) -> None:
    """Write the folder of a measurement, and print its sentences."""
    from procon.results.limits_page import write_limits

    write_limits(output, detector, found)
    if as_json:
        echo(json.dumps(found.to_dict()))
    else:
        for line in found.describe():
            echo(line)
    echo(f"wrote {output / 'index.html'}", err=as_json)


def _parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes as typed."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--sizes must be whole numbers such as 3,10,30, got {text!r}") from None
