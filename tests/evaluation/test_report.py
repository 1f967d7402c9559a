"""The report of a run: one safe, small, self-contained page whose numbers are those of the raw results."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from procon.cli import app
from procon.errors import ConfigError
from procon.evaluation.paper.tables import build_table
from procon.evaluation.report import build, cases, charts, pictures
from procon.evaluation.report.build import write_report
from procon.evaluation.report.lineup import choose_variants, load_metrics, main_variant
from procon.evaluation.report.views import best_threshold, open_view
from procon.evaluation.runs.run import Run
from procon.evaluation.runs.sweep import VariantScores
from procon.showing.painting import paint
from tests.evaluation.sample_run import BASE, PROCON, SIZE, add_variant, make_run

NAME = "coreset_ratio=0.01"
VOID = {"meta", "img", "input", "br", "link", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} repeats an attribute"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def ignore(*_: object) -> None:
    pass


def written(run: Run, path: Path, variant: str | None = None) -> str:
    write_report(run, path, ignore, variant=variant)
    return path.read_text(encoding="utf-8")


def scores_below(text: str, heading: str) -> list[float]:
    """The scores on the cards of the first list under ``heading``."""
    part = text.split(f"<h3>{heading}</h3>", 1)[1].split("<h3>", 1)[0]
    return [float(score) for score in re.findall(r'class="score">([\d.]+)<', part)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def text(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(run, tmp_path_factory.mktemp("page") / "report.html")


# ------------------------------------------------------------------------------------------------- the page


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(text: str) -> None:
    page = Page(text)
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_every_picture_has_words_and_opens(text: str) -> None:
    images = Page(text).all("img")
    assert len(images) >= 2 * (5 + 4) * 2
    for image in images:
        assert image["alt"].endswith((", input", ", map of scores"))
        with Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))) as picture:
            picture.load()
            assert max(picture.size) <= 320
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in Page(text).all("svg"))
    ids = [attributes["id"] for _, attributes in Page(text).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_worst_come_first(run: Run, text: str) -> None:
    raw = run.load("flange", NAME)
    labels = np.array(raw.labels)
    assert scores_below(text, "Worst misses") == [round(float(s), 4) for s in sorted(raw.scores[labels])]
    assert scores_below(text, "Worst false alarms") == [round(float(s), 4) for s in -np.sort(-raw.scores[~labels])]
    first = text.index("<h3>Worst misses</h3>"), text.index("<h3>Worst false alarms</h3>")
    assert first[0] < first[1] < text.index("<h3>Scores and curves</h3>")


def table_below(text: str, caption: str) -> list[list[str]]:
    """The cells of the body of the first table whose caption begins with ``caption``."""
    body = text.split(f'<p class="caption">{caption}', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    lines = [re.split(r"</t[hd]>", line)[:-1] for line in body.split("</tr>")[:-1]]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in line] for line in lines]


def test_a_category_begins_with_what_the_threshold_of_the_model_finds(run: Run, text: str) -> None:
    section = text.split('<section id="c0">')[1].partition("</section>")[0]
    raw = run.load("flange", NAME)
    calibration = raw.calibrate(run.base)
    assert calibration is not None
    flagged = {
        kind: [
            float(score) > calibration.threshold
            for score, sample in zip(raw.scores, raw.samples, strict=True)
            if sample.kind == kind
        ]
        for kind in ("dent", "scratch", "good")
    }
    dents, scratches = sum(flagged["dent"]), sum(flagged["scratch"])
    assert 0 < dents + scratches < 5  # some of both
    assert table_below(section, f"Test images at the threshold of the model, {calibration.threshold:.4f}") == [
        ["dent", "2", str(dents), str(2 - dents), ""],
        ["scratch", "3", str(scratches), str(3 - scratches), ""],
        ["all defects", "5", str(dents + scratches), str(5 - dents - scratches), ""],
        ["good", "4", "", "", str(sum(flagged["good"]))],
    ]
    assert section.index("at the threshold of the model") < section.index("I-AUROC")
    assert section.index("best F1 that labels could choose") > section.index("<tbody>")
    assert section.count('<b class="right">found</b>') >= dents + scratches
    assert section.split("<h3>Worst misses")[1].split("<h3>")[0].count('<b class="wrong">missed</b>') == (
        5 - dents - scratches
    )
    first = table_below(text, "the paper's recipe" if "the paper's recipe" in text else "ProCon")[0]
    assert first[:4] == [
        "flange",
        f"{calibration.threshold:.4f}",
        f"{5 - dents - scratches} of 5",
        f"{sum(flagged['good'])} of 4",
    ]


def test_a_run_without_scores_of_training_images_says_how_to_get_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",), verdicts=False)
    stored = json.loads((run.folder / "run.json").read_text())
    del stored["threshold"]  # as runs were written before
    (run.folder / "run.json").write_text(json.dumps(stored))
    text = written(Run.open_folder(run.folder), tmp_path / "r.html")
    words = Page(text).words()
    assert "threshold unknown: the scores of the training images are not stored" in words
    assert "with --verdicts and -o run (procon eval always stores them)" in words
    assert "at the threshold of the model, 0" not in words
    assert "missed at the best F1" in words or "found at the best F1" in words
    assert table_below(text, "ProCon")[0][1:4] == ["unknown"] * 3


def test_another_rate_moves_the_threshold_of_the_page_without_new_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    stamp = run.raw_path("flange", NAME).stat().st_mtime_ns
    strict = run.load("flange", NAME).calibrate(run.base)
    run.use_threshold(replace(run.base, false_alarm_rate=0.2, threshold_rule="guarantee"))
    opened = Run.open_folder(run.folder)
    loose = opened.load("flange", NAME).calibrate(opened.base)
    assert strict is not None and loose is not None and loose.threshold < strict.threshold
    text = written(opened, tmp_path / "r.html")
    assert f"Test images at the threshold of the model, {loose.threshold:.4f}" in text
    assert "guarantee, false-alarm rate 0.2" in text
    assert run.raw_path("flange", NAME).stat().st_mtime_ns == stamp


def test_every_map_has_the_numbers_of_its_scale(run: Run, text: str) -> None:
    section = text.split('<section id="c1">')[1]
    raw = run.load("lid", NAME)
    good = [i for i, bad in enumerate(raw.labels) if not bad]
    pixels = np.concatenate([raw.pixel_map(i).ravel() for i in good])
    expected = (
        float(np.median(raw.maps[good])),
        float(np.quantile(pixels, 0.999)),
        max(float(raw.pixel_map(i).max()) for i in range(len(raw.scores))),
    )
    bars = re.findall(r'class="numbers"><span>([\d.]+)</span><span[^>]*>([\d.]+)</span><span>([\d.]+)<', section)
    assert len(bars) == section.count("map of scores")
    assert len(set(bars)) == 1
    assert np.allclose([float(number) for number in bars[0]], expected, atol=2e-3)


def test_the_metrics_are_those_of_the_run(run: Run, text: str) -> None:
    words = Page(text).words()
    for category in ("flange", "lid"):
        metrics = run.measure(category, NAME)
        assert f"I-AUROC {100 * metrics['i_auroc']:.2f}" in words
        assert f"AUPRO {100 * metrics['aupro']:.2f}" in words
    mean = 50 * sum(run.measure(category, NAME)["p_ap"] for category in ("flange", "lid"))
    row = re.search(r'<th scope="row">Mean</th>(.*?)</tr>', text)
    assert row and f"{mean:.2f}" in row.group(1)


def test_what_was_run_is_told_without_places_of_this_machine(run: Run, text: str) -> None:
    words = Page(text).words()
    assert "Folder data" in words and "Backbone dinov2-small, sha256 abababababab..." in words
    assert "layers -3, -6, -8, -9" in words and "56 x 56 pixels" in words
    assert str(run.folder.parent) not in text


def test_the_same_run_gives_the_same_page(run: Run, text: str, tmp_path: Path) -> None:
    assert written(run, tmp_path / "again.html") == text


def test_progress_counts_to_the_end(run: Run, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    write_report(run, tmp_path / "r.html", lambda *step: steps.append(step))
    assert steps == [("drawing the report", done, 3) for done in (1, 2, 3)]


def test_names_cannot_change_the_page(tmp_path: Path) -> None:
    names = {0: '"><script>alert(1)<:script>.png', 4: "<img src=x onerror=alert(2)>.png", 5: "a&amp;'b\n.png"}
    names[6] = os.fsdecode(b"\xff\xfe.png")
    text = written(make_run(tmp_path, categories=('<b onclick="x">',), names=names), tmp_path / "r.html")
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert "script" not in tags
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<img src=x onerror=alert(2)>.png" in page.words()
    assert '"><script>alert(1)<:script>.png' in page.words()
    assert "a&amp;'b\\x0a.png" in page.words()
    assert '<b onclick="x">' in page.words()


def test_pictures_keep_to_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, categories=("flange",))
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), np.uint8)  # as large as a JPEG gets
    for path in (tmp_path / "data" / "flange" / "test").rglob("*.png"):
        Image.fromarray(noise).save(path)
    sizes = []
    for allowed in (50_000, 500_000, 1_500_000, 100_000_000):
        monkeypatch.setattr(build, "PAGE_BYTES", allowed)
        write_report(run, tmp_path / "r.html", ignore)
        text = (tmp_path / "r.html").read_text(encoding="utf-8")
        images = [len(image["src"]) for image in Page(text).all("img")]
        assert sum(images) <= allowed
        sizes.append(len(images))
        missing = f"left out to keep the page small: procon report run --variant {NAME}" in text
        assert missing == (not images)
    assert sizes[0] == 0 < sizes[1] < sizes[2] < sizes[3] == 2 * (5 + 4 + 6)


# ------------------------------------------------------------------------------------------------- several variants


def ladder(run: Run) -> list[str]:
    rows = build_table("ladder", "folder").rows
    return [add_variant(run, replace(BASE, **row.settings)) for row in rows]


def test_many_variants_are_in_tables_and_some_can_be_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    names = ladder(run)
    (run.folder / "tables").mkdir()
    (run.folder / "tables" / "ladder.csv").touch()
    (run.folder / "tables" / "protocol.md").write_text("# Protocol\n\nPhase 1, <b>none</b> collapses.\n")
    text = written(run, tmp_path / "r.html")
    page = Page(text)
    assert list(choose_variants(run).values()) == ["ProCon (1 %, B = 5)", "SPM (1 %, B = 5)", "Hard NN (1 %, B = 1)"]
    radios = [box for box in page.all("input") if box["type"] == "radio"]
    assert [("checked" in radio, radio["id"]) for radio in radios] == [(True, "v0"), (False, "v1"), (False, "v2")]
    assert "Variant ProCon (1 %, B = 5) SPM (1 %, B = 5) Hard NN (1 %, B = 1)" in page.words()
    every = text.split("Every variant on flange", 1)[1].split("</details>")[0]
    assert every.count('<th scope="row">') == len(set(names)) == 9
    assert "From hard retrieval to projection consensus, 1 % coreset (folder data; flange)" in page.words()
    assert "Phase 1, <b>none</b> collapses." in page.words()
    spm = add_variant(run, replace(BASE, layers=(-1, -3, -6, -9, -12), layer_fusion="concat", coreset_ratio=0.01))
    assert f"{100 * run.measure('flange', spm)['p_ap']:.2f}" in page.words()


def test_a_variant_can_be_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[PROCON, {"banks": 2}, {}], categories=("flange",))
    assert main_variant(run) == "default"
    assert list(choose_variants(run)) == ["default", "banks=2", NAME]
    assert next(iter(choose_variants(run, "banks=2"))) == "banks=2"
    with pytest.raises(ConfigError) as error:
        write_report(run, tmp_path / "r.html", ignore, variant="banks=3")
    assert str(error.value) == (
        f"{run.folder}: variant must be one of banks=2, coreset_ratio=0.01, default, got 'banks=3'"
    )
    assert not (tmp_path / "r.html").exists()


def test_a_variant_of_one_category_only_is_said_to_be_missing_on_the_other(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[PROCON, {"banks": 2}])
    run.raw_path("lid", "banks=2").unlink()
    assert "banks=2 was not run on lid." in Page(written(run, tmp_path / "r.html")).words()


def test_results_of_another_system_join_under_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    samples = run.dataset.category("flange").test
    theirs = VariantScores(
        np.arange(len(samples), dtype=np.float32), np.random.default_rng(0).random((len(samples), 30, 40), np.float32)
    )
    run.write("flange", "anomalib-patchcore", theirs, samples, {"system": "anomalib PatchCore", "size": [30, 40]})
    text = written(run, tmp_path / "r.html")
    assert text.count("anomalib PatchCore") >= 2  # a choice with pictures, and a line of the table
    assert main_variant(run) != "anomalib-patchcore"
    assert "anomalib PatchCore" in written(run, tmp_path / "r.html", variant="anomalib-patchcore")


def test_all_other_systems_have_pictures_and_names_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    samples = run.dataset.category("flange").test
    theirs = VariantScores(np.arange(len(samples), dtype=np.float32), np.ones((len(samples), 30, 40), np.float32))
    for name in ("PaDiM", "PatchCore", "PatchCore-lite", "SuperADD", "RD", "CFA"):
        about = {"system": f"anomalib {name.removesuffix('-lite')}", "backbone": f"weights of {name}", "size": [30, 40]}
        run.write("flange", name, theirs, samples, about)
    shown = choose_variants(run)
    assert next(iter(shown)) == main_variant(run)
    assert shown["PaDiM"] == "anomalib PaDiM"
    assert shown["PatchCore-lite"] == "anomalib PatchCore on weights of PatchCore-lite"
    assert len([title for title in shown.values() if title.startswith("anomalib")]) == 6


def test_an_empty_run_says_how_to_fill_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[])
    with pytest.raises(ConfigError, match="holds no results yet; make some with procon bench or procon reproduce"):
        write_report(run, tmp_path / "r.html", ignore)


# ------------------------------------------------------------------------------------------------- what may be gone


def test_a_run_whose_images_are_gone_still_has_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    whole = run.measure("flange", NAME)
    shutil.rmtree(tmp_path / "data")
    opened = Run.open_folder(run.folder)
    text = written(opened, tmp_path / "r.html")
    words = Page(text).words()
    assert "18 of 18 images are not in the folder data any more: maps are shown without them." in words
    assert "Masks of flange, lid cannot be read: curves over pixels and regions are left out." in words
    assert words.count("image is gone") == 2 * 9
    assert f"AUPRO {100 * whole['aupro']:.2f}" in words  # was measured before
    assert load_metrics(opened, "lid", NAME).reasons["aupro"] == "a mask cannot be read"
    assert 0 <= load_metrics(opened, "lid", NAME)["i_ap"] <= 1
    assert 'class="truth"' not in text


def test_one_lost_image_does_not_stop_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    (tmp_path / "data" / "flange" / "test" / "scratch" / "004.png").unlink()
    (tmp_path / "data" / "flange" / "test" / "scratch" / "005.png").write_bytes(b"no image")
    words = Page(written(run, tmp_path / "r.html")).words()
    assert "1 of 9 images are not in the folder data any more" in words
    assert words.count("image is gone") >= 2


def test_defects_without_a_mask_count_for_images_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[], categories=("flange",))
    shutil.rmtree(tmp_path / "data" / "flange" / "ground_truth")
    run = Run(run.folder, run.dataset, run.base)
    add_variant(run, replace(BASE, coreset_ratio=0.01))
    text = written(run, tmp_path / "r.html")
    assert "cannot be read" not in text
    assert "undefined on these images" in text
    assert 'title="no mask marks a pixel"' in text


def test_good_images_alone_have_no_threshold(tmp_path: Path) -> None:
    run = make_run(tmp_path, variants=[], categories=("flange",))
    shutil.rmtree(tmp_path / "data" / "flange" / "test" / "scratch")
    shutil.rmtree(tmp_path / "data" / "flange" / "test" / "dent")
    shutil.rmtree(tmp_path / "data" / "flange" / "ground_truth")
    add_variant(run, replace(BASE, coreset_ratio=0.01))
    words = Page(written(run, tmp_path / "r.html")).words()
    assert "All test images are of one kind, so labels could choose no threshold." in words
    assert "Worst misses" not in words and "I-AUROC n/a" in words


# ------------------------------------------------------------------------------------------------- the parts


def reference_threshold(scores: list[float], labels: list[bool]) -> float:
    """The best F1 of any threshold, by trying them all."""
    best = 0.0
    for cut in scores:
        called = [score >= cut for score in scores]
        hits = sum(c and bad for c, bad in zip(called, labels, strict=True))
        best = max(best, 2 * hits / (sum(called) + sum(labels)))
    return best


NEXT = float(np.nextafter(np.float32(0.3), np.float32(1)))  # no float32 lies between
SCORES = st.sampled_from([0.1, 0.25, 0.3, NEXT, 0.9])


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=12))
def test_the_best_threshold_has_the_best_f1(pairs: list[tuple[float, bool]]) -> None:
    array, labels = np.array([score for score, _ in pairs], np.float32), [bad for _, bad in pairs]
    scores = [float(score) for score in array]
    cut = best_threshold(array, labels)
    if all(labels) or not any(labels):
        assert cut is None
        return
    assert cut is not None
    called = [score >= cut for score in scores]
    hits = sum(c and bad for c, bad in zip(called, labels, strict=True))
    assert 2 * hits / (sum(called) + sum(labels)) == pytest.approx(reference_threshold(scores, labels))


def test_notes_and_ranks_of_cases(run: Run) -> None:
    view = open_view(run, "flange", NAME)
    labels, scores = np.array(view.raw.labels), view.raw.scores
    found = cases.worst_scores(view, 3, defective=True)
    assert [case.index for case in found] == sorted(np.flatnonzero(labels), key=lambda i: scores[i])[:3]
    for case in found:
        beyond = sum(float(s) > float(scores[case.index]) for s in scores[~labels])
        assert case.note == f"{beyond} of 4 good images score higher"


def test_hidden_regions_are_those_with_the_lowest_median(run: Run) -> None:
    view = open_view(run, "flange", NAME)
    expected = []
    for index, mask in view.masks.items():
        values = view.raw.pixel_map(index)
        for rows in (slice(0, 14), slice(14, SIZE)):  # the two defects lie above and below this line
            part = np.zeros_like(mask)
            part[rows] = mask[rows]
            expected.append((float(np.median(values[part])), index, int(part.sum())))
    expected.sort()
    found = view.regions
    assert [(r.index, r.area) for r in found] == [(index, area) for _, index, area in expected]
    assert np.allclose([r.median for r in found], [median for median, _, _ in expected])
    case = cases.hidden_regions(view, 1)[0]
    assert case.region is not None and int(case.region.sum()) == found[0].area
    unmarked = np.concatenate(
        [view.raw.pixel_map(i)[~view.masks.get(i, np.zeros((SIZE, SIZE), bool))] for i in range(9)]
    )
    assert view.false_positive_rate(found[0].median) == pytest.approx(
        float((unmarked >= found[0].median).mean()), abs=2e-3
    )


def test_crumbs_of_masks_are_left_out(run: Run) -> None:
    view = open_view(run, "flange", NAME)
    crumb = replace(view.regions[0], area=cases.SMALLEST - 1)
    crumbled = replace(view, regions=[crumb, *view.regions[1:]])
    assert cases.hidden_regions(crumbled, 1)[0].index == view.regions[1].index


def test_examples_are_spread_over_kinds_and_scores(run: Run) -> None:
    raw = run.load("flange", NAME)
    chosen = cases.choose_examples(raw, 5)
    assert [raw.samples[i].kind for i in chosen] == ["dent", "dent", "scratch", "scratch", "good"]
    assert all(raw.scores[a] >= raw.scores[b] for a, b in ((chosen[0], chosen[1]), (chosen[2], chosen[3])))
    assert len(cases.choose_examples(raw, 2)) == 2


def square(side: int, low: float, high: float) -> NDArray[np.float32]:
    return np.full((side, side), low, np.float32) + np.tri(side, dtype=np.float32) * (high - low)


def test_a_value_has_one_colour_in_every_picture() -> None:
    scale = pictures.PeakScale(0.2, 0.5, 1.5)
    grey = np.full((8, 8, 3), 100, np.uint8)
    quiet, loud = square(8, 0.2, 0.3), square(8, 0.3, 1.5)
    assert (paint(grey, quiet, scale) == grey).all(), "a good part must not glow"
    assert (paint(grey, loud, scale)[quiet == loud] == grey[quiet == loud]).all()
    assert (paint(grey, loud, scale)[loud > 1] != grey[loud > 1]).any()
    levels = scale.level(np.array([0.0, 0.2, 0.35, 0.5, 1.0, 1.5, 9.0], np.float32))
    assert np.allclose(levels, [0, 0, 0.5, 1, 1.5, 2, 2], atol=1e-6)


def test_maps_that_are_all_alike_can_be_painted() -> None:
    scale = pictures.PeakScale(0.3, 0.3, 0.3)
    low, limit, high = scale.knots()
    assert low < limit < high
    grey = np.full((4, 4, 3), 100, np.uint8)
    assert (paint(grey, np.full((4, 4), 0.3, np.float32), scale) == grey).all()


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=4, max_size=4))
def test_an_outline_runs_one_pixel_outside_the_defect(rows: list[list[bool]]) -> None:
    mask = np.array(rows)
    padded = np.pad(mask, 1)
    beside = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
    assert (pictures.grow(mask, 1) == (mask | beside)).all()


def test_a_crop_shows_what_the_model_saw(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    raw = run.load("flange", NAME)
    whole = pictures.load_input(raw, 4)
    assert whole is not None and whole.shape == (96, 80, 3)
    cropped = pictures.load_input(
        replace(raw, size=(56, 28), resize=112), 4
    )  # the middle: half as high, a quarter as wide
    assert cropped is not None and (cropped == whole[24:72, 30:50]).all()


# ------------------------------------------------------------------------------------------------- charts


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e4))
def test_ticks_are_round_and_inside(low: float, span: float) -> None:
    found = charts.choose_ticks(low, low + span)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value, _ in found)
    assert all(float(text) == pytest.approx(value, abs=1e-6 * span + 1e-9) for value, text in found)


def test_bars_are_as_tall_as_their_counts() -> None:
    good, bad = np.array([0.0, 0.0, 0.0, 0.1]), np.array([0.9, 1.0])
    svg = charts.draw_histogram("Scores", good, bad, {"threshold": 0.2, "best F1": 0.5})
    heights = {
        name: [float(h) for h in re.findall(rf'class="{name}"[^>]*height="([\d.]+)"></rect>', svg)][: -1 if name else 0]
        for name in ("good", "bad")
    }
    assert max(heights["good"]) == pytest.approx(3 * min(heights["good"]), rel=0.01)
    assert max(heights["bad"]) == min(heights["bad"]) == pytest.approx(min(heights["good"]), rel=0.01)
    assert "4 good" in svg and "2 defective" in svg and "threshold at 0.200" in svg and "best F1 at 0.500" in svg


def test_a_curve_ends_at_the_frame() -> None:
    curve = charts.ChartLine("area 0.5", np.array([0.0, 0.2, 1.0]), np.array([0.0, 0.5, 1.0]))
    svg = charts.draw_curves("PRO", [curve], "x", "y", right=0.6)
    points = re.findall(r'd="(M[^"]*)"', svg)[0]
    assert points.startswith(f"M{charts.LEFT} {charts.BOTTOM}L")
    x, y = points.rpartition("L")[2].split()
    assert float(x) == charts.RIGHT
    assert float(y) == pytest.approx(charts.BOTTOM - 0.75 * (charts.BOTTOM - charts.TOP), abs=0.1)


def test_steps_go_up_before_they_go_on() -> None:
    curve = charts.ChartLine("AP", np.array([0.0, 0.5, 1.0]), np.array([1.0, 1.0, 0.5]), steps=True)
    path = re.findall(r'd="(M[^"]*)"', charts.draw_curves("PR", [curve], "x", "y"))[0]
    middle, bottom = (charts.LEFT + charts.RIGHT) / 2, (charts.TOP + charts.BOTTOM) / 2
    assert path == f"M{charts.LEFT} {charts.TOP}V{charts.TOP}H{middle:g}V{bottom:g}H{charts.RIGHT}"


# ------------------------------------------------------------------------------------------------- outside


def test_the_command_writes_beside_the_results(tmp_path: Path) -> None:
    run = make_run(tmp_path, categories=("flange",))
    result = CliRunner().invoke(app, ["report", str(run.folder)])
    assert result.exit_code == 0, result.output
    assert f"wrote {run.folder / 'report.html'}" in result.output
    Page((run.folder / "report.html").read_text(encoding="utf-8"))


@pytest.mark.browser
def test_the_page_renders_in_chromium(tmp_path: Path) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    run = make_run(tmp_path, variants=[PROCON, {"banks": 2}])
    path = tmp_path / "r.html"
    text = written(run, path)
    # The page has no script of its own; one in a copy looks at it from inside and leaves what it saw in the title.
    probe = (
        "<script>addEventListener('load', () => { const images = [...document.images];"
        "const broken = images.filter(i => !i.complete || !i.naturalWidth).length;"
        "const seen = e => e.getClientRects().length > 0;"
        "const shown = () => [...document.querySelectorAll('.view')].filter(seen).map(e => e.className).join();"
        "const before = shown(); document.getElementById('v1').click(); const after = shown();"
        "document.getElementById('truth').click();"
        "const outlines = [...document.querySelectorAll('.truth')].filter(seen).length;"
        "const wide = document.documentElement.scrollWidth > innerWidth;"
        "document.title = JSON.stringify([images.length, broken, before, after, outlines, wide]); })</script>"
    )
    copy = tmp_path / "probe.html"
    copy.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</head>", probe + "</head>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--window-size=390,844"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000"]

    def browse(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *flags, *more], capture_output=True, text=True, timeout=120, check=True)

    found = browse("--dump-dom", copy.as_uri())
    title = re.search(r"<title>(.*?)</title>", found.stdout)
    views = "view v0,view v0,view v0", "view v1,view v1,view v1"
    assert title and title.group(1) == f'[{text.count("<img ")},0,"{views[0]}","{views[1]}",0,false]'
    page = browse(f"--screenshot={tmp_path / 'page.png'}", path.as_uri())
    assert "CONSOLE" not in found.stderr + page.stderr
    with Image.open(tmp_path / "page.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50
