"""Commands for people who measure: bench, eval, reproduce, report, figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procon.cli import ray as cli_ray
from procon.cli import terminal
from procon.cli.flags import with_settings

if TYPE_CHECKING:
    import torch

    from procon.evaluation.paper.reproduce import Compute, Progress
    from procon.evaluation.paper.results import Result

_SHARED = ("backbone", "weights", "image_size", "resize", "aspect", "tile", "precision")
_ROOT = typer.Option("--root", help="Folder of the dataset, as its authors publish it.")
_OUTPUT = typer.Option("--output", "-o", help="Folder of the run; a run that is there is taken up again.")
_CATEGORIES = typer.Option("--categories", help="Some of the categories, separated by commas.")
_SEEDS = typer.Option("--seeds", min=1, help="Repeats with other bank seeds: mean and spread.")
_DEVICE = typer.Option("--device", help="auto (CUDA if there is one), cpu, cuda or cuda:N.")
_VARIANT = typer.Option("--variant", help="The stored variant to show first; default: the paper's recipe.")
_KEEP = typer.Option("--keep-work", help="Keep the tokens on disk for the next command.")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    panel = "Measure it"
    app.command(name="eval", rich_help_panel=panel)(with_settings()(evaluate))
    app.command(rich_help_panel=panel)(with_settings()(bench))
    app.command(rich_help_panel=panel)(with_settings(_SHARED)(reproduce))
    app.command(rich_help_panel=panel)(report)
    app.command(rich_help_panel=panel)(figures)


def bench(
    dataset: Annotated[str, typer.Argument(help="mvtec, visa, realiad, mpdd, btad, medical or folder.")],
    root: Annotated[Path, _ROOT],
    output: Annotated[Path | None, _OUTPUT] = None,
    categories: Annotated[str | None, _CATEGORIES] = None,
    seeds: Annotated[int, _SEEDS] = 1,
    device: Annotated[str, _DEVICE] = "auto",
    keep_work: Annotated[bool, _KEEP] = False,
    ray: Annotated[str | None, cli_ray.RAY] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure a detector on a benchmark: a line per category and their mean, raw scores and maps kept."""
    _bench(root, dataset, output, categories, seeds, device, keep_work, ray, settings)


