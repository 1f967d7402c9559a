"""The command that makes models: fit."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from procon.amounts import count_of, human_bytes, human_time
from procon.cli import ray as cli_ray
from procon.cli.flags import DeviceOption, RayOption, check_model_target
from procon.cli.limits import report_limits, run_limits
from procon.cli.terminal import echo, show_progress, show_status, stderr_console
from procon.config import Config, refuse
from procon.errors import ConfigError, ImageError
from procon.files import is_file, is_folder
from procon.names import show_name

if TYPE_CHECKING:
    from procon.detector import Detector
    from procon.model.suspects import Suspect
    from procon.vision.images import Picture

EMBED = ("backbone", "thumbnails", "limits")
SUSPECTS = ("list", "leave-out")

_RECIPES = {
    None: "recipe: paper, the default, as it is the published one; --recipe best finds more and takes longer, --recipe "
    "fast is for two cores",
    "fast": "recipe: fast, fewer patches, layers and anchors, for two cores",
    "paper": "recipe: paper",
    "best": "recipe: best, more patches and other layers than the paper's",
}

_file_option = partial(Option, rich_help_panel="Model file")
_training_option = partial(Option, rich_help_panel="Training images")
_scale_option = partial(Option, rich_help_panel="Many parts, many machines")


def fit(
    good: Annotated[
        Path,
        Argument(metavar="GOOD", help="Folder of good images, a pattern, or a tree with train/good or good/ in it."),
    ],
    output: Annotated[Path, _file_option("--output", "-o", help="Model file to write.")] = Path("part.procon"),
    embed: Annotated[
        str | None,
        _file_option(
            help="Also store, joined by commas: backbone, thumbnails (small copies of the images), limits (how small a "
            "defect is found, with a page of pictures; see procon limits)."
        ),
    ] = None,
    skip_bad: Annotated[bool, _training_option("--skip-bad", help="Leave unreadable images out.")] = False,
    roi: Annotated[
        str | None, _training_option(help="Where the part is: a mask image (white), or a polygon 'x,y x,y x,y'.")
    ] = None,
    suspects: Annotated[
        str | None,
        _training_option(
            help="list: name the images that the rest cannot explain, with a page of pictures. leave-out: also fit "
            "again without them."
        ),
    ] = None,
    device: DeviceOption = "auto",
    each: Annotated[
        bool, _scale_option("--each", help="One model per subfolder of GOOD, written to the folder -o.")
    ] = False,
    shards: Annotated[
        int | None, _scale_option(min=1, help="Select anchors in N shards, for datasets larger than RAM.")
    ] = None,
    ray: RayOption = None,
    *,
    recipe: str | None,
    settings: dict[str, Any],
) -> None:
    """Fit a detector on good images and write one model file."""
    config = Config(**settings)
    refuse(config, "fit")
    embedded = [word.strip() for word in embed.split(",")] if embed else []
    for flag, words, allowed in (("embed", embedded, EMBED), ("suspects", [suspects] if suspects else [], SUSPECTS)):
        if not set(words) <= set(allowed):
            raise ConfigError(f"--{flag} must be among {', '.join(allowed)}, got {', '.join(words)}")
    if not each:
        check_model_target(output)
    from procon.vision.folders import is_pattern

    if not (is_file(good) or is_folder(good) or is_pattern(good)):
        raise ImageError(f"{show_name(good)}: no such folder; check the path")
    stderr_console().print(_RECIPES[recipe])
    if each or shards is not None or ray is not None:
        if embedded or suspects is not None or roi is not None:
            raise ConfigError("--each, --shards and --ray take settings and --skip-bad only")
        if each == (shards is not None):
            raise ConfigError("--ray fits many parts (--each) or one in shards (--shards N): choose one of the two")
        with cli_ray.workers(ray, device) as using:
            if shards is None:
                cli_ray.fit_each(good, output, config, using, skip_bad)
            else:
                cli_ray.fit_shards(good, output, config, using, shards, skip_bad)
        return
    _fit_one(good, output, config, embedded, suspects, roi, device, skip_bad=skip_bad)


def _fit_one(
    good: Path,
    output: Path,
    config: Config,
    embedded: Sequence[str],
    suspects: str | None,
    roi: str | None,
    device: str,
    *,
    skip_bad: bool,
) -> None:
    """Fit one detector here, write its file, and say what it is."""
    from procon.detector import Detector
    from procon.results.cost import plan_fit
    from procon.vision.folders import as_list, training_images
    from procon.vision.scope import parse_roi
    from procon.vision.shape import shape_of

    console, region = stderr_console(), None if roi is None else parse_roi(roi)
    images = training_images(good) if good.is_dir() else as_list(good)
    started = time.perf_counter()
    shape = shape_of(config, images)
    for line in shape.describe():
        console.print(line)
    with show_status(f"loading {config.backbone}"):
        detector = Detector(shape.config, device=device)
        plan = plan_fit(detector, len(images), _open_first_readable(images))
    console.print(f"{good}: {plan}")
    thumbnails = "thumbnails" in embedded
    with show_progress() as on_progress:
        detector.fit(good, progress=on_progress, skip_bad=skip_bad, thumbnails=thumbnails, roi=region)
    if suspects is not None:
        suspected = _list_suspects(detector, output)
        if suspected and suspects == "leave-out":
            rest = [Path(name) for name in detector.model.memory.names if name not in suspected]
            with show_progress() as on_progress:
                detector.fit(rest, progress=on_progress, thumbnails=thumbnails, roi=region)
            console.print(f"fitted again on {count_of(len(rest), 'image')}, without the suspects")
    detector.save(output, embed_backbone="backbone" in embedded)
    odd = detector.odd_images()
    echo(_result_in_a_sentence(detector, output, len(odd)))
    for fact in detector.describe():
        console.print(fact)
    _show_odd_images(detector, output, odd)
    if "limits" in embedded:
        report_limits(detector, run_limits(detector, output), output.with_name(f"{output.stem}-limits"))
    size, spent = human_bytes(output.stat().st_size), human_time(time.perf_counter() - started)
    echo(f"wrote {output} ({size}) in {spent}\nnext: procon predict {output} IMAGES -o out/")


def _result_in_a_sentence(detector: "Detector", output: Path, odd: int) -> str:
    """What the fit made, for someone who does not know the terms; the statistics follow."""
    images, calibration = count_of(len(detector.model.memory.images), "good image"), detector.calibration
    if calibration is None:
        return f"{output} is ready: it knows {images} and ranks new parts, but has no threshold to judge them by"
    caution = f"; {count_of(odd, 'training image')} should be looked at first" if odd else ""
    limit = f"a score of {calibration.threshold:.4f}"
    return f"{output} is ready: it knows {images} and calls a part anomalous above {limit}{caution}"


def _show_odd_images(detector: "Detector", output: Path, odd: "Sequence[Suspect]") -> None:
    """Write a page about the images that were set aside for the threshold, if there are any."""
    from procon.results.suspect_page import write_odd_images

    if odd:
        page = output.with_name(f"{output.stem}-odd.html")
        write_odd_images(page, detector, odd)
        echo(f"pictures of the odd images: {page}")


def _list_suspects(detector: "Detector", output: Path) -> set[str]:
    """Print the suspects, write a page about them next to the model, and return their names."""
    from procon.model.suspects import SUSPECT_LIMIT
    from procon.results.suspect_page import write_suspects

    with show_progress() as on_progress:
        ranked = detector.suspects(progress=on_progress)
    page = output.with_name(f"{output.stem}-suspects.html")
    write_suspects(page, detector, ranked, SUSPECT_LIMIT)
    flagged = [suspect for suspect in ranked if suspect.flagged]
    for suspect in flagged:
        left, top, right, bottom = suspect.box
        where = f"{left},{top} to {right},{bottom}"
        echo(f"suspect: {show_name(suspect.image)}: {suspect.excess:.1f} spreads above the median, most at {where}")
    are = "is" if len(flagged) == 1 else "are"
    echo(f"{len(flagged)} of {len(ranked)} training images {are} suspected; look at {page}")
    return {suspect.image for suspect in flagged}


def _open_first_readable(images: Sequence[Path]) -> "Picture":
    from procon.errors import BatchError, ImageError
    from procon.vision.images import Picture, open_each

    errors: dict[int, ImageError] = {}
    for index, picture in enumerate(open_each(images)):
        if isinstance(picture, Picture):
            return picture
        errors[index] = picture
    raise BatchError(errors)
