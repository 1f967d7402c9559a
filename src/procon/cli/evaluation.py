"""Commands for people who measure: bench, eval, reproduce, report, figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from procon.cli import ray as cli_ray
from procon.cli.flags import DeviceOption, RayOption, RunArgument
from procon.cli.terminal import echo, show_progress
from procon.config import AUTO, Config
from procon.evaluation.runs.settings import SHARED

if TYPE_CHECKING:
    from procon.evaluation.paper.reproduce import Compute
    from procon.evaluation.paper.results import Result
    from procon.evaluation.runs.run import Run
    from procon.progress import Progress

_Root = Annotated[Path, Option("--root", help="Folder of the dataset, as its authors publish it.")]
_RunOutput = Annotated[Path | None, Option("--output", "-o", help="Folder of the run; an existing run is continued.")]
_Categories = Annotated[str | None, Option("--categories", help="Some of the categories, separated by commas.")]
_Seeds = Annotated[int, Option("--seeds", min=1, help="Repeats with other bank seeds: mean and spread.")]
_Verdicts = Annotated[
    bool,
    Option(
        "--verdicts",
        help="Also score the training images, for defects found and false alarms at the model's own threshold; about "
        "one more search per training image.",
    ),
]
_KeepWork = Annotated[bool, Option("--keep-work", help="Keep the tokens on disk for the next command.")]
_Variant = Annotated[
    str | None, Option("--variant", help="The stored variant to show first; default: the paper's recipe.")
]


def bench(
    dataset: Annotated[
        str | None, Argument(metavar="DATASET", help="mvtec, visa, realiad, mpdd, btad, medical or folder.")
    ],
    root: _Root,
    output: _RunOutput = None,
    categories: _Categories = None,
    seeds: _Seeds = 1,
    device: DeviceOption = "auto",
    keep_work: _KeepWork = False,
    verdicts: _Verdicts = False,
    ray: RayOption = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure a detector on a benchmark: a line per category and their mean, raw scores and maps kept."""
    from procon.evaluation.paper import reproduce as tables
    from procon.evaluation.runs.run import variant_name
    from procon.evaluation.runs.verdicts import describe_verdicts

    config = Config(**settings)
    shared = {name: value for name, value in settings.items() if name in SHARED}
    run = _open_run(root, dataset, output, shared, verdicts)
    chosen = tables.choose_categories(root, run.dataset.categories, _split(categories))
    with _workers(ray, device) as (compute, _):
        result = tables.bench(run, config, chosen, compute, seeds=seeds, keep_work=keep_work)
    if config.image_size == AUTO:
        for category in chosen:
            height, width = run.load_about(category, variant_name(config))["size"]
            echo(f"{category}: input of {width} x {height} pixels, from the proportions of its good images")
    if verdicts:
        if seeds > 1:
            echo(f"verdicts of the first of {seeds} repeats:")
        for category in chosen:
            echo("\n".join(describe_verdicts(run, category, variant_name(config))) + "\n")
    _print_tables([result])
    echo(f"raw results, metrics and tables in {run.folder}\nnext: procon report {run.folder}")


def evaluate(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="A category with train/good and test/, good/ bad/ mask/, or several.")
    ],
    output: _RunOutput = None,
    categories: _Categories = None,
    seeds: _Seeds = 1,
    device: DeviceOption = "auto",
    keep_work: _KeepWork = False,
    ray: RayOption = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Count defects found and false alarms at the model's threshold, then metrics: your images or any benchmark."""
    bench(None, folder, output, categories, seeds, device, keep_work, True, ray, settings=settings)


def reproduce(
    names: Annotated[
        list[str], Argument(metavar="NAMES...", help="Tables of the paper, or all; see docs/measure/reproduce.md.")
    ],
    root: _Root,
    dataset: Annotated[
        str | None, Option("--dataset", help="Name of the dataset; needed if the folder does not show it.")
    ] = None,
    output: _RunOutput = None,
    categories: _Categories = None,
    seeds: _Seeds = 1,
    device: DeviceOption = "auto",
    keep_work: _KeepWork = False,
    verdicts: _Verdicts = False,
    ray: RayOption = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run the variants of the paper's tables and print them next to the paper's numbers."""
    from procon.evaluation.paper import reproduce as tables

    run = _open_run(root, dataset, output, settings, verdicts)
    chosen = tables.choose_categories(root, run.dataset.categories, _split(categories))
    wanted = list(tables.NAMES) if "all" in names else names
    with _workers(ray, device) as (compute, on_progress):
        results = tables.reproduce(run, wanted, chosen, compute, on_progress, seeds=seeds, keep_work=keep_work)
    _print_tables(results)
    if tables.PROTOCOL in wanted:
        echo("\n".join(tables.protocol(run, chosen)))
    echo(f"tables in {run.folder / 'tables'}\nnext: procon report {run.folder}")


def report(
    run: RunArgument,
    output: Annotated[Path | None, Option("--output", "-o", help="Page to write; default: report.html in it.")] = None,
    variant: _Variant = None,
) -> None:
    """Write one self-contained page: defects found and false alarms, worst cases first, then curves and tables."""
    from procon.evaluation.report.build import write_report
    from procon.evaluation.runs.run import Run

    opened = Run.open_folder(run)
    page = output or run / "report.html"
    with show_progress() as on_progress:
        write_report(opened, page, on_progress, variant=variant)
    echo(f"wrote {page}")


def figures(
    run: RunArgument,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder; default: figures in the run.")] = None,
    categories: _Categories = None,
    variant: _Variant = None,
) -> None:
    """Draw the paper's figures: maps of hard NN, SPM and ProCon, maps by layer, histograms, ROC, PR and PRO curves."""
    from procon.evaluation.paper.reproduce import choose_categories
    from procon.evaluation.report.figures import write_figures
    from procon.evaluation.runs.run import Run

    opened = Run.open_folder(run)
    chosen = choose_categories(run, list(opened.list_variants()), _split(categories))
    folder = output or run / "figures"
    with show_progress() as on_progress:
        written, problems = write_figures(opened, folder, chosen, on_progress, variant)
    for problem in problems:
        echo(problem, err=True)
    echo(f"wrote {len(written)} figures to {folder}")


def _open_run(root: Path, dataset: str | None, output: Path | None, settings: dict[str, Any], verdicts: bool) -> "Run":
    from procon.evaluation.data.datasets import open_dataset
    from procon.evaluation.runs.run import Run

    opened = open_dataset(root, dataset)
    return Run(output or Path("runs") / opened.name, opened, Config(**settings), verdicts=verdicts)


def _split(categories: str | None) -> list[str] | None:
    return [name.strip() for name in categories.split(",") if name.strip()] if categories else None


def _print_tables(results: "list[Result]") -> None:
    from rich.console import Console

    from procon.evaluation.paper.writers import to_terminal

    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=160)
    for result in results:
        console.print(to_terminal(result), highlight=False)


@contextmanager
def _workers(ray: str | None, device: str) -> "Iterator[tuple[Compute, Progress]]":
    """The function that computes raw results, here or with ``ray`` on a cluster, and the progress display."""
    from procon.scale.categories import compute_on

    with cli_ray.workers(ray, device) as workers, cli_ray.worker_progress() as on_worker:
        yield compute_on(workers, on_worker), lambda stage, done, total: on_worker("", "all", stage, done, total)