def evaluate(
    folder: Annotated[Path, typer.Argument(help="A category with train/good and test/, good/ bad/ mask/, or several.")],
    output: Annotated[Path | None, _OUTPUT] = None,
    categories: Annotated[str | None, _CATEGORIES] = None,
    seeds: Annotated[int, _SEEDS] = 1,
    device: Annotated[str, _DEVICE] = "auto",
    keep_work: Annotated[bool, _KEEP] = False,
    ray: Annotated[str | None, cli_ray.RAY] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure a detector on labelled images of your own, or on any benchmark it recognises."""
    _bench(folder, None, output, categories, seeds, device, keep_work, ray, settings)


def _bench(
    root: Path,
    dataset: str | None,
    output: Path | None,
    categories: str | None,
    seeds: int,
    device: str,
    keep_work: bool,
    ray: str | None,
    settings: dict[str, Any],
) -> None:
    from procon.config import Config
    from procon.evaluation.data.datasets import open_dataset
    from procon.evaluation.paper.reproduce import bench as run_bench
    from procon.evaluation.paper.reproduce import choose_categories
    from procon.evaluation.runs.raw import Run

    config = Config(**settings)
    opened = open_dataset(root, dataset)
    run = Run(
        output or Path("runs") / opened.name, opened, Config(**{k: v for k, v in settings.items() if k in _SHARED})
    )
    chosen = choose_categories(run, _split(categories))
    with _where(ray, device) as (target, report, compute):
        result = run_bench(run, config, chosen, target, report, seeds=seeds, keep_work=keep_work, compute=compute)
    _show([result])
    typer.echo(f"raw results, metrics and tables in {run.folder}\nnext: procon report {run.folder}")


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Tables of the paper, or all; see docs/reproduce.md.")],
    root: Annotated[Path, _ROOT],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Its name, where the folder does not tell.")] = None,
    output: Annotated[Path | None, _OUTPUT] = None,
    categories: Annotated[str | None, _CATEGORIES] = None,
    seeds: Annotated[int, _SEEDS] = 1,
    device: Annotated[str, _DEVICE] = "auto",
    keep_work: Annotated[bool, _KEEP] = False,
    ray: Annotated[str | None, cli_ray.RAY] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run the variants of the paper's tables and print them with the paper's numbers beside ours."""
    from procon.config import Config
    from procon.evaluation.data.datasets import open_dataset
    from procon.evaluation.paper import reproduce as work
    from procon.evaluation.runs.raw import Run

    opened = open_dataset(root, dataset)
    run = Run(output or Path("runs") / opened.name, opened, Config(**settings))
    chosen = work.choose_categories(run, _split(categories))
    wanted = list(work.NAMES) if "all" in names else names
    with _where(ray, device) as (target, report, compute):
        results = work.reproduce(run, wanted, chosen, target, report, seeds=seeds, keep_work=keep_work, compute=compute)
    _show(results)
    if work.PROTOCOL in wanted:
        typer.echo("\n".join(work.protocol(run, chosen).lines))
    typer.echo(f"tables in {run.folder / 'tables'}\nnext: procon report {run.folder}")


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, from bench, eval or reproduce.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write; default: report.html in it.")
    ] = None,
    variant: Annotated[str | None, _VARIANT] = None,
) -> None:
    """Write one self-contained page: worst misses and false alarms first, then scores, curves and tables."""
    from procon.evaluation.report.build import write_report
    from procon.evaluation.report.lineup import open_run

    opened = open_run(run)
    page = output or run / "report.html"
    with _progress() as progress:
        write_report(opened, page, lambda done, total: progress("report", "drawing", done, total), variant=variant)
    typer.echo(f"wrote {page}")


def figures(
    run: Annotated[Path, typer.Argument(help="Folder of a run, from bench, eval or reproduce.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default: figures in the run.")] = None,
    categories: Annotated[str | None, _CATEGORIES] = None,
    variant: Annotated[str | None, _VARIANT] = None,
) -> None:
    """Draw the paper's figures: maps of hard NN, SPM and ProCon, maps by layer, histograms, ROC, PR and PRO curves."""
    from procon.evaluation.report.figures import write_figures
    from procon.evaluation.report.lineup import choose_stored, open_run

    opened = open_run(run)
    chosen = choose_stored(opened, _split(categories))
    folder = output or run / "figures"
    with _progress() as progress:
        written, problems = write_figures(
            opened, folder, chosen, lambda done, total: progress("figures", "drawing", done, total), variant
        )
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(f"wrote {len(written)} figures to {folder}")


def _split(categories: str | None) -> list[str] | None:
    return [name.strip() for name in categories.split(",") if name.strip()] if categories else None


def _show(results: "list[Result]") -> None:
    from rich.console import Console

    from procon.evaluation.paper.writers import to_terminal

    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=160)
    for result in results:
        console.print(to_terminal(result), highlight=False)


@contextmanager
def _where(ray: str | None, device: str) -> "Iterator[tuple[torch.device, Progress, Compute | None]]":
    """Device, display and, with ``ray``, who computes: the workers of that cluster."""
    from procon.vision.backbone import resolve_device

    if ray is None:
        with _progress() as report:
            yield resolve_device(device), report, None
        return
    import torch

    from procon.scale.categories import compute_on

    with cli_ray.workers(ray, device) as cluster, cli_ray.worker_progress() as shown:
        yield (
            torch.device("cpu"),  # of this process, which only measures
            lambda category, stage, done, total: shown("", category, stage, done, total),
            compute_on(cluster, shown),
        )


@contextmanager
def _progress() -> Iterator["Progress"]:
    """A line for each category and stage."""
    with terminal.progress() as report:
        yield lambda category, stage, done, total: report(f"{category}: {stage}", done, total)
