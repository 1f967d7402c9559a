"""A folder of any size scored by many workers: a unit is a shard of its images.

Workers write the overlays; rows and pictures of the page come back and are put together in the order of the images, so
that every file is the one a single machine writes, but for the seconds an image took.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from procon.deploy import load_any
from procon.model.training import Progress
from procon.results.inspection import Findings, Outcome, ScoredImage, overlay_names, score_images, write_findings
from procon.scale.cluster import Unit, WorkerProgress, Workers, cut, values

SHARD = 64
"""Images of a unit: some seconds of work on a CPU, so that little is lost with a worker."""


def inspect_on(
    workers: Workers,
    model: Path,
    images: Sequence[tuple[str, Path]],
    out: Path | None,
    progress: WorkerProgress,
    *,
    detector: Any,
    weights: str | None = None,
    title: str = "ProCon",
    facts: Sequence[str] = (),
    coco: Path | None = None,
    on_row: Callable[[ScoredImage], None] | None = None,
    shard: int = SHARD,
) -> Outcome:
    """:func:`procon.results.inspection.inspect` by ``workers``; ``detector`` is ``model`` as this process loaded it."""
    workers.check_shared(out or model.parent, model, images[0][1], *([Path(weights)] if weights else []))
    targets = overlay_names([name for name, _ in images])
    key = (str(model), model.stat().st_mtime_ns, weights, workers.device)
    units = (
        Unit(
            f"images {number * shard}..",
            _score,
            (key, number, part, {name: targets[name] for name, _ in part}, out, coco is not None),
        )
        for number, part in enumerate(cut(images, shard))
    )
    done: dict[int, Findings] = {}
    found, finished, following = Findings(), False, 0
    try:
        for _, (number, findings) in values(workers.run(units, progress)):
            done[number] = findings
            while following in done:  # in the order of the images; a shard's pictures go as soon as it is joined
                shard_findings = done.pop(following)
                if on_row is not None:
                    for row in shard_findings.rows:
                        on_row(row)
                found.join(shard_findings)
                following += 1
        finished = True
    finally:
        for number in sorted(done):
            found.join(done[number])
        outcome = write_findings(detector, found, finished, out, title=title, facts=facts, coco=coco)
    return outcome


@lru_cache(maxsize=1)
def _load(model: str, _changed: int, weights: str | None, device: str) -> Any:
    """The model, kept for the next shard as long as its file is the same."""
    return load_any(Path(model), weights=weights, device=device)


def _score(
    key: tuple[str, int, str | None, str],
    number: int,
    images: Sequence[tuple[str, Path]],
    overlays: dict[str, str],
    out: Path | None,
    coco: bool,
    report: Progress,
) -> tuple[int, Findings]:
    found = Findings()
    for count, _ in enumerate(score_images(_load(*key), images, overlays, found, out, coco)):
        report("scoring", count + 1, len(images))
    return number, found
