"""Commands that make folders of images: import."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from procon.amounts import count_of
from procon.cli.terminal import echo, show_progress
from procon.errors import ConfigError, ImageError
from procon.names import show_name


def import_labels(
    form: Annotated[
        str, Argument(metavar="FORMAT", help="lookout (manifest of Amazon Lookout for Vision) or coco (COCO file).")
    ],
    labels: Annotated[Path, Argument(help="The manifest, or the COCO file.")],
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
