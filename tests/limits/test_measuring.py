"""Rendered defects measured by a detector: exact, repeatable, resumed, kept with the model and dropped by edits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from procon import ConfigError, Detector, ImageError
from procon.limits import measuring
from procon.limits.kinds import RENDERED_KINDS, Painted
from procon.limits.measuring import FEWEST_PASSES, PASSES, SECONDS, choose_count
from procon.limits.plan import Host, choose_sizes, paint_again, place_defect
from procon.limits.report import STAND_IN
from procon.model.renderings import Rendering, RenderingPlan
from procon.vision.images import Picture, open_image
from tests.conftest import part_pixels, tiny_config, with_model

SIZES = (3, 6, 12)


@pytest.fixture
def separate(tmp_path: Path) -> Path:
    folder = tmp_path / "separate"
    folder.mkdir()
    for seed in range(20, 24):
        Image.fromarray(part_pixels(seed)).save(folder / f"{seed:03d}.png")
    return folder


def test_separate_good_images_are_scored_as_in_predict(detector: Detector, separate: Path) -> None:
    own = with_model(detector)
    limits = own.limits(separate, count=12, sizes=SIZES)
    renderings = limits.renderings
    assert renderings.plan.held_out and len(renderings.rows) == 12
    for host in renderings.hosts:
        assert host.score == own.predict(host.name).score
    scored = 0
    for number, row in enumerate(renderings.rows):
        if row.score is not None:
            painted = paint_again(renderings.plan, number, row, open_image(renderings.hosts[row.host].name))
            assert painted is not None
            assert row.score == own.predict(painted.pixels).score
            scored += 1
    assert scored >= 10


@pytest.mark.parametrize(
    "settings", [{}, {"score_relative_to": "anchors", "map_offset": 1.0}, {"normalization": "train"}]
)
def test_training_images_are_scored_without_their_own_anchors(
    tiny_backbone: Path, good_folder: Path, settings: dict[str, str]
) -> None:
    own = Detector(tiny_config(tiny_backbone, **settings), device="cpu").fit(good_folder)
    limits = own.limits(count=6, sizes=SIZES)
    assert not limits.renderings.plan.held_out
    assert own.calibration is not None
    assert tuple(host.score for host in limits.renderings.hosts) == own.calibration.scores


def test_a_copy_of_a_training_image_is_scored_as_if_new(detector: Detector, good_folder: Path) -> None:
    """A defect far below what a patch shows leaves the leave-one-out score, not the lower one of predict."""
    own = with_model(detector)
    limits = own.limits(count=15, sizes=(3,))
    faint = [row for row in limits.renderings.rows if row.contrast == 10]
    assert len(faint) == 5
    for row in faint:
        if row.score is None:
            continue
        host = limits.renderings.hosts[row.host]
        as_known = own.predict(host.name).score
        assert abs(row.score - host.score) < abs(row.score - as_known)


def test_the_same_seed_gives_the_same_defects_and_scores(detector: Detector) -> None:
    first, second = (with_model(detector).limits(count=10, sizes=SIZES, seed=3) for _ in range(2))
    assert first.renderings == second.renderings
    other = with_model(detector).limits(count=10, sizes=SIZES, seed=4)
    assert other.renderings.rows != first.renderings.rows


def test_interrupted_work_goes_on_where_it_stopped(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_model(detector).limits(count=12, sizes=SIZES).renderings
    own = with_model(detector)
    placed: list[int] = []

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "rendering defects" and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own.limits(count=12, sizes=SIZES, progress=stop)
    assert own.model.renderings is not None
    assert own.model.renderings.rows == whole.rows[:5]

    def place(plan: RenderingPlan, number: int, host: Host, picture: Picture) -> tuple[Rendering, Painted | None]:
        placed.append(number)
        return place_defect(plan, number, host, picture)

    monkeypatch.setattr(measuring, "place_defect", place)
    assert own.limits(count=12, sizes=SIZES).renderings == whole
    assert sorted(placed) == list(range(5, 12))


def test_scores_are_kept_with_the_model_until_an_edit(detector: Detector, tmp_path: Path, separate: Path) -> None:
    own = with_model(detector)
    renderings = own.limits(count=8, sizes=SIZES).renderings
    saved = own.save(tmp_path / "part.procon")
    assert Detector.load(saved, device="cpu").model.renderings == renderings
    own.set_threshold(1.0)
    own.calibrate(false_alarm_rate=0.05)
    assert own.model.renderings == renderings  # scores do not depend on the threshold
    forgotten, added = with_model(own), with_model(own)
    forgotten.forget(own.model.memory.names[0])
    added.partial_fit(separate)
    assert forgotten.model.renderings is None and added.model.renderings is None


def test_a_lesson_drops_them_and_counts_when_they_are_measured_again(detector: Detector) -> None:
    own = with_model(detector)
    own.limits(count=4, sizes=SIZES)
    own.teach(part_pixels(100, defect=True), (30, 40, 50, 60), name="square")
    assert own.model.renderings is None
    taught = own.limits(count=4, sizes=SIZES).renderings
    own.forget("square")
    assert own.model.renderings is None
    plain = own.limits(count=4, sizes=SIZES).renderings
    pairs = [(a.score, b.score) for a, b in zip(taught.rows, plain.rows, strict=True) if a.score and b.score]
    assert pairs and all(with_lesson >= without for with_lesson, without in pairs)


def test_large_clear_defects_are_found_and_the_rates_rise(detector: Detector) -> None:
    limits = with_model(detector).limits(count=60, sizes=(3, 30))
    shares = [offer.visibility.counted.share for offer in limits.by_rate()]
    assert len(shares) > 3 and shares[-1] > 0
    for kind in RENDERED_KINDS:
        assert limits.describe_kind(kind).startswith(f"{kind}: ")
    assert limits.describe()[-1] == STAND_IN
    document = limits.to_dict()
    assert document["stand_in"] == STAND_IN
    assert sum(cell["total"] for cell in document["cells"]) == len(limits.judged())


def test_a_region_of_interest_holds_every_defect(tiny_backbone: Path, good_folder: Path) -> None:
    roi = [(20, 28), (60, 28), (60, 70), (20, 70)]  # corners, in pixels of the 80 x 96 images
    own = Detector(tiny_config(tiny_backbone), device="cpu").fit(good_folder, roi=roi)
    plan_rows = own.limits(count=20, sizes=(3, 6)).renderings
    assert not plan_rows.plan.whole_image
    for row in plan_rows.rows:  # a patch counts if half of it lies inside, and has 16 x 19 pixels
        assert 20 - 8 <= row.center[0] < 60 + 8 and 28 - 10 <= row.center[1] < 70 + 10


def test_the_cost_is_told_before_the_work(detector: Detector) -> None:
    events: list[str] = []

    def on_progress(stage: str, _done: int, _total: int) -> None:
        events.append(stage)

    with_model(detector).limits(count=3, sizes=SIZES, progress=on_progress, say=events.append)
    assert events[0].startswith("3 rendered defects on 8 good images: about ")
    assert "rendering defects" in events[1:]


def test_the_default_number_fits_the_time() -> None:
    cells = 90
    assert choose_count(cells, 0, 0.01) == PASSES * cells
    assert choose_count(cells, 80, 1.0) == cells * int((SECONDS - 80) / cells)
    assert choose_count(cells, 10_000, 1.0) == FEWEST_PASSES * cells


def test_sizes_go_from_three_pixels_to_a_tenth_of_the_part() -> None:
    assert choose_sizes(400) == (3, 5, 8, 14, 24, 40)
    assert choose_sizes(30) == (3, 4, 5, 6)
    assert all(size >= 3 for size in choose_sizes(14))


def bad_calls(detector: Detector, good_folder: Path) -> Iterator[tuple[str, type[Exception], dict[str, object]]]:
    yield "sizes must be from 3 pixels", ConfigError, {"sizes": (2, 5), "count": 1}
    yield "sizes must be from 3 pixels", ConfigError, {"sizes": (3, 500), "count": 1}
    yield "the model has not seen", ImageError, {"good": good_folder}


def test_what_cannot_be_measured_is_refused(detector: Detector, good_folder: Path) -> None:
    for message, error, arguments in bad_calls(detector, good_folder):
        with pytest.raises(error, match=message):
            with_model(detector).limits(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limits need a threshold"):
        with_model(detector, calibration=None).limits()


def test_training_images_that_are_gone_are_named_with_the_remedy(tiny_backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    for seed in range(6):
        Image.fromarray(part_pixels(seed)).save(folder / f"{seed}.png")
    own = Detector(tiny_config(tiny_backbone), device="cpu").fit(folder)
    (folder / "3.png").unlink()
    with pytest.raises(ImageError, match=r"3\.png.*pass separate good images"):
        own.limits(count=1)
    few = Detector(tiny_config(tiny_backbone), device="cpu").fit([part_pixels(0)])
    with pytest.raises(ConfigError, match="too few for leave-one-out; pass separate good images"):
        few.limits(count=1)


def test_images_in_memory_carry_defects_too(tiny_backbone: Path) -> None:
    own = Detector(tiny_config(tiny_backbone), device="cpu").fit([part_pixels(seed) for seed in range(6)])
    limits = own.limits([part_pixels(seed) for seed in (30, 31)], count=4, sizes=SIZES)
    names = [host.name for host in limits.renderings.hosts]
    assert len(set(names)) == 2 and not set(names) & set(own.model.memory.names)
    assert np.isfinite([row.score for row in limits.renderings.rows if row.score is not None]).all()


def test_kinds_are_those_asked_for_and_the_rest_is_named(detector: Detector, separate: Path) -> None:
    fresh = with_model(detector)
    usual = fresh.limits(separate, count=9, sizes=(10,))
    assert usual.renderings.plan.kinds == RENDERED_KINDS and "dent" not in RENDERED_KINDS
    assert any(line.startswith("dents are not rendered") for line in usual.describe())
    asked = fresh.limits(separate, count=9, sizes=(10,), kinds=("dent", "scratch"))
    assert asked.renderings.plan.kinds == ("scratch", "dent")
    assert {row.kind for row in asked.renderings.rows} == {"scratch", "dent"}
    assert not any(line.startswith("dents are not rendered") for line in asked.describe())
    with pytest.raises(ConfigError, match="kinds must be among scratch, dent"):
        fresh.limits(separate, count=9, kinds=("crack",))
