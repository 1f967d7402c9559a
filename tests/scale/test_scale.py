"""Work cut into units gives the files of work done in one piece. Here without a cluster; see test_ray.py."""

import gc
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from procon import ConfigError, Detector, ImageError, ProconError
from procon.errors import MissingExtraError
from procon.evaluation.paper.reproduce import reproduce
from procon.evaluation.paper.tables import Table, TableRow
from procon.method.coreset import to_grid
from procon.model.selection import select_anchors
from procon.prediction import Prediction
from procon.results.coco import CocoFile
from procon.results.gallery import Card
from procon.results.inspection import ScoredImage as Scored
from procon.results.inspection import find_images, inspect
from procon.scale import cluster
from procon.scale.categories import compute_on
from procon.scale.cluster import ThisProcess, Unit, UnitResult, collect_values, import_ray, split_items
from procon.scale.family import fit_family
from procon.scale.images import inspect_on
from procon.scale.parts import find_parts, fit_parts
from procon.scale.sharded import pick_centers
from procon.vision.images import open_image
from tests.conftest import Run as Cli
from tests.conftest import part_pixels, tiny_config
from tests.scale.data import CATEGORIES, make_dataset, make_run, metrics, raw_bytes, variants

CPU = torch.device("cpu")


def ignore(*_: object) -> None:
    pass


class Wide(ThisProcess):
    """One process that says it has many slots, so that categories are cut into memories."""

    slots = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data") / "parts")


# ------------------------------------------------------------------------------------------------------ units


def double(number: int, report: Any) -> int:
    report("doubling", 1, 1)
    return 2 * number


def refuse(_report: Any) -> None:
    raise ImageError("part.png: is a text file")


def test_units_give_values_or_the_error_a_user_can_fix() -> None:
    reports: list[tuple[str, str, str, int, int]] = []
    units = [Unit("two", double, (2,)), Unit("bad", refuse), Unit("three", double, (3,))]
    done = list(ThisProcess().run(units, lambda *facts: reports.append(facts)))
    assert [one.value for one in done] == [4, None, 6]
    assert [one.error for one in done] == [None, "bad: part.png: is a text file", None]
    assert reports == [("", "two", "doubling", 1, 1), ("", "three", "doubling", 1, 1)]
    with pytest.raises(ProconError, match=r"bad: part\.png"):
        list(collect_values(done))
    assert [value for _, value in collect_values(done[:1])] == [4]


def test_a_fault_of_ours_is_not_an_error_of_the_users() -> None:
    with pytest.raises(TypeError):
        list(ThisProcess().run([Unit("broken", double, ("a", "b"))], ignore))


def test_items_are_split_into_groups() -> None:
    assert split_items(range(7), 3) == [range(3), range(3, 6), range(6, 7)]
    assert split_items([], 3) == []


def test_without_ray_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(cluster, "import_module", gone)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'procon[ray]'")):
        import_ray()


# ------------------------------------------------------------------------------------------------------ categories


