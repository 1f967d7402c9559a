"""Runs: raw results first, metrics later, resumable; tables with the paper's numbers only where they belong."""

import csv
import io
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from procon import Config, ConfigError, Detector
from procon.evaluation.data.datasets import BENCHMARKS, open_dataset
from procon.evaluation.metrics import evaluate
from procon.evaluation.paper.protocol import apply_protocol
from procon.evaluation.paper.reproduce import NAMES, bench, choose_categories, protocol, reproduce
from procon.evaluation.paper.results import Cell, Line, Result, fill_table, row_config
from procon.evaluation.paper.tables import BOTTOM_3, POOL, TABLES, Table, TableRow, build_table, printed_values
from procon.evaluation.paper.writers import to_csv, to_latex, to_markdown
from procon.evaluation.report.build import write_report
from procon.evaluation.runs.raw import Raw
from procon.evaluation.runs.run import Run, variant_name
from procon.evaluation.runs.settings import SHARED
from procon.evaluation.runs.sweep import VariantScores
from procon.scale.categories import compute_on
from procon.scale.cluster import ThisProcess
from procon.vision.backbone import Backbone
from tests.conftest import part_pixels, tiny_config

CPU = torch.device("cpu")


def ignore(*_: object) -> None:
    pass


def make_category(folder: Path, seed: int, good: int = 5, masks: bool = True) -> None:
    """An MVTec category of small parts with a square defect."""
    for place in ("train/good", "test/good", "test/square", "ground_truth/square"):
        (folder / place).mkdir(parents=True)
    for index in range(good):
        Image.fromarray(part_pixels(seed + index)).save(folder / f"train/good/{index:03d}.png")
    for index in range(3):
        Image.fromarray(part_pixels(seed + 100 + index)).save(folder / f"test/good/{index:03d}.png")
        Image.fromarray(part_pixels(seed + 200 + index, defect=True)).save(folder / f"test/square/{index:03d}.png")
        mask = np.zeros((96, 80), np.uint8)
        mask[40:60, 30:50] = 255
        if masks:
            Image.fromarray(mask).save(folder / f"ground_truth/square/{index:03d}_mask.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "mpdd"
    for place, name in enumerate(("metal_plate", "tubes")):
        make_category(root / name, 1000 * place)
    return root


@pytest.fixture(scope="module")
def base(tiny_backbone: Path) -> Config:
    return Config(backbone="dinov2-custom", weights=str(tiny_backbone), image_size=70)


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return {"layers": (-1, -3), "banks": 2, "coreset_ratio": 0.3, "num_neighbors": 3}


@pytest.fixture
def run(data: Path, base: Config, tmp_path: Path) -> Run:
    return Run(tmp_path / "run", open_dataset(data), base)


# ------------------------------------------------------------------------------------------------------ raw results


def test_raw_results_are_those_of_a_detector(run: Run, small: dict[str, Any], data: Path) -> None:
    config = replace(run.base, **small)
    run.compute("tubes", [config], CPU, ignore)
    raw = run.load("tubes", variant_name(config))
    detector = Detector(config, device="cpu").fit(data / "tubes" / "train" / "good")
    found = detector.predict([sample.path for sample in raw.samples])
    assert raw.scores.tolist() == [result.score for result in found]
    assert raw.labels == [False] * 3 + [True] * 3
    assert [sample.kind for sample in raw.samples] == ["good"] * 3 + ["square"] * 3
    pixels = [next(iter(detector.reader.extractor.batches([picture])))[1] for picture in _open(raw)]
    for index, image in enumerate(pixels):
        assert np.array_equal(raw.pixel_map(index), detector.scorer.measure_pixels(image)[1][0].numpy())
    assert raw.about["config"]["banks"] == 2
    assert raw.about["system"] == "procon"


def test_every_category_gets_the_shape_of_its_good_images(base: Config, small: dict[str, Any], tmp_path: Path) -> None:
    data = tmp_path / "parts"
    make_category(data / "disc", 0)
    make_category(data / "long", 1000)
    for path in data.glob("long/*/*/*.png"):
        Image.open(path).resize((240, 60)).save(path)
    run = Run(tmp_path / "run", open_dataset(data), replace(base, image_size="auto", patch_budget=36), verdicts=True)
    config = replace(run.base, **small)
    for category, size in (("disc", (84, 70)), ("long", (42, 168))):
        run.compute(category, [config], CPU, ignore)
        raw = run.load(category, variant_name(config))
        assert raw.size == size and raw.about["config"]["image_size"] == list(size)
        detector = Detector(config, device="cpu").fit(data / category / "train" / "good")
        assert detector.config.image_size == size
        found = detector.predict([sample.path for sample in raw.samples])
        assert raw.scores.tolist() == [result.score for result in found]
        known = raw.calibrate(config)
        assert known is not None and detector.calibration is not None
        assert known.threshold == detector.calibration.threshold
    again = Run.open_folder(run.folder)
    assert again.base.image_size == "auto" and again.has("long", config)
    page = tmp_path / "report.html"
    write_report(again, page, ignore)
    assert "disc: 70 x 84 pixels; long: 168 x 42 pixels" in page.read_text()


def test_a_run_from_before_a_setting_is_continued(run: Run, base: Config) -> None:
    fake(run, [base], 1, ("tubes",))
    about = run.folder / "run.json"
    document = json.loads(about.read_text())
    del document["settings"]["patch_budget"]
    about.write_text(json.dumps(document))
    assert Run(run.folder, run.dataset, base).has("tubes", base)


def _open(raw: Raw) -> list[Any]:
    from procon.vision.images import open_image

    return [open_image(sample.path) for sample in raw.samples]


def test_metrics_come_from_the_raw_file_and_follow_it(run: Run, small: dict[str, Any]) -> None:
    config = replace(run.base, **small)
    run.compute("tubes", [config], CPU, ignore)
    name = variant_name(config)
    found = run.measure("tubes", name)
    raw = run.load("tubes", name)
    masks = [raw.mask(index) for index in range(6)]
    expected = evaluate(raw.scores, raw.labels, [raw.pixel_map(index) for index in range(6)], masks)
    assert dict(found) == dict(expected)
    assert dict(run.measure("tubes", name)) == dict(found)  # now from the file beside it
    worse = VariantScores(-raw.scores, raw.maps)
    run.write("tubes", name, worse, raw.samples, raw.about)
    assert run.measure("tubes", name)["i_auroc"] == 1 - found["i_auroc"]


def test_undefined_metrics_survive_the_way_through_the_file(run: Run, small: dict[str, Any]) -> None:
    config = replace(run.base, **small)
    run.compute("tubes", [config], CPU, ignore)
    raw = run.load("tubes", variant_name(config))
    run.write("tubes", "good-only", VariantScores(raw.scores[:3], raw.maps[:3]), raw.samples[:3], raw.about)
    for _ in range(2):
        found = run.measure("tubes", "good-only")
        assert math.isnan(found["i_auroc"])
        assert found.reasons["i_auroc"] == "every image is labelled 0"
    assert "NaN" not in (run.folder / "metrics" / "tubes" / "good-only.json").read_text()


def test_a_defect_without_a_mask_counts_for_the_image_metrics_alone(
    base: Config, small: dict[str, Any], tmp_path: Path
) -> None:
    make_category(tmp_path / "part", 0)
    (tmp_path / "part/ground_truth/square/001_mask.png").unlink()
    run = Run(tmp_path / "run", open_dataset(tmp_path / "part"), base)
    config = replace(base, **small)
    run.compute("part", [config], CPU, ignore)
    raw = run.load("part", variant_name(config))
    found = run.measure("part", variant_name(config))
    kept = [0, 1, 2, 3, 5]
    expected = evaluate(
        raw.scores[kept], np.array(raw.labels)[kept], [raw.pixel_map(i) for i in kept], [raw.mask(i) for i in kept]
    )
    assert found["p_ap"] == expected["p_ap"]
    assert found["i_ap"] == evaluate(raw.scores, raw.labels)["i_ap"]


def test_maps_at_pixel_size_are_taken_as_they_are(run: Run, data: Path) -> None:
    """Another system has no patches: it writes whole maps."""
    samples = run.dataset.category("tubes").test
    maps = np.random.default_rng(0).random((6, 20, 30), np.float32)
    run.write(
        "tubes", "peer", VariantScores(maps.max(axis=(1, 2)), maps), samples, {"size": (20, 30), "system": "peer"}
    )
    raw = run.load("tubes", "peer")
    assert np.array_equal(raw.pixel_map(4), maps[4])
    mask = raw.mask(4)
    assert mask is not None
    assert mask.shape == (20, 30)
    assert run.list_variants() == {"tubes": ["peer"]}


def test_a_centre_crop_cuts_the_masks_too(data: Path, base: Config, small: dict[str, Any], tmp_path: Path) -> None:
    run = Run(tmp_path / "run", open_dataset(data), replace(base, resize=96))
    config = replace(run.base, **small)
    run.compute("tubes", [config], CPU, ignore)
    mask = run.load("tubes", variant_name(config)).mask(4)
    assert mask is not None
    rows, columns = np.nonzero(mask)
    # rows 40..59 of 96 stay where they are, columns 30..49 of 80 become 36..59 of 96; 13 are cut off on each side
    assert (rows.min(), rows.max()) == (27, 46)
    assert (columns.min(), columns.max()) == (23, 46)


def test_variants_are_named_by_what_differs_from_the_paper() -> None:
    assert variant_name(Config()) == "default"
    assert (
        variant_name(Config(banks=1, layers=(-6, -9), coreset_ratio=0.01)) == "banks=1+coreset_ratio=0.01+layers=-6,-9"
    )
    assert variant_name(Config(backbone="dinov2-small", weights="x")) == "default"  # what a run shares
    assert set(SHARED) <= {field.name for field in fields(Config)}


def test_variants_of_all_tables_have_names_of_their_own(base: Config) -> None:
    configs = {
        row_config(base, row, seed)
        for name in TABLES
        for dataset in (*BENCHMARKS, "folder")
        for row in build_table(name, dataset).rows
        for seed in range(2)
    }
    assert len({variant_name(config) for config in configs}) == len(configs)
    assert all(re.fullmatch(r"[\w=+.,-]+", variant_name(config)) for config in configs)


# ------------------------------------------------------------------------------------------------------ taking up again


def test_a_killed_run_goes_on_and_ends_the_same(
    run: Run, small: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = [replace(run.base, **{**small, "banks": banks}) for banks in (1, 2, 3)]
    whole = Run(tmp_path / "whole", run.dataset, run.base)
    whole.compute("tubes", variants, CPU, ignore)
    written = Run.write
    count = 0

    def killed(self: Run, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        written(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "write", killed)
        run.compute("tubes", variants, CPU, ignore)
    assert len(run.list_variants()["tubes"]) == 1
    stages: set[str] = set()
    run.compute("tubes", variants, CPU, lambda stage, *_: stages.add(stage))
    assert "reading images" not in stages  # the tokens were there
    for name in whole.list_variants()["tubes"]:
        assert np.array_equal(run.load("tubes", name).maps, whole.load("tubes", name).maps)
    assert not (run.folder / "work" / "tubes").exists()


def test_finished_work_needs_neither_weights_nor_images(
    run: Run, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(run.base, **small)
    run.compute("tubes", [config], CPU, ignore)
    monkeypatch.setattr(Backbone, "load", None)
    run.compute("tubes", [config], CPU, ignore)


def test_a_folder_with_another_run_is_refused(run: Run, base: Config) -> None:
    fake(run, [base], 1, ("tubes",))
    with pytest.raises(
        ConfigError, match=r"holds a run with image_size 70 instead of 84; choose another output folder"
    ):
        Run(run.folder, run.dataset, replace(base, image_size=84))
    assert Run(run.folder, run.dataset, base).folder == run.folder
    again = Run.open_folder(run.folder)
    assert (again.dataset.name, again.base) == ("mpdd", base)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no run \(no run.json\); make one with procon bench"):
        Run.open_folder(tmp_path)


def test_variants_of_another_backbone_are_refused(run: Run, base: Config) -> None:
    with pytest.raises(ConfigError, match="variants of a run must share backbone, weights"):
        run.compute("tubes", [replace(base, precision="fp32")], CPU, ignore)


def test_a_category_without_test_images_is_named(base: Config, small: dict[str, Any], tmp_path: Path) -> None:
    make_category(tmp_path / "part", 0)
    for path in (tmp_path / "part" / "test").rglob("*.png"):
        path.unlink()
    run = Run(tmp_path / "run", open_dataset(tmp_path / "part"), base)
    with pytest.raises(ConfigError, match="part has no test images"):
        run.compute("part", [replace(base, **small)], CPU, ignore)


# ------------------------------------------------------------------------------------------------------ tables


def fake(run: Run, configs: list[Config], quality: float, categories: tuple[str, ...]) -> None:
    """Raw results of a system of known quality: defects score ``quality`` higher than noise."""
    for category in categories:
        samples = run.dataset.category(category).test
        for config in configs:
            random = np.random.default_rng(len(variant_name(config)))
            maps = random.random((len(samples), 5, 5), np.float32)
            scores = np.array([quality * sample.defective for sample in samples], np.float32) + maps[:, 0, 0]
            about = {"size": (70, 70), "blur_sigma": 4.0}
            run.write(category, variant_name(config), VariantScores(scores, maps), samples, about)


def test_the_tables_of_the_issue_are_there() -> None:
    wanted = "main ladder per-layer concat banks budget single-layer fusion pools promotion crossdomain per-category"
    assert {*wanted.split(), "protocol"} <= set(NAMES)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dataset", [*BENCHMARKS, "folder"])
def test_every_row_the_paper_printed_is_a_row_of_ours(name: str, dataset: str) -> None:
    table = build_table(name, dataset)
    labels = {row.label for row in table.rows}
    assert len(labels) == len(table.rows)
    for row in table.rows:
        row_config(Config(), row)  # a valid variant
    printed = set(printed_values(name, "mvtec-bottom3" if table.subset and dataset == "mvtec" else dataset))
    if table.per_category:
        assert printed == set(BENCHMARKS[dataset].categories if dataset in BENCHMARKS else ())
    elif name == "main":
        assert printed >= ({"ProCon"} if dataset in ("mvtec", "visa", "realiad") else set())
    else:
        assert printed <= labels


def test_published_numbers_are_percent_under_our_names() -> None:
    assert printed_values("ladder", "mvtec")["+ layer consensus (ProCon)"] == {
        "i_auroc": 99.71,
        "p_auroc": 98.62,
        "p_ap": 72.98,
        "pauroc30": 95.66,
    }
    assert printed_values("per-category", "mpdd")["metal_plate"]["p_ap"] == 97.17  # printed as a fraction
    assert printed_values("per-category", "mpdd")["metal_plate"]["pro200"] == 96.33
    assert printed_values("ladder", "folder") == {}
    for table in ("main", "per-category"):
        for dataset in ("mvtec", "visa", "realiad"):
            for values in printed_values(table, dataset).values():
                assert "aupro" not in values  # the paper has no true AUPRO
                assert all(5 < value <= 100 for value in values.values())


def test_an_unknown_table_is_named(run: Run) -> None:
    with pytest.raises(ConfigError, match="the table must be one of main, ladder"):
        build_table("figure", "mvtec")
    with pytest.raises(ConfigError, match="the table must be one of main, ladder"):
        reproduce(run, ["figure"], run.dataset.categories, compute_on(ThisProcess("cpu"), ignore), ignore)
    with pytest.raises(ConfigError, match=r"categories must be among metal_plate, tubes, got bottle"):
        choose_categories(run.dataset.root, run.dataset.categories, ["bottle", "tubes"])
    assert choose_categories(run.dataset.root, run.dataset.categories, ["tubes", "metal_plate"]) == (
        "metal_plate",
        "tubes",
    )


def test_means_spreads_and_the_papers_mean_of_the_same_categories(run: Run) -> None:
    table = build_table("crossdomain", "mpdd")
    for seed in range(3):
        fake(run, [row_config(run.base, table.rows[0], seed)], seed, run.dataset.categories)
    result = fill_table(run, table, run.dataset.categories, seeds=3)
    variants = [variant_name(row_config(run.base, table.rows[0], seed)) for seed in range(3)]
    for column in table.columns:
        repeats = [100 * np.mean([run.measure(c, v)[column] for c in run.dataset.categories]) for v in variants]
        cell = result.lines[0].cells[column]
        assert cell.value == pytest.approx(np.mean(repeats))
        assert cell.spread == pytest.approx(np.std(repeats, ddof=1))
    paper = printed_values("per-category", "mpdd")
    expected = (paper["metal_plate"]["p_ap"] + paper["tubes"]["p_ap"]) / 2
    assert result.lines[0].cells["p_ap"].paper == pytest.approx(expected)
    assert result.lines[0].cells["aupro"].paper is None
    assert any("the means over the same 2 of 6 categories" in note for note in result.notes)
    assert any("3 repeats" in note for note in result.notes)
    assert any("what the paper prints as AUPRO" in note for note in result.notes)
    assert any("not the same features" in note for note in result.notes)


def test_a_table_per_category_has_a_line_for_each_and_the_mean(run: Run) -> None:
    table = build_table("per-category", "mpdd")
    fake(run, [row_config(run.base, table.rows[0])], 1, run.dataset.categories)
    result = fill_table(run, table, run.dataset.categories)
    assert [line.label for line in result.lines] == ["metal_plate", "tubes", "Mean"]
    assert result.lines[0].cells["p_ap"].paper == 97.17
    means = [line.cells["p_ap"].value for line in result.lines]
    assert means[2] == pytest.approx((means[0] + means[1]) / 2)  # type: ignore[operator]


def test_means_over_other_categories_are_not_compared(data: Path, base: Config, tmp_path: Path) -> None:
    root = tmp_path / "mvtec"
    for name in ("bottle", "zipper"):
        make_category(root / name, 0)
    run = Run(tmp_path / "run", open_dataset(root, "mvtec"), base)
    table = build_table("banks", "mvtec")
    fake(run, [row_config(base, row) for row in table.rows], 1, ("bottle", "zipper"))
    result = fill_table(run, table, ("bottle", "zipper"))
    assert all(cell.paper is None for line in result.lines for cell in line.cells.values())
    assert any("means over all 15 categories of MVTec-AD, of which 2 are here: not compared" in n for n in result.notes)
    main = build_table("main", "mvtec")
    fake(run, [row_config(base, row) for row in main.rows], 1, ("bottle", "zipper"))
    lines = {line.label: line for line in fill_table(run, main, ("bottle", "zipper")).lines}
    assert lines["ProCon"].cells["p_ap"].paper == pytest.approx(
        np.mean([printed_values("per-category", "mvtec")[name]["p_ap"] for name in ("bottle", "zipper")])
    )
    assert lines["Dinomaly"].published
    assert lines["Dinomaly"].cells["aupro"].paper == 95.0  # over regions, as its authors print it
    assert "pauroc30" not in lines["Dinomaly"].cells


def test_reproduce_runs_what_is_missing_and_writes_the_tables(
    run: Run, monkeypatch: pytest.MonkeyPatch, small: dict[str, Any]
) -> None:
    """With a backbone of four blocks the paper's layers do not exist, so the tables are small ones of the same form."""
    tables = {
        "banks": Table("banks", "Banks", tuple(TableRow(f"B = {b}", {**small, "banks": b}) for b in (1, 2))),
        "pools": Table("pools", "Pools", (TableRow("{-1, -3}", small),), subset=True),
    }
    monkeypatch.setattr("procon.evaluation.paper.reproduce.TABLES", tables)
    monkeypatch.setattr("procon.evaluation.paper.tables.TABLES", tables)
    monkeypatch.setattr("procon.evaluation.paper.reproduce.SPM", TableRow("SPM", {**small, "layer_fusion": "concat"}))
    stages: list[str] = []

    def note_stage(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)

    def note_work(_worker: str, unit: str, stage: str, _done: int, _total: int) -> None:
        stages.append(f"{unit}: {stage}")

    results = reproduce(
        run, ["pools", "banks"], run.dataset.categories, compute_on(ThisProcess("cpu"), note_work), note_stage
    )
    assert [result.name for result in results] == ["banks", "pools"]
    work = {
        f"{name}: {stage}" for name in run.dataset.categories for stage in ("reading images", "scoring", "measuring")
    }
    assert set(stages) == {*work, "measuring the tables"}
    assert stages.count("tubes: reading images") == 11  # once for each image
    written = {path.name for path in (run.folder / "tables").iterdir()}
    assert written == {f"{name}.{suffix}" for name in ("banks", "pools") for suffix in ("csv", "md", "tex")}
    assert not list((run.folder / "work").iterdir())


def test_bench_compares_with_the_paper_only_at_its_operating_point(
    run: Run, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = bench(run, replace(run.base, **small), run.dataset.categories, compute_on(ThisProcess("cpu"), ignore))
    assert result.name == "bench"
    assert [line.label for line in result.lines] == ["metal_plate", "tubes", "Mean"]
    assert all(cell.paper is None for line in result.lines for cell in line.cells.values())
    final = {**small, "coreset_ratio": 0.3}
    table = Table("per-category", "Categories", (TableRow("ProCon", final),), ("i_auroc", "p_ap"), per_category=True)
    monkeypatch.setattr("procon.evaluation.paper.reproduce.build_table", lambda *_: table)
    result = bench(run, replace(run.base, **small), run.dataset.categories, compute_on(ThisProcess("cpu"), ignore))
    assert result.name == "per-category"
    assert result.lines[0].cells["p_ap"].paper == 97.17


# ------------------------------------------------------------------------------------------------------ the protocol


def phase_tables() -> dict[str, dict[str, dict[str, float]]]:
    """The tables of the four phases, as printed."""
    places = {"single-layer": "mvtec", "fusion": "mvtec-bottom3", "pools": "mvtec-bottom3", "promotion": "mvtec"}
    return {name: printed_values(name, dataset) for name, dataset in places.items()}


def test_the_rules_choose_the_papers_recipe_from_the_papers_tables() -> None:
    tables = phase_tables()
    gate = dict.fromkeys([*tables["pools"], "SPM"], 99.5)
    lines = apply_protocol(tables, gate, BOTTOM_3)
    assert lines[-1].startswith("Surviving recipe: pool {-3, -6, -8, -9}, fusion by Mean.")
    text = "\n".join(lines)
    assert "excluded, as they collapse: -12." in text
    assert "Mean is best" in text
    tables["promotion"] = printed_values("promotion", "visa")
    lines = apply_protocol(tables, gate, BOTTOM_3)
    assert lines[-1].startswith("Surviving recipe: pool {-3, -6, -8, -9}, fusion by Mean.")
    assert sum("does not beat SPM" in line for line in lines) == 3


def test_a_pool_below_the_gate_is_not_promoted_and_no_pool_may_survive() -> None:
    tables = phase_tables()
    gate = {**dict.fromkeys([*tables["pools"], "SPM"], 99.5), "{-3, -6, -8, -9}": 98.9}
    lines = apply_protocol(tables, gate, BOTTOM_3)
    assert lines[-1] == "No pool survives on this data."
    assert any(
        "{-3, -6, -8, -9}: P-AP 72.21, I-AUROC 98.90 on transistor, gate 99.00: not promoted." in x for x in lines
    )


def test_the_protocol_runs_on_raw_results(run: Run) -> None:
    for name in ("single-layer", "fusion", "pools", "promotion"):
        fake(run, [row_config(run.base, row) for row in build_table(name, "mpdd").rows], 1, run.dataset.categories)
    lines = protocol(run, run.dataset.categories)
    assert (run.folder / "tables" / "protocol.md").read_text().splitlines() == lines
    assert sum(line.startswith("Phase 3") for line in lines) == 5


# ------------------------------------------------------------------------------------------------------ writers

RESULT = Result(
    "banks",
    "Number of banks (MVTec-AD)",
    ("i_auroc", "p_ap"),
    [
        Line("B = 1 & 50 %", {"i_auroc": Cell(99.5, 0.25, 99.68), "p_ap": Cell(math.nan)}),
        Line("Peer_1", {"p_ap": Cell(paper=45.2)}, published=True),
    ],
    ["A note with 5 %."],
)


def test_markdown() -> None:
    assert to_markdown(RESULT).splitlines() == [
        "**Number of banks (MVTec-AD)**",
        "",
        "| Variant | I-AUROC | P-AP |",
        "|---|---:|---:|",
        "| B = 1 & 50 % | 99.50 ± 0.25 (99.68, -0.18) | n/a |",
        "| Peer_1 \\* |  | 45.20 |",
        "",
        "- In brackets: the paper's value and ours less the paper's.",
        "- A note with 5 %.",
    ]


def test_csv_holds_every_number_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(RESULT))))
    assert rows[0]["i_auroc"] == "99.5"
    assert rows[0]["i_auroc_spread"] == "0.25"
    assert float(rows[0]["i_auroc_difference"]) == pytest.approx(-0.18)
    assert rows[0]["p_ap"] == ""
    assert rows[1] == {**rows[1], "row": "Peer_1", "published": "True", "p_ap": "", "p_ap_paper": "45.2"}
    assert [row["row"] for row in rows] == ["B = 1 & 50 %", "Peer_1"]


def test_latex_escapes_and_balances() -> None:
    text = to_latex(RESULT)
    assert "B = 1 \\& 50 \\% & 99.50 $\\pm$ 0.25 {\\scriptsize(99.68)} & n/a \\\\" in text
    assert "Peer\\_1$^*$ &  & 45.20 \\\\" in text
    assert text.count("\\begin") == text.count("\\end")
    assert text.count("{") == text.count("}")
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert {line.replace("\\&", "").count("&") for line in rows} == {2}
    pools = to_latex(replace(RESULT, lines=[Line("{-3, -6}", {"i_auroc": Cell(1.0)})]))
    assert "\\{-3, -6\\} & 1.00" in pools


def test_layers_of_the_final_pool_are_the_default() -> None:
    assert Config().layers == POOL
    assert json.loads(json.dumps(Config().to_dict()))["layers"] == list(POOL)
    assert tiny_config(Path("x")).banks == 2
