"""What the commands share that can hand their work to a Ray cluster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from procon.cli.terminal import console
from procon.config import Config
from procon.errors import ConfigError

if TYPE_CHECKING:
    from procon.scale.cluster import WorkerProgress, Workers


def ray_option(panel: str | None = None) -> Any:
    """The option that hands the work to a cluster."""
    words = (
        "Work on a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT; ADDRESS,cpus=N gives each unit of work N "
        "cores and threads."
    )
    return typer.Option("--ray", help=words, metavar="ADDRESS", rich_help_panel=panel)


RAY = ray_option()


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
        console().print(f"Ray at {address}: {cluster.slots} units at a time on {cluster.device}", highlight=False)
        yield cluster


@contextmanager
def worker_progress() -> Iterator["WorkerProgress"]:
    """A display with a line for each worker that says what it is at."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console()) as display:
        lines: dict[str, Any] = {}

        def report(worker: str, unit: str, stage: str, done: int, total: int) -> None:
            if worker not in lines:
                lines[worker] = display.add_task(worker, total=total)
            text = f"{worker}  {unit}: {stage}".strip()
            display.update(lines[worker], description=text, completed=done, total=total)

        yield report


def fit(
    good: Path,
    output: Path,
    config: Config,
    ray: str | None,
    device: str,
    *,
    each: bool,
    shards: int | None,
    skip_bad: bool,
) -> None:
    """``procon fit`` where the work is cut into units: many parts, or the shards of one."""
    if each == (shards is not None):
        raise ConfigError("--ray fits many parts (--each) or one in shards (--shards N): choose one of the two")
    with workers(ray, device) as using:
        if shards is None:
            _fit_each(good, output, config, using, skip_bad)
        else:
            _fit_shards(good, output, config, using, shards, skip_bad)


def _fit_shards(good: Path, output: Path, config: Config, using: "Workers", shards: int, skip_bad: bool) -> None:
    """Fit one model in shards, and say how well its banks cover the patches."""
    from procon.scale.family import fit_family
    from procon.vision.folders import training_images

    if output.is_dir():
        raise ConfigError(f"--output must be a file such as part.procon, got the folder {output}")
    images = training_images(good)
    weights = [] if config.weights is None else [Path(config.weights)]
    using.check_shared(output.parent, good, *weights)
    with worker_progress() as report:
        detector, coverage = fit_family(using, config, images, report, shards=shards, skip_bad=skip_bad)
    detector.save(output)
    names = ["all layers"] if config.layer_fusion == "concat" else [f"layer {block}" for block in config.layers]
    for name, one in zip(names, coverage, strict=True):
        typer.echo(
            f"{name}: no patch is farther from a bank than {one.radius:.4f}, at most {one.factor:.2f} times the best "
            "possible"
        )
    for fact in detector.describe():
        console().print(fact, highlight=False)
    typer.echo(f"wrote {output}\nnext: procon predict {output} IMAGES -o out/")


def _fit_each(folder: Path, output: Path, config: Config, using: "Workers", skip_bad: bool) -> None:
    """Fit a model for each folder in ``folder``; print a line for each part, and exit with 2 if any failed."""
    from procon.scale.parts import find_parts, fit_parts

    if output.is_file() or output.suffix == ".procon":
        raise ConfigError(f"with --each, --output must be a folder for the models, such as models/; got {output}")
    parts = find_parts(folder)
    failed = 0
    with worker_progress() as report:
        for part in fit_parts(using, config, parts, output, report, skip_bad=skip_bad):
            if part.error is not None:
                failed += 1
                typer.echo(f"error: {part.error}", err=True)
            else:
                typer.echo(f"{'wrote' if part.fresh else 'up to date:'} {part.model} ({part.images} images)")
    typer.echo(f"{len(parts) - failed} of {len(parts)} parts have a model in {output}")
    if failed:
        raise typer.Exit(2)


def inspect_on(
    ray: str,
    device: str,
    model: Path,
    images: Sequence[tuple[str, Path]],
    output: Path | None,
    **more: Any,
) -> None:
    """Score ``images`` on the cluster that ``ray`` names, with a line for each worker."""
    from procon.scale.images import inspect_on as score

    with workers(ray, device) as cluster, worker_progress() as report:
        score(cluster, model, images, output, report, **more)
