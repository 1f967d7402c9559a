"""The command that makes models: fit."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.cli import ray as cli_ray
from procon.cli.flags import with_settings
from procon.cli.terminal import console, progress
from procon.config import Config, refuse
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.detector import Detector
    from procon.vision.images import Picture

_TRAINING, _FILE, _SCALE = "Training images", "Model file", "Many parts, many machines"
EMBED = ("backbone", "thumbnails")
SUSPECTS = ("list", "leave-out")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(rich_help_panel="Make a detector")(with_settings()(fit))


def fit(
    good: Annotated[Path, typer.Argument(help="Folder of good images, or a tree with train/good or good/ in it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", rich_help_panel=_FILE)] = Path(
        "part.procon"
    ),
    embed: Annotated[
        str | None,
        typer.Option(
            help="Also store in the file: backbone (the weights), thumbnails (small copies of the images), or both, "
            "separated by a comma.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave unreadable images out.", rich_help_panel=_TRAINING)
    ] = False,
    roi: Annotated[
        str | None,
        typer.Option(
            help="Where the part is: a mask image (white counts), or a polygon 'x,y x,y x,y'.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    suspects: Annotated[
        str | None,
        typer.Option(
            help="list: name the images that the rest cannot explain, with a page of pictures. leave-out: also fit "
            "again without them.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")] = "auto",
    each: Annotated[
        bool,
        typer.Option(
            "--each", help="One model per subfolder of GOOD, written to the folder -o.", rich_help_panel=_SCALE
        ),
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Select anchors in N shards, for datasets larger than RAM.", rich_help_panel=_SCALE),
    ] = None,
    ray: Annotated[str | None, cli_ray.ray_option(_SCALE)] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Fit a detector on good images and write one model file."""
    config = Config(**settings)
    refuse(config, "fit")
    wanted = _choices("embed", embed, EMBED)
    if suspects is not None and suspects not in SUSPECTS:
        raise ConfigError(f"--suspects must be one of {', '.join(SUSPECTS)}, got {suspects!r}")
    if each or shards is not None or ray is not None:
        if wanted or suspects is not None or roi is not None:
            raise ConfigError("--each, --shards and --ray take settings and --skip-bad only")
        cli_ray.fit(good, output, config, ray, device, each=each, shards=shards, skip_bad=skip_bad)
        return
    if output.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {output}")
    from procon.detector import Detector
    from procon.results.cost import human_bytes, human_time, plan_fit
    from procon.vision.folders import training_images
    from procon.vision.scope import parse_roi

    screen, region = console(), None if roi is None else parse_roi(roi)
    images = training_images(good) if good.is_dir() else (good,)
    started = time.perf_counter()
    with screen.status(f"loading {config.backbone}"):
        detector = Detector(config, device=device)
        plan = plan_fit(detector, len(images), _first_readable(images))
    screen.print(f"{good}: {plan}", highlight=False)
    thumbnails = "thumbnails" in wanted
    with progress() as report:
        detector.fit(good, progress=report, skip_bad=skip_bad, thumbnails=thumbnails, roi=region)
    if suspects is not None:
        doubtful = _list_suspects(detector, output)
        if doubtful and suspects == "leave-out":
            rest = [Path(name) for name in detector.model.memory.names if name not in doubtful]
            with progress() as report:
                detector.fit(rest, progress=report, thumbnails=thumbnails, roi=region)
            screen.print(f"fitted again on the {len(rest)} others", highlight=False)
    detector.save(output, embed_backbone="backbone" in wanted)
    for fact in detector.describe():
        screen.print(fact, highlight=False)
    size, spent = human_bytes(output.stat().st_size), human_time(time.perf_counter() - started)
    typer.echo(f"wrote {output} ({size}) in {spent}\nnext: procon predict {output} IMAGES -o out/")


def _choices(name: str, text: str | None, allowed: Sequence[str]) -> list[str]:
    """A list of words separated by commas."""
    chosen = [word.strip() for word in text.split(",")] if text else []
    unknown = [word for word in chosen if word not in allowed]
    if unknown:
        raise ConfigError(f"--{name} must be among {', '.join(allowed)}, got {', '.join(unknown)}")
    return chosen


def _list_suspects(detector: "Detector", output: Path) -> set[str]:
    """Print the suspects, write a page about them next to the model, and return their names."""
    from procon.model.suspects import SUSPECT_LIMIT
    from procon.results.suspect_page import write_suspects

    with progress() as report:
        ranked = detector.suspects(progress=report)
    page = output.with_name(f"{output.stem}-suspects.html")
    write_suspects(page, detector, ranked, SUSPECT_LIMIT)
    flagged = [suspect for suspect in ranked if suspect.flagged]
    for suspect in flagged:
        left, top, right, bottom = suspect.box
        where = f"{left},{top} to {right},{bottom}"
        typer.echo(f"suspect: {suspect.image}: {suspect.excess:.1f} spreads above the median, most at {where}")
    typer.echo(f"{len(flagged)} of {len(ranked)} training images are suspected; look at {page}")
    return {suspect.image for suspect in flagged}


def _first_readable(images: Sequence[Path]) -> "Picture":
    from procon.errors import BatchError, ImageError
    from procon.vision.images import open_image

    errors = {}
    for index, image in enumerate(images):
        try:
            return open_image(image)
        except ImageError as error:
            errors[index] = error
    raise BatchError(errors)
