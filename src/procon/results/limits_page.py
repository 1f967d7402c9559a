"""What ``procon limits`` writes: one self-contained HTML page, tables as CSV, and JSON."""

import csv
import html
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from procon.arrays import Bytes, Reals
from procon.detector import Detector
from procon.files import atomic_text, write_text
from procon.limits.plan import CONTRASTS, paint_again
from procon.limits.report import STAND_IN, LimitsCell, LimitsReport
from procon.limits.statistics import Visibility
from procon.model.renderings import Rendering
from procon.model.training_image import TrainingImage
from procon.names import show_name
from procon.results.contours import outline_path
from procon.showing.markup import page_head, safe_text
from procon.showing.painting import data_uri
from procon.vision.images import Picture
from procon.vision.pictures import jpeg, shrink

_CROP = 3  # times the size of a defect
_LEAST_CROP = 64  # pixels of the image
_SHOWN = 320  # pixels of a crop on the page
_MAP_SIDE = 480
_RED = np.array([224, 30, 60], np.float64)
_STATIC = Path(__file__).parent / "static"


class _Pair(NamedTuple):
    """A crop of a good image with the outline of a defect, and the same crop with the defect."""

    kind: str
    found: bool
    row: Rendering
    name: str
    before: bytes
    after: bytes
    outline: str
    side: tuple[int, int]  # (height, width) of the outline's coordinates


def write_limits(folder: Path, detector: Detector, limits: LimitsReport) -> None:
    """Write ``index.html``, ``limits.csv``, ``renderings.csv`` and ``limits.json`` into ``folder``."""
    _write_cells(folder / "limits.csv", limits)
    _write_rows(folder / "renderings.csv", limits)
    write_text(folder / "limits.json", json.dumps(limits.to_dict(), indent=1) + "\n")
    write_text(folder / "index.html", _render_page(limits, _Pictures(detector, limits)))


def _write_cells(path: Path, limits: LimitsReport) -> None:
    """One row for every threshold on offer, kind, size and contrast."""
    with atomic_text(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            ["false_alarm_rate", "threshold", "in_force", "kind", "size", "contrast", "found", "total", "low", "high"]
        )
        for rate, threshold, in_force in _thresholds(limits):
            for cell in limits.cells(threshold):
                low, high = cell.counted.interval
                where = [rate, threshold, int(in_force), cell.kind, cell.size, cell.contrast]
                writer.writerow([*where, *cell.counted, f"{low:.4f}", f"{high:.4f}"])


def _thresholds(limits: LimitsReport) -> Iterator[tuple[float | str, float, bool]]:
    offers = limits.by_rate()
    if all(offer.threshold != limits.threshold for offer in offers):
        yield "", limits.threshold, True  # set by hand
    for offer in offers:
        yield offer.rate, offer.threshold, offer.threshold == limits.threshold


def _write_rows(path: Path, limits: LimitsReport) -> None:
    """One row for every rendered defect."""
    with atomic_text(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["number", "kind", "size", "contrast", "x", "y", "image", "score_without", "score", "found"])
        for number, row in enumerate(limits.renderings.rows):
            host = limits.renderings.hosts[row.host]
            found = "" if row.score is None else int(row.score > limits.threshold)
            score = "" if row.score is None else row.score
            place = [number, row.kind, row.size, row.contrast, *row.center, show_name(host.name)]
            writer.writerow([*place, host.score, score, found])


