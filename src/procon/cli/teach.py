"""The command that teaches a model a defect which it missed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from procon.cli.flags import DeviceOption, ModelArgument, TrainingOption, WeightsOption, check_model_target
from procon.cli.model import ModelOutput, load_detector, parse_numbers
from procon.cli.terminal import echo, show_progress
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.arrays import Box


def teach(
    model: ModelArgument,
    image: Annotated[Path, Argument(metavar="IMAGE", help="Image with a defect that the model missed.")],
    box: Annotated[str | None, Option(help="The defect, as X,Y,WIDTH,HEIGHT in pixels of the image.")] = None,
    mask: Annotated[Path | None, Option(help="The defect, as a mask image of the same size: white is marked.")] = None,
    name: Annotated[str | None, Option(help="What to call the lesson; default: lesson 1, lesson 2, ...")] = None,
    page: Annotated[
        Path | None, Option(help="HTML page to write: the price, with the training images that would be flagged.")
    ] = None,
    yes: Annotated[bool, Option("--yes", help="Accept the price without asking.")] = False,
    force: Annotated[
        bool, Option("--force", help="Accept a price above the false-alarm rate, or one that cannot be told.")
    ] = False,
    output: ModelOutput = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Mark a defect that a model missed, see what it costs, and let the model look for others like it.

    The marked patches are stored next to the normal memory.

    The threshold stays as it is; procon forget MODEL LESSON takes a lesson back.
    """
    if (box is None) == (mask is None):
        raise ConfigError("the defect must be marked with --box or with --mask, and not with both")
    region: Path | Box = mask if mask is not None else _parse_box(box or "")
    target = check_model_target(output or model)
    detector = load_detector(model, weights, training, device)
    with show_progress() as on_progress:
        proposal = detector.propose_lesson(image, region, name=name, force=force, progress=on_progress)
    for line in proposal.describe():
        echo(line)
    if page is not None:
        from procon.results.lesson_page import write_price

        write_price(page, detector, proposal)
        echo(f"wrote {page}")
    too_high = proposal.price is not None and proposal.price.is_too_high
    if not yes and not (too_high and not force):
        if not sys.stdin.isatty():
            raise ConfigError("the price must be accepted before the lesson is stored; add --yes")
        typer.confirm("accept this price?", abort=True)
    detector.accept_lesson(proposal, force=force)
    detector.save(target)
    echo(f"wrote {target}")


def _parse_box(text: str) -> "Box":
    """X,Y,WIDTH,HEIGHT as (left, top, right, bottom)."""
    x, y, width, height = parse_numbers(text, 4, "--box must be four whole numbers such as 120,40,60,30")
    return x, y, x + width, y + height
