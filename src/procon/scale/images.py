"""Score a folder of any size with many workers: a unit is a shard of its images.

Workers write the overlays. They return rows, regions and the pictures of the page, which are combined in the order of
the images. So every file equals that of a single machine, except for the seconds per image.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import nsmallest
from pathlib import Path
from typing import Any

from procon.deploy import load_any
from procon.progress import Progress
from procon.results.gallery import MOST_CARDS, Card, picture_side
from procon.results.inspection import (
    Findings,
    OnFile,
    Outcome,
    ScoredImage,
    inspect_each,
    overlay_names,
    write_findings,
)
from procon.scale.cluster import Unit, WorkerProgress, Workers, collect_values, split_items

SHARD = 64  # images of a unit: a few seconds of work on a CPU, so that little is lost with a worker


def inspect_on(
    workers: Workers,
    model: Path,
    images: Sequence[tuple[str, Path]],
    out: Path | None,
    on_progress: WorkerProgress,
    *,
    detector: Any,
    weights: str | None = None,
    title: str = "ProCon",
    facts: Sequence[str] = (),
    coco: Path | None = None,
    on_row: Callable[[ScoredImage], None] | None = None,
    on_file: OnFile = lambda path: None,
    shard: int = SHARD,
) -> Outcome:
    """:func:`procon.results.inspection.inspect` by ``workers``; ``detector`` is ``model`` as this process loaded it."""
    workers.check_shared(out or model.parent, model, images[0][1], *([Path(weights)] if weights else []))
    targets = overlay_names([name for name, _ in images])
    key = (str(model), model.stat().st_mtime_ns, weights, workers.device)
    side = picture_side(len(images))
    units = (
        Unit(
            f"images {number * shard}..",
            _score_shard,
            (key, number, part, {name: targets[name] for name, _ in part}, out, coco is not None, side),
        )
        for number, part in enumerate(split_items(images, shard))
    )
    combined, waiting = Findings(), dict[int, Findings]()
    cards: list[tuple[float, int, int, Card]] = []  # those that the page can still show, in its order
    finished, following = False, 0
    try:
        for _, (number, findings) in collect_values(workers.run(units, on_progress)):
            arrived = [(-card.score, number, place, card) for place, card in enumerate(findings.cards)]
            cards = nsmallest(MOST_CARDS, cards + arrived, key=lambda entry: entry[:3])
            findings.cards = []
            waiting[number] = findings
            while following in waiting:  # rows are reported in the order of the images
                ready = waiting.pop(following)
                combined.join(ready)
                following += 1
                if on_row is not None:
                    for row in ready.rows:
                        on_row(row)
        finished = True
    finally:
        for number in sorted(waiting):  # after an interruption, a shard before these may be missing
            combined.join(waiting[number])
        combined.cards = [card for *_, card in cards]
        outcome = write_findings(
            detector, combined, finished, out, title=title, facts=facts, coco=coco, on_file=on_file
        )
    return outcome


@lru_cache(maxsize=1)
def _load_model(model: str, _changed: int, weights: str | None, device: str) -> Any:
    """The model, cached for the next shard as long as its file is the same."""
    return load_any(Path(model), weights=weights, device=device)


def _score_shard(
    key: tuple[str, int, str | None, str],
    number: int,
    images: Sequence[tuple[str, Path]],
    overlays: dict[str, str],
    out: Path | None,
    coco: bool,
    side: int,
    on_progress: Progress,
) -> tuple[int, Findings]:
    findings = Findings()
    for count, _ in enumerate(inspect_each(_load_model(*key), images, overlays, findings, out, coco, side)):
        on_progress("scoring", count + 1, len(images))
    return number, findings
