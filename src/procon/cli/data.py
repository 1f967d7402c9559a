"""Commands about folders of images: check, import."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from procon.amounts import count_of
from procon.cli.terminal import echo, show_progress, show_status
from procon.config import Config
from procon.errors import ConfigError, ImageError
from procon.files import find_partial_files
from procon.names import show_name


def check(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="Folder to look at: parts of your own, or a benchmark dataset.")
    ],
    quick: Annotated[bool, Option("--quick", help="Check the names only; open no file.")] = False,
) -> None:
    """Say what a folder holds and what is wrong with it, and print the next command to run."""
    from procon.evaluation.data.checks import check_folder
    from procon.workspace import find_leftovers

    leftovers = [*find_leftovers(folder), *find_partial_files(folder)]
    for leftover in leftovers:
        echo(f"problem: {show_name(leftover)}: left by a killed program; remove it if none is writing", err=True)
    with show_progress() as on_progress:
        report = check_folder(folder, on_progress, quick)
    echo(f"{folder}: {report.heading}")
    for line in report.lines:
        echo(line)
    for problem in report.problems:
        echo(f"problem: {problem}", err=True)
    if report.problems or leftovers:
        raise typer.Exit(2)
    echo(report.verdict)
    for line in report.advice:
        echo(line)
    echo(f"next: {report.next_step}{_backbone_flags()}")


def _backbone_flags() -> str:
    """Flags for a backbone whose weights can be had on this machine; says so where it is not the usual one."""
    from procon.vision.sources import find_reachable_backbone

    with show_status("looking for weights"):
        backbone = find_reachable_backbone(Config.backbone)
    if backbone == Config.backbone:
        return ""
    if backbone is None:
        echo(
            f"no weights can be had here: the Hugging Face hub cannot be reached. On a machine with internet: "
            f"hf download facebook/{Config.backbone} --local-dir {Config.backbone}; then copy that folder here"
        )
        return f" --weights {Config.backbone}"
    echo(
        f"no weights for {Config.backbone} can be had here, as the Hugging Face hub cannot be reached; {backbone} works"
    )
    return f" --backbone {backbone}"


def import_labels(
    form: Annotated[
        str, Argument(metavar="FORMAT", help="lookout (manifest of Amazon Lookout for Vision) or coco (COCO file).")
    ],
    labels: Annotated[Path, Argument(metavar="LABELS", help="The manifest, or the COCO file.")],
    output: Annotated[
        Path, Option("--output", "-o", help="Folder to write: train/good, test/KIND, ground_truth/KIND.")
    ],
    images: Annotated[
        Path | None, Option("--images", help="Folder of the images and masks; default: the folder of the labels.")
    ] = None,
    test: Annotated[
        Path | None, Option("--test", help="Labels of the test images, in the same format; default: none.")
    ] = None,
    hold_out: Annotated[
        float, Option("--hold-out", help="Share of the good images to keep for tests, such as 0.2.")
    ] = 0.0,
    link: Annotated[bool, Option("--link", help="Make hard links instead of copies; needs the same disk.")] = False,
) -> None:
    """Write labelled images of another tool as a folder that check, fit and eval know."""
    from procon.evaluation.imports.coco_labels import read_coco
    from procon.evaluation.imports.folder import write_category
    from procon.evaluation.imports.lookout import read_lookout

    readers = {"lookout": read_lookout, "coco": read_coco}
    if form not in readers:
        raise ConfigError(f"FORMAT must be {' or '.join(readers)}, got {form!r}")
    for path in (labels, *([test] if test is not None else [])):
        if not path.is_file():
            raise ImageError(f"{show_name(path)}: no such file of labels; check the path")
    if images is not None and not images.is_dir():
        raise ConfigError(f"--images must be a folder, got {show_name(images)}")
    read = readers[form]
    train_labels = read(labels, images or labels.parent)
    test_labels = read(test, images or test.parent) if test is not None else None
    with show_progress() as on_progress:
        written = write_category(
            output, train_labels, test_labels, hold_out=hold_out, link=link, on_progress=on_progress
        )
    for place in sorted(written.images):
        masks = written.masks[place.replace("test/", "ground_truth/")]
        echo(
            f"  {place:<24} {count_of(written.images[place], 'image')}"
            + (f", {count_of(masks, 'mask')}" if masks else "")
        )
    unlabelled = train_labels.unlabelled + (test_labels.unlabelled if test_labels else 0)
    if unlabelled:
        echo(f"left out: {count_of(unlabelled, 'image')} without a label")
    if not written.images["test/good"]:
        echo("no good images to test with: --hold-out 0.2 keeps a fifth of them, so that false alarms can be counted")
    echo(f"wrote {output}\nnext: procon check {shlex.quote(str(output))}")
