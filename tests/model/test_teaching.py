"""Lessons: defects that a person marks, what they change and what they leave alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon import ConfigError, Detector, ImageError
from procon.method.lessons import CLEAR, MOST_GAIN, REACH, gain_of, marked_distances
from procon.model.metadata import read_metadata
from procon.model.teaching import Price, mark_region
from tests.conftest import part_pixels, tiny_config, with_model

BOX = (30, 40, 50, 60)  # of the defect of part_pixels


def copy_of(detector: Detector) -> Detector:
    """A detector that a test may change."""
    return with_model(detector)


def test_the_gain_is_one_up_to_the_reach_and_rises_to_its_limit() -> None:
    normal = torch.ones(5)
    ratios = torch.tensor([2.0, REACH, (REACH + CLEAR) / 2, CLEAR, 0.0])
    expected = torch.tensor([1.0, 1.0, (1 + MOST_GAIN) / 2, MOST_GAIN, MOST_GAIN])
    torch.testing.assert_close(gain_of(ratios, normal), expected)
    assert (gain_of(ratios[:2], normal[:2]) == 1).all()  # to the last bit
    assert float(gain_of(torch.zeros(1), torch.zeros(1))) <= MOST_GAIN  # equal to a normal anchor


def test_distances_to_marked_patches_are_those_of_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    patches = [torch.randn(7, 6, generator=generator) for _ in range(2)]
    marked = [torch.randn(3, 6, generator=generator) for _ in range(2)]
    expected = np.array(
        [
            [
                np.mean([np.linalg.norm(p[i].numpy() - m[j].numpy()) for p, m in zip(patches, marked, strict=True)])
                for j in range(3)
            ]
            for i in range(7)
        ]
    )
    np.testing.assert_allclose(marked_distances(patches, marked).numpy(), expected, rtol=1e-6)


def test_a_lesson_raises_its_defect_and_leaves_good_parts_alone(detector: Detector) -> None:
    taught = copy_of(detector)
    defect, good = part_pixels(100, defect=True), [part_pixels(seed) for seed in range(200, 204)]
    proposal = taught.teach(defect, BOX)
    assert taught.predict(part_pixels(101, defect=True)).score > detector.predict(part_pixels(101, defect=True)).score
    assert proposal.score[1] > proposal.score[0] == detector.predict(defect).score
    assert proposal.score[1] == taught.predict(defect).score
    for image in good:  # every score and every pixel, to the last bit
        before, after = detector.predict(image), taught.predict(image)
        assert (before.score, before.p_value) == (after.score, after.p_value)
        np.testing.assert_array_equal(before.heatmap, after.heatmap)
    assert taught.calibration == detector.calibration
    assert taught.memory is detector.memory


def test_the_price_is_what_a_lesson_does_to_each_training_image(detector: Detector) -> None:
    proposal = detector.propose_lesson(part_pixels(100, defect=True), BOX)
    price = proposal.price
    assert price is not None and detector.calibration is not None
    np.testing.assert_allclose(price.before, detector.calibration.scores, rtol=1e-6)
    assert price.after == price.before and price.added == () and not any(price.boxes)
    assert price.describe().startswith("none of 8 training images more would be flagged")
    assert detector.model.lessons == ()


def test_patches_that_training_images_have_too_are_left_out(detector: Detector) -> None:
    pixels = part_pixels(0)  # a training image, with a small mark
    pixels[40:52, 30:42] = (150, 110, 100)
    whole = detector.propose_lesson(pixels, (0, 0, 80, 96))
    assert 0 < whole.left_out < 25
    assert len(whole.lesson.patches) + whole.left_out == 25
    with pytest.raises(ConfigError, match="must look different from good parts"):
        detector.propose_lesson(part_pixels(0), (0, 0, 30, 30))


def test_a_price_over_the_rate_is_refused_unless_forced(detector: Detector) -> None:
    taught = copy_of(detector)
    proposal = taught.propose_lesson(part_pixels(100, defect=True), BOX)
    assert proposal.price is not None
    dear = replace(proposal, price=replace(proposal.price, after=tuple(score * 9 for score in proposal.price.after)))
    assert dear.price is not None and dear.price.is_too_high
    with pytest.raises(ConfigError, match=r"must not raise false alarms above 1\.0%, got: 8 of 8 training images more"):
        taught.accept_lesson(dear)
    assert not taught.model.lessons
    taught.accept_lesson(dear, force=True)
    assert [lesson.name for lesson in taught.model.lessons] == ["lesson 1"]
    with pytest.raises(ConfigError, match="changed since the lesson was proposed"):
        taught.accept_lesson(proposal)


def test_the_price_counts_only_images_that_the_lesson_flags() -> None:
    price = Price(("a", "b", "c"), (1.0, 3.0, 1.0), (2.5, 3.5, 1.0), (None, None, None), 2.0, 0.5)
    assert price.flagged_before == (1,) and price.added == (0,) and price.is_too_high
    assert not replace(price, rate=0.7).is_too_high


def test_without_training_images_the_price_must_be_forced(detector: Detector, tmp_path: Path) -> None:
    gone = copy_of(detector)
    images = tuple(replace(image, name=f"/gone/{image.name}") for image in detector.model.memory.images)
    gone.model = replace(detector.model, memory=replace(detector.model.memory, images=images))
    with pytest.raises(ImageError, match="what the lesson costs cannot be told: 8 of 8 training images cannot be read"):
        gone.teach(part_pixels(100, defect=True), BOX)
    proposal = gone.teach(part_pixels(100, defect=True), BOX, force=True)
    assert proposal.price is None and len(gone.model.lessons) == 1


def test_lessons_travel_with_the_file_and_are_forgotten_by_name(detector: Detector, tmp_path: Path) -> None:
    taught = copy_of(detector)
    Image.fromarray(part_pixels(100, defect=True)).save(tmp_path / "missed.png")
    taught.teach(tmp_path / "missed.png", BOX)
    taught.teach(part_pixels(102, defect=True), BOX, name="red square")
    path = taught.save(tmp_path / "taught.procon")
    loaded = Detector.load(path, device="cpu")
    assert [lesson.to_dict() for lesson in loaded.model.lessons] == [x.to_dict() for x in taught.model.lessons]
    assert loaded.model.lessons[0].image.thumbnail
    image = part_pixels(101, defect=True)
    assert loaded.predict(image).score == taught.predict(image).score
    assert [change.what for change in loaded.history] == ["taught", "taught"]
    assert any("red square" in line for line in loaded.describe())
    loaded.forget(["lesson 1", "red square"])
    assert loaded.model.lessons == () and loaded.history[-1].note == "lesson 1, red square"
    assert loaded.predict(image).score == detector.predict(image).score
    loaded.save(path)
    assert "lessons" not in read_metadata(path) and read_metadata(path)["format"] == 1


def test_lessons_of_both_models_are_merged(detector: Detector, tmp_path: Path, tiny_backbone: Path) -> None:
    mine, other = copy_of(detector), Detector(tiny_config(tiny_backbone), device="cpu")
    other.fit([part_pixels(seed) for seed in range(300, 308)])
    mine.teach(part_pixels(100, defect=True), BOX)
    other.teach(part_pixels(101, defect=True), BOX)
    mine.merge(other)
    assert [lesson.name for lesson in mine.model.lessons] == ["lesson 1", "lesson 2"]
    assert mine.explain(part_pixels(101, defect=True), xy=(40, 50)).lesson is not None


def test_an_explanation_names_the_lesson_that_decided(detector: Detector) -> None:
    taught = copy_of(detector)
    taught.teach(part_pixels(100, defect=True), BOX)
    explanation = taught.explain(part_pixels(101, defect=True), xy=(40, 50))
    assert explanation.lesson is not None
    assert explanation.lesson.lesson == "lesson 1" and explanation.lesson.gain > 1
    assert explanation.lesson.distance < REACH * explanation.lesson.normal_distance
    plain = detector.explain(part_pixels(101, defect=True), xy=(40, 50))
    assert plain.lesson is None and plain.score == explanation.score
    assert taught.explain(part_pixels(200), xy=(40, 50)).lesson is None
    assert explanation.to_dict()["lesson"]["lesson"] == "lesson 1"


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ((30, 40, 50), "a box must be four numbers"),
        ((30, 40, 30, 60), "must lie in the image of 80 x 96 pixels"),
        ((30, 40, 81, 60), "must lie in the image of 80 x 96 pixels"),
        (np.zeros((96, 80), bool), "the mask marks nothing"),
        (np.ones((96, 81), bool), "the mask must have the size of the image, 80 x 96 pixels, got 81 x 96"),
    ],
)
def test_a_wrong_region_is_refused(region: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mark_region(region, (96, 80))


def test_a_mask_marks_the_patches_that_it_covers(detector: Detector) -> None:
    mask = np.zeros((96, 80), bool)
    mask[40:60, 30:50] = True
    by_mask = detector.propose_lesson(part_pixels(100, defect=True), mask)
    by_box = detector.propose_lesson(part_pixels(100, defect=True), BOX)
    assert by_mask.lesson.to_dict() == by_box.lesson.to_dict()
