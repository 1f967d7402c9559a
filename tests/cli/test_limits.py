"""procon limits: what it prints and writes, what goes on after Ctrl-C, and what procon threshold makes of it."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from procon import Detector
from procon.limits.kinds import RENDERED_KINDS, Painted
from procon.limits.plan import Host, place_defect
from procon.limits.report import STAND_IN
from procon.model.document import read_renderings
from procon.model.renderings import Rendering, RenderingPlan
from procon.results.limits_page import paint_blind_map
from procon.vision.images import Picture
from tests.conftest import Run, part_pixels, tiny_config


@pytest.fixture
def good(tmp_path: Path) -> Path:
    folder = tmp_path / "good"
    folder.mkdir()
    for seed in range(8):
        Image.fromarray(part_pixels(seed)).save(folder / f"{seed:03d}.png")
    return folder


@pytest.fixture
def model(good: Path, tiny_backbone: Path, tmp_path: Path) -> Path:
    return Detector(tiny_config(tiny_backbone), device="cpu").fit(good).save(tmp_path / "part.procon")


class Page(HTMLParser):
    """What a page loads and which tags stay open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_folder_has_a_page_tables_and_json(run: Run, model: Path, tmp_path: Path) -> None:
    out_folder = tmp_path / "limits"
    code, out, err = run("limits", model, "-o", out_folder, "--count", 60, "--sizes", "3,30")
    assert code == 0, err
    assert "60 rendered defects on 8 good images: about" in err
    for kind in RENDERED_KINDS:
        assert f"\n{kind}: " in f"\n{out}"
    assert STAND_IN in out and f"wrote {out_folder / 'index.html'}" in out

    document = json.loads((out_folder / "limits.json").read_text())
    with (out_folder / "limits.csv").open(newline="") as stream:
        cells = list(csv.DictReader(stream))
    with (out_folder / "renderings.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 60
    in_force = [cell for cell in cells if cell["in_force"] == "1"]
    assert len(in_force) == len(RENDERED_KINDS) * 2 * 3
    for cell in in_force:  # the tables say the same
        own = [row for row in rows if all(row[name] == cell[name] for name in ("kind", "size", "contrast"))]
        own = [row for row in own if row["found"] and float(row["score_without"]) <= document["threshold"]]
        assert int(cell["total"]) == len(own)
        assert int(cell["found"]) == sum(row["found"] == "1" for row in own)
    assert sum(int(cell["total"]) for cell in in_force) == sum(cell["total"] for cell in document["cells"])

    text = (out_folder / "index.html").read_text()
    page = Page(text)
    assert all(source.startswith("data:image/") for source in page.sources)
    assert "script" not in page.tags and "default-src &#x27;none&#x27;" not in text
    assert STAND_IN[1:] in text
    assert text.index(STAND_IN[1:]) < text.index("<table>")  # it says so on its face
    found = [row for row in rows if row["found"] == "1"]
    assert ("Smallest" in text) == bool(found) and "Largest" in text
    assert page.tags.count("figure") == 1 + text.count("<figcaption>")


def test_the_model_keeps_the_scores_and_threshold_shows_them(run: Run, model: Path, tmp_path: Path) -> None:
    _, out, _ = run("threshold", model)
    assert "procon limits MODEL renders defects" in out
    before = model.read_bytes()
    assert run("limits", model, "-o", tmp_path / "a", "--count", 30, "--sizes", "3,30", "--no-store")[0] == 0
    assert model.read_bytes() == before
    assert run("limits", model, "-o", tmp_path / "b", "--count", 30, "--sizes", "3,30")[0] == 0
    renderings = read_renderings(model)
    assert renderings is not None and len(renderings.rows) == 30
    _, out, _ = run("threshold", model)
    assert "rendered defects found" in out and "they are not real ones" in out
    head, *rows = out[out.index("   rate  threshold") :].splitlines()[:-1]
    column = head.index("good images above it")
    assert rows and all(row[column - 2 : column] == "  " and row[column].isdigit() for row in rows)
    _, out, _ = run("threshold", model, "--json")
    offers = json.loads(out)["offers"]
    for offer in offers:
        judged = [found for _, found in renderings.judged(offer["threshold"])]
        assert (offer["rendered"]["found"], offer["rendered"]["total"]) == (sum(judged), len(judged))
    _, out, _ = run("info", model)
    assert "rendered defects found; see procon threshold" in out
    _, out, _ = run("limits", model, "-o", tmp_path / "c", "--count", 30, "--sizes", "3,30", "--json")
    assert json.loads(out)["renderings"] == json.loads((tmp_path / "b" / "limits.json").read_text())["renderings"]


def test_interrupted_work_is_stored(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from procon.limits import measuring

    def stop(plan: RenderingPlan, number: int, host: Host, picture: Picture) -> tuple[Rendering, Painted | None]:
        if number == 9:
            raise KeyboardInterrupt
        return place_defect(plan, number, host, picture)

    monkeypatch.setattr(measuring, "place_defect", stop)
    asked = ("limits", model, "-o", tmp_path / "limits", "--count", 12, "--sizes", "3,30")
    code, _, err = run(*asked)
    assert code == 130 and "interrupted" in err and "the same command goes on from there" in err
    assert not (tmp_path / "limits").exists()
    renderings = read_renderings(model)
    assert renderings is not None and 0 < len(renderings.rows) <= 9
    monkeypatch.setattr(measuring, "place_defect", place_defect)
    assert run(*asked)[0] == 0
    after = read_renderings(model)
    assert after is not None and len(after.rows) == 12 and after.rows[: len(renderings.rows)] == renderings.rows


def test_mistakes_are_explained(run: Run, model: Path, good: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for message, *arguments in (
        ("--output must be a folder", "-o", tmp_path / "file"),
        ("--sizes must be whole numbers such as 3,10,30, got '3;10'", "--sizes", "3;10"),
        ("sizes must be from 3 pixels to the", "--sizes", "2,10"),
        ("these must be images the model has not seen", good),
        ("missing: no such file; check the path", tmp_path / "missing"),
    ):
        code, _, err = run("limits", model, *arguments, *(() if "-o" in arguments else ("-o", tmp_path / "out")))
        assert code == 2 and message in err, (message, err)
        assert not (tmp_path / "out").exists()


def test_fit_reports_limits_on_request(run: Run, good: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    settings = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", 70]
    settings += ["--set", "layers=-1,-3", "--coreset-ratio", 0.3, "--banks", 1]
    output = tmp_path / "new.procon"
    from procon.limits import measuring

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "SECONDS", 0.0)
        patch.setattr(measuring, "FEWEST_PASSES", 1)
        code, out, err = run("fit", good, "-o", output, "--embed", "limits", *settings, "--device", "cpu")
    assert code == 0, err
    page = tmp_path / "new-limits" / "index.html"
    assert page.exists() and f"wrote {page}" in out and STAND_IN in out
    assert read_renderings(output) is not None
    code, _, err = run("fit", tmp_path, "--each", "-o", tmp_path / "models", "--embed", "limits", *settings)
    assert code == 2 and "--each, --shards and --ray take settings" in err


def test_the_map_is_red_where_blind_and_dark_where_nothing_is_known() -> None:
    pixels = np.full((40, 60, 3), 200, np.uint8)
    ratio = np.array([[1.0, 0.0], [np.nan, 2.0]])
    painted = paint_blind_map(pixels, ratio)
    assert (painted[:20, :30] == 200).all() and (painted[20:, 30:] == 200).all()
    assert (painted[20:, :30] == 70).all()
    red = painted[0, 59].astype(int)
    assert red[0] > 200 and red[1] < 90 and red[2] < 110