class _Pictures:
    """Good images, and defects rendered on them again."""

    def __init__(self, detector: Detector, limits: LimitsReport) -> None:
        self._detector, self._limits = detector, limits

    def host(self, number: int) -> Picture | None:
        """A good image as it was measured; None where it can no longer be read."""
        name, digest, size, _ = self._limits.renderings.hosts[number]
        picture = self._detector.sources.picture(TrainingImage(name, size, digest))
        return picture if isinstance(picture, Picture) else None

    def pairs(self) -> Iterator[_Pair]:
        """For each kind the smallest defect that is found and the largest that is missed."""
        limits = self._limits
        for kind in limits.renderings.plan.kinds:
            for found in (True, False):
                number = limits.example(kind, found=found)
                pair = None if number is None else self._pair(number, found)
                if pair is not None:
                    yield pair

    def _pair(self, number: int, found: bool) -> _Pair | None:
        renderings = self._limits.renderings
        row = renderings.rows[number]
        picture = self.host(row.host)
        painted = None if picture is None else paint_again(renderings.plan, number, row, picture)
        if picture is None or painted is None:
            return None
        side = max(_LEAST_CROP, _CROP * row.size)
        rows, columns = (
            slice(max(0, min(place - side // 2, length - side)), max(0, min(place - side // 2, length - side)) + side)
            for place, length in zip(row.center[::-1], picture.size, strict=True)
        )
        crops = [_enlarge(image.rgb8()[rows, columns]) for image in (picture, Picture(painted.pixels))]
        mask = painted.mask[rows, columns]
        name = show_name(renderings.hosts[row.host].name)
        size = (mask.shape[0], mask.shape[1])
        return _Pair(row.kind, found, row, name, jpeg(crops[0]), jpeg(crops[1]), outline_path(mask), size)


def _enlarge(crop: Bytes) -> Bytes:
    """A crop at page size."""
    factor = _SHOWN / max(crop.shape[:2])
    size = (max(1, round(crop.shape[1] * factor)), max(1, round(crop.shape[0] * factor)))
    return np.asarray(Image.fromarray(crop).resize(size, Image.Resampling.BICUBIC))


def _render_page(limits: LimitsReport, pictures: _Pictures) -> str:
    style = (_STATIC / "limits.css").read_text(encoding="utf-8")
    sentences = limits.describe()
    body = [
        "<h1>How small a defect is found</h1>",
        f"<p class=note>{html.escape(_sentence(STAND_IN))}</p>",
        "<ul>",
        *(f"<li>{safe_text(line)}</li>" for line in sentences if line != STAND_IN),
        "</ul>",
        "<h2>At each false-alarm rate</h2>",
        _rates(limits),
        "<h2>Share found by size and contrast</h2>",
        f"<p class=soft>At the threshold in force, {limits.threshold:.4f}. Small: the 95 % Wilson interval, and the "
        "number of defects. Contrasts are the largest change in grey levels of 255.</p>",
        *(_kind(limits, kind) for kind in limits.renderings.plan.kinds),
        "<h2>Where it is blind</h2>",
        _map(limits, pictures),
        "<h2>The smallest found and the largest missed</h2>",
        "<p class=soft>Left: the good image, with the outline of the defect. Right: the same with the defect.</p>",
        "<div class=pairs>",
        *(_figure(pair, limits.threshold) for pair in pictures.pairs()),
        "</div>",
    ]
    return "\n".join([page_head("How small a defect is found", style) + "<body>", *body, "</body>\n</html>\n"])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def describe_from(size: float | None) -> str:
    """A size from which defects are found, for a table."""
    return "-" if size is None else f"{math.ceil(size)} px"


def _rates(limits: LimitsReport) -> str:
    rows = []
    for rate, threshold, in_force in _thresholds(limits):
        label = f"{rate:.1%}" if isinstance(rate, float) else "set by hand"
        seen = limits.visibility(threshold=threshold)
        above = len(limits.calibration.above(threshold))
        now = " class=now" if in_force else ""
        rows.append(f"<tr{now}><th scope=row>{label}<td>{threshold:.4f}<td>{above}{_seen(seen)}</tr>")
    return (
        "<div class=scroll><table><caption>All kinds together; bold: in force</caption><tr><th>false alarms"
        "<th>threshold<th>good images above it<th>rendered defects found<th>half from<th>9 of 10 from</tr>"
        f"{''.join(rows)}</table></div>"
    )


def _seen(seen: Visibility) -> str:
    found, total = seen.counted
    return (
        f"<td>{_percent(seen.counted.share)} <small>{found} of {total}</small><td>{describe_from(seen.half_from)}"
        f"<td>{describe_from(seen.most_from)}"
    )


def _kind(limits: LimitsReport, kind: str) -> str:
    """The table of one kind: a row for each contrast, a column for each size."""
    cells = {(cell.contrast, cell.size): cell for cell in limits.cells() if cell.kind == kind}
    plan = limits.renderings.plan
    names = {level: name for name, level in CONTRASTS.items()}
    rows = []
    for level in reversed(plan.contrasts):
        shares = "".join(_share(cells[level, size]) for size in plan.sizes)
        seen = limits.visibility(kind, level)
        ends = f"<td>{describe_from(seen.half_from)}<td>{describe_from(seen.most_from)}"
        rows.append(f"<tr><th scope=row>{names.get(level, '')} ({level}){shares}{ends}</tr>")
    sizes = "".join(f"<th scope=col>{size} px" for size in plan.sizes)
    return (
        f"<div class=scroll><table><caption>{html.escape(kind)}</caption><tr><th scope=col>contrast{sizes}"
        f"<th scope=col>half from<th scope=col>9 of 10 from</tr>{''.join(rows)}</table></div>"
    )


def _share(cell: LimitsCell) -> str:
    found, total = cell.counted
    if not total:
        return "<td>-"
    low, high = cell.counted.interval
    return (
        f"<td class=share style='--share:{found / total:.2f}'>{found / total:.0%}<small>{low:.0%} to {high:.0%} of "
        f"{total}</small>"
    )


def _map(limits: LimitsReport, pictures: _Pictures) -> str:
    legend = (
        "<p class=soft>Red: fewer defects are found here than their kinds, sizes and contrasts let expect; full red: "
        "none. Dark: no defects were rendered here. Places are those in the image, so a part that moves blurs the map. "
        "With few defects around it a place may be red by chance; the sentences above name only what is beyond "
        "chance.</p>"
    )
    picture = next((host for n in range(len(limits.renderings.hosts)) if (host := pictures.host(n)) is not None), None)
    if picture is None:
        return f"{legend}<p>The good images can no longer be read.</p>"
    image = jpeg(paint_blind_map(picture.rgb8(), np.array(limits.map, np.float64)))
    return f"{legend}<figure class=map><img alt='Map of the part' src='{data_uri(image)}'></figure>"


def paint_blind_map(pixels: Bytes, ratio: Reals) -> Bytes:
    """A good image with the map of what is found [rows, columns]: red where it is blind, dark where few lie."""
    small = shrink(pixels, _MAP_SIDE).astype(np.float64)
    height, width = small.shape[:2]
    rows = np.minimum(np.arange(height) * ratio.shape[0] // height, ratio.shape[0] - 1)
    columns = np.minimum(np.arange(width) * ratio.shape[1] // width, ratio.shape[1] - 1)
    values = ratio[rows][:, columns]
    measured = np.isfinite(values)
    red = np.where(measured, np.clip(1 - np.nan_to_num(values), 0, 1) * 0.75, 0)[:, :, None]
    painted = small * (1 - red) + _RED * red
    return np.where(measured[:, :, None], painted, 0.35 * small).round().astype(np.uint8)


def _figure(pair: _Pair, threshold: float) -> str:
    row = pair.row
    names = {level: name for name, level in CONTRASTS.items()}
    word = "found" if pair.found else "missed"
    title = f"{'Smallest' if pair.found else 'Largest'} {pair.kind} {word}"
    height, width = pair.side
    outline = (
        f"<svg viewBox='0 0 {2 * width} {2 * height}' preserveAspectRatio=none aria-hidden=true>"
        f"<path d='{pair.outline}' /></svg>"
    )
    return (
        f"<figure class={word}><div class=two>"
        f"<div class=picture><img alt='good image' src='{data_uri(pair.before)}'>{outline}</div>"
        f"<div class=picture><img alt='{html.escape(title)}' src='{data_uri(pair.after)}'></div></div>"
        f"<figcaption><b>{html.escape(title)}</b>: {row.size} px, {names.get(row.contrast, row.contrast)}; score "
        f"{row.score:.4f}, threshold {threshold:.4f}<br><small>{html.escape(pair.name)}</small></figcaption></figure>"
    )
