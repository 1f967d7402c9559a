"""Shared code of the commands that can run on a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from procon.amounts import count_of
from procon.cli.terminal import echo, stderr_console
from procon.config import AUTO, Config
from procon.errors import ConfigError
from procon.progress import show_bars

if TYPE_CHECKING:
    from procon.scale.cluster import WorkerProgress, Workers


def parse_ray(text: str) -> tuple[str, int]:
    """``ADDRESS`` or ``ADDRESS,cpus=N`` as the address and the cores of a unit."""
    address, comma, rest = text.partition(",")
    name, _, value = rest.partition("=")
    if comma and (name != "cpus" or not value.isdecimal() or int(value) < 1):
        raise ConfigError(f"--ray must be ADDRESS or ADDRESS,cpus=N with N of at least 1, got {text!r}")
    return address, int(value) if comma else 1


@contextmanager
def workers(ray: str | None, device: str) -> Iterator["Workers"]:
    """Where units run: in this process, or on the cluster that ``ray`` names."""
    from procon.scale.cluster import Cluster, ThisProcess

    if ray is None:
        yield ThisProcess(device)
        return
    address, cpus = parse_ray(ray)
    with Cluster(address, device=device, cpus=cpus) as cluster:
        stderr_console().print(f"Ray at {address}: {cluster.slots} units at a time on {cluster.device}")
        yield cluster
        if cluster.repeated:
            stderr_console().print(f"started again because a worker was lost: {', '.join(cluster.repeated)}")


@contextmanager
def worker_progress() -> Iterator["WorkerProgress"]:
    """A progress bar for each worker, with its current unit."""
    with show_bars(width=48, console=stderr_console()) as update:
        yield lambda worker, unit, stage, done, total: update(worker, f"{worker}  {unit}: {stage}".strip(), done, total)


def fit_shards(good: Path, output: Path, config: Config, using: "Workers", shards: int, skip_bad: bool) -> None:
    """Fit one model in shards, and print how well its banks cover the patches."""
    from procon.scale.family import fit_family
    from procon.vision.folders import training_images
    from procon.vision.shape import shape_of

    images = training_images(good)
    shape = shape_of(config, images)
    for line in shape.describe():
        stderr_console().print(line)
    weights = [] if config.weights is None else [Path(config.weights)]
    using.check_shared(output.parent, good, *weights)
    with worker_progress() as on_progress:
        detector, coverage = fit_family(using, shape.config, images, on_progress, shards=shards, skip_bad=skip_bad)
    detector.save(output)
    names = ["all layers"] if config.layer_fusion == "concat" else [f"layer {block}" for block in config.layers]
    for name, layer in zip(names, coverage, strict=True):
        echo(
            f"{name}: no patch is farther from a bank than {layer.radius:.4f}, at most {layer.factor:.2f} times the "
            "best possible"
        )
    for fact in detector.describe():
        stderr_console().print(fact)
    echo(f"wrote {output}\nnext: procon predict {output} IMAGES -o out/")


def fit_each(folder: Path, output: Path, config: Config, using: "Workers", skip_bad: bool) -> None:
    """Fit a model for each folder in ``folder``; print a line for each part, and exit with 2 if any failed."""
    from procon.scale import parts as scale_parts

    if output.is_file() or output.suffix == ".procon":
        raise ConfigError(f"with --each, --output must be a folder for the models, such as models/; got {output}")
    parts = scale_parts.find_parts(folder)
    failed = 0
    with worker_progress() as on_progress:
        for part in scale_parts.fit_parts(using, config, parts, output, on_progress, skip_bad=skip_bad):
            if part.error is not None:
                failed += 1
                echo(f"error: {part.error}", err=True)
            else:
                size = f" at {part.size[1]} x {part.size[0]} pixels" if config.image_size == AUTO else ""
                about = f"{count_of(part.images, 'image')}{size}"
                echo(f"{'wrote' if part.fresh else 'up to date:'} {part.model} ({about})")
    echo(f"{len(parts) - failed} of {len(parts)} parts have a model in {output}")
    if failed:
        raise typer.Exit(2)