@pytest.mark.parametrize("workers", [ThisProcess("cpu"), Wide("cpu")], ids=["whole", "by memory"])
def test_categories_give_the_raw_files_of_one_process(
    workers: ThisProcess, data: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    alone = make_run(tmp_path / "alone", data, tiny_backbone)
    for category in CATEGORIES:
        alone.compute(category, variants(alone), CPU, ignore)
    cut_up = make_run(tmp_path / "cut", data, tiny_backbone)
    reports: list[tuple[str, str]] = []
    compute = compute_on(workers, lambda _worker, unit, stage, *_: reports.append((unit, stage)))
    compute(cut_up, {category: variants(cut_up) for category in CATEGORIES}, False)
    assert raw_bytes(cut_up) == raw_bytes(alone)
    assert len(raw_bytes(cut_up)) == 9
    assert metrics(cut_up) == metrics(alone)
    assert not list((cut_up.folder / "work").iterdir())
    scored = {unit for unit, stage in reports if stage == "scoring"}
    assert len(scored) == (3 if workers.slots == 1 else 9)  # two single layers and one of both, in each category
    assert len([one for one in reports if one == ("lid", "reading images")]) == 11  # once for each image


def test_workers_score_the_training_images_of_a_run_with_verdicts(
    data: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    alone, cut_up = (make_run(tmp_path / name, data, tiny_backbone) for name in ("alone", "cut"))
    alone.verdicts = cut_up.verdicts = True
    alone.compute("lid", variants(alone), CPU, ignore)
    compute_on(Wide("cpu"), ignore)(cut_up, {"lid": variants(cut_up)}, False)
    assert raw_bytes(cut_up) == raw_bytes(alone)
    good = cut_up.load("lid", cut_up.list_variants()["lid"][0]).good
    assert good is not None and good.shape == (5, 3)


def test_what_is_there_is_not_done_again(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data, tiny_backbone)
    compute_on(Wide("cpu"), ignore)(run, {"lid": variants(run)}, False)
    before = raw_bytes(run)
    stages: set[str] = set()
    compute_on(Wide("cpu"), lambda _w, _u, stage, *_: stages.add(stage))(run, {"lid": variants(run)}, False)
    assert stages == {"measuring"} and raw_bytes(run) == before


def test_the_tables_of_reproduce_do_not_depend_on_who_computes(
    data: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"layers": (-1, -3), "coreset_ratio": 0.3, "num_neighbors": 3}
    rows = tuple(TableRow(f"B = {banks}", {**small, "banks": banks}) for banks in (1, 2))
    tables = {
        "banks": Table("banks", "Banks", rows),
        "pools": Table("pools", "Pools", rows[:1], subset=True),
    }
    monkeypatch.setattr("procon.evaluation.paper.reproduce.TABLES", tables)
    monkeypatch.setattr("procon.evaluation.paper.tables.TABLES", tables)
    monkeypatch.setattr("procon.evaluation.paper.reproduce.SPM", TableRow("SPM", {**small, "layer_fusion": "concat"}))
    written = []
    for name, compute in (("alone", compute_on(ThisProcess("cpu"), ignore)), ("cut", compute_on(Wide("cpu"), ignore))):
        run = make_run(tmp_path / name, data, tiny_backbone)
        reproduce(run, ["banks", "pools"], run.dataset.categories, compute, ignore)
        written.append({path.name: path.read_text() for path in (run.folder / "tables").iterdir()} | raw_bytes(run))
    assert written[0] == written[1] and "banks.csv" in written[0]


# ------------------------------------------------------------------------------------------------------ images


@pytest.fixture(scope="module")
def model(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detector.save(tmp_path_factory.mktemp("model") / "part.procon")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "parts"
    folder.mkdir()
    for number in range(7):
        Image.fromarray(part_pixels(300 + number, defect=number % 3 == 0)).save(folder / f"{number}.png")
    (folder / "5.png").write_bytes(b"nothing")
    return folder


def results(folder: Path) -> dict[str, Any]:
    """Every file of an inspection, without the seconds."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".csv" and path.name == "scores.csv":
            found[path.name] = [re.sub(r",[\d.]+,([^,]*)$", r",\1", line) for line in path.read_text().splitlines()]
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[path.name] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def test_shards_of_images_leave_the_files_of_one_run(
    detector: Detector, model: Path, pictures: Path, tmp_path: Path
) -> None:
    images = find_images([pictures])
    whole = inspect(detector, images, tmp_path / "whole", coco=tmp_path / "whole" / "coco.json")
    rows: list[Scored] = []
    cut_up = inspect_on(
        ThisProcess("cpu"), model, images, tmp_path / "cut", ignore,
        detector=detector, coco=tmp_path / "cut" / "coco.json", on_row=rows.append, shard=3,
    )  # fmt: skip
    assert [row.name for row in rows] == [row.name for row in whole.rows] == [name for name, _ in images]
    assert cut_up.finished and len(cut_up.errors) == 1
    ours, theirs = results(tmp_path / "cut"), results(tmp_path / "whole")
    assert set(ours) == set(theirs) and len(ours) == 6 + 6  # overlays and the six other files
    assert ours == theirs


def test_rows_are_told_in_order_and_kept_when_interrupted(
    detector: Detector, model: Path, pictures: Path, tmp_path: Path
) -> None:
    class Backwards(ThisProcess):
        def run(self, units: Any, on_progress: Any) -> Any:
            return iter(reversed(list(super().run(units, on_progress))))

    images = find_images([pictures])
    told: list[str] = []
    inspect_on(Backwards("cpu"), model, images, None, ignore, detector=detector, shard=2,
               on_row=lambda row: told.append(row.name))  # fmt: skip
    assert told == [name for name, _ in images]

    class Broken(ThisProcess):
        def run(self, units: Any, on_progress: Any) -> Any:
            done = list(super().run(units, on_progress))
            yield done[0]
            yield UnitResult(done[1].unit, None, "images 2..: its worker died 4 times")

    with pytest.raises(ProconError, match="its worker died"):
        inspect_on(Broken("cpu"), model, images, tmp_path / "out", ignore, detector=detector, shard=2)
    assert len((tmp_path / "out" / "scores.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is False


def test_pictures_of_the_page_are_not_all_held_in_memory(
    detector: Detector, model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which shards finish: those that the page shows, and those of the shard that just came."""
    alive: list[int] = []

    class Backwards(ThisProcess):
        def run(self, units: Any, on_progress: Any) -> Any:
            for done in super().run(reversed(list(units)), on_progress):
                yield done
                alive.append(sum(type(thing) is Card for thing in gc.get_objects()))

    monkeypatch.setattr("procon.results.gallery.MOST_CARDS", 2)
    monkeypatch.setattr("procon.scale.images.MOST_CARDS", 2, raising=False)
    images = find_images([pictures])
    gc.collect()
    before = sum(type(thing) is Card for thing in gc.get_objects())
    inspect(detector, images, tmp_path / "whole")
    inspect_on(Backwards("cpu"), model, images, tmp_path / "cut", ignore, detector=detector, shard=1)
    assert len(alive) == 7 and max(alive) - before <= 2 + 1
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_coco_files_are_joined_with_numbers_of_their_own(detector: Detector) -> None:
    found: list[Prediction] = [detector.predict(part_pixels(seed, defect=True)) for seed in range(3)]
    whole, first, second = CocoFile(), CocoFile(), CocoFile()
    for number, prediction in enumerate(found):
        whole.add(str(number), prediction)
        (first if number < 1 else second).add(str(number), prediction)
    first.join(second)
    assert whole.annotations and first == whole


# ------------------------------------------------------------------------------------------------------ parts


def test_every_part_gets_the_model_of_a_fit_by_itself(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_backbone)
    parts = find_parts(data)
    assert [part.name for part in parts] == list(CATEGORIES)
    fitted = list(fit_parts(ThisProcess("cpu"), config, parts, tmp_path / "models", ignore))
    assert [(one.name, one.images, one.fresh, one.error) for one in fitted] == [(n, 5, True, None) for n in CATEGORIES]
    Detector(config, device="cpu").fit(data / "lid").save(tmp_path / "lid.procon")
    assert (tmp_path / "lid.procon").read_bytes() == fitted[0].model.read_bytes()


def test_every_part_gets_the_shape_of_its_images(
    tiny_backbone: Path, data: Path, tmp_path: Path, run: Cli, good_folder: Path
) -> None:
    folder, models = make_dataset(tmp_path / "parts"), tmp_path / "models"
    for path in (folder / "plate/train/good").iterdir():
        Image.fromarray(part_pixels(1)).resize((240, 60)).save(path)
    config = tiny_config(tiny_backbone, image_size="auto", patch_budget=36)
    fitted = list(fit_parts(ThisProcess("cpu"), config, find_parts(folder), models, ignore))
    assert [one.size for one in fitted] == [(84, 70), (42, 168), (84, 70)]
    assert Detector.load(models / "plate.procon", device="cpu").config.image_size == (42, 168)
    again = fit_parts(ThisProcess("cpu"), config, find_parts(folder), models, ignore)
    assert not any(one.fresh for one in again), "the shape is chosen again, and is the same"
    whole, _ = fit_family(ThisProcess("cpu"), config, sorted(good_folder.iterdir()), ignore, shards=2)
    assert whole.config.image_size == (84, 70)
    flags = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "auto", "--set", "layers=-1,-3"]
    flags += ["--set", "patch_budget=36", "--coreset-ratio", 0.3, "--banks", 1, "--set", "num_neighbors=3"]
    code, out, err = run("fit", folder, "-o", tmp_path / "each", "--each", *flags)
    assert code == 0 and "plate.procon (5 images at 168 x 42 pixels)" in out, err
    code, _, err = run("fit", good_folder, "-o", tmp_path / "one.procon", "--shards", 2, *flags)
    assert code == 0 and "input of 70 x 84 pixels, 5 x 6 patches, chosen from the proportions" in err


def test_models_of_the_same_images_and_settings_are_left_alone(tiny_backbone: Path, data: Path, tmp_path: Path) -> None:
    config, folder, models = tiny_config(tiny_backbone), make_dataset(tmp_path / "parts"), tmp_path / "models"

    def fresh(**changes: Any) -> list[bool]:
        chosen = tiny_config(tiny_backbone, **changes)
        return [one.fresh for one in fit_parts(ThisProcess("cpu"), chosen, find_parts(folder), models, ignore)]

    assert fresh() == [True, True, True]
    assert fresh() == [False, False, False]
    Image.fromarray(part_pixels(77)).save(folder / "lid/train/good/000.png")
    (models / "plate.procon").write_bytes(b"torn")
    assert fresh() == [True, True, False]
    assert fresh(banks=1) == [True, True, True]
    assert Detector.load(models / "tube.procon", device="cpu").config.banks == 1 != config.banks


def test_fit_each_on_the_command_line(data: Path, tiny_backbone: Path, tmp_path: Path, run: Cli) -> None:
    folder = make_dataset(tmp_path / "parts")
    (folder / "plate/train/good/002.png").write_bytes(b"nothing")
    chosen = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "70", "--set", "layers=-1"]
    code, out, err = run("fit", folder, "--each", "-o", tmp_path / "models", *chosen)
    assert code == 2
    assert "error: plate: 1 image cannot be used" in err
    assert "2 of 3 parts have a model" in out and "lid.procon (5 images)" in out
    code, out, err = run("fit", folder, "--each", "-o", tmp_path / "models", *chosen, "--skip-bad")
    assert code == 0, err
    assert "up to date:" in out and "plate.procon (4 images)" in out
    assert "must be a folder for the models" in run("fit", folder, "--each", *chosen)[2]
    assert run("fit", folder, "--each", "--suspects", "list", "-o", tmp_path / "models", *chosen)[0] == 2
    assert "many parts (--each) or one in shards" in run("fit", folder / "lid", "--ray", "local", *chosen)[2]
    assert (
        "holds the good images of one part"
        in run("fit", folder / "lid", "--each", "-o", tmp_path / "other", *chosen)[2]
    )


# ------------------------------------------------------------------------------------------------------ one huge family


def sharded_k_center(points: torch.Tensor, size: int, seed: int, shards: int) -> torch.Tensor:
    """Both steps of a sharded fit on points [N, d] in one place: rows, int64 [size]."""
    groups = torch.arange(len(points)).chunk(shards)
    union = torch.cat([rows[pick_centers(points[rows], size, [seed])[0][0]] for rows in groups])
    return union[pick_centers(points[union], size, [seed])[0][0]]


def radius(points: torch.Tensor, centers: torch.Tensor) -> float:
    return float(torch.cdist(points.double(), centers.double()).amin(dim=1).max())


@given(seed=st.integers(0, 10_000), shards=st.integers(1, 4), size=st.integers(1, 4), wide=st.booleans())
@settings(max_examples=60, deadline=None)
def test_k_center_of_k_centers_is_within_four_times_the_best(seed: int, shards: int, size: int, wide: bool) -> None:
    """Against every choice of centres, on sets small enough to try them all."""
    random = np.random.default_rng(seed)
    clusters = random.normal(0, 10.0 if wide else 1.0, (4, 2))
    points = torch.from_numpy(clusters[random.integers(0, 4, 12)] + random.normal(0, 1, (12, 2))).float()
    picks = sharded_k_center(points, size, seed, shards)
    assert len(set(picks.tolist())) == size
    best = min(radius(points, points[list(chosen)]) for chosen in itertools.combinations(range(12), size))
    assert radius(points, points[picks]) <= 4 * best * (1 + 1e-6)


def test_the_radius_is_that_of_the_points() -> None:
    points = torch.randn(300, 5, generator=torch.Generator().manual_seed(1))
    rows, found = pick_centers(points, 20, [1, 2])
    assert found == pytest.approx(max(radius(points, points[bank]) for bank in rows), rel=1e-6)
    rows, found = pick_centers(points[:10], 20, [1])
    assert sorted(rows[0].tolist()) == list(range(10)) and found == 0.0


def test_one_shard_of_a_family_selects_as_one_machine_does() -> None:
    points = torch.randn(200, 4, generator=torch.Generator().manual_seed(2))
    exact = select_anchors(to_grid(points), 15, (3,), "k-center")[0]
    assert set(sharded_k_center(points, 15, 3, 1).tolist()) == set(exact.tolist())


def test_a_family_is_fitted_in_shards_and_calibrated_as_by_one(tiny_backbone: Path, good_folder: Path) -> None:
    config = tiny_config(tiny_backbone, coreset_ratio=0.1)
    images = sorted(good_folder.iterdir())
    whole, _ = fit_family(ThisProcess("cpu"), config, images, ignore, shards=1)
    cut_up, coverage = fit_family(ThisProcess("cpu"), config, images, ignore, shards=3)
    for fitted in (whole, cut_up):
        memory = fitted.memory
        assert memory is not None and memory.names == tuple(map(str, images))
        for index, layer in enumerate(memory.layers):
            assert layer.banks.shape == (2, 20)
            ((_, pixels),) = fitted.reader.extractor.batches([open_image(images[3])])
            mine = layer.origin // memory.patches == 3  # an anchor is the patch it says it is
            assert torch.equal(
                layer.anchors[mine],
                fitted.reader.extractor.features(pixels)[index][0][layer.origin[mine] % memory.patches],
            )
        assert fitted.calibration is not None and len(fitted.calibration.scores) == 8
        again = fitted.calibration.scores
        assert fitted.calibrate().calibration.scores == again  # type: ignore[union-attr]
    assert len(coverage) == 2 and all(1 <= one.factor <= 4 for one in coverage)
    assert cut_up.predict(part_pixels(900, defect=True)).is_anomalous


def test_what_shards_cannot_do_is_refused(tiny_backbone: Path, good_folder: Path) -> None:
    images = sorted(good_folder.iterdir())
    for changes, shards, message in (
        ({"coreset_ratio": 0.3}, 4, "no fewer than all 200 patches"),
        ({}, 9, "from 1 to the number of images 8"),
        ({"normalization": "train"}, 2, "normalization must be 'none' or 'robust' with shards"),
        ({"coreset": "random"}, 2, "coreset must be 'k-center' with shards, got 'random'"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_family(ThisProcess("cpu"), tiny_config(tiny_backbone, **changes), images, ignore, shards=shards)


def test_fit_in_shards_on_the_command_line(good_folder: Path, tiny_backbone: Path, tmp_path: Path, run: Cli) -> None:
    chosen = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "70", "--set", "layers=-1"]
    model = tmp_path / "family.procon"
    code, out, err = run("fit", good_folder, "--shards", "2", "-o", model, *chosen, "--coreset-ratio", "0.1")
    assert code == 0, err
    assert "layer -1: no patch is farther from a bank than" in out and "times the best" in out
    assert run("predict", model, good_folder)[0] == 0
    assert run("fit", good_folder, "--shards", "2", "--suspects", "list", "-o", model, *chosen)[0] == 2
